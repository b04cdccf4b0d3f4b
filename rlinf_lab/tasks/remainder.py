"""The remainder of a division, worked out digit by digit."""

from __future__ import annotations

import itertools
from typing import ClassVar

import numpy as np

from rlinf_lab.tasks.task import MARK, Problem, RewardResult, Task, exact

FORM = frozenset("0123456789:,")
"""what worked solutions consist of"""


class Remainder(Task):
    """``874%6=`` is answered by ``2:74,3:4,4#4``.

    After each digit the remainder so far, and the digits still to come.

    A dividend has three digits or more: of level k one in k + 1 has no further one, and so on, up to 4·k + 4; divisors
    are up to 3·k + 1. A solution is as long as the square of its digits, so a few are very long. There are many more
    problems than steps of one digit, so what was learnt from some helps with others. A remainder is easily guessed:
    where work is shown in this form, it counts, and an answer that is not wholly right is worth its share of right
    steps before the first wrong one. Other answers are right or wrong.
    """

    name: ClassVar[str] = "remainder"
    alphabet = "0123456789%=:,#"
    levels = 3
    max_length = 3 * 16 + 15 * 16 // 2

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        digits = min(2 + int(rng.geometric(1 / (level + 1))), 4 * level + 4)
        dividend = int(rng.integers(1, 10)) * 10 ** (digits - 1) + int(rng.integers(10 ** (digits - 1)))
        divisor = int(rng.integers(2, min(3 * level + 2, 10)))
        detail = {"dividend": dividend, "divisor": divisor}
        return Problem(f"{dividend}%{divisor}=", str(dividend % divisor), level, detail)

    def solution(self, problem: Problem) -> str:
        text, rest, steps = str(problem.detail["dividend"]), 0, []
        for place, digit in enumerate(text):
            rest = (10 * rest + int(digit)) % problem.detail["divisor"]
            steps.append(f"{rest}:{text[place + 1 :]}".rstrip(":"))
        return ",".join(steps) + f"{MARK}{problem.answer}"

    def reward(self, problem: Problem, completion: str) -> RewardResult:
        work = completion.rpartition(MARK)[0] if MARK in completion else completion
        verdict = exact(problem, completion)
        if not work or not FORM.issuperset(work) or "dividend" not in problem.detail:  # a problem of somebody's own
            return verdict
        right, steps = self.solution(problem).rpartition(MARK)[0].split(","), work.split(",")
        if verdict.value and steps == right:
            return verdict
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(steps, right, strict=False))
        good = sum(1 for _ in same)
        return RewardResult(good / (len(right) + 1), f"right for {good} of {len(right)} steps")
