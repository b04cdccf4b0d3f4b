"""The remainder of a division, worked out by subtracting: short for some problems, very long for others."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rlinf_lab.tasks.task import MARK, Problem, RewardResult, Task, exact


class Remainder(Task):
    """``47%6=`` is answered by ``41,35,29,23,17,11,5#5``: level k has dividends of up to 30·k + 9.

    A solution has as many numbers as the quotient, so lengths have the long tail of dividing by small numbers.
    """

    name: ClassVar[str] = "remainder"
    alphabet = "0123456789%=,#"
    levels = 3
    max_length = 3 * 49 + 2

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        a, b = int(rng.integers(10, 30 * level + 10)), int(rng.integers(2, 10))
        return Problem(f"{a}%{b}=", str(a % b), level, {"dividend": a, "divisor": b})

    def solution(self, problem: Problem) -> str:
        a, b = problem.detail["dividend"], problem.detail["divisor"]
        return ",".join(str(rest) for rest in range(a - b, -1, -b)) + f"{MARK}{problem.answer}"

    def reward(self, problem: Problem, completion: str) -> RewardResult:
        return exact(problem, completion)
