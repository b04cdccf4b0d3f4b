"""What a task is: problems, and a verdict on any answer."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from rlinf_lab.errors import ConfigError, said, shown

MARK = "#"
"""what comes after the last one in a completion is its answer"""

SPLITS = ("train", "test")
TEST_SHARE = 0.2
LARGEST = float(np.finfo(np.float32).max)
"""of a reward: learners compute in float32"""


@dataclass(frozen=True)
class Problem:
    """One problem of a task."""

    prompt: str
    answer: str
    """one right answer, as it would stand after the mark"""
    level: int = 1
    """how hard, from 1"""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """what the verifier needs beside the answer"""

    @property
    def split(self) -> str:
        """ "train" or "test", by a hash of the prompt. So no problem is ever in both."""
        digest = hashlib.blake2b(self.prompt.encode(), digest_size=4).digest()
        return SPLITS[int.from_bytes(digest, "big") / 2**32 < TEST_SHARE]

    def __repr__(self) -> str:
        return f"Problem({shown(self.prompt, 60)} -> {shown(self.answer, 40)}, level {self.level})"


@dataclass(frozen=True)
class RewardResult:
    """The verdict on one completion. A verifier that failed is data, not an exception."""

    value: float
    """the reward; 0 where the verifier failed"""
    detail: str = ""
    """why, in a few words"""
    error: str | None = None
    """what the verifier raised, or that it took too long; None: it worked"""

    @property
    def failed(self) -> bool:
        return self.error is not None

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"RewardResult({self.value:g}, {self.error or self.detail})"


class Task:
    """Base of every task: override `problem` and `reward`.

    Override `solution` too, where a worked one can be written.

    ``name`` is what `make` finds it by, ``alphabet`` every character of prompts and solutions, ``levels`` how many
    levels there are, ``max_length`` characters that a worked solution has at most (None: not known).
    """

    name: ClassVar[str] = "task"
    alphabet: str = ""
    levels: int = 1
    max_length: int | None = None

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        """One problem of this level, of either split."""
        raise NotImplementedError

    def reward(self, problem: Problem, completion: str) -> RewardResult:
        """The verdict on a completion: 1 for a right answer, 0 for another.

        The completion is the text after the prompt.
        """
        raise NotImplementedError

    def solution(self, problem: Problem) -> str:
        """A worked solution, for supervised warm-up: the answer after its mark."""
        return f"{MARK}{problem.answer}"

    # --- what comes with it ---------------------------------------------------------------------------------
    def sample(
        self, rng: np.random.Generator, n: int, level: int | None = None, *, split: str = "train"
    ) -> list[Problem]:
        """``n`` problems of a level and a split ("train" or "test").

        None: each of a level drawn uniformly.

        Raises `ConfigError` for a level or split that does not exist, or that holds next to nothing.
        """
        if level is not None and not (isinstance(level, (int, np.integer)) and 1 <= level <= self.levels):
            raise ConfigError(f"{self!r}: level {shown(level)}; there are levels 1 to {self.levels}.")
        if split not in SPLITS:
            raise ConfigError(f"{self!r}: split {shown(split)}; there are {' and '.join(map(repr, SPLITS))}.")
        found: list[Problem] = []
        misses = 0
        while len(found) < n:
            drawn = self.problem(rng, int(rng.integers(1, self.levels + 1)) if level is None else int(level))
            if drawn.split == split:
                found.append(drawn)
                misses = 0
            elif (misses := misses + 1) > 10_000:
                raise ConfigError(f"{self!r}: no problem of level {level} in split {split!r} in 10,000 draws.")
        return found

    def examples(self, rng: np.random.Generator, level: int | None = None) -> Iterator[tuple[str, str]]:
        """Worked examples without end, of the train split: prompt and solution."""
        while True:
            (problem,) = self.sample(rng, 1, level)
            yield problem.prompt, self.solution(problem)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.levels} level{'s' * (self.levels > 1)}, {len(self.alphabet)} characters)"


def scored(reward: Callable[..., Any], *arguments: Any) -> RewardResult:
    """``reward(*arguments)`` as a `RewardResult`, whatever happens in it; a number is taken as its value.

    What it raises, a value that is no number and one that is not finite in float32 become ``error``. Texts are texts
    in what is returned, whatever objects the function put there. An interrupt of the main thread is the user's own.
    """
    try:
        return _plain(reward(*arguments))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return RewardResult(0.0, error=f"{type(error).__name__}: {said(error)}")


def _plain(given: Any) -> RewardResult:
    """Of a float, a str and a str or None. Everything after it relies on that."""
    told = given if isinstance(given, RewardResult) else RewardResult(given)
    detail = "" if told.detail is None else _text(told.detail)
    if told.error is not None:
        return RewardResult(0.0, detail, _text(told.error))
    try:
        value = float(told.value) + 0.0  # a float, and of no class of somebody's own
    except Exception:
        return RewardResult(0.0, detail, f"the reward is {shown(told.value)}, not a number")
    if not math.isfinite(value):
        return RewardResult(0.0, detail, f"the reward is {value}, not a finite number")
    if abs(value) > LARGEST:
        return RewardResult(0.0, detail, f"the reward is {value}, beyond the numbers of float32 (to {LARGEST:.2e})")
    return RewardResult(value, detail)


def _text(given: Any) -> str:
    if isinstance(given, BaseException):
        given = f"{type(given).__name__}: {said(given)}"
    text = str.__str__(given) if isinstance(given, str) else shown(given, 400)
    return text.encode("utf-8", "backslashreplace").decode()  # half of a character can be written nowhere


def answer_of(completion: str) -> str | None:
    """What stands after the last mark; None without a mark."""
    _, mark, answer = completion.rpartition(MARK)
    return answer.strip() if mark else None


def exact(problem: Problem, completion: str) -> RewardResult:
    """1 if the completion's answer is the problem's, character by character."""
    answer = answer_of(completion)
    if answer is None:
        return RewardResult(0.0, "no answer")
    if answer == problem.answer:
        return RewardResult(1.0, "right")
    return RewardResult(0.0, f"{shown(answer, 40)}, not {shown(problem.answer, 40)}")
