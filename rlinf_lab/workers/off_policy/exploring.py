"""The workers that choose actions while a replay buffer fills. Legend: B batch, K numbers of noise for an action."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf_lab.policies import Actor, PolicyWeights
from rlinf_lab.policies.views import StateViews
from rlinf_lab.records import Observation
from rlinf_lab.trees import length
from rlinf_lab.workers.policy import PolicyWorker
from rlinf_lab.workers.rollout import RolloutWorker


class ExploringPolicyWorker(PolicyWorker):
    """A `PolicyWorker` whose first ``random_steps`` actions of each environment are uniform over the action space.

    What is drawn belongs to an environment and its step, as all exploration does. The policy acts in a bounded Box.
    """

    def __init__(
        self, policy: Callable[[], Actor], *, random_steps: int, seed: int = 0, weights: PolicyWeights | None = None
    ) -> None:
        super().__init__(policy, seed=seed, weights=weights)
        self.random_steps = random_steps

    @cached_property
    def _memory(self) -> StateViews:
        return StateViews(self.policy)

    def load_weights(self, weights: PolicyWeights) -> None:
        """Use these from the next observation on. They come after each gradient step, so this shall be quick."""
        if self._memory.write(weights.arrays):
            self.policy.version = weights.version
        else:
            super().load_weights(weights)

    def choose(self, obs_B: Any, noise_BK: NDArray[np.float32] | None, batch: list[Observation]) -> tuple[Any, NDArray]:
        action_B, log_prob_B = super().choose(obs_B, noise_BK, batch)
        if noise_BK is None or all(token.step >= self.random_steps for token in batch):
            return action_B, log_prob_B
        space = self.policy.head.space
        # Of a normal number its own distribution function is uniform: no further stream of random numbers.
        uniform_BK = torch.special.ndtr(torch.from_numpy(noise_BK).double()).numpy().reshape(action_B.shape)
        early_B = np.concatenate([np.full(length(t.obs_N), t.step < self.random_steps) for t in batch])
        chosen_B = (space.low + uniform_BK * (space.high - space.low)).astype(action_B.dtype)
        action_B, log_prob_B = action_B.copy(), log_prob_B.copy()
        action_B[early_B] = chosen_B[early_B]
        log_prob_B[early_B] = -np.log((space.high - space.low).astype(np.float64)).sum()
        return action_B, log_prob_B


class ExploringRolloutWorker(RolloutWorker, ExploringPolicyWorker):
    """A `RolloutWorker` that chooses its actions as `ExploringPolicyWorker` does."""

    def __init__(self, env: Any, policy: Callable[[], Actor], *, random_steps: int, **settings: Any) -> None:
        RolloutWorker.__init__(self, env, policy, **settings)
        self.random_steps = random_steps
