"""The running spread of discounted returns, by which rewards are divided. Legend: T time, N environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.algorithms import Moments
from rlinf_lab.records import Trajectory

LEAST = 1e-8


@dataclass(frozen=True, eq=False)
class DiscountedReturns:
    """Moments of each environment's discounted sum of rewards so far, over all steps. Immutable.

    Source: VecNormalize of stable-baselines3 (``norm_reward``): dividing by the standard deviation keeps the value
    targets near one.
    """

    moments: Moments = field(default_factory=lambda: Moments.empty(()))
    under_way_N: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """sums of the episodes under way, by environment"""

    def update(self, trajectories: Sequence[Trajectory], gamma: float) -> DiscountedReturns:
        """With the steps of all environments, trajectories in the order of their environments. Rewards as the
        environments gave them.
        """
        rewards, factors = zip(*(t.discounted(gamma) for t in trajectories), strict=True)
        reward_TN = np.concatenate(rewards, axis=1).astype(np.float64)
        factor_TN = np.concatenate([np.broadcast_to(f, r.shape) for f, r in zip(factors, rewards, strict=True)], axis=1)
        ended_TN = np.concatenate([t.terminated_TN | t.truncated_TN for t in trajectories], axis=1)
        running_N = self.under_way_N
        if running_N.shape != reward_TN[0].shape:  # the first time, or another number of environments
            running_N = np.zeros(reward_TN[0].shape)
        fresh_N = np.concatenate([np.full(t.reward_TN.shape[1], t.is_fresh) for t in trajectories])
        running_N = np.where(fresh_N, 0.0, running_N)
        return_TN = np.empty_like(reward_TN)
        for t, reward_N in enumerate(reward_TN):
            running_N = return_TN[t] = factor_TN[t] * running_N + reward_N
            running_N = np.where(ended_TN[t], 0.0, running_N)
        return DiscountedReturns(self.moments.update(return_TN.reshape(-1)), running_N)

    @property
    def std(self) -> float:
        """1 while nothing was seen, and where no return differed from another."""
        found = float(self.moments.std)
        return found if found > LEAST else 1.0
