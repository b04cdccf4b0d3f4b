"""Generalised advantage estimation, with the two ends of an episode kept apart.

*Terminated*: the task is over, the value of what follows is 0. *Truncated*: the clock ran out, the episode would have gone on, so
the value of the final observation is bootstrapped. Both stop the sum over later steps. Taking one for the other biases the values:
with dense rewards and a time limit it teaches the critic that the end of the hour is a cliff.

Source: Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation (arXiv 1506.02438), equation 16;
Pardo et al., Time Limits in Reinforcement Learning (arXiv 1712.00378) for the bootstrap.

Legend: T time, N environments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]
BoolArray = NDArray[np.bool_]


def gae(
    reward_TN: FloatArray,
    value_TN: FloatArray,
    next_value_TN: FloatArray,
    terminated_TN: BoolArray,
    truncated_TN: BoolArray,
    *,
    gamma: float,
    lam: float,
) -> tuple[FloatArray, FloatArray]:
    """Advantages and value targets (``advantage + value``), both of shape T×N.

    ``next_value_TN[t]`` is the value of the observation that step ``t`` *led to*, before any reset: at the end of an episode that is
    the value of the final observation, not of the next episode's first. It is ignored where ``terminated``.
    ``gamma`` (discount per step) and ``lam`` (0: one-step errors, 1: Monte Carlo minus baseline) lie in [0, 1].

    Raises `ValueError` when the shapes differ.
    """
    shapes = {a.shape for a in (reward_TN, value_TN, next_value_TN, terminated_TN, truncated_TN)}
    if len(shapes) != 1:
        raise ValueError(f"gae needs five arrays of one shape, got {sorted(shapes)}. Next: pass T×N arrays.")
    goes_on_TN = ~terminated_TN
    delta_TN = reward_TN + gamma * np.where(goes_on_TN, next_value_TN, 0.0) - value_TN
    decay_TN = (gamma * lam) * (goes_on_TN & ~truncated_TN)
    advantage_TN = np.empty_like(delta_TN)
    running_N = np.zeros_like(delta_TN[0])
    for t in range(len(delta_TN) - 1, -1, -1):
        running_N = delta_TN[t] + decay_TN[t] * running_N
        advantage_TN[t] = running_N
    return advantage_TN, advantage_TN + value_TN
