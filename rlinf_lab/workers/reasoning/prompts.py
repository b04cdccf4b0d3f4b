"""The worker that asks."""

from __future__ import annotations

import numpy as np

from rlinf_lab.tasks import Task
from rlinf_lab.workers.reasoning.records import Asked
from rlinf_lab.workflow.worker import Outbox, Worker

EVALUATION = -1


class PromptWorker(Worker):
    """Draws problems of the train split, each asked ``group_size`` times. A round is drawn from its number and the
    seed.

    ``start``: rounds that another run has had already.
    """

    def __init__(
        self, task: Task, *, prompts: int, group_size: int, level: int | None = None, seed: int = 0, start: int = 0
    ) -> None:
        self.task, self.level, self.seed = task, level, seed
        self.prompts, self.group_size = prompts, group_size
        self.round = start

    def ask(self, asked: Outbox[Asked]) -> None:
        """One training round: prompts × group_size."""
        rng = np.random.default_rng([self.seed, self.round])
        self._put(asked, rng, self.round, self.prompts, self.group_size, "train")
        self.round += 1

    def ask_test(self, asked: Outbox[Asked], samples: int = 200, seed: int = 0) -> None:
        """``samples`` problems of the test split, each once."""
        self._put(asked, np.random.default_rng([seed, 1]), EVALUATION, samples, 1, "test")

    def _put(
        self, asked: Outbox[Asked], rng: np.random.Generator, number: int, prompts: int, repeat: int, split: str
    ) -> None:
        problems = self.task.sample(rng, prompts, self.level, split=split)
        asked.put_all([Asked(p, number, i, k) for i, p in enumerate(problems) for k in range(repeat)])
