"""Problems from a file: one JSON object a line."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.tasks.math import math_reward
from rlinf_lab.tasks.program import program_reward
from rlinf_lab.tasks.task import Problem, RewardResult, Task, exact

HALF = re.compile("[\ud800-\udfff]")
"""a surrogate that is alone: JSON can say it, UTF-8 cannot"""
VERIFIERS: dict[str, Callable[[Problem, str], RewardResult]] = {"exact": exact, "math": math_reward, "program": program_reward}


class Jsonl(Task):
    """The problems of a JSON-lines file, drawn uniformly from the split that is asked for.

    ``prompt`` and ``answer`` name the fields; "level" (a whole number from 1) and all other fields are kept in
    `Problem.detail`. ``verifier``: "exact", "math" (needs math-verify), "program" (see `program_reward`), or a
    function of problem and completion.
    ``on_error``: "raise" names the first bad line, "skip" leaves bad lines out and says which in one warning.
    ``max_prompt``: characters that a prompt has at most, a longer one is a bad line; None: no limit.
    Raises `ConfigError` when no line is good, or there is no file.

    Attributes: ``problems``, and ``lines``, the number of each one's line in the file.
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
        max_prompt: int | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise UnknownNameError.of("on_error", on_error, ("raise", "skip"))
        if not callable(verifier) and verifier not in VERIFIERS:
            raise UnknownNameError.of("verifier", verifier, VERIFIERS)
        self._verify: Callable[[Problem, str], Any] = verifier if callable(verifier) else VERIFIERS[verifier]
        if max_prompt is not None and (not isinstance(max_prompt, int) or isinstance(max_prompt, bool) or max_prompt < 1):
            raise ConfigError(f"Jsonl(max_prompt={shown(max_prompt)}): characters, at least 1, or None. Next: max_prompt=500.")
        self.path, self.lines, self._digest = Path(path), list[int](), ""
        problems, bad = self._read(prompt, answer, on_error, max_prompt)
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

    @property
    def source(self) -> dict[str, Any]:
        """The file as it was read, to be known again.

        Its path, number of problems, a hash of its bytes, and its characters.
        """
        problems = len(self.problems)
        return {"path": str(self.path), "problems": problems, "blake2b": self._digest, "alphabet": self.alphabet}

    def check_fits(self, context: int, tokens: Callable[[str], int] = len) -> None:
        """Refuse a prompt that leaves no room for an answer in ``context`` tokens.

        ``tokens`` counts those of a text, and is asked of prompts with as many bytes only. Raises `ConfigError`, which
        names the line.
        """
        for number, problem in zip(self.lines, self.problems, strict=True):
            if len(problem.prompt.encode()) >= context and (n := tokens(problem.prompt)) >= context:
                raise ConfigError(
                    f"{self.path}, line {number}: the prompt has {n:,} tokens, and prompt and answer have {context:,} "
                    f"together. Next: shorten it, or leave such lines out: "
                    f"lab.tasks.Jsonl({str(self.path)!r}, max_prompt={context - 1}, on_error='skip')."
                )

    def _read(
        self, prompt: str, answer: str, on_error: str, max_prompt: int | None
    ) -> tuple[list[Problem], list[str]]:
        problems, bad, digest = [], [], hashlib.blake2b(digest_size=16)
        if not self.path.is_file():
            raise ConfigError(
                f"There is no file {str(self.path)!r}. Next: the path of one with lines such as "
                f"{{{prompt!r}: …, {answer!r}: …}}."
            )
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                digest.update(line)
                if not line.strip():
                    continue
                try:
                    problems.append(_problem(line, prompt, answer, max_prompt))
                    self.lines.append(number)
                except ValueError as error:
                    if on_error == "raise":
                        raise ConfigError(f"{self.path}, line {number}: {error}. Next: {self._next(error)}.") from None
                    bad.append(f"line {number}: {error}")
        self._digest = digest.hexdigest()
        return problems, bad

    def _next(self, error: ValueError) -> str:
        """What to do about a bad line, as a whole expression. A task that is only named has no arguments."""
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


def _problem(line: bytes, prompt: str, answer: str, max_prompt: int | None) -> Problem:
    """Raises `ValueError`, which says what is wrong with the line."""
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
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
    for name in (prompt, answer):
        if (half := HALF.search(str(row[name]))) is not None:
            raise ValueError(f"{name!r} has half of a character, {half[0]!r} at {half.start()}, which no text can be written with")
    if max_prompt is not None and len(row[prompt]) > max_prompt:
        raise ValueError(f"{prompt!r} has {len(row[prompt]):,} characters, and max_prompt is {max_prompt:,}")
    level = row.get("level", 1)
    if not isinstance(level, int) or isinstance(level, bool) or level < 1:
        raise ValueError(f"'level' is {shown(level, 40)}, not a whole number from 1")
    rest = {k: v for k, v in row.items() if k not in (prompt, answer, "level")}
    return Problem(row[prompt], str(row[answer]), level, rest)
