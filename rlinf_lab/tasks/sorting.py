"""Sorting digits."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rlinf_lab.tasks.task import Problem, RewardResult, Task, exact


class Sorting(Task):
    """``5391<`` is answered by ``#1359``. Level k has 2·k to 4·k digits, most of them few (a geometric tail)."""

    name: ClassVar[str] = "sorting"
    alphabet = "0123456789<#"
    levels = 5
    max_length = 4 * 5 + 1

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        length = min(2 * level + int(rng.geometric(1.0 / level)) - 1, 4 * level)
        digits = "".join(map(str, rng.integers(10, size=max(3, length))))
        return Problem(f"{digits}<", "".join(sorted(digits)), level)

    def reward(self, problem: Problem, completion: str) -> RewardResult:
        return exact(problem, completion)
