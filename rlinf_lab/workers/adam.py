"""torch's Adam with less around it.

No compiler to be imported, and few calls a step.

The first optimiser of a process makes torch import ``torch._dynamo`` (a second, and sympy) to mark methods as not to be
compiled. Nothing compiles them here, so what those marks wrap is called instead. The mathematics and the state are
torch's: states of both can be loaded by the other.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn


class Adam(torch.optim.Adam):
    """Adam (Kingma and Ba, arXiv 1412.6980), one kernel for all parameters of a step."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))

    def __init__(self, parameters: Any, lr: float, eps: float) -> None:
        super().__init__(parameters, lr=lr, eps=eps, fused=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, which torch does with a mark for its profiler around."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def clip(self, max_norm: float) -> None:
        """Cut the gradient of all parameters to a Euclidean norm, as `torch.nn.utils.clip_grad_norm_` does."""
        if max_norm == float("inf"):
            return
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in parameters]
        if any(type(g) is not torch.Tensor for g in gradients):  # sharded: the norm is that of all parts
            nn.utils.clip_grad_norm_(parameters, max_norm)
            return
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
