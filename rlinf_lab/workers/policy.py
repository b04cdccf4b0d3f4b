"""The worker that chooses actions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf_lab.policies import GaussianMLP, Weights
from rlinf_lab.records import Action, Observation
from rlinf_lab.workers.residence import TorchWorker
from rlinf_lab.workers.seeds import Purpose, stream
from rlinf_lab.workflow.weights import Weights as WeightStore
from rlinf_lab.workflow.worker import Inbox, Outbox

BLOCK = 128  # steps of an environment whose noise is drawn at once


class PolicyWorker(TorchWorker):
    """Answers observations with actions, all observations of a batch in one forward pass.

    ``policy`` constructs the module (called in `setup`, where the worker lives); give the learner the same one and both start equal.
    ``weights``: to start from instead of the constructed ones.
    Exploration noise belongs to an environment and its step (`Observation.step`), so what is explored does not depend on how the plan
    groups or orders the environments, nor on which rank answers; no two answers of a run share their noise.
    """

    def __init__(self, policy: Callable[[], GaussianMLP], *, seed: int = 0, weights: Weights | None = None) -> None:
        self._make, self._seed, self._weights = policy, seed, weights
        self._noise: dict[int, tuple[int, NDArray[np.float32]]] = {}

    def setup(self) -> None:
        if self.device == "cpu":
            torch.set_num_threads(1)  # a CPU device of a plan is one core
        self.policy = self._make().to(self.device)
        if self._weights is not None:
            self.policy.load(self._weights)

    def act(
        self, observations: Inbox[Observation], actions: Outbox[Action], weights: WeightStore | None = None, deterministic: bool = False
    ) -> None:
        """Until the observations end, with the newest of ``weights``. ``deterministic``: the greedy action, and no noise is used up."""
        for batch in observations:
            if weights is not None:  # not before the first batch: until then the device is free for others
                self._update(weights)
                weights = None
            obs_BO = np.concatenate([o.obs_NO for o in batch])
            noise_BA = None if deterministic else self._draw(batch)
            action_BA, log_prob_B = self.policy.act(obs_BO, noise_BA)
            start = 0
            for token in batch:
                rows = slice(start, start := start + len(token.obs_NO))
                answer = Action(token.slot, action_BA[rows], log_prob_B[rows], self.policy.version)
                actions.put(answer, key=token.slot)

    def load_weights(self, weights: Weights) -> None:
        """Use these from the next observation on."""
        self.policy.load(weights)

    def _update(self, weights: WeightStore) -> None:
        published = weights.pull().state
        if published is not None and published.version != self.policy.version:
            self.policy.load(published)

    def _draw(self, batch: list[Observation]) -> NDArray:
        return np.stack([self._row(token.first_env + i, token.step) for token in batch for i in range(len(token.obs_NO))])

    def _row(self, env: int, step: int) -> NDArray[np.float32]:
        """Noise of one environment's step. Drawn in blocks: making a generator costs as much as some hundred numbers."""
        number, row = divmod(step, BLOCK)
        drawn, block = self._noise.get(env, (-1, None))
        if block is None or drawn != number:
            rng = np.random.default_rng(stream(self._seed, Purpose.EXPLORATION, env, number))
            block = rng.standard_normal((BLOCK, self.policy.log_std.shape[0]), dtype=np.float32)
            self._noise[env] = number, block
        return block[row]
