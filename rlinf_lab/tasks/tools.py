"""Tools that an answer may call.

A calculator, a search over texts that lie here, a sandboxed program.

In an answer a call is written ``[argument]`` (with several tools ``[name:argument]``), and what the tool says follows,
up to a ``;``. A tool that raises says ``?``; the reason stands in `ToolResult.error`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rlinf_lab.errors import ConfigError, UnknownNameError, said, shown
from rlinf_lab.tasks.countdown import evaluated
from rlinf_lab.tasks.program import Sandbox
from rlinf_lab.tasks.task import Problem, RewardResult, Task, exact

CALL, CALLED, RESULT_END, FAILED = "[", "]", ";", "?"


@dataclass(frozen=True)
class ToolResult:
    """What a tool said."""

    text: str
    """goes into the answer"""
    error: str = ""
    """what it raised; empty: nothing"""


class Tool:
    """Base of a tool: override `run`. ``name`` is what a call names it by. Must pickle; `run` may be called by several
    threads."""

    name: ClassVar[str] = "tool"

    def run(self, argument: str) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Calculator(Tool):
    """Whole numbers, ``+ - * /`` and brackets, exactly. A quotient that is not whole is a fraction."""

    name: ClassVar[str] = "calc"

    def run(self, argument: str) -> str:
        return str(evaluated(argument)[0])


class Search(Tool):
    """The text of ``corpus`` that fits best, by Okapi BM25 over its words.

    Source: Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), k1 = 1.5, b = 0.75.
    """

    name: ClassVar[str] = "search"

    def __init__(self, corpus: Sequence[str], *, characters: int = 200) -> None:
        if isinstance(corpus, str) or not corpus or characters < 1:
            raise ConfigError(
                f"Search({shown(corpus)}): at least one text is needed. Next: Search(['first text', 'second text'])."
            )
        self.corpus, self.characters = list(corpus), characters
        self._counts = [Counter(_words(text)) for text in self.corpus]
        self._mean = float(np.mean([c.total() for c in self._counts])) or 1.0
        self._holding = Counter(word for counts in self._counts for word in counts)

    def run(self, argument: str) -> str:
        scores = [self._score(set(_words(argument)), counts) for counts in self._counts]
        best = int(np.argmax(scores))
        return self.corpus[best][: self.characters] if scores[best] > 0 else ""

    def _score(self, words: set[str], counts: Counter[str]) -> float:
        length, total = counts.total() / self._mean, 0.0
        for word in words & counts.keys():
            holding = self._holding[word]
            rarity = math.log(1 + (len(self.corpus) - holding + 0.5) / (holding + 0.5))
            total += rarity * counts[word] * 2.5 / (counts[word] + 1.5 * (0.25 + 0.75 * length))
        return total

    def __repr__(self) -> str:
        return f"Search({len(self.corpus)} texts)"


class PythonProgram(Tool):
    """Runs a Python program in a `Sandbox` and says what it printed."""

    name: ClassVar[str] = "python"

    def __init__(self, sandbox: Sandbox | None = None, *, characters: int = 200) -> None:
        self.sandbox, self.characters = sandbox or Sandbox(), characters

    def run(self, argument: str) -> str:
        result = self.sandbox.run(argument)
        if not result.ok:
            raise RuntimeError(f"{result!r}: {result.output[-200:]}")
        return result.output.strip()[: self.characters]

    def __repr__(self) -> str:
        return f"PythonProgram({self.sandbox!r})"


_TOOLS: Mapping[str, type[Tool]] = {"calculator": Calculator, "python": PythonProgram}


def tools_of(tools: Sequence[Tool | str]) -> dict[str, Tool]:
    """By the names that calls use. ``"calculator"`` and ``"python"`` stand for themselves. Raises for two of one
    name."""
    found: dict[str, Tool] = {}
    for given in tools:
        if isinstance(given, str):
            if given not in _TOOLS:
                raise UnknownNameError.of("tool", given, list(_TOOLS))
            given = _TOOLS[given]()
        if not isinstance(given, Tool):
            raise ConfigError(
                f"tools={shown(tools)}: {shown(given)} is no tool. Next: a lab.tasks.Tool, or 'calculator'."
            )
        if given.name in found:
            raise ConfigError(
                f"tools={shown(tools)}: two are called {given.name!r}. Next: another name for one of them."
            )
        found[given.name] = given
    return found


def answered(tools: Mapping[str, Tool], call: str) -> ToolResult:
    """What the tool of ``call`` (the text between the brackets) says. Nothing that it does is raised."""
    name, colon, argument = call.partition(":")
    if len(tools) == 1 and not (colon and name in tools):
        name, argument = next(iter(tools)), call
    if name not in tools:
        return ToolResult(FAILED, f"there is no tool {shown(name, 40)}; there are {', '.join(tools)}")
    try:
        return ToolResult(tools[name].run(argument))
    except Exception as error:
        return ToolResult(FAILED, f"{type(error).__name__}: {said(error)}")


def call_of(text: str) -> str | None:
    """The call that ``text`` ends with; None where it ends with none."""
    begin = text.rfind(CALL)
    return text[begin + 1 : -1] if begin >= 0 and text.endswith(CALLED) else None


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


class Products(Task):
    """``7*8*3=`` is answered by ``[7*8*3]168;#168``: a calculator works it out. Level k has k + 1 factors of one or two
    digits.

    A model of two layers does not multiply in its head, so what there is to learn is to ask, and to copy.
    """

    name: ClassVar[str] = "products"
    alphabet = "0123456789*=#" + CALL + CALLED + RESULT_END + FAILED
    levels = 3
    max_length = 40

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        factors = [int(n) for n in rng.integers(2, 100, size=level + 1)]
        return Problem(f"{'*'.join(map(str, factors))}=", str(math.prod(factors)), level)

    def solution(self, problem: Problem) -> str:
        return f"{CALL}{problem.prompt[:-1]}{CALLED}{problem.answer}{RESULT_END}#{problem.answer}"

    def reward(self, problem: Problem, completion: str) -> RewardResult:
        return exact(problem, completion)
