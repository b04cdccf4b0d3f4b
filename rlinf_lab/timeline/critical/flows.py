"""Which put handed items to which get: the arrows of an exported trace."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.record.batch import SpanArray
from rlinf_lab.timeline.record.span import SpanKind

Indices = NDArray[np.intp]
EVER = -(1 << 63)  # before all times


def arrows(spans: SpanArray) -> tuple[Indices, Indices]:
    """Row numbers of puts and gets, pair by pair. A pair has the same channel and iteration, and overlapping sequence
    numbers.

    A span of either kind moves the items ``flow`` to ``flow + items`` of its channel, counted from 0 in each iteration;
    without a channel, a flow or items it takes part in no arrow, and no arrow leads to a get that was over before the
    put.
    """
    put, get = paired(spans, _overlaps)
    causal = spans["start"][put] <= spans["end"][get]
    return put[causal], get[causal]


def paired(
    spans: SpanArray, pair: Callable[[SpanArray, Indices, Indices], tuple[Indices, Indices]]
) -> tuple[Indices, Indices]:
    """What ``pair(spans, puts, gets)`` finds, channel by channel and iteration by iteration. In order of the rows;
    puts and gets are their numbers.
    """
    joined = (spans["channel"] >= 0) & (spans["flow"] >= 0) & (spans["items"] > 0)
    puts = np.flatnonzero(joined & (spans["kind"] == SpanKind.PUT))
    gets = np.flatnonzero(joined & (spans["kind"] == SpanKind.GET))
    stream = spans["channel"].astype(np.int64) << 32 | spans["iteration"] + 1
    puts, gets = (rows[np.argsort(stream[rows], kind="stable")] for rows in (puts, gets))
    pairs = [(puts[:0], gets[:0])]
    for one in np.intersect1d(stream[puts], stream[gets]):
        mine = [rows[slice(*np.searchsorted(stream[rows], [one, one + 1]))] for rows in (puts, gets)]
        pairs.append(pair(spans, *mine))
    put, get = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return put, get


def _overlaps(spans: SpanArray, puts: Indices, gets: Indices) -> tuple[Indices, Indices]:
    puts = puts[np.argsort(spans["flow"][puts], kind="stable")]
    low, high = spans["flow"][puts], spans["flow"][puts] + spans["items"][puts]
    first = np.searchsorted(np.maximum.accumulate(high), spans["flow"][gets], "right")
    stop = np.searchsorted(low, spans["flow"][gets] + spans["items"][gets], "left")
    count = np.maximum(stop - first, 0)
    which = np.repeat(np.arange(len(gets)), count)
    put = first[which] + np.arange(which.size) - np.repeat(np.cumsum(count) - count, count)
    real = high[put] > spans["flow"][gets[which]]
    return puts[put[real]], gets[which[real]]


class Ended:
    """Numbers of spans by their end; they come in that order. Asking takes O(log n)."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._ends: list[int] = []
        self._tracks: list[int] = []
        self._other: list[int] = []  # of each: the place before it of the last one on another track; -1 for none

    def add(self, number: int, end: int, track: int) -> None:
        at = len(self._numbers) - 1
        self._other.append(-1 if at < 0 else at if self._tracks[at] != track else self._other[at])
        self._numbers.append(number)
        self._ends.append(end)
        self._tracks.append(track)

    def last(self, until: int, after: int = EVER, not_track: int = -1) -> int:
        """The one that ended last in (after, until], on another track than ``not_track``. -1 for none."""
        at = bisect_right(self._ends, until) - 1
        if at >= 0 and self._tracks[at] == not_track:
            at = self._other[at]
        return self._numbers[at] if at >= 0 and self._ends[at] > after else -1
