"""How a learner differentiates: at which precision, and whether through torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from rlinf_lab.errors import ConfigError, shown

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Around forward passes. `ConfigError` for a precision that is unknown."""
    dtype = PRECISIONS[checked(precision)]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def checked(precision: str) -> str:
    """``precision`` itself. `ConfigError` for one that is unknown."""
    if precision not in PRECISIONS:
        raise ConfigError(f"precision={shown(precision)}: {' or '.join(map(repr, PRECISIONS))}.")
    return precision


@contextmanager
def without_denormals() -> Iterator[None]:
    """Numbers nearer to zero than 1e-38 are zero within, in this thread.

    A core takes a hundred cycles for each.

    Adam's first moment of a unit that gets no gradients any more fades into them in 800 steps, and a step then takes
    eight times as long.
    """
    if not sys.float_info.min * _HALF:  # whoever called wants it
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


_HALF = 0.5  # by name: Python would work the product of two constants out when it compiles, not when it is asked


class Computing:
    """The call of a module as its learner wants it. ``compile``: through `torch.compile`, anew where it is another
    module.
    """

    def __init__(self, precision: str = "float32", compile: bool = False) -> None:
        self.precision, self.compile = checked(precision), compile
        self._of, self._compiled = 0, (lambda *_: None)

    @property
    def is_plain(self) -> bool:
        """In single precision, nothing compiled."""
        return PRECISIONS[self.precision] is None and not self.compile

    def __call__(self, module: nn.Module, device: torch.device) -> Callable[..., tuple[torch.Tensor, ...]]:
        """``module``'s call, which gives a tuple of tensors. What it computes in half precision comes out in single."""
        forward = self._forward(module)
        if PRECISIONS[self.precision] is None:
            return forward

        def half(*given: Any) -> tuple[torch.Tensor, ...]:
            with autocast(self.precision, device):
                found = forward(*given)
            return tuple(tensor.float() for tensor in found)

        return half

    def _forward(self, module: nn.Module) -> Callable[..., Any]:
        if not self.compile:
            return module
        if self._of != id(module):
            compiled = torch.compile(module)
            # A function: a worker's modules are what is switched, and this is one of them again.
            self._of, self._compiled = id(module), (lambda *given: compiled(*given))
        return self._compiled
