"""Multilayer perceptrons, made from a seed.

numpy runs them on the memory of their tensors.

At the batch sizes of a few environments torch's dispatch costs several times the arithmetic
(``benchmarks/policy_inference.py``). Legend: B batch, I inputs, U outputs of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rlinf_lab.errors import UnknownNameError
from rlinf_lab.policies.views import HostViews


def _relu(x: NDArray) -> NDArray:
    return np.maximum(x, 0)


def _elu(x: NDArray) -> NDArray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def _silu(x: NDArray) -> NDArray:
    return x * (0.5 * (1.0 + np.tanh(0.5 * x)))  # the logistic function, without an overflow


ACTIVATIONS: dict[str, tuple[type[nn.Module], Callable[[NDArray], NDArray]]] = {
    "tanh": (nn.Tanh, np.tanh),
    "relu": (nn.ReLU, _relu),
    "elu": (nn.ELU, _elu),
    "silu": (nn.SiLU, _silu),
}


def blank(kind: type[nn.Module], *sizes: int, **options: Any) -> Any:
    """A layer whose parameters are not initialised yet: the default draws from the global state.

    As `torch.nn.utils.skip_init`, without the import of sympy (a second) that its `to_empty` makes.
    """
    layer = kind(*sizes, device="meta", **options)
    for name, parameter in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, nn.Parameter(torch.empty(parameter.shape)))
    return layer


def mlp(sizes: Sequence[int], activation: str, last_gain: float, generator: torch.Generator) -> nn.Sequential:
    """Linear layers of ``sizes`` (inputs first) with an activation between them. Orthogonal weights, the last ones
    scaled by ``last_gain``.
    """
    if activation not in ACTIVATIONS:
        raise UnknownNameError.of("activation", activation, ACTIVATIONS)
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        last = index == len(sizes) - 2
        linear = blank(nn.Linear, inputs, outputs)
        nn.init.orthogonal_(linear.weight, last_gain if last else math.sqrt(2.0), generator=generator)
        nn.init.zeros_(linear.bias)
        layers += [linear] if last else [linear, ACTIVATIONS[activation][0]()]
    return nn.Sequential(*layers)


class NumpyMLP:
    """An `mlp` without torch: ``NumpyMLP(net, "tanh")(x_BI)``, on the memory of the net's weights (`HostViews`)."""

    def __init__(self, net: nn.Sequential, activation: str) -> None:
        self._activation = ACTIVATIONS[activation][1]
        self._views = HostViews(
            *((layer, name) for layer in net if isinstance(layer, nn.Linear) for name in ("weight", "bias"))
        )

    def __call__(self, x_BI: NDArray) -> NDArray:
        x, views = x_BI, self._views()
        if not views:  # no layer at all
            return x
        for i in range(0, len(views) - 2, 2):
            x = self._activation(x @ views[i].T + views[i + 1])
        return x @ views[-2].T + views[-1]
