"""The clipped surrogate of PPO and what came of it.

One loss serves steps of environments and tokens of responses.

Source: Schulman et al., Proximal Policy Optimization Algorithms (arXiv 1707.06347), equations 7 and 9. The value loss
is not clipped unless asked for: Andrychowicz et al. (arXiv 2006.05990, section 3.2) found that it hurts. Legend: B batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rlinf_lab.algorithms.aggregation import aggregate
from rlinf_lab.algorithms.importance import truncated_importance
from rlinf_lab.algorithms.kl import kl_estimate
from rlinf_lab.algorithms.registry import loss
from rlinf_lab.errors import ConfigError, shown


@dataclass(frozen=True)
class PolicyLoss:
    """A loss of the policy and what tells about it. Every field is a scalar tensor, only ``total`` has a gradient."""

    total: Tensor
    kl: Tensor
    """estimate of KL(old || current) in nats: mean of (ratio - 1) - log ratio, never negative"""
    clip_fraction: Tensor
    """share of the samples whose ratio left [1 - clip, 1 + clip_high]"""
    reference_kl: Tensor
    """mean estimate of KL(current || reference) in nats; 0 without a reference"""


@dataclass(frozen=True)
class PPOLoss:
    """One loss and what it is made of. Every field is a scalar tensor, only ``total`` carries a gradient."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    kl: Tensor
    """estimate of KL(behaviour || current) in nats: mean of (ratio - 1) - log ratio, never negative"""
    clip_fraction: Tensor
    """share of the samples whose ratio left [1 - clip, 1 + clip]"""


@loss("ppo")
def policy_loss(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor | None = None,
    *,
    clip: float | None = 0.2,
    clip_high: float | None = None,
    dual_clip: float | None = None,
    weight: Tensor | None = None,
    reference_log_prob: Tensor | None = None,
    kl_coefficient: float = 0.0,
    kl_estimator: str = "k3",
    aggregation: str = "token_mean",
    constant: float | None = None,
    denominator: float | Tensor | None = None,
) -> PolicyLoss:
    """``−aggregate(weight · min(r·A, clip(r, 1−clip, 1+clip_high)·A)) + kl_coefficient · KL(current || reference)``.

    ``r = exp(log_prob − old_log_prob)``; all arrays have one shape (B of steps, or B×T of tokens with a ``mask``), but
    ``advantage`` may be one that broadcasts (B×1). Advantages are taken as they come: normalise them before.

    - ``clip=None`` does not clip. ``clip_high``: another bound above, "clip-higher" (DAPO, arXiv 2503.14476, eq. 8).
    - ``dual_clip=c > 1``: where A < 0 the objective is at least ``c·A`` (Ye et al., arXiv 1912.09729, dual-clip PPO).
    - ``weight``: of each sample, without a gradient: `truncated_importance` for a sampler that differs.
    - ``aggregation``, ``constant``, ``denominator``: see `aggregate`.
    - ``kl_estimator``: see `kl_estimate` (GRPO adds "k3": DeepSeekMath, arXiv 2402.03300, equations 3 and 4).
    """
    if dual_clip is not None and not dual_clip > 1.0:
        raise ConfigError(f"policy_loss(dual_clip={shown(dual_clip)}): greater than 1, such as 3.")

    def told(x: Tensor) -> Tensor:
        """Without padding, which may hold anything: zero times what is not finite is no zero."""
        return x if mask is None else torch.where(mask > 0, x, 0.0)

    log_ratio, advantage = told(log_prob - old_log_prob), told(advantage)
    ratio = log_ratio.exp()
    low, high = (0.0, float("inf")) if clip is None else (1.0 - clip, 1.0 + (clip if clip_high is None else clip_high))
    objective = ratio * advantage
    if clip is not None:
        objective = torch.minimum(objective, ratio.clamp(low, high) * advantage)
    if dual_clip is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, dual_clip * advantage), objective)
    if weight is not None:
        objective = told(weight) * objective
    total = -aggregate(objective, mask, aggregation, constant=constant, denominator=denominator)
    reference_kl = total.new_zeros(())
    if reference_log_prob is not None:
        x = kl_estimate(told(log_prob), told(reference_log_prob), kl_estimator)
        penalty = aggregate(x, mask, aggregation, constant=constant, denominator=denominator)
        total = total + kl_coefficient * penalty
        reference_kl = aggregate(x.detach(), mask)
    with torch.no_grad():
        kl = aggregate(ratio - 1.0 - log_ratio, mask)
        outside = (ratio < low) | (ratio > high)
        clip_fraction = aggregate(outside.to(ratio.dtype), mask)
    return PolicyLoss(total, kl, clip_fraction, reference_kl)


@loss("reinforce")
def reinforce_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor | None = None, **options: object) -> PolicyLoss:
    """``−aggregate(log_prob · A)``, the gradient of `policy_loss` at ``old_log_prob = log_prob``, whatever is older.

    Source: Williams, Simple Statistical Gradient-Following Algorithms (1992). ``kl`` still tells the distance from
    ``old_log_prob``; options of clipping do nothing here.
    """
    free = policy_loss(log_prob, log_prob.detach(), advantage, mask, **{**options, "clip": None, "dual_clip": None})
    told = policy_loss(log_prob.detach(), old_log_prob, advantage, mask, clip=None)
    return PolicyLoss(free.total, told.kl, free.clip_fraction, free.reference_kl)


@loss("decoupled_ppo")
def decoupled_policy_loss(
    log_prob: Tensor,
    behaviour_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor | None = None,
    *,
    proximal_log_prob: Tensor,
    weight_cap: float = 5.0,
    **options: object,
) -> PolicyLoss:
    """PPO for stale data. Experimental.

    It clips around a recent policy, and weights back to the one that acted.

    ``proximal_log_prob``: of the weights before this update, without a gradient. With the current ones in their place
    nothing would ever be clipped, and no divergence be seen. The weight ``π_proximal / π_behaviour`` is truncated at
    ``weight_cap``. Sources: Hilton et al. (arXiv 2110.00641); Fu et al., AReaL (arXiv 2505.24298), the decoupled
    objective. Other ``options`` are those of `policy_loss`.
    """
    weight = truncated_importance(proximal_log_prob, behaviour_log_prob, cap=weight_cap)
    return policy_loss(log_prob, proximal_log_prob, advantage, mask, **{**options, "weight": weight})


def asks_for_proximal(of_policy: Callable[..., PolicyLoss]) -> bool:
    """Whether a loss takes ``proximal_log_prob``: log-probabilities under the weights before the update."""
    return "proximal_log_prob" in inspect.signature(of_policy).parameters


def ppo_loss(
    log_prob_B: Tensor,
    old_log_prob_B: Tensor,
    advantage_B: Tensor,
    value_B: Tensor,
    return_B: Tensor,
    entropy: Tensor,
    *,
    clip: float = 0.2,
    clip_high: float | None = None,
    dual_clip: float | None = None,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.0,
    old_value_B: Tensor | None = None,
    value_clip: float | None = None,
    mask_B: Tensor | None = None,
    of_policy: Callable[..., PolicyLoss] = policy_loss,
) -> PPOLoss:
    """``policy + value_coefficient · value − entropy_coefficient · entropy``.

    ``policy`` is ``of_policy``, `policy_loss` or another one of its form; ``value = ½·mean((value − return)²)``. With ``value_clip`` the value may move by so much
    from ``old_value_B`` only. Advantages are taken as they come: normalise them before. ``entropy`` is averaged.
    """
    policy = of_policy(
        log_prob_B, old_log_prob_B, advantage_B, mask_B, clip=clip, clip_high=clip_high, dual_clip=dual_clip
    )  # fmt: skip
    value = value_loss(value_B, return_B, mask_B, old_value_B=old_value_B, value_clip=value_clip)
    per_sample = mask_B is not None and entropy.shape == mask_B.shape
    mean_entropy = aggregate(entropy, mask_B if per_sample else None) if per_sample else entropy.mean()
    total = policy.total + value_coefficient * value
    if entropy_coefficient:  # no gradient is computed for nothing
        total = total - entropy_coefficient * mean_entropy
    return PPOLoss(
        total, policy.total.detach(), value.detach(), mean_entropy.detach(), policy.kl, policy.clip_fraction
    )  # fmt: skip


def value_loss(
    value_B: Tensor,
    return_B: Tensor,
    mask_B: Tensor | None = None,
    *,
    old_value_B: Tensor | None = None,
    value_clip: float | None = None,
) -> Tensor:
    """``½·mean((value − return)²)``, a scalar. With ``value_clip`` the worse of it and of the clipped value's.

    Source: Schulman et al. (arXiv 1707.06347), equation 9; the clipping is that of OpenAI's baselines.
    """
    error_B = (value_B - return_B).square()
    if value_clip is not None:
        if old_value_B is None:
            raise ValueError(f"value_clip={value_clip} needs old_value_B, the values before the update. Next: pass them.")
        near_B = old_value_B + (value_B - old_value_B).clamp(-value_clip, value_clip)
        error_B = torch.maximum(error_B, (near_B - return_B).square())
    return 0.5 * aggregate(error_B, mask_B)
