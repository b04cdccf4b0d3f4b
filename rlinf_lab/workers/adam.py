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
    _whole_step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))

    def __init__(self, parameters: Any, lr: float, eps: float) -> None:
        super().__init__(parameters, lr=lr, eps=eps, fused=True)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Move the parameters that have gradients.

        On a core that is torch's kernel alone: what torch does around it takes longer at the sizes of small policies.
        """
        group = self.param_groups[0]
        parameters = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in parameters]
        states = [self.state[p] for p in parameters]
        plain = all(type(g) is torch.Tensor and g.is_cpu and g.dtype == gradients[0].dtype for g in gradients)
        other = len(self.param_groups) > 1 or group["amsgrad"] or group["maximize"]  # as a loaded state may have it
        if other or not plain or not all(states):
            self._whole_step()  # the first one, which makes the state, too
            return
        first, second, count = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        if count:
            torch._foreach_add_(count, 1)
            beta1, beta2 = group["betas"]
            torch._fused_adam_(
                parameters, gradients, first, second, [], count, lr=group["lr"], beta1=beta1, beta2=beta2,
                weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
            )  # fmt: skip

    step.hooked = True  # type: ignore[attr-defined]  # else torch puts a mark for its profiler around

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


def copied(state: Any) -> Any:
    """A state of nested dicts and lists, its tensors in host memory. None of them is the same as there."""
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, list):
        return [copied(value) for value in state]
    return state.detach().to("cpu", copy=True) if isinstance(state, torch.Tensor) else state
