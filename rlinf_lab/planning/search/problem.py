"""What a plan search is asked, as numbers: no workers, no profile, no roles. `planning.setting` makes it from a profile.

*Granularity* g: the items of an iteration flow in 2^g equal chunks. A *leaf* is what is placed as one: a worker, or a cell of workers. ``table``
tells the seconds of one chunk for every number of devices; everything else follows by composition (`search.solver`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

Counts = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """``names``: of the leaves, by index; sets of leaves are bit masks of these indices.

    ``devices``: how many there are of each kind. A count of devices is a *code*: the flat index into an array of shape ``devices + 1``.
    ``edges``: (producer, consumer) and the finest granularity at which items may cross (0: the whole batch first).
    ``granularities``: 0 to this number minus 1.
    ``table``: (leaf, mask of leaves that stay on the same devices) to seconds of a chunk, shape (granularities, codes), inf where impossible.
    ``streams``: the same for leaves called ``once``, whose chunks do not come evenly: (fill, period) pairs of shape (options, granularities, codes).
    Each pair bounds the stream: chunk j has left after ``fill + j * period``. Small periods have long fills; which pair counts depends on the consumer.
    ``onload``, ``offload``: seconds of each leaf to come to its devices and to leave them.
    ``staying``: leaves that never leave their devices (they cost no switch, but the memory of whoever shares the devices).
    ``once``: leaves that are called once an iteration and stream their outputs: they take turns with others only as a whole.
    ``staleness``: how many iterations old the weights of a rollout may be; 0 waits for the end of each iteration.
    ``apart``: for each leaf those with which it shall have no device in common (empty: nobody). Two parts that take turns have some device in common.
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
        """(fill, period) of a leaf, each of shape (options, granularities, codes). Equal where each chunk is a call of its own."""
        if self.streams is not None and self.once >> leaf & 1:
            return self.streams(leaf, context)
        seconds = self.table(leaf, context)[None]
        return seconds, seconds

    def iteration(self, fill: np.ndarray | float, period: np.ndarray | float) -> np.ndarray:
        """Seconds between iterations of a plan with these numbers for a whole iteration as one chunk.

        The next one begins when its devices are free (``period``) and the one ``staleness + 1`` before it has ended (``fill``).
        """
        return np.asarray(np.maximum(period, fill / (1 + self.staleness)))

    def at_least(self, g: int | np.ndarray, fill: np.ndarray, period: np.ndarray) -> np.ndarray:
        """Seconds between iterations of any plan in which 2^g chunks pass through a part with these numbers.

        With the smaller of the two as the period: below a temporal node the part starts afresh for every chunk, and ``period`` may exceed ``fill``.
        """
        least = np.minimum(fill, period)
        return np.maximum(2.0**g * least, (fill + (2.0**g - 1) * least) / (1 + self.staleness))

    def may_take_turns(self, cut: Cut) -> bool:
        """Whether somebody of the one part may share a device with somebody of the other."""
        return not self.apart or any(cut.after & ~self.apart[v] for v in members(cut.before))

    def switch(self, leaving: int, coming: int, cuts: Cuts) -> float:
        """Seconds from the last work of one set to the first of another: its sinks leave, the other's sources come, each at the same time."""
        off = max((self.offload[v] for v in members(cuts.sinks(leaving) & ~self.staying)), default=0.0)
        on = max((self.onload[v] for v in members(cuts.sources(coming) & ~self.staying)), default=0.0)
        return off + on


@dataclass(frozen=True)
class Cut:
    """A set in two parts without an edge from ``after`` to ``before``."""

    before: int
    after: int
    linked: bool
    finest: int


class Cuts:
    """The cuts of every set of leaves, found when asked."""

    def __init__(self, problem: Problem) -> None:
        self._edges = dict(problem.edges)
        self._coarsest = problem.granularities - 1
        count = len(problem.names)
        self._before = [sum(1 << p for p, c in self._edges if c == v) for v in range(count)]
        self._after = [sum(1 << c for p, c in self._edges if p == v) for v in range(count)]
        self._known: dict[int, tuple[Cut, ...]] = {}

    def of(self, leaves: int) -> tuple[Cut, ...]:
        """Every way to cut a set, smaller upstream parts first."""
        if leaves not in self._known:
            found = [self._cut(part, leaves & ~part) for part in subsets(leaves) if not self._feeds(leaves & ~part, part)]
            found.sort(key=lambda c: (c.before.bit_count(), c.before))
            self._known[leaves] = tuple(found)
        return self._known[leaves]

    def sources(self, leaves: int) -> int:
        return sum(1 << v for v in members(leaves) if not self._before[v] & leaves)

    def sinks(self, leaves: int) -> int:
        return sum(1 << v for v in members(leaves) if not self._after[v] & leaves)

    def _feeds(self, producers: int, consumers: int) -> bool:
        return any(self._before[v] & producers for v in members(consumers))

    def _cut(self, before: int, after: int) -> Cut:
        crossing = [finest for (p, c), finest in self._edges.items() if before >> p & 1 and after >> c & 1]
        return Cut(before, after, bool(crossing), min([self._coarsest, *crossing]))


def members(mask: int) -> list[int]:
    return [v for v in range(mask.bit_length()) if mask >> v & 1]


def subsets(mask: int) -> list[int]:
    """Proper subsets that are not empty."""
    found = []
    part = (mask - 1) & mask
    while part:
        found.append(part)
        part = (part - 1) & mask
    return found
