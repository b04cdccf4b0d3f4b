"""The worker that chooses actions. Legend: leading axes; B batch; K numbers of noise for an action."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from rlinf_lab.policies import Actor, PolicyWeights
from rlinf_lab.policies.actor_critic import in_tensor
from rlinf_lab.records import Action, Observation
from rlinf_lab.trees import Tree, length, map_tree, rows
from rlinf_lab.workers.residence import TorchWorker
from rlinf_lab.workers.seeds import Purpose, stream
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox, Outbox

BLOCK = 128  # steps of an environment whose noise is drawn at once


class PolicyWorker(TorchWorker):
    """Answers observations with actions, all observations of a batch in one forward pass.

    ``policy`` constructs the module (called in `setup`, where the worker lives), an `Actor` or one that has its
    methods; give the learner the same one and both start equal. ``weights``: to start from instead of the constructed
    ones. Exploration noise belongs to an environment and its step (`Observation.step`), so what is explored does not
    depend on how the plan groups or orders the environments, nor on which rank answers; no two answers of a run share
    their noise.
    """

    def __init__(self, policy: Callable[[], Actor], *, seed: int = 0, weights: PolicyWeights | None = None) -> None:
        self._make, self._seed, self._weights = policy, seed, weights
        self._noise: dict[tuple[int, int], tuple[int, Any]] = {}  # by first environment and their number

    def setup(self) -> None:
        if self.device == "cpu":
            torch.set_num_threads(1)  # a CPU device of a plan is one core
        self.policy = self._make().to(self.device)
        if self._weights is not None:
            self.policy.load(self._weights)

    def act(
        self,
        observations: Inbox[Observation],
        actions: Outbox[Action],
        weights: Weights | None = None,
        deterministic: bool = False,
    ) -> None:
        """Until the observations end, with the newest of ``weights``. ``deterministic``: the greedy action, and no
        noise is used up.
        """
        for batch in observations:
            if weights is not None:  # not before the first batch: until then the device is free for others
                self._update(weights)
                weights = None
            for answer in self.answers(batch, deterministic):
                actions.put(answer, key=answer.slot)

    def answers(self, batch: list[Observation], deterministic: bool = False) -> Iterator[Action]:
        """An action for each observation, of one forward pass."""
        obs_B = joined([o.obs_N for o in batch])
        action_B, log_prob_B = self.choose(obs_B, None if deterministic else self._draw(batch, in_tensor(obs_B)), batch)
        executed_B = self._executed(action_B)
        if len(batch) == 1:
            yield Action(batch[0].slot, action_B, log_prob_B, self.policy.version, executed_B)
            return
        start = 0
        for token in batch:
            mine = slice(start, start := start + length(token.obs_N))
            executed_N = None if executed_B is None else rows(executed_B, mine)
            yield Action(token.slot, rows(action_B, mine), log_prob_B[mine], self.policy.version, executed_N)

    def choose(self, obs_B: Tree, noise_BK: Any, batch: list[Observation]) -> tuple[Tree, Any]:
        """Actions and log-probabilities of all rows; without noise the greedy ones. ``batch``: whose observations they
        are, for those that override it.
        """
        return self.policy.act(obs_B, noise_BK)

    def _executed(self, action_B: Tree) -> Tree:
        """What environments get, where that is another than what is learned from, else None. A module of the user's may
        not know the difference.
        """
        executed = getattr(self.policy, "executed", None)
        found = action_B if executed is None else executed(action_B)
        return None if found is action_B else found

    def load_weights(self, weights: PolicyWeights) -> None:
        """Use these from the next observation on."""
        self.policy.load(weights)

    def _update(self, weights: Weights) -> None:
        published = weights.pull().state
        if published is not None and published.version != self.policy.version:
            self.load_weights(published)

    def _draw(self, batch: list[Observation], in_tensors: bool = False) -> Any:
        """``in_tensors``: where the policy is; a block goes there once."""
        parts = [self._group(token.first_env, length(token.obs_N), token.step, in_tensors) for token in batch]
        return joined(parts)

    def _group(self, first_env: int, count: int, step: int, in_tensors: bool) -> Any:
        """Noise of one step of some environments, (count, K). Drawn in blocks: making a generator costs as much as some
        hundred numbers.
        """
        number, row = divmod(step, BLOCK)
        drawn, block_TNK = self._noise.get((first_env, count), (-1, None))
        if block_TNK is None or drawn != number:
            streams = (
                np.random.default_rng(stream(self._seed, Purpose.EXPLORATION, first_env + i, number))
                for i in range(count)
            )
            block_TNK = np.stack([self.policy.draw_noise(rng, BLOCK) for rng in streams], axis=1)
            if in_tensors:
                block_TNK = torch.from_numpy(block_TNK).to(self.device)
            self._noise[first_env, count] = number, block_TNK
        return block_TNK[row]


def joined(parts: list[Tree]) -> Tree:
    """Trees one after another, along the leading axis."""
    if len(parts) == 1:
        return parts[0]
    join: Any = torch.cat if in_tensor(parts[0]) else np.concatenate
    return map_tree(lambda *leaves: join(leaves), *parts)
