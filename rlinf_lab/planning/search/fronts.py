"""Fronts: what a part of a plan can do, as points (devices, fill, period), none of them worse than another in all three.

*Fill*: seconds from a chunk's arrival to its departure. *Period*: seconds between chunks that are fed without pause. One number is not enough: a part
with the shorter fill wins where another part is the bottleneck, one with the shorter period where it is the bottleneck itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from rlinf_lab.planning.search.problem import Counts

BINS = 48  # of fill seconds, for comparing points with those on fewer devices
WORTH = 512  # fewer points are not compared


@dataclass(frozen=True)
class Front:
    """Points in order of ``code`` (devices), then ``fill``. ``option`` numbers how a point was composed, of points ``left`` and ``right`` of the parts."""

    code: np.ndarray
    fill: np.ndarray
    period: np.ndarray
    option: np.ndarray
    left: np.ndarray
    right: np.ndarray

    def __len__(self) -> int:
        return len(self.code)

    @cached_property
    def falling(self) -> bool:
        """Whether more devices always make it better: each point is as good as those on fewer."""
        one_each = (self.code[1:] > self.code[:-1]).all()
        return bool(one_each and (self.fill[1:] <= self.fill[:-1]).all() and (self.period[1:] <= self.period[:-1]).all())

    def take(self, which: np.ndarray) -> Front:
        return Front(*(a[which] for a in self._columns()))

    @classmethod
    def joined(cls, fronts: list[Front]) -> Front:
        if len(fronts) == 1:
            return fronts[0]
        return cls(*(np.concatenate(c) for c in zip(*(f._columns() for f in fronts), strict=True))) if fronts else EMPTY

    @classmethod
    def of(cls, code: np.ndarray, fill: np.ndarray, period: np.ndarray, option: int, left: np.ndarray, right: np.ndarray) -> Front:
        return cls(code, fill, period, np.full(len(code), option), left, right)

    def least_fill(self, shape: Counts) -> np.ndarray:
        """Shortest fill on at most so many devices, for each code, and inf where there is none."""
        found = np.full(int(np.prod(shape)), np.inf)
        np.minimum.at(found, self.code, self.fill)
        return within(found, shape)

    def best_at(self, code: int, shape: Counts) -> int:
        """The point with the shortest fill on at most these devices."""
        if len(shape) == 1:
            fits = self.code <= code
        else:
            fits = np.all(np.array(np.unravel_index(self.code, shape)) <= np.array(np.unravel_index(code, shape))[:, None], axis=0)
        return int(np.argmin(np.where(fits, self.fill, np.inf)))

    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.code, self.fill, self.period, self.option, self.left, self.right


EMPTY = Front(*(np.empty(0, t) for t in (np.int64, float, float, np.int64, np.int64, np.int64)))


def within(values: np.ndarray, shape: Counts) -> np.ndarray:
    """Least value over all counts that are nowhere larger."""
    if len(shape) == 1:
        return np.minimum.accumulate(values)
    grid = values.reshape(shape)
    for axis in range(len(shape)):
        grid = np.minimum.accumulate(grid, axis=axis)
    return grid.ravel()


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


def drops(values: np.ndarray, shape: Counts) -> np.ndarray:
    """Codes at which a value is lower than on any fewer devices."""
    return np.asarray(lower(values, shape).nonzero()[0])


def lower(values: np.ndarray, shape: Counts) -> np.ndarray:
    """Whether a value is lower than on any fewer devices; codes are the last axis."""
    if len(shape) > 1:
        rows = values.reshape(-1, values.shape[-1])
        return np.array([row < below(within(row, shape), shape) for row in rows]).reshape(values.shape)
    found = np.empty(values.shape, bool)
    found[..., 0] = values[..., 0] < np.inf
    np.less(values[..., 1:], np.minimum.accumulate(values, axis=-1)[..., :-1], out=found[..., 1:])
    return found


def pareto(front: Front, shape: Counts) -> Front:
    """Without the points that another one is as good as in fill and period on the same devices, and most of those that one on fewer devices is."""
    order = np.lexsort((front.period, front.fill, front.code))
    code, count = front.code[order], len(order)
    rank = np.empty(count, np.int64)
    rank[np.argsort(front.period[order], kind="stable")] = np.arange(count)
    # Running minimum of the period within each code: a later code's ranks all lie lower than those before it.
    rank -= code * (count + 1)
    better = np.empty(count, bool)
    better[0] = True
    np.less(rank[1:], np.minimum.accumulate(rank)[:-1], out=better[1:])
    kept = front.take(order[better])
    return _cheapest(kept, shape) if len(kept) > WORTH else kept


def _cheapest(front: Front, shape: Counts) -> Front:
    """Drop points that are no better than one on fewer devices; fills are compared by bin, so that some escape."""
    edges = np.quantile(front.fill, np.linspace(0, 1, BINS))
    least = np.full((int(np.prod(shape)), BINS), np.inf)
    np.minimum.at(least, (front.code, np.searchsorted(edges, front.fill)), front.period)  # fill <= edges[bin]
    least = np.minimum.accumulate(least, axis=1).reshape(*shape, BINS)
    for axis in range(len(shape)):
        least = np.minimum.accumulate(least, axis=axis)
    fewer = below(least.reshape(-1, BINS), shape)
    bins = np.searchsorted(edges, front.fill, side="right") - 1  # edges[bin] <= fill
    return front.take(np.flatnonzero(fewer[front.code, np.maximum(bins, 0)] > front.period))
