"""How many items wait in each channel, exactly. Counted from the puts and gets among the spans.

A put's items are there at its end, a get's are taken at its end: by the clock under the lock of the channel's host, so
within one host a depth is never above the capacity. What is left of an iteration when it is over (of a channel with
``discard_unread``, or of one that failed) goes with it. `rlinf_lab/widgets/static/depths.js` is the same for a browser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd


def depths(store: SpanStore) -> pd.DataFrame:
    """One row whenever the depth of a channel changes, by time, then channel. Columns: channel, time_ns, seconds (since
    the timeline's start), depth (items).
    """
    import pandas as pd

    channel, time, depth = steps(store)
    order = np.lexsort((channel, time))
    channel, time, depth = channel[order], time[order], depth[order]
    names = pd.Index(store.names, dtype=object)
    seconds = (time - store.start_ns) / 1e9
    return pd.DataFrame(
        {
            "channel": pd.Categorical.from_codes(channel, names).remove_unused_categories(),
            "time_ns": time,
            "seconds": seconds,
            "depth": depth,
        }
    )


def steps(store: SpanStore) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(channel, time in ns, depth from there on), each channel's by time. Channels into which nothing was put are left
    out.
    """
    channel, time, items = _movements(store)
    channel, first = np.unique(channel, return_inverse=True)  # numbered from 0 on
    order = np.lexsort((time, first))
    first, time, total = first[order], time[order], np.cumsum(items[order])
    if not len(time):
        return channel, time, total
    last = np.append((first[1:] != first[:-1]) | (time[1:] != time[:-1]), True)  # of all that happens at a time
    first, time, total = first[last], time[last], total[last]
    begins = np.append(True, first[1:] != first[:-1])
    before = np.append(0, total[:-1])[begins]  # of the channels before
    depth = np.maximum(total - before[first], 0)  # of several hosts' clocks the taker's may be ahead
    changes = begins | np.append(True, depth[1:] != depth[:-1])
    return channel[first[changes]], time[changes], depth[changes]


def _movements(store: SpanStore) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(channel, time in ns, items that come; negative: go), in any order."""
    spans = store.spans
    moves = spans[
        ((spans["kind"] == SpanKind.PUT) | (spans["kind"] == SpanKind.GET))
        & (spans["channel"] >= 0)
        & (spans["items"] > 0)
    ]
    moves = moves[np.isin(moves["channel"], np.unique(moves["channel"][moves["kind"] == SpanKind.PUT]))]
    items = np.where(moves["kind"] == SpanKind.PUT, moves["items"], -moves["items"].astype(np.int64)).astype(np.int64)
    channel, iteration = moves["channel"].astype(np.int64), moves["iteration"].astype(np.int64)
    marks = store.marks()
    marks = marks[np.argsort(marks["end"], kind="stable")]
    # of two of the same number the later one counts
    ends = dict(zip(marks["iteration"].tolist(), marks["end"].tolist(), strict=True))
    streams, stream = np.unique(channel << 32 | iteration + 1, return_inverse=True)
    left = np.zeros(len(streams), np.int64)
    np.add.at(left, stream, items)
    kept = ((one >> 32, (one & 0xFFFFFFFF) - 1, n) for one, n in zip(streams.tolist(), left.tolist(), strict=True) if n)
    gone = [(number, ends[of], n) for number, of, n in kept if of in ends]
    if not gone:
        return channel, moves["end"].astype(np.int64), items
    rest = np.array(gone, np.int64)
    return np.append(channel, rest[:, 0]), np.append(moves["end"], rest[:, 1]), np.append(items, -rest[:, 2])
