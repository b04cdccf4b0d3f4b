"""Advantages of steps: generalised advantage estimation and V-trace.

The two ends of an episode, terminated and truncated, are kept apart.

*Terminated*: the task is over, the value of what follows is 0. *Truncated*: the clock ran out, the episode would have
gone on, so the value of the final observation is bootstrapped. Both stop the sum over later steps. Taking one for the
other biases the values: with dense rewards and a time limit it teaches the critic that the end of the hour is a cliff.

Legend: T time, N environments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.algorithms.registry import advantage

FloatArray = NDArray[np.floating]
BoolArray = NDArray[np.bool_]


@advantage("gae", of="steps")
def gae(
    reward_TN: FloatArray,
    value_TN: FloatArray,
    next_value_TN: FloatArray,
    terminated_TN: BoolArray,
    truncated_TN: BoolArray,
    *,
    gamma: float | FloatArray,
    lam: float,
) -> tuple[FloatArray, FloatArray]:
    """Advantages and value targets (``advantage + value``), both of shape T×N.

    ``next_value_TN[t]`` is the value of the observation that step ``t`` *led to*, before any reset: at the end of an
    episode that is the value of the final observation, not of the next episode's first. Ignored where ``terminated``.
    ``gamma`` (discount per step, or T×N where rows last differently long) and ``lam`` (0: one-step errors, 1: Monte Carlo minus baseline) lie in [0, 1].

    Source: Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation
    (arXiv 1506.02438), equation 16; Pardo et al., Time Limits in Reinforcement Learning (arXiv 1712.00378) for the
    bootstrap. Raises `ValueError` when the shapes differ.
    """
    _require_one_shape("gae", reward_TN, value_TN, next_value_TN, terminated_TN, truncated_TN)
    goes_on_TN = ~terminated_TN
    delta_TN = reward_TN + gamma * np.where(goes_on_TN, next_value_TN, 0.0) - value_TN
    decay_TN = (gamma * lam) * (goes_on_TN & ~truncated_TN)
    advantage_TN = _decayed_sum(delta_TN, decay_TN)
    return advantage_TN, advantage_TN + value_TN


def vtrace(
    log_ratio_TN: FloatArray,
    reward_TN: FloatArray,
    value_TN: FloatArray,
    next_value_TN: FloatArray,
    terminated_TN: BoolArray,
    truncated_TN: BoolArray,
    *,
    gamma: float,
    lam: float = 1.0,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
) -> tuple[FloatArray, FloatArray]:
    """Policy-gradient advantages and value targets for actions of an older policy, both T×N. Experimental.

    ``log_ratio_TN`` is ``log π(a) − log μ(a)``: the policy that learns minus the one that acted. ``rho_clip`` bounds the
    weight of a temporal difference (it decides which policy's value is learnt), ``c_clip`` the weight of later ones
    (it decides the variance), ``pg_rho_clip`` that of the advantage. At equal policies and ``lam=1`` the targets are
    those of `gae` with ``lam=1``. The other arguments, and the ends of episodes, are as in `gae`.

    Source: Espeholt et al., IMPALA (arXiv 1802.01561), equation 1, remark 2 for ``lam``, section 4.2 for the advantage.
    """
    _require_one_shape("vtrace", log_ratio_TN, reward_TN, value_TN, next_value_TN, terminated_TN, truncated_TN)
    ratio_TN = np.exp(log_ratio_TN)
    follows_TN = ~terminated_TN & ~truncated_TN
    bootstrap_TN = np.where(terminated_TN, 0.0, next_value_TN)
    delta_TN = np.minimum(rho_clip, ratio_TN) * (reward_TN + gamma * bootstrap_TN - value_TN)
    decay_TN = gamma * lam * np.minimum(c_clip, ratio_TN) * follows_TN
    target_TN = value_TN + _decayed_sum(delta_TN, decay_TN)
    next_target_TN = bootstrap_TN.copy()  # at an episode's end and at the last step: the value alone
    next_target_TN[:-1] = np.where(follows_TN[:-1], target_TN[1:], bootstrap_TN[:-1])
    advantage_TN = np.minimum(pg_rho_clip, ratio_TN) * (reward_TN + gamma * next_target_TN - value_TN)
    return advantage_TN, target_TN


def _decayed_sum(term_TN: FloatArray, decay_TN: FloatArray) -> FloatArray:
    """``sum[t] = term[t] + decay[t] · sum[t+1]``, from the end."""
    sum_TN = np.empty_like(term_TN)
    running_N = np.zeros_like(term_TN[0])
    for t in range(len(term_TN) - 1, -1, -1):
        running_N = term_TN[t] + decay_TN[t] * running_N
        sum_TN[t] = running_N
    return sum_TN


def _require_one_shape(name: str, *arrays: NDArray) -> None:
    shapes = {a.shape for a in arrays}
    if len(shapes) != 1:
        raise ValueError(f"{name} needs arrays of one shape, got {sorted(shapes)}. Next: pass T×N arrays.")
