"""How long an answer will be, from the answers to problems like it."""

from __future__ import annotations

from rlinf_lab.tasks import Problem

MEMORY = 0.05
"""share of the newest answer in what is remembered"""


class LengthPredictor:
    """Moving means of answers' tokens, by level and by length of the prompt. Long until something is known."""

    def __init__(self) -> None:
        self._means: dict[tuple[int, int], float] = {}
        self._levels: dict[int, float] = {}

    def tell(self, problem: Problem, tokens: int) -> None:
        """An answer to ``problem`` had so many tokens."""
        key = self._key(problem)
        self._means[key] = tokens + (1 - MEMORY) * (self._means.get(key, tokens) - tokens)
        known = self._levels.get(problem.level, tokens)
        self._levels[problem.level] = tokens + (1 - MEMORY) * (known - tokens)

    def of(self, problem: Problem) -> float:
        """Tokens that an answer to ``problem`` will have."""
        return self._means.get(self._key(problem), self._levels.get(problem.level, float("inf")))

    def _key(self, problem: Problem) -> tuple[int, int]:
        return problem.level, len(problem.prompt)

    def __repr__(self) -> str:
        return f"LengthPredictor({len(self._means)} kinds of prompts)"
