"""Fronts: what a part of a plan can do. They have points (granularity, devices, fill, period), none of one granularity
worse than another in all three.

*Fill*: seconds from a micro-batch's arrival to its departure. *Period*: seconds between micro-batches that are fed
without pause. One number is not enough: a part with the shorter fill wins where another part is the bottleneck, one
with the shorter period where it is the bottleneck itself.

The points of all granularities are in one front, so that numpy is asked once for all of them: most fronts have a dozen
points for each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np

from rlinf_lab.planning.search.problem import Counts

BINS = 48  # of fill seconds, for comparing points with those on fewer devices
WORTH = 512  # fewer points are not compared
NONE = np.zeros(4096, np.int64)
NONE.flags.writeable = False


@dataclass(frozen=True)
class ParetoFront:
    """Points in order of ``code``, then ``fill``. ``code``: the flat index into an array of shape (granularities, codes
    of devices).

    A point may be of micro-batches finer than its own, several of which pass as one: ``grain`` is the granularity in
    which it was composed. ``option`` numbers how it was composed, of points ``left`` and ``right`` of the parts'
    fronts.
    """

    code: np.ndarray
    fill: np.ndarray
    period: np.ndarray
    option: np.ndarray
    left: np.ndarray
    right: np.ndarray
    grain: np.ndarray

    def __len__(self) -> int:
        return len(self.code)

    def take(self, which: np.ndarray | slice) -> ParetoFront:
        return ParetoFront(*(a[which] for a in self._columns()))

    def upto(self, g: int, codes: int) -> ParetoFront:
        """Points of granularities up to ``g``, where each has so many ``codes`` of devices."""
        end = int(self.code.searchsorted((g + 1) * codes))
        return self if end == len(self.code) else self.take(slice(end))

    @classmethod
    def joined(cls, fronts: list[ParetoFront]) -> ParetoFront:
        if len(fronts) == 1:
            return fronts[0]
        return cls(*(np.concatenate(c) for c in zip(*(f._columns() for f in fronts), strict=True))) if fronts else EMPTY

    @classmethod
    def of(
        cls,
        code: np.ndarray,
        fill: np.ndarray,
        period: np.ndarray,
        option: int,
        left: np.ndarray | int,
        right: np.ndarray | int,
        grain: np.ndarray | int = 0,
    ) -> ParetoFront:
        """Numbers stand for all points."""
        none = NONE[: len(code)] if len(code) <= len(NONE) else np.zeros(len(code), np.int64)
        columns = (
            c if not isinstance(c, int) else np.full(len(code), c) if c else none for c in (option, left, right, grain)
        )
        return cls(code, fill, period, *columns)

    def falling(self, granularities: int, codes: int) -> np.ndarray:
        """By granularity: whether more devices always make it better. Each point is as good as those on fewer."""
        worse = (
            (self.code[1:] == self.code[:-1]) | (self.fill[1:] > self.fill[:-1]) | (self.period[1:] > self.period[:-1])
        )
        g = self.code // codes
        found = np.ones(granularities, bool)
        found[g[1:][worse & (g[1:] == g[:-1])]] = False
        return found

    def least_fill(self, granularities: int, shape: Counts) -> np.ndarray:
        """Shortest fill on at most so many devices, of shape (granularities, codes). Inf where there is none."""
        found = np.full((granularities, math.prod(shape)), np.inf)
        np.minimum.at(found.reshape(-1), self.code, self.fill)
        return within(found, shape)

    def best_at(self, g: int, code: int, shape: Counts) -> int:
        """The point of a granularity with the shortest fill on at most these devices."""
        codes = math.prod(shape)
        start, end = self.code.searchsorted([g * codes, (g + 1) * codes]).tolist()
        devices, fill = self.code[start:end] - g * codes, self.fill[start:end]
        fits = np.all(
            np.array(np.unravel_index(devices, shape)) <= np.array(np.unravel_index(code, shape))[:, None], axis=0
        )
        return start + int(np.argmin(np.where(fits, fill, np.inf)))

    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.code, self.fill, self.period, self.option, self.left, self.right, self.grain


EMPTY = ParetoFront(*(np.empty(0, t) for t in (np.int64, float, float, np.int64, np.int64, np.int64, np.int64)))


def within(values: np.ndarray, shape: Counts) -> np.ndarray:
    """Least value over all counts that are nowhere larger; codes are the last axis."""
    if len(shape) == 1:
        return np.asarray(np.minimum.accumulate(values, axis=-1))
    grid = values.reshape(*values.shape[:-1], *shape)
    for axis in range(-len(shape), 0):
        grid = np.minimum.accumulate(grid, axis=axis)
    return grid.reshape(values.shape)


def below(least: np.ndarray, shape: Counts) -> np.ndarray:
    """From the least values `within` each count to those on strictly fewer devices. May have further columns."""
    if len(shape) == 1:
        return np.concatenate([np.full((1, *least.shape[1:]), np.inf), least[:-1]])
    grid = least.reshape(*shape, *least.shape[1:])
    shifted = []
    for axis in range(len(shape)):
        first = np.full_like(np.take(grid, [0], axis=axis), np.inf)
        shifted.append(np.concatenate([first, np.delete(grid, -1, axis=axis)], axis=axis))
    return reduce(np.minimum, shifted).reshape(least.shape)


def lower(values: np.ndarray, shape: Counts) -> np.ndarray:
    """Whether a value is lower than on any fewer devices; codes are the last axis."""
    if len(shape) > 1:
        rows = values.reshape(-1, values.shape[-1])
        return np.array([row < below(within(row, shape), shape) for row in rows]).reshape(values.shape)
    found = np.empty(values.shape, bool)
    found[..., 0] = values[..., 0] < np.inf
    np.less(values[..., 1:], np.minimum.accumulate(values, axis=-1)[..., :-1], out=found[..., 1:])
    return found


def pareto(front: ParetoFront, shape: Counts) -> ParetoFront:
    """Points that no other one beats in fill and period on the same devices. Most of those are left out, too, that one
    on fewer devices beats."""
    return front.take(undominated(front.code, front.fill, front.period, shape))


def undominated(code: np.ndarray, fill: np.ndarray, period: np.ndarray, shape: Counts) -> np.ndarray:
    """The points that `pareto` keeps, in their order; of equal ones the first."""
    order, count = np.lexsort((period, fill, code)), len(code)
    if not count:
        return order
    rank = np.empty(count, np.int64)
    rank[period[order].argsort(kind="stable")] = np.arange(count)
    # Running minimum of the period within each code: a later code's ranks all lie lower than those before it.
    rank -= code[order] * (count + 1)
    better = np.empty(count, bool)
    better[0] = True
    np.less(rank[1:], np.minimum.accumulate(rank)[:-1], out=better[1:])
    kept = order[better]
    if len(kept) <= WORTH:
        return kept
    codes = math.prod(shape)
    parts = np.split(kept, code[kept].searchsorted(np.arange(1, int(code[kept[-1]]) // codes + 1) * codes))
    return np.concatenate(
        [p[_cheapest(code[p] % codes, fill[p], period[p], shape)] if len(p) > WORTH else p for p in parts]
    )


def spread(code: np.ndarray, most: int) -> np.ndarray:
    """A spread of the points, in order of code, and of one code by fill. There are at most so many of each code and one
    more, evenly spaced, the first and the last among them.
    """
    first = np.flatnonzero(np.append(True, code[1:] != code[:-1])[: len(code)])
    size = np.diff(np.append(first, len(code)))
    place, of = np.arange(len(code)) - np.repeat(first, size), np.repeat(size, size)
    part = place * most // of
    return np.flatnonzero((place == 0) | (place == of - 1) | (part != (place - 1) * most // of))


def _cheapest(code: np.ndarray, fill: np.ndarray, period: np.ndarray, shape: Counts) -> np.ndarray:
    """Without points that are no better than one on fewer devices. Fills are compared by bin, so that some escape."""
    edges = np.quantile(fill, np.linspace(0, 1, BINS))
    least = np.full((math.prod(shape), BINS), np.inf)
    np.minimum.at(least, (code, np.searchsorted(edges, fill)), period)  # fill <= edges[bin]
    least = np.minimum.accumulate(least, axis=1).reshape(*shape, BINS)
    for axis in range(len(shape)):
        least = np.minimum.accumulate(least, axis=axis)
    fewer = below(least.reshape(-1, BINS), shape)
    bins = np.searchsorted(edges, fill, side="right") - 1  # edges[bin] <= fill
    return np.flatnonzero(fewer[code, np.maximum(bins, 0)] > period)
