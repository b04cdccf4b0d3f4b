"""Which put handed items to which get: the arrows of an exported trace."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.batch import SpanArray
from rlinf_lab.timeline.span import SpanKind

Indices = NDArray[np.intp]


def arrows(spans: SpanArray) -> tuple[Indices, Indices]:
    """Row numbers of puts and gets, pair by pair: both have the channel and their sequence numbers overlap.

    A span of either kind moves the items ``flow`` to ``flow + items`` of its channel; without a channel, a flow or items
    it takes part in no arrow.
    """
    joined = (spans["channel"] >= 0) & (spans["flow"] >= 0) & (spans["items"] > 0)
    puts = np.flatnonzero(joined & (spans["kind"] == SpanKind.PUT))
    gets = np.flatnonzero(joined & (spans["kind"] == SpanKind.GET))
    pairs = [
        _overlaps(spans, puts[spans["channel"][puts] == channel], gets[spans["channel"][gets] == channel])
        for channel in np.intersect1d(spans["channel"][puts], spans["channel"][gets])
    ]
    if not pairs:
        return puts[:0], gets[:0]
    return np.concatenate([p for p, _ in pairs]), np.concatenate([g for _, g in pairs])


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
