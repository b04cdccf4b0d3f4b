"""Density and entropy of a Gaussian with a diagonal covariance. Legend: B batch, A action.

Written out instead of `torch.distributions`, whose argument checks and allocations cost more than the arithmetic at the sizes of a
control policy; equal to it in a test.
"""

from __future__ import annotations

import math

from torch import Tensor

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def log_prob(action_BA: Tensor, mean_BA: Tensor, log_std_A: Tensor) -> Tensor:
    """Log-density of each action, in nats, shape B: summed over the action dimensions."""
    z_BA = (action_BA - mean_BA) * (-log_std_A).exp()
    return (-0.5 * z_BA.square() - log_std_A - _LOG_SQRT_2PI).sum(-1)


def entropy(log_std_A: Tensor) -> Tensor:
    """Differential entropy in nats, a scalar: it does not depend on the mean."""
    return (log_std_A + 0.5 + _LOG_SQRT_2PI).sum(-1)
