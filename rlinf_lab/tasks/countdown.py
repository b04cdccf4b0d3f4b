"""Countdown: reach a number with others, each used at most once."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import ClassVar

import numpy as np

from rlinf_lab.tasks.task import Problem, RewardResult, Task, answer_of

_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
MAX_EXPRESSION = 200
"""characters of an expression that is still read"""


class Countdown(Task):
    """``3,5,7>22=`` is answered by ``#5*3+7``.

    Level k has k + 1 numbers, and every problem has a solution.

    Division must not be rounded: ``7/2`` is 3½. The answer shown is the one that the problem was made from.
    """

    name: ClassVar[str] = "countdown"
    alphabet = "0123456789,>=#+-*/()"
    levels = 5
    max_length = 60

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        while True:
            numbers = [int(n) for n in rng.integers(1, 26, size=level + 1)]
            value, text = self._expression(rng, numbers)
            if value.denominator == 1 and 0 < value < 1000 and value not in numbers:
                shuffled = [numbers[i] for i in rng.permutation(len(numbers))]
                prompt = f"{','.join(map(str, shuffled))}>{value}="
                return Problem(prompt, text, level, {"numbers": tuple(numbers), "target": int(value)})

    def _expression(self, rng: np.random.Generator, numbers: list[int]) -> tuple[Fraction, str]:
        """Two parts joined at random until one is left. Only divisions that leave no rest are drawn."""
        parts: list[tuple[Fraction, str]] = [(Fraction(n), str(n)) for n in numbers]
        while len(parts) > 1:
            (a, left), (b, right) = (parts.pop(int(rng.integers(len(parts)))) for _ in range(2))
            symbols = "+-*/" if b and (a / b).denominator == 1 else "+-*"
            symbol = symbols[rng.integers(len(symbols))]
            joined = {"+": a + b, "-": a - b, "*": a * b}[symbol] if symbol != "/" else a / b
            parts.append((joined, f"({left}{symbol}{right})"))
        value, text = parts[0]
        return value, text[1:-1] if text.startswith("(") else text

    def reward(self, problem: Problem, completion: str) -> RewardResult:
        answer = answer_of(completion)
        if answer is None:
            return RewardResult(0.0, "no answer")
        try:
            value, used = evaluated(answer)
        except ValueError as problem_with_it:
            return RewardResult(0.0, str(problem_with_it))
        spare = Counter(used) - Counter(problem.detail["numbers"])
        if spare:
            return RewardResult(0.0, f"uses {', '.join(map(str, spare))} too often")
        if value != problem.detail["target"]:
            return RewardResult(0.0, f"gives {value}, not {problem.detail['target']}")
        return RewardResult(1.0, "right")


def evaluated(expression: str) -> tuple[Fraction, list[int]]:
    """Value and numbers of an expression of whole numbers, ``+ - * /`` and brackets. Nothing is executed.

    Raises `ValueError` for anything else.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"an expression of {len(expression)} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("not an expression") from None
    numbers: list[int] = []

    def value_of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = value_of(node.left), value_of(node.right)
            if isinstance(node.op, ast.Div) and right == 0:
                raise ValueError("divides by zero")
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(node, ast.Constant) and type(node.value) is int:
            numbers.append(node.value)
            return Fraction(node.value)
        raise ValueError("not an expression of whole numbers, + - * / and brackets")

    return value_of(tree), numbers
