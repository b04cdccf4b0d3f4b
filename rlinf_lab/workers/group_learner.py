"""The worker that learns from whole episodes, each compared with the others. Legend: T rows, N environments, E episodes
that ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.policies import ActorCritic
from rlinf_lab.records import TrainBatch, Trajectory
from rlinf_lab.workers.learner import LearnerWorker


class GroupLearner(LearnerWorker):
    """PPO's clipped surrogate with the advantage of the episode that a decision belongs to. No values are learnt.

    Where all episodes came to the same an update leaves the weights as they are, unless entropy has a bonus.

    ``advantage``: from the returns of all episodes of an update, 1×E, to their advantages, see
    `lab.algorithms.advantage`. Other arguments as in `LearnerWorker`.
    """

    def __init__(
        self, policy: Callable[[], ActorCritic], *, advantage: Callable[[NDArray], NDArray], **settings: Any
    ) -> None:
        super().__init__(policy, gamma=1.0, gae_lambda=1.0, vf_coef=0.0, normalizes_advantage=False, **settings)
        self.advantage = advantage
        self._of_row: dict[int, NDArray] = {}

    def _batch(self, trajectories: list[Trajectory]) -> TrainBatch:
        returns = np.concatenate([t.end_return_E for t in trajectories]) if trajectories else np.zeros(0)
        if len(returns) == 1 or (trajectories and not len(returns)):
            raise ValueError(
                f"GroupLearner.train got {len(returns)} episodes that have ended, and compares several. Next: n_steps "
                "of a whole episode, more environments."
            )
        found = (
            np.split(self.advantage(returns[None])[0], np.cumsum([len(t.end_return_E) for t in trajectories])[:-1])
            if trajectories
            else []
        )
        kept = [self._spread(t, advantage_E) for t, advantage_E in zip(trajectories, found, strict=True)]
        return super()._batch(kept)

    def _spread(self, t: Trajectory, advantage_E: NDArray) -> Trajectory:
        """To the rows of each episode. Those of episodes that have not ended are no rows to learn from."""
        advantage_TN, known_TN = np.zeros(t.reward_TN.shape, np.float32), np.zeros(t.reward_TN.shape, bool)
        begins_N = np.zeros(t.reward_TN.shape[1], int)
        for (end, n), value in zip(t.end_E2, advantage_E, strict=True):
            advantage_TN[begins_N[n] : end + 1, n], known_TN[begins_N[n] : end + 1, n] = value, True
            begins_N[n] = end + 1
        skipped_TN = ~known_TN if t.reset_only_TN is None else ~known_TN | t.reset_only_TN
        of = replace(t, reset_only_TN=skipped_TN)
        self._of_row[t.first_env] = advantage_TN
        return of

    def _advantages(self, t: Trajectory, scale: float) -> tuple[NDArray, NDArray]:
        advantage_TN = self._of_row[t.first_env]
        return advantage_TN, np.zeros_like(advantage_TN)

    def _optimise(self, batch: TrainBatch) -> dict[str, float]:
        losses = super()._optimise(batch)
        return {name: value for name, value in losses.items() if name != "value_loss"}
