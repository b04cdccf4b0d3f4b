"""All parameters of some modules as one vector. An optimiser's step is one call however many layers there are."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters(nn.Module):
    """``vector``: the trainable parameters of ``modules``, one after another; their gradients likewise.

    The modules' own parameters become views of it, which `load_state_dict` and a move to another device keep.
    ``gradients=False``: of a net that only follows another one.
    """

    def __init__(self, *modules: nn.Module, gradients: bool = True) -> None:
        super().__init__()
        parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        with torch.no_grad():
            self.vector = nn.Parameter(torch.cat([p.reshape(-1) for p in parameters]), requires_grad=gradients)
            if gradients:
                self.vector.grad = torch.zeros_like(self.vector)
            start = 0
            for p in parameters:
                here = slice(start, start := start + p.numel())
                p.data = self.vector.data[here].view(p.shape)
                p.grad = self.gradient[here].view(p.shape) if gradients else None
                p.requires_grad_(gradients)
        self.views = tuple(parameters)
        """the modules' own parameters"""

    @property
    def gradient(self) -> Tensor:
        """Of the whole vector; `backward` adds to it."""
        assert self.vector.grad is not None
        return self.vector.grad

    def extra_repr(self) -> str:
        return f"{self.vector.numel()} numbers"
