"""What the items of a queue weigh, in the order in which they are taken."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


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


class Groups(Generic[T]):
    """Items that come with the key of their group. ``size`` of a key are one, and leave together.

    ``oldest_first``: in the order in which their keys came first; else as they are whole. What is kept of an item is
    its driver's affair.
    """

    def __init__(self, size: int, oldest_first: bool) -> None:
        self.size, self._oldest_first = size, oldest_first
        self._open: dict[Hashable, list[T]] = {}
        self._ages: dict[Hashable, int] = {}
        self._began = 0

    def clear(self) -> None:
        self._open.clear()

    def completes(self, keys: Iterable[Hashable]) -> int:
        """How many are whole when items of these keys have come."""
        return sum((len(self._open.get(key, ())) + n) // self.size for key, n in Counter(keys).items())

    def add(self, key: Hashable, item: T) -> tuple[float, list[T]] | None:
        """One has come. Returns the place in the order and the items of the group that is whole by it."""
        if key not in self._ages:
            self._began += 1
            self._ages[key] = self._began
        items = self._open.setdefault(key, [])
        items.append(item)
        if len(items) < self.size:
            return None
        age = self._ages[key] if self.size == 1 else self._ages.pop(key)
        return (age if self._oldest_first else 0), self._open.pop(key)


class ByRank:
    """The smallest rank goes first, among equals the first to come. ``last_first``: the last to come goes first;
    ``groups``: ranks are keys, and whole groups are put in. The same order as `item_batches.Ordered` has.
    """

    def __init__(self, last_first: bool = False, groups: Groups[int] | None = None) -> None:
        self._last_first, self.groups = last_first, groups
        self._items: list[tuple[float, int, int]] = []  # the first is the last of the list: (-rank, -number, weight)
        self._came = 0
        self.total = 0

    def add(self, weights: Sequence[int], ranks: Sequence[float] | None) -> None:
        for i, weight in enumerate(weights):
            rank = -self._came - 1 if self._last_first else 0 if ranks is None else ranks[i]
            if self.groups is not None:
                if (whole := self.groups.add(rank, weight)) is None:
                    continue
                rank, weight = whole[0], sum(whole[1])
            self._came += 1
            insort(self._items, (-rank, -self._came, weight))
            self.total += weight

    def take(self, n: int) -> list[int]:
        found = [self._items.pop()[2] for _ in range(n)]
        self.total -= sum(found)
        return found

    def reach(self, weight: int) -> int:
        sums = itertools.accumulate(item[2] for item in reversed(self._items))
        return next(n for n, together in enumerate(sums, 1) if together >= weight)
