"""What a plan search is asked, as numbers: no workers, no profile, no roles. `planning.placement.search_space` makes it
from a profile.

*Granularity* g: the items of an iteration flow in 2^g equal micro-batches. A *leaf* is what is placed as one: a worker,
or a cell of workers. ``table`` tells the seconds of one micro-batch for every number of devices; everything else
follows by composition (`search.solver`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rlinf_lab.planning.cached_method import cached_method

Counts = tuple[int, ...]
MOST_CUTS = 6_305  # of a graph, in all its parts: those of eight leaves without an edge; of ten a search took minutes
FEW_LEAVES = 8  # which have no more
# leaves whose cuts are all looked at, where they are no more than that: of a chain the work grows with the cube of its
# length
LONG = 20
GROUPS = 8  # of neighbours, in which more leaves than that are cut


@dataclass(frozen=True)
class Problem:
    """``names``: of the leaves, by index; sets of leaves are bit masks of these indices.

    ``devices``: how many there are of each kind. A count of devices is a *code*: the flat index into an array of shape
    ``devices + 1``.
    ``edges``: (producer, consumer) and the finest granularity at which items may cross (0: the whole batch first).
    ``granularities``: 0 to this number minus 1.
    ``table``: (leaf, mask of leaves that stay on the same devices) to seconds of a micro-batch, shape (granularities,
    codes), inf where impossible.
    ``streams``: the same for leaves called ``once``, whose micro-batches do not come evenly: (fill, period) pairs of
    shape (options, granularities, codes). Each pair bounds the stream: micro-batch j has left after ``fill + j *
    period``. Small periods have long fills; which pair counts depends on the consumer.
    ``onload``, ``offload``: seconds of each leaf to come to its devices and to leave them.
    ``staying``: leaves that never are offloaded (they cost no switch, but the memory of whoever shares the devices).
    ``once``: leaves that are called once an iteration and stream their outputs: they time-share with others only as a
    whole.
    ``staleness``: how many iterations old the weights of a rollout may be; 0 waits for the end of each iteration.
    ``apart``: for each leaf those with which it shall have no device in common (empty: nobody). Two parts that
    time-share have some device in common.
    ``common``: for (leaf, another one that holds some of the same weights) seconds of the first to come where the other
    one goes, and to leave where it comes: what both hold stays there.
    ``whole``: other leaves that time-share as a whole only: they never wait, and so give their devices to nobody before
    their end.
    ``minded``: for each leaf those of ``staying`` beside which its seconds may be others (None: all of them): parts are
    searched once for all the rest.
    """

    names: tuple[str, ...]
    edges: Mapping[tuple[int, int], int]
    devices: Counts
    granularities: int
    table: Callable[[int, int], np.ndarray] = field(compare=False)
    onload: tuple[float, ...]
    offload: tuple[float, ...]
    staying: int = 0
    once: int = 0
    staleness: int = 0
    streams: Callable[[int, int], tuple[np.ndarray, np.ndarray]] | None = field(default=None, compare=False)
    apart: tuple[int, ...] = ()
    common: Mapping[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    minded: tuple[int, ...] | None = None
    whole: int = 0

    @property
    def everyone(self) -> int:
        return (1 << len(self.names)) - 1

    @property
    def most(self) -> int:
        """Code of all devices."""
        return self.codes - 1

    @cached_property
    def shape(self) -> Counts:
        return tuple(n + 1 for n in self.devices)

    @cached_property
    def codes(self) -> int:
        return int(np.prod(self.shape))

    @cached_property
    def totals(self) -> np.ndarray:
        """Devices of all kinds together, for each code."""
        return np.sum(np.indices(self.shape), axis=0).ravel()

    def counts(self, code: int) -> Counts:
        """Devices of each kind."""
        return tuple(int(n) for n in np.unravel_index(code, self.shape))

    def numbers(self, leaf: int, context: int) -> tuple[np.ndarray, np.ndarray]:
        """(fill, period) of a leaf, each of shape (options, granularities, codes). Equal where each micro-batch is a
        call of its own.
        """
        if self.streams is not None and self.once >> leaf & 1:
            return self.streams(leaf, context)
        seconds = self.table(leaf, context)[None]
        return seconds, seconds

    def iteration(self, fill: np.ndarray | float, period: np.ndarray | float) -> np.ndarray:
        """Seconds between iterations of a plan. Its numbers are those of a whole iteration as one micro-batch.

        The next one begins when its devices are free (``period``) and the one ``staleness + 1`` before it has ended
        (``fill``).
        """
        return np.asarray(np.maximum(period, fill / (1 + self.staleness)))

    def at_least(self, g: int | np.ndarray, fill: np.ndarray, period: np.ndarray) -> np.ndarray:
        """Least seconds between iterations when 2^g micro-batches pass through a part with these numbers.

        With the smaller of the two as the period: below a temporal node the part starts afresh for every micro-batch,
        and ``period`` may exceed ``fill``.
        """
        least = np.minimum(fill, period)
        return np.maximum(2.0**g * least, (fill + (2.0**g - 1) * least) / (1 + self.staleness))

    def may_time_share(self, cut: Cut) -> bool:
        """Whether somebody of the one part may share a device with somebody of the other."""
        return not self.apart or any(cut.after & ~self.apart[v] for v in members(cut.before))

    def switch(self, leaving: int, coming: int, cuts: Cuts) -> float:
        """Seconds from the last work of one set to the first of another. Its sinks leave, the other's sources come,
        each at the same time. What who leaves holds together with who comes, or with somebody of the other set who is
        there all the time, does not move.
        """
        sinks, sources = cuts.ends(leaving)[1], cuts.ends(coming)[0]
        off = [
            self._moved(v, 1, self.offload[v], sources | coming & self.staying) for v in members(sinks & ~self.staying)
        ]
        on = [
            self._moved(v, 0, self.onload[v], sinks | leaving & self.staying) for v in members(sources & ~self.staying)
        ]
        return max(off, default=0.0) + max(on, default=0.0)

    def _moved(self, leaf: int, which: int, seconds: float, others: int) -> float:
        """Seconds of a leaf to come (0) or leave (1) in place of these."""
        if not self.common:
            return seconds
        return min(
            [seconds, *(self.common[leaf, other][which] for other in members(others) if (leaf, other) in self.common)]
        )


@dataclass(frozen=True)
class Cut:
    """A set in two parts without an edge from ``after`` to ``before``."""

    before: int
    after: int
    linked: bool
    finest: int


class Cuts:
    """The cuts of every set of leaves, found when asked."""

    def __init__(self, edges: Mapping[tuple[int, int], int], granularities: int, count: int) -> None:
        """``edges``, ``granularities``: of a problem with ``count`` leaves."""
        self._edges, self._finest = dict(edges), granularities - 1
        self._orders = _orders(frozenset(edges), count)
        self._after = [sum(1 << c for p, c in edges if p == v) for v in range(count)]

    @staticmethod
    def shared(problem: Problem) -> Cuts:
        """Those that searches of the same graph have in common."""
        return _cuts(frozenset(problem.edges.items()), problem.granularities, len(problem.names))

    @property
    def is_grouped(self) -> bool:
        return self._orders.is_grouped

    @cached_method
    def of(self, leaves: int) -> tuple[Cut, ...]:
        """Every way to cut a set, smaller upstream parts first. Where the graph has too many, those of one order of its
        leaves (`Orders`).
        """
        found = (self._cut(part, leaves & ~part) for part in self._orders.upstream(leaves))
        return tuple(sorted(found, key=lambda c: (c.before.bit_count(), c.before)))

    @cached_method
    def ends(self, leaves: int) -> tuple[int, int]:
        """(sources, sinks) of a set. Nobody in it feeds a source, and a sink feeds nobody in it."""
        there = members(leaves)
        sources = sum(1 << v for v in there if not self._orders.producers[v] & leaves)
        return sources, sum(1 << v for v in there if not self._after[v] & leaves)

    def _cut(self, before: int, after: int) -> Cut:
        crossing = [finest for (p, c), finest in self._edges.items() if before >> p & 1 and after >> c & 1]
        return Cut(before, after, bool(crossing), min([self._finest, *crossing]))


class Orders:
    """The orders in which the leaves of a graph may stand. They are any in which producers come before consumers, or
    one of these, where they have more cuts than can be looked at (they grow threefold with every leaf that no edge
    holds). Of more than `LONG` leaves, one order is cut between groups of neighbours, and each group in one way: who
    comes first, and the rest.
    """

    def __init__(self, edges: frozenset[tuple[int, int]], count: int) -> None:
        self.producers = [sum(1 << p for p, c in edges if c == v) for v in range(count)]
        self._first = list(self.producers)  # by leaf, those that no cut puts after it
        self._order = self._topological()

    @staticmethod
    def of(problem: Problem) -> Orders:
        return _orders(frozenset(problem.edges), len(problem.names))

    @cached_property
    def all(self) -> bool:
        """Whether every order is looked at."""
        if self.is_grouped:
            return False
        follows = all(self.producers[w] >> v & 1 for v, w in itertools.pairwise(self._order))  # of a chain there is one
        return follows or len(self._order) <= FEW_LEAVES or not self._exceeds(MOST_CUTS)

    def upstream(self, leaves: int) -> list[int]:
        """Proper subsets, not empty, that nobody else in the set feeds."""
        found = self._closed(leaves, self._first if self.all else self._in_one_order)
        if not self.is_grouped:
            return found
        return [
            part for part in found if not any(part & group and leaves & ~part & group for group in self._groups)
        ] or found[:1]

    @property
    def is_grouped(self) -> bool:
        return len(self._order) > LONG

    @cached_property
    def _groups(self) -> list[int]:
        """Neighbours in the order, about as many in each."""
        count = len(self._order)
        return [
            sum(1 << v for v in self._order[i * count // GROUPS : (i + 1) * count // GROUPS]) for i in range(GROUPS)
        ]

    @cached_property
    def _in_one_order(self) -> list[int]:
        found = list(self._first)
        for v, w in itertools.pairwise(self._order):
            found[w] |= found[v] | 1 << v
        return found

    def _topological(self) -> list[int]:
        order: list[int] = []
        placed, left = 0, list(range(len(self.producers)))
        while left:
            v = next(v for v in left if not self.producers[v] & ~placed)
            order.append(v)
            left.remove(v)
            placed |= 1 << v
        return order

    def _closed(self, leaves: int, first: list[int], most: int | None = None) -> list[int]:
        """``most``: no need to go on when there are more."""
        found = [0]
        for v in self._order:
            if leaves >> v & 1:
                needed = first[v] & leaves
                found += [part | 1 << v for part in found if part & needed == needed]
                if most is not None and len(found) > most:
                    break
        return [part for part in found if part and part != leaves]

    def _exceeds(self, most: int) -> bool:
        """Whether all leaves, and all sets cut from them, have over ``most`` cuts together."""
        count, seen, open_ = 0, set[int](), [(1 << len(self.producers)) - 1]
        while open_:
            leaves = open_.pop()
            if leaves in seen or not leaves & (leaves - 1):
                continue
            seen.add(leaves)
            parts = self._closed(leaves, self._first, most)
            count += len(parts)
            if count > most:
                return True
            open_ += [*parts, *(leaves & ~part for part in parts)]
        return False


@functools.lru_cache(64)
def _orders(edges: frozenset[tuple[int, int]], count: int) -> Orders:
    """Every search, and everything that follows a plan, asks for those of the same graph."""
    return Orders(edges, count)


@functools.lru_cache(16)
def _cuts(edges: frozenset[tuple[tuple[int, int], int]], granularities: int, count: int) -> Cuts:
    """A quick answer makes some thirty searches of the same graph."""
    return Cuts(dict(edges), granularities, count)


@functools.lru_cache(4096)
def members(mask: int) -> tuple[int, ...]:
    return tuple(v for v in range(mask.bit_length()) if mask >> v & 1)


def subsets(mask: int) -> list[int]:
    """Proper subsets that are not empty."""
    found = []
    part = (mask - 1) & mask
    while part:
        found.append(part)
        part = (part - 1) & mask
    return found
