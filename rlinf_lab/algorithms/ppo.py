"""The clipped surrogate loss of PPO. Legend: B batch.

Source: Schulman et al., Proximal Policy Optimization Algorithms (arXiv 1707.06347), equations 7 and 9. The value loss is not
clipped unless asked for: Andrychowicz et al. (arXiv 2006.05990, section 3.2) found that it hurts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PPOLoss:
    """One loss and what it is made of; every field is a scalar tensor, only ``total`` carries a gradient."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    """estimate of KL(behaviour || current) in nats: mean of (ratio - 1) - log ratio, never negative"""
    clip_fraction: Tensor
    """share of the samples whose ratio left [1 - clip, 1 + clip]"""


def ppo_loss(
    log_prob_B: Tensor,
    old_log_prob_B: Tensor,
    advantage_B: Tensor,
    value_B: Tensor,
    return_B: Tensor,
    entropy: Tensor,
    *,
    clip: float = 0.2,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.0,
    old_value_B: Tensor | None = None,
    value_clip: float | None = None,
) -> PPOLoss:
    """``policy + value_coefficient · value − entropy_coefficient · entropy``.

    ``policy = −mean(min(r·A, clip(r, 1−clip, 1+clip)·A))`` with ``r = exp(log_prob − old_log_prob)``;
    ``value = ½·mean((value − return)²)``. With ``value_clip`` the value may move by so much from ``old_value_B`` only.
    Advantages are taken as they come: normalise them before. ``entropy`` is averaged.
    """
    log_ratio_B = log_prob_B - old_log_prob_B
    ratio_B = log_ratio_B.exp()
    clipped_B = ratio_B.clamp(1.0 - clip, 1.0 + clip)
    policy = -torch.minimum(ratio_B * advantage_B, clipped_B * advantage_B).mean()
    value = _value_loss(value_B, return_B, old_value_B, value_clip)
    mean_entropy = entropy.mean()
    total = policy + value_coefficient * value - entropy_coefficient * mean_entropy
    with torch.no_grad():
        kl = (ratio_B - 1.0 - log_ratio_B).mean()
        clip_fraction = ((ratio_B - 1.0).abs() > clip).float().mean()
    return PPOLoss(total, policy.detach(), value.detach(), mean_entropy.detach(), kl, clip_fraction)


def _value_loss(value_B: Tensor, return_B: Tensor, old_value_B: Tensor | None, value_clip: float | None) -> Tensor:
    error_B = (value_B - return_B).square()
    if value_clip is not None:
        if old_value_B is None:
            raise ValueError(f"value_clip={value_clip} needs old_value_B, the values before the update. Next: pass them.")
        near_B = old_value_B + (value_B - old_value_B).clamp(-value_clip, value_clip)
        error_B = torch.maximum(error_B, (near_B - return_B).square())
    return 0.5 * error_B.mean()
