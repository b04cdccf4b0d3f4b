"""What a call did for each batch, and what it would have done for other batches of the same items.

A batch that was taken before does again what it did. Another one takes what its items took: where runs lie between an item's puts, those runs; else an
equal part of what its batch took beyond what every batch takes (`consumed.fit`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.consumed import SLIGHT, fit
from rlinf_lab.timeline.span import SpanKind


class Deed(NamedTuple):
    """One operation of a recorded call, as `recorded.Operation`, and more. ``first``: number of its item; ``key``: of its queue, -1 for none."""

    kind: SpanKind
    channel: str
    items: int
    ns: int
    first: int
    key: int = -1


Part = Sequence[Deed]
"""what follows one get, until the next"""


@dataclass(frozen=True)
class Batch:
    """``items``: their numbers in the queue of the first channel; ``parts``: after the get of each channel of the phase."""

    items: tuple[int, ...]
    parts: tuple[Part, ...]


class Pieces:
    """The batches of one phase of a call, of all iterations and ranks."""

    def __init__(self, name: str, batches: Sequence[tuple[Hashable, Batch]]) -> None:
        """``batches``: with the queues in which their items are numbered. ``name``: of the call, for errors."""
        self._name = name
        self._of = {(queue, item): (batch, place) for queue, batch in batches for place, item in enumerate(batch.items)}
        found = [batch for _, batch in batches]
        self.guessed = False  # whether another batch has been asked for, and what it takes is not surely known
        self._costs = tuple(_Costs([(len(b.items), b.parts[k]) for b in found]) for k in range(len(found[0].parts) if found else 0))

    def parts(self, queue: Hashable, items: Sequence[int]) -> tuple[Part, ...]:
        """What a batch of these items does after each of its gets. Raises `PlanError` for an item that nobody took."""
        found = [self._taken(queue, item) for item in items]
        whole = found[0][0]
        if whole.items == tuple(items):
            return whole.parts
        self.guessed = self.guessed or not all(costs.are_known for costs in self._costs)
        return tuple(costs.composed([(batch.parts[k], len(batch.items), place) for batch, place in found]) for k, costs in enumerate(self._costs))

    def _taken(self, queue: Hashable, item: int) -> tuple[Batch, int]:
        if (queue, item) not in self._of:
            raise PlanError(f"{self._name}: nobody took item {item} of {queue}, so what it takes is not known")
        return self._of[queue, item]


class _Costs:
    """What batches of a phase take after one of their gets, by their size."""

    def __init__(self, batches: Sequence[tuple[int, Part]]) -> None:
        self._by_item = any(n > 1 and _runs_between(part) for n, part in batches)
        sizes = np.array([n for n, _ in batches], float)
        times = np.array([_ends(part) for _, part in batches], float).reshape(-1, 2)
        if self._by_item:
            totals = np.array([sum(deed.ns for deed in part) for _, part in batches], float)
            self._fixed = (fit(sizes, totals)[0] if len(set(sizes)) > 1 else 0.0, 0.0)
            self.are_known = False  # how much of the first item's time is the batch's is a guess
        else:
            lines = [fit(sizes, times[:, end])[:2] for end in (0, 1)]
            self._fixed = (lines[0][0], lines[1][0])
            off = [abs(times[:, end] - fixed - each * sizes).max(initial=0.0) for end, (fixed, each) in enumerate(lines)]
            self.are_known = len(set(sizes)) > 1 and max(off) <= SLIGHT * times.sum(1).mean()

    def composed(self, items: Sequence[tuple[Part, int, int]]) -> Part:
        """``items``: of each, what its batch did, how many items that had, and its place among them."""
        before, after = self._fixed
        own: list[Deed] = []
        for part, n, place in items:
            deeds = _of_item(part, n, place)
            head, tail = _ends(part)
            if self._by_item:
                own += _less(deeds, round(self._fixed[0])) if place == 0 else deeds
            else:
                own += [deed for deed in deeds if deed.kind == SpanKind.PUT]
                before += (head - self._fixed[0]) / n
                after += (tail - self._fixed[1]) / n
        return [*_run(before), *own, *_run(after)]


def _run(ns: float) -> list[Deed]:
    return [Deed(SpanKind.RUN, "", 0, round(ns), -1)] if round(ns) > 0 else []


def _less(deeds: Sequence[Deed], ns: int) -> list[Deed]:
    """Without so much of its first run."""
    if not deeds or deeds[0].kind != SpanKind.RUN:
        return list(deeds)
    return [*_run(deeds[0].ns - ns), *deeds[1:]]


def _runs_between(part: Part) -> bool:
    """Whether something runs between two puts."""
    puts = [i for i, deed in enumerate(part) if deed.kind == SpanKind.PUT]
    return bool(puts) and any(deed.kind == SpanKind.RUN for deed in part[puts[0] : puts[-1]])


def _ends(part: Part) -> tuple[int, int]:
    """Nanoseconds before the first put (all, where there is none) and after it."""
    puts = [i for i, deed in enumerate(part) if deed.kind == SpanKind.PUT]
    first = puts[0] if puts else len(part)
    return sum(deed.ns for deed in part[:first]), sum(deed.ns for deed in part[first:])


def _of_item(part: Part, n: int, place: int) -> list[Deed]:
    """The operations of one item of n: up to the last of its share of the puts; the last item has what follows, too."""
    puts = [i for i, deed in enumerate(part) if deed.kind == SpanKind.PUT]
    if not puts:
        return []
    low, high = (len(puts) * at // n for at in (place, place + 1))
    begin = puts[low - 1] + 1 if low else 0
    end = len(part) if place == n - 1 else puts[high - 1] + 1 if high else 0
    return list(part[begin:end])
