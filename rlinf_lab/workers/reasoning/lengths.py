"""How long an answer will be, from the answers to problems like it."""

from __future__ import annotations

from collections.abc import Iterable

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

    def state(self) -> list[list[float]]:
        """What is remembered: level, characters of the prompt (-1: whatever they are), tokens."""
        of_levels = [[float(level), -1.0, mean] for level, mean in self._levels.items()]
        return [[float(level), float(n), mean] for (level, n), mean in self._means.items()] + of_levels

    def load(self, state: Iterable[Iterable[float]]) -> None:
        """Remember what `state` gave."""
        for level, characters, mean in state:
            if characters < 0:
                self._levels[int(level)] = mean
            else:
                self._means[int(level), int(characters)] = mean

    def _key(self, problem: Problem) -> tuple[int, int]:
        return problem.level, len(problem.prompt)

    def __repr__(self) -> str:
        return f"LengthPredictor({len(self._means)} kinds of prompts)"
