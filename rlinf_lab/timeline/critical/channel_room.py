"""Which get made room for which put: what a bounded channel holds is not recorded, but is seen where a put waited."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.critical.flows import Indices, paired
from rlinf_lab.timeline.critical.short_gets import cut_short
from rlinf_lab.timeline.record.batch import SpanArray


def made_room(spans: SpanArray) -> tuple[Indices, Indices]:
    """Row numbers of puts and gets, pair by pair: the put's items fit into its channel from the end of that get on,
    waited for or not.

    ``spans`` in causal order (`causal_order.in_causal_order`). Only of channels that were full at least once in the
    iteration: a put waited until a get, or cut a get short (`short_gets.cut_short`). How many items such a channel
    holds is taken as the most that it was seen to hold, which is exact where items are put one by one.
    """
    short, _ = cut_short(spans)
    # what channels held that cut a get short; 0: none was
    full = np.zeros(int(spans["channel"].max(initial=-1)) + 1, np.int64)
    np.maximum.at(full, spans["channel"][short], spans["items"][short])
    return paired(spans, partial(_of_channel, full))


def _of_channel(full: NDArray[np.int64], spans: SpanArray, puts: Indices, gets: Indices) -> tuple[Indices, Indices]:
    after = spans["flow"][puts] + spans["items"][puts]
    # once this get and those before it are over
    taken = np.maximum.accumulate(spans["flow"][gets] + spans["items"][gets])
    last = np.searchsorted(gets, puts) - 1  # the get before the put's end; also those of one instant are in order
    capacity = int(full[spans["channel"][puts[0]]]) or _most_held(spans, puts, gets)
    room = np.searchsorted(taken, after - capacity)
    real = (capacity > 0) & (after > capacity) & (room <= last)
    return puts[real], gets[room[real]]


def _most_held(spans: SpanArray, puts: Indices, gets: Indices) -> int:
    """Items that were in the channel at most; 0 when no put waited until a get."""
    after = spans["flow"][puts] + spans["items"][puts]
    # before the first get, the second, …
    taken = np.append(0, np.maximum.accumulate(spans["flow"][gets] + spans["items"][gets]))
    last = np.searchsorted(gets, puts) - 1
    waited = (last >= 0) & (spans["end"][gets[last]] > spans["start"][puts])
    if not waited.any():
        return 0
    held = after - taken[np.searchsorted(spans["end"][gets], spans["end"][puts], "right")]
    alone = waited & (spans["items"][puts] == 1)
    came = np.append(0, np.maximum.accumulate(after))[np.searchsorted(puts, gets[last])]
    before = came - taken[last]  # while it waited, not with others that waited too
    return int(max(held.max(), before[alone].max(initial=1)))
