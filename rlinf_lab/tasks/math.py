"""Mathematical answers, compared by their meaning: ``\\frac{1}{2}`` is ``0.5``."""

from __future__ import annotations

import functools
import importlib.util

from rlinf_lab.errors import MissingDependencyError
from rlinf_lab.tasks.isolated import Isolated
from rlinf_lab.tasks.task import MARK, Problem, RewardResult, answer_of

TIMEOUT_SECONDS = 5.0


def math_reward(problem: Problem, completion: str) -> RewardResult:
    """1 if math-verify finds the completion's answer equal to the problem's, LaTeX or plain.

    The answer is what follows the last ``#``, or whatever math-verify finds. It runs in a child process with a limit of
    time, for sympy can take for ever. Raises `MissingDependencyError` where math-verify is not installed.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise MissingDependencyError.of("math-verify", "tasks", "the verifier of mathematical answers")
    text = answer_of(completion) if MARK in completion else completion
    return _child()(problem.answer, text)


@functools.cache
def _child() -> Isolated:
    return Isolated(_verdict, timeout_s=TIMEOUT_SECONDS)


def _verdict(right: str, text: str) -> RewardResult:
    from math_verify import parse, verify

    # Its own limits need signals of the main thread; ours are those of the process.
    gold = parse(f"${right}$", parsing_timeout=None)
    found = parse(text, parsing_timeout=None) or parse(f"${text}$", parsing_timeout=None)
    if not gold:
        return RewardResult(0.0, error=f"the problem's own answer {right!r} is no mathematics")
    if not found:
        return RewardResult(0.0, "no answer")
    if verify(gold, found, timeout_seconds=None):
        return RewardResult(1.0, "right")
    return RewardResult(0.0, f"{found[0]}, not {gold[0]}")
