"""Which get made room for which put: what a bounded channel holds is not recorded, but is seen where a put waited."""

from __future__ import annotations

import numpy as np

from rlinf_lab.timeline.batch import SpanArray
from rlinf_lab.timeline.flows import Indices, paired


def made_room(spans: SpanArray) -> tuple[Indices, Indices]:
    """Row numbers of puts and gets, pair by pair: the put's items fit into its channel from the end of that get on, waited for or not.

    ``spans`` in causal order (`causal.in_causal_order`). Only of channels that were full at least once in the iteration: a put waited until a get.
    How many items such a channel holds is taken as the most that it was seen to hold, which is exact where items are put one by one.
    """
    return paired(spans, _of_channel)


def _of_channel(spans: SpanArray, puts: Indices, gets: Indices) -> tuple[Indices, Indices]:
    first, after = spans["flow"][puts], spans["flow"][puts] + spans["items"][puts]
    taken = np.maximum.accumulate(spans["flow"][gets] + spans["items"][gets])  # once this get and those before it are over
    last = np.searchsorted(gets, puts) - 1  # the get before the put's end; also those of one instant are in order
    waited = (last >= 0) & (spans["end"][gets[last]] > spans["start"][puts])
    if not waited.any():
        return puts[:0], gets[:0]
    by_then = np.searchsorted(spans["end"][gets], spans["end"][puts], "right")
    held = after - np.concatenate([[0], taken])[by_then]
    alone = waited & (spans["items"][puts] == 1)
    before = first - np.concatenate([[0], taken])[last]  # while it waited: all but what the last get took
    capacity = max(held.max(), before[alone].max(initial=1))
    room = np.searchsorted(taken, after - capacity)
    real = (after > capacity) & (room <= last)
    return puts[real], gets[room[real]]
