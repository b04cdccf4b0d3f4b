"""Numpy arrays over the memory of a module's tensors.

For arithmetic that is too small for torch's dispatch.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from torch import nn


class HostViews:
    """``HostViews((module, "weight"), ...)()`` are these tensors as numpy arrays. On a CPU they share the memory.

    An optimiser's step and `load_state_dict` change that memory in place. A move or sharding gives the module other
    memory, which is noticed by the addresses; the arrays keep the old memory alive, so no address is used twice. A
    copied or unpickled one looks at the copied module. On another device each call copies.
    """

    def __init__(self, *places: tuple[nn.Module, str]) -> None:
        # An attribute of a module takes five times as long as an entry of its dict.
        self._places: list[tuple[dict[str, Any], str]] = [
            (module._parameters if name in module._parameters else module._buffers, name) for module, name in places
        ]
        self._addresses: list[int] = []
        self._arrays: list[NDArray] = []

    def __call__(self) -> list[NDArray]:
        addresses = [tensors[name].data_ptr() for tensors, name in self._places]
        if addresses != self._addresses:
            tensors = [tensors[name].detach() for tensors, name in self._places]
            arrays: list[NDArray] = [tensor.cpu().numpy() for tensor in tensors]
            if any(tensor.device.type != "cpu" for tensor in tensors):
                return arrays
            self._arrays, self._addresses = arrays, addresses
        return self._arrays

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_addresses": [], "_arrays": []}
