"""Losses of SAC, TD3 and CrossQ, with an ensemble of critics. Legend: K critics, B batch, O observation, A action.

All return scalars or rows; networks and optimisers belong to whoever calls. ``discount_B`` is ``gamma`` to the power of
the steps that a transition spans, and 0 where the episode terminated (not where it was truncated).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from rlinf_lab.errors import ConfigError, shown


def sac_target(
    reward_B: Tensor,
    discount_B: Tensor,
    next_q_KB: Tensor,
    next_log_prob_B: Tensor,
    alpha: Tensor | float,
    *,
    subset: Tensor | None = None,
) -> Tensor:
    """Soft value target of SAC, shape B, without a gradient.

    ``r + discount · (min_k Q − α · log π)``.

    ``subset``: indices of the critics over which the minimum goes (REDQ, arXiv 2101.05982, as RLPD uses it).
    Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications (arXiv 1812.05905), equations 3 and 5.
    """
    least_B = (next_q_KB if subset is None else next_q_KB[subset]).min(0).values
    return (reward_B + discount_B * (least_B - alpha * next_log_prob_B)).detach()


def critic_loss(q_KB: Tensor, target_B: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """``½ · Σ_k mean(weight · (Q_k − target)²)``. ``weight_B``: of prioritised replay.

    Source: Haarnoja et al. (arXiv 1812.05905), equation 5.
    """
    if weight_B is None:
        return 0.5 * len(q_KB) * F.mse_loss(q_KB, target_B.expand_as(q_KB))
    return 0.5 * ((q_KB - target_B).square() * weight_B).mean(-1).sum()


def sac_actor_loss(q_KB: Tensor, log_prob_B: Tensor, alpha: Tensor | float, *, average: bool = False) -> Tensor:
    """``mean(α · log π − min_k Q)`` of actions that the policy just drew, reparametrised.

    ``average``: the critics' mean instead of their least value, which of many critics would be far too low: REDQ (arXiv 2101.05982, algorithm 1) and RLPD.
    Source: Haarnoja et al. (arXiv 1812.05905), equation 9.
    """
    q_B = q_KB.mean(0) if average else q_KB.min(0).values
    return (alpha * log_prob_B - q_B).mean()


def temperature_loss(log_alpha: Tensor, log_prob_B: Tensor, target_entropy: float) -> Tensor:
    """``−mean(log α · (log π + target_entropy))``, the loss of SAC's temperature.

    α rises while the entropy is below its target.

    Source: Haarnoja et al. (arXiv 1812.05905), equation 18, with log α in the place of α as in the authors' code.
    ``target_entropy`` in nats; the usual choice is minus the number of action dimensions.
    """
    return -(log_alpha * (log_prob_B.detach() + target_entropy)).mean()


def td3_target(reward_B: Tensor, discount_B: Tensor, next_q_KB: Tensor) -> Tensor:
    """Clipped double-Q target, shape B: ``r + discount · min_k Q``, without a gradient.

    Source: Fujimoto et al., Addressing Function Approximation Error in Actor-Critic Methods (arXiv 1802.09477), eq. 10.
    """
    return (reward_B + discount_B * next_q_KB.min(0).values).detach()


def smoothed_action(action_BA: Tensor, noise_BA: Tensor, *, noise_clip: float = 0.5, low: float = -1.0, high: float = 1.0) -> Tensor:
    """The target policy's action with clipped noise, within the bounds.

    ``noise_BA`` as drawn, of the wished deviation. Source: Fujimoto et al. (arXiv 1802.09477), equation 14.
    """
    return (action_BA + noise_BA.clamp(-noise_clip, noise_clip)).clamp(low, high)


def td3_actor_loss(q_KB: Tensor) -> Tensor:
    """``−mean(Q_1)``: the deterministic policy gradient through the first critic (arXiv 1802.09477, algorithm 1)."""
    return -q_KB[0].mean()


def td3_bc_actor_loss(
    q_KB: Tensor, action_BA: Tensor, recorded_BA: Tensor, alpha: float, *, size: Tensor | None = None
) -> Tensor:
    """``−λ · mean(Q_1) + mean((π − a)²)``, with ``λ = alpha / mean(|Q_1|)``.

    ``action_BA``: the policy's; ``recorded_BA``: the data's, both in units of half their range. ``alpha`` = 0 clones.
    ``size``: the mean of ``|Q_1|``, where it is over more rows than these; λ has no gradient.
    Source: Fujimoto and Gu, A Minimalist Approach to Offline Reinforcement Learning (arXiv 2106.06860), equations 3, 5.
    """
    q_B = q_KB[0]
    scale = alpha / (q_B.detach().abs().mean() if size is None else size).clamp(min=1e-6)
    return -scale * q_B.mean() + F.mse_loss(action_BA, recorded_BA)


def crossq_values(
    critic: Callable[[Tensor, Tensor], Tensor],
    obs_BO: Tensor,
    action_BA: Tensor,
    next_obs_BO: Tensor,
    next_action_BA: Tensor,
) -> tuple[Tensor, Tensor]:
    """Values of both steps from one forward pass, each K×B. The next ones without a gradient. Experimental.

    One pass, so that batch normalisation sees both distributions: that makes target networks unnecessary.
    ``critic`` maps (2B×O, 2B×A) to K×2B. Source: Bhatt et al., CrossQ (arXiv 1902.05605), section 3.
    """
    both_K2B = critic(torch.cat([obs_BO, next_obs_BO]), torch.cat([action_BA, next_action_BA]))
    if both_K2B.ndim != 2 or both_K2B.shape[1] != 2 * len(obs_BO):
        raise ConfigError(f"crossq_values: the critic gave {tuple(both_K2B.shape)}, not K × {2 * len(obs_BO)}.")
    q_KB, next_q_KB = both_K2B.chunk(2, dim=1)
    return q_KB, next_q_KB.detach()


@torch.no_grad()
def polyak_update(target: Iterable[Tensor], source: Iterable[Tensor], tau: float) -> None:
    """``target ← (1 − tau) · target + tau · source``, in place. ``tau=1`` copies.

    Source: Lillicrap et al., DDPG (arXiv 1509.02971), algorithm 1.
    """
    if not 0.0 <= tau <= 1.0:
        raise ConfigError(f"polyak_update(tau={shown(tau)}): between 0 and 1, such as 0.005.")
    torch._foreach_lerp_(list(target), list(source), tau)
