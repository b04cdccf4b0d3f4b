"""Numpy arrays over the memory of a module's tensors.

For arithmetic that is too small for torch's dispatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
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


class StateViews:
    """``StateViews(module)()`` is what ``module.state_dict()`` has, as arrays on the module's own memory.

    `state_dict` and `load_state_dict` ask every part for each of its names, which for small nets takes several times as
    long as to copy them. None for a module that they do more with, and where its memory is not numpy's: not on a CPU,
    or of a type that numpy has not. The parts of the module stay the same from then on.
    """

    def __init__(self, module: nn.Module) -> None:
        state, parts = module.state_dict(), list(module.named_modules(remove_duplicate=False))
        places = [
            (f"{prefix}.{name}" if prefix else name, part, name)
            for prefix, part in parts
            for name, tensor in (*part._parameters.items(), *part._buffers.items())
            if tensor is not None and name not in part._non_persistent_buffers_set
        ]
        self._names = [key for key, _, _ in places]
        plain = all(_is_plain(part) for _, part in parts) and self._names == list(state)
        self._tensors = [(part._parameters if name in part._parameters else part._buffers, name) for _, part, name in places]
        self._views = HostViews(*((part, name) for _, part, name in places)) if plain else None

    def __call__(self) -> dict[str, NDArray] | None:
        if self._views is None or not all(_is_numpys(tensors[name]) for tensors, name in self._tensors):
            return None
        return dict(zip(self._names, self._views(), strict=True))

    def write(self, arrays: Mapping[str, NDArray]) -> bool:
        """Take these over, if names, shapes and types are the module's. Returns whether."""
        mine = self()
        if mine is None or mine.keys() != arrays.keys():
            return False
        if any(array.shape != arrays[key].shape or array.dtype != arrays[key].dtype for key, array in mine.items()):
            return False
        for key, array in mine.items():
            array[...] = arrays[key]
        return True


def _is_plain(part: nn.Module) -> bool:
    """Whether its state is its parameters and buffers, and loading it is to copy them."""
    names = ("state_dict", "_save_to_state_dict", "load_state_dict", "_load_from_state_dict", "get_extra_state", "set_extra_state")
    own = any(getattr(type(part), name) is not getattr(nn.Module, name) for name in names)
    hooks = (part._state_dict_hooks, part._state_dict_pre_hooks, part._load_state_dict_pre_hooks, part._load_state_dict_post_hooks)
    return not own and not any(hooks)


def _is_numpys(tensor: Any) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.is_cpu and tensor.dtype in _NUMPYS


_NUMPYS = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool})
