"""Estimates of a divergence from samples, and what is done with them. Any shapes; legend: B sequences, T tokens.

Source: Schulman, Approximating KL Divergence (2020), which names k1, k2 and k3.
"""

from __future__ import annotations

from torch import Tensor

from rlinf_lab.errors import UnknownNameError

ESTIMATORS = ("k1", "k2", "k3")


def kl_estimate(log_prob: Tensor, reference_log_prob: Tensor, estimator: str = "k3") -> Tensor:
    """KL(policy || reference) in nats, of each sample that the policy drew.

    With ``x = log_prob − reference_log_prob``: "k1" is ``x`` (unbiased, may be negative), "k2" is ``x²/2`` (biased,
    small variance; its gradient is that of the divergence), "k3" is ``exp(−x) − 1 + x`` (unbiased, never negative).
    """
    x = log_prob - reference_log_prob
    if estimator == "k1":
        return x
    if estimator == "k2":
        return 0.5 * x.square()
    if estimator == "k3":
        return (-x).exp() - 1.0 + x
    raise UnknownNameError.of("KL estimator", estimator, ESTIMATORS)


def kl_penalised_returns(reward_B: Tensor, kl_BT: Tensor, mask_BT: Tensor, *, coefficient: float) -> Tensor:
    """Return of every token, B×T: the response's reward minus the penalties from that token on.

    Source: Hu et al., REINFORCE++ (arXiv 2501.03262): the penalty of each token is part of its reward.
    """
    penalty_BT = coefficient * kl_BT * mask_BT
    to_go_BT = penalty_BT.flip(-1).cumsum(-1).flip(-1)
    return (reward_B[:, None] - to_go_BT) * mask_BT


def exceeds_target_kl(kl: float, target: float | None, *, tolerance: float = 1.5) -> bool:
    """Whether an update should stop because the policy has moved too far. Never without a target.

    Source: Stable-Baselines3's PPO, which stops above 1.5 times ``target_kl``.
    """
    return target is not None and kl > tolerance * target


def adapted_kl_coefficient(coefficient: float, kl: float, target: float) -> float:
    """The weight of a KL penalty in the next update.

    It is halved where the divergence was below two thirds of the target, and doubled where it was above 1.5 times.

    Source: Schulman et al., Proximal Policy Optimization (arXiv 1707.06347), section 4.
    """
    if kl < target / 1.5:
        return coefficient / 2.0
    return coefficient * 2.0 if kl > target * 1.5 else coefficient
