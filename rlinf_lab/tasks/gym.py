"""reasoning-gym's tasks: about a hundred generators with verifiers, made offline."""

from __future__ import annotations

import string
from typing import Any, ClassVar

import numpy as np

from rlinf_lab.errors import MissingDependencyError, UnknownNameError
from rlinf_lab.tasks.task import MARK, Problem, RewardResult, Task, answer_of

PREFIX = "reasoning_gym/"


class ReasoningGym(Task):
    """A data set of reasoning-gym by its name, such as "gsm_symbolic". ``options`` are its own (``min_terms=2``).

    The completion's answer is what follows the last ``#``, or all of it without one. Rewards are the data set's own
    scores, from 0 to 1. Raises `MissingDependencyError` or `UnknownNameError`.
    """

    name: ClassVar[str] = "reasoning_gym"
    alphabet = string.printable
    levels = 1

    def __init__(self, dataset: str, **options: Any) -> None:
        try:
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
        except ImportError:
            why = f"the task {PREFIX}{dataset}"
            raise MissingDependencyError.of("reasoning-gym", "tasks", why) from None
        if dataset not in DATASETS:
            raise UnknownNameError.of("data set of reasoning-gym", dataset, DATASETS)
        self.dataset = dataset
        self._create = lambda seed: reasoning_gym.create_dataset(dataset, size=1, seed=seed, **options)
        self._judge = self._create(0)

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        entry = self._create(int(rng.integers(2**31)))[0]
        return Problem(entry["question"], str(entry["answer"]), level, {"entry": entry})

    def reward(self, problem: Problem, completion: str) -> RewardResult:
        answer = answer_of(completion) if MARK in completion else completion.strip()
        value = float(self._judge.score_answer(answer, problem.detail["entry"]))
        return RewardResult(value, "right" if value == 1.0 else f"scored {value:g}")

    def __repr__(self) -> str:
        return f"ReasoningGym({self.dataset!r})"
