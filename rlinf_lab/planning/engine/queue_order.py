"""What the items of a queue weigh, in the order in which they are taken."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Sequence


class InTurn:
    """First in, first out."""

    def __init__(self, count: int) -> None:
        """``count`` items are there, of which each weighs 1."""
        self._weights = deque([1] * count)
        self.total = count

    def add(self, weights: Sequence[int], ranks: Sequence[float] | None) -> None:
        self._weights.extend(weights)
        self.total += sum(weights)

    def take(self, n: int) -> list[int]:
        """The weights of the first ``n``, which leave."""
        found = [self._weights.popleft() for _ in range(n)]
        self.total -= sum(found)
        return found

    def reach(self, weight: int) -> int:
        """How many of the first items weigh that much together, which all of them do."""
        return next(n for n, together in enumerate(itertools.accumulate(self._weights), 1) if together >= weight)


class ByRank:
    """The smallest rank goes first, among equals the first to come; ``last_first``: the last to come goes first.
    The same order as `item_batches.Ordered` has."""

    def __init__(self, last_first: bool) -> None:
        self._last_first = last_first
        self._items: list[tuple[float, int, int]] = []  # the first is the last of the list: (-rank, -number, weight)
        self._came = 0
        self.total = 0

    def add(self, weights: Sequence[int], ranks: Sequence[float] | None) -> None:
        for i, weight in enumerate(weights):
            self._came += 1
            rank = -self._came if self._last_first else 0 if ranks is None else ranks[i]
            insort(self._items, (-rank, -self._came, weight))
        self.total += sum(weights)

    def take(self, n: int) -> list[int]:
        found = [self._items.pop()[2] for _ in range(n)]
        self.total -= sum(found)
        return found

    def reach(self, weight: int) -> int:
        sums = itertools.accumulate(item[2] for item in reversed(self._items))
        return next(n for n, together in enumerate(sums, 1) if together >= weight)
