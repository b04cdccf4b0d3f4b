"""Problems from a file: one JSON object a line."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.tasks.math import math_reward
from rlinf_lab.tasks.task import Problem, RewardResult, Task, exact

VERIFIERS: dict[str, Callable[[Problem, str], RewardResult]] = {"exact": exact, "math": math_reward}


class Jsonl(Task):
    """The problems of a JSON-lines file, drawn uniformly from the split that is asked for.

    ``prompt`` and ``answer`` name the fields; "level" (a whole number from 1) and all other fields are kept in
    `Problem.detail`. ``verifier``: "exact", "math" (needs math-verify), or a function of problem and completion.
    ``on_error``: "raise" names the first bad line, "skip" leaves bad lines out and says which in one warning.
    Raises `ConfigError` when no line is good, or there is no file.
    """

    name: ClassVar[str] = "jsonl"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        prompt: str = "prompt",
        answer: str = "answer",
        verifier: str | Callable[[Problem, str], RewardResult | float] = "exact",
        on_error: str = "raise",
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise UnknownNameError.of("on_error", on_error, ("raise", "skip"))
        if not callable(verifier) and verifier not in VERIFIERS:
            raise UnknownNameError.of("verifier", verifier, VERIFIERS)
        self._verify: Callable[[Problem, str], Any] = verifier if callable(verifier) else VERIFIERS[verifier]
        self.path = Path(path)
        problems, bad = self._read(prompt, answer, on_error)
        if bad:
            more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
            warnings.warn(f"{self.path}: {len(bad)} lines left out: {'; '.join(bad[:3])}{more}.", stacklevel=2)
        if not problems:
            raise ConfigError(
                f"{self.path} has no problem in it. Next: lines such as {{{prompt!r}: …, {answer!r}: …}}."
            )
        self.problems = problems
        self.levels = max(p.level for p in problems)
        self.alphabet = "".join(sorted({c for p in problems for c in p.prompt + p.answer} | {"#"}))

    def _read(self, prompt: str, answer: str, on_error: str) -> tuple[list[Problem], list[str]]:
        problems, bad = [], []
        if not self.path.is_file():
            raise ConfigError(
                f"There is no file {str(self.path)!r}. Next: the path of one with lines such as "
                f"{{{prompt!r}: …, {answer!r}: …}}."
            )
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    problems.append(_problem(line, prompt, answer))
                except ValueError as error:
                    if on_error == "raise":
                        raise ConfigError(f"{self.path}, line {number}: {error}. Next: {self._next(error)}.") from None
                    bad.append(f"line {number}: {error}")
        return problems, bad

    def _next(self, error: ValueError) -> str:
        """What to do about a bad line: the whole expression, for a task that is only named has no arguments."""
        made = f"lab.tasks.Jsonl({str(self.path)!r}, "
        if not isinstance(error, MissingFieldError):
            return f"mend it, or {made}on_error='skip')"
        return f"name the field that has it, such as {made}{error.role}={error.instead!r}), or {made}on_error='skip')"

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        fitting = [p for p in self.problems if p.level == level] or self.problems
        return fitting[int(rng.integers(len(fitting)))]

    def reward(self, problem: Problem, completion: str) -> RewardResult:
        result = self._verify(problem, completion)
        return result if isinstance(result, RewardResult) else RewardResult(float(result))

    def __repr__(self) -> str:
        return f"Jsonl({str(self.path)!r}, {len(self.problems)} problems)"


class MissingFieldError(ValueError):
    """A line lacks the field of ``role`` ("prompt" or "answer"); ``instead``: one that it has."""

    def __init__(self, said: str, role: str, instead: str) -> None:
        super().__init__(said)
        self.role, self.instead = role, instead


def _problem(line: bytes, prompt: str, answer: str) -> Problem:
    """Raises `ValueError`, which says what is wrong with the line."""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON ({error})") from None
    if not isinstance(row, dict):
        raise ValueError(f"{shown(row, 40)} is no object")
    for role, name in (("prompt", prompt), ("answer", answer)):
        if name not in row:
            said = f"no field {name!r}, only {', '.join(map(repr, row)) or 'none'}"
            others = [each for each in row if each not in (prompt, answer, "level")]
            raise MissingFieldError(said, role, others[0]) if others else ValueError(said)
    if not isinstance(row[prompt], str) or not row[prompt]:
        raise ValueError(f"{prompt!r} is {shown(row[prompt], 40)}, not a text")
    if not isinstance(row[answer], (str, int, float)) or isinstance(row[answer], bool):
        raise ValueError(f"{answer!r} is {shown(row[answer], 40)}, not a text or a number")
    level = row.get("level", 1)
    if not isinstance(level, int) or isinstance(level, bool) or level < 1:
        raise ValueError(f"'level' is {shown(level, 40)}, not a whole number from 1")
    rest = {k: v for k, v in row.items() if k not in (prompt, answer, "level")}
    return Problem(row[prompt], str(row[answer]), level, rest)
