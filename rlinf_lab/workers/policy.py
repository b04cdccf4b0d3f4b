"""The worker that chooses actions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from rlinf_lab.policies import GaussianMLP, Weights
from rlinf_lab.records import Action, Observation
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker


class PolicyWorker(Worker):
    """Answers observations with actions, all observations of a batch in one forward pass.

    ``policy`` constructs the module (called in `setup`, where the worker lives); give the learner the same one and both start equal.
    ``weights``: to start from instead of the constructed ones.
    Every environment has its own stream of exploration noise, so what is learnt does not depend on how the plan groups or
    orders the environments, as long as one rank serves all of them.
    """

    def __init__(self, policy: Callable[[], GaussianMLP], *, seed: int = 0, weights: Weights | None = None) -> None:
        self._make, self._seed, self._weights = policy, seed, weights
        self._noise: dict[int, np.random.Generator] = {}

    def setup(self) -> None:
        if self.device == "cpu":
            torch.set_num_threads(1)  # a CPU device of a plan is one core
        self.policy = self._make().to(self.device)
        if self._weights is not None:
            self.policy.load(self._weights)

    def act(self, observations: Inbox[Observation], actions: Outbox[Action], deterministic: bool = False) -> None:
        """Until the observations end. ``deterministic``: the greedy action, and no noise is used up."""
        for batch in observations:
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

    def onload(self) -> None:
        self.policy.to(self.device)

    def offload(self) -> None:
        self.policy.to("cpu")

    def _draw(self, batch: list[Observation]) -> NDArray:
        size = self.policy.log_std.shape[0]
        return np.stack([
            self._stream(token.first_env + i).standard_normal(size, dtype=np.float32)
            for token in batch
            for i in range(len(token.obs_NO))
        ])  # fmt: skip

    def _stream(self, env: int) -> np.random.Generator:
        if env not in self._noise:
            self._noise[env] = np.random.default_rng((self._seed, env))
        return self._noise[env]
