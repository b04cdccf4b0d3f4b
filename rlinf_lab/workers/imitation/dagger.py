"""The workers of DAgger.

A policy that lets an expert act at times, and a learner that asks it what it would have done.

Legend: leading axes; T time, N environments, B rows, R rows of all iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.algorithms import dagger_beta, dagger_mix
from rlinf_lab.errors import EnvError
from rlinf_lab.policies import Actor, ActorCritic, PolicyWeights
from rlinf_lab.records import Observation, Trajectory
from rlinf_lab.trees import Tree, length, map_tree, rows
from rlinf_lab.workers.imitation.cloning import CloneLearner, Demonstrated
from rlinf_lab.workers.learner import Update, episode_metrics, flat
from rlinf_lab.workers.policy import PolicyWorker
from rlinf_lab.workers.seeds import Purpose, stream
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox


class DAggerPolicy(PolicyWorker):
    """Answers with the expert's action with probability ``decay ** iteration``, else with its own. Other arguments as
    in `PolicyWorker`.
    """

    def __init__(
        self,
        policy: Callable[[], Actor],
        *,
        expert: Callable[[Tree], Tree],
        decay: float,
        seed: int = 0,
        weights: PolicyWeights | None = None,
    ) -> None:
        super().__init__(policy, seed=seed, weights=weights)
        self.expert, self.decay = expert, decay
        self._coins = seed

    def choose(
        self, obs_B: Tree, noise_BK: NDArray[np.float32] | None, batch: list[Observation]
    ) -> tuple[Tree, NDArray[np.float32]]:
        action_B, log_prob_B = super().choose(obs_B, noise_BK, batch)
        beta = dagger_beta(self.policy.version, decay=self.decay)
        if noise_BK is None or not beta:
            return action_B, log_prob_B
        expert_B = self.expert(obs_B)
        if beta == 1.0:
            return expert_B, log_prob_B
        # A coin for each environment and step, whichever others it is answered with.
        streams = [
            stream(self._coins, Purpose.MINIBATCHES, token.first_env + i, token.step)
            for token in batch
            for i in range(length(token.obs_N))
        ]
        coin_B = np.array([np.random.default_rng(s).random() for s in streams])
        mixed_B = map_tree(lambda mine, theirs: dagger_mix(mine, theirs, beta, coin_B), action_B, expert_B)
        return mixed_B, log_prob_B


class DAggerLearner(CloneLearner):
    """Clones what the ``expert`` would have done wherever a trajectory has led. All trajectories count, also those of
    earlier iterations.

    ``steps``: gradient steps of an update. Other arguments as in `CloneLearner`.
    """

    def __init__(
        self, policy: Callable[[], ActorCritic], *, expert: Callable[[Tree], Tree], steps: int, **settings: Any
    ) -> None:
        self._data: Demonstrated | None = None
        self._taken = 0
        super().__init__(policy, **settings)
        self.expert, self.steps = expert, steps

    def imitate(self, trajectories: Inbox[Trajectory], weights: Weights | None = None) -> Update:
        """One update from everything so far, published to ``weights``."""
        received = sorted(
            (t for part in self.exchange(trajectories.get_all()) for t in part), key=lambda t: t.first_env
        )
        if not received:
            raise ValueError(
                "DAggerLearner.imitate got no trajectory. Next: does the simulator put one before its call returns?"
            )
        with self._together():
            self._label(received)
            assert self._data is not None
            self._normalise(self._data.obs_R)
            chosen = self._rng.integers(length(self._data.obs_R), size=self.steps * round(self.now("batch_size")))
            with self.span("update"):
                losses = self._clone(Demonstrated(rows(self._data.obs_R, chosen), rows(self._data.action_R, chosen)))
            self.policy.version += 1
            self._made = self.weights()
        self._taken += sum(t.steps for t in received)
        metrics = {
            "env_steps": float(self._taken),
            "gradient_steps": float(self.env_steps),
            "samples": float(length(self._data.obs_R)),
        }
        if weights is not None and self.rank == 0:
            weights.publish(self._made)
        return Update(self._made, {**metrics, **episode_metrics(received), **losses})

    def _label(self, trajectories: list[Trajectory]) -> None:
        obs_B = flat([t.obs_TN for t in trajectories])  # in the same order however a plan has grouped the environments
        action_B = self.expert(obs_B)
        if length(action_B) != length(obs_B):
            raise EnvError(
                f"The expert {self.expert!r} gave {length(action_B)} actions for {length(obs_B)} observations. Next: "
                "one action for each."
            )
        fresh = Demonstrated(obs_B, action_B)
        if self._data is None:
            self._data = fresh
            return
        joined = [
            map_tree(lambda old, new: np.concatenate([old, new]), old, new)
            for old, new in ((self._data.obs_R, fresh.obs_R), (self._data.action_R, fresh.action_R))
        ]
        self._data = Demonstrated(*joined)

    def state_dict(self) -> dict[str, Any]:
        """With all data so far: what `load_state_dict` needs to go on exactly here."""
        data = None if self._data is None else {"obs": self._data.obs_R, "action": self._data.action_R}
        return {**super().state_dict(), "data": data, "taken": self._taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        data = state.get("data")
        self._data, self._taken = (
            (None if data is None else Demonstrated(data["obs"], data["action"])),
            int(state.get("taken", 0)),
        )
