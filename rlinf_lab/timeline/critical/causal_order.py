"""Spans in an order in which causes come first. That goes for spans that end at one instant, too: in simulated time
most do.

At one instant a put may hand over items that a get waited for, after which its rank puts others. So ends are no order
by themselves.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.critical.flows import Indices, arrows
from rlinf_lab.timeline.critical.short_gets import cut_short
from rlinf_lab.timeline.record.batch import SpanArray
from rlinf_lab.timeline.record.span import SpanKind

#: Of spans that end at one instant and of which none is known to wait for another: whose end may be the reason for
#: another's.
_RANK = np.array(
    [{SpanKind.GET: 1, SpanKind.PUT: 2, SpanKind.LOCK: 3, SpanKind.WAIT: 4}.get(kind, 0) for kind in SpanKind]
)


def in_causal_order(spans: SpanArray) -> SpanArray:
    """The same spans by their end. Of one instant, each after those that it waited for or followed.

    That is: what begins at the instant after what its track did before, a get after the puts of its items, and what
    came before a put that cut a get short before that get. Where the record contradicts itself (a ring), the one that
    ranks first goes first. O(n log n).
    """
    arrival = np.lexsort((spans["start"], _RANK[spans["kind"]], spans["end"]))
    spans = spans[arrival]
    new = np.flatnonzero(np.diff(spans["end"], prepend=spans["end"][:1] - 1, append=spans["end"][-1:] + 1))
    causes, effects = (np.concatenate(sides) for sides in zip(arrows(spans), *_cut_short(spans, arrival), strict=True))
    at_once = spans["end"][causes] == spans["end"][effects]
    handed = defaultdict[int, list[tuple[int, int]]](list)  # by their instant, which is where its first span is
    firsts = new[np.searchsorted(new, causes[at_once], "right") - 1]
    for first, cause, effect in zip(firsts.tolist(), causes[at_once].tolist(), effects[at_once].tolist(), strict=True):
        handed[first].append((cause - first, effect - first))
    order = np.arange(len(spans))
    for first, stop in pairwise(new.tolist()):
        if stop - first > 1:
            order[first:stop] = first + np.array(_instant(spans[first:stop], arrival[first:stop], handed[first]))
    return spans[order]


def _cut_short(spans: SpanArray, arrival: Indices) -> tuple[tuple[Indices, Indices], tuple[Indices, Indices]]:
    """Pairs (cause, effect) of gets that the next put cut short. What the put's track did before it comes first, then
    the get, then the put.
    """
    gets, puts = cut_short(spans)
    order = np.lexsort((arrival, spans["start"], spans["track"]))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    before = order[np.maximum(place[puts] - 1, 0)]
    follows = (
        (spans["track"][before] == spans["track"][puts])
        & (spans["end"][before] <= spans["start"][puts])
        & (before != puts)
    )
    return (before[follows], gets[follows]), (gets, puts)


def _instant(spans: SpanArray, arrival: NDArray[np.intp], handed: list[tuple[int, int]]) -> list[int]:
    """Numbers of spans that end at one instant. Each comes after those that must come before it."""
    track, size = spans["track"], len(spans)
    written = np.lexsort((arrival, spans["start"], track))  # what takes no time was written down in its order
    # others lie within each other
    follows = (track[written[1:]] == track[written[:-1]]) & (spans["start"][written[1:]] == spans["end"][0])
    after: list[list[int]] = [[] for _ in range(size)]  # of each: what comes after it
    missing = [0] * size  # of each: how many must come before it
    for first, then in [*handed, *zip(written[:-1][follows].tolist(), written[1:][follows].tolist(), strict=True)]:
        after[first].append(then)
        missing[then] += 1
    ready = [number for number in range(size) if not missing[number]]
    done, found, stuck = [False] * size, list[int](), 0
    while len(found) < size:
        while not ready and done[stuck]:  # a ring
            stuck += 1
        number = heapq.heappop(ready) if ready else stuck
        if done[number]:
            continue
        done[number] = True
        found.append(number)
        for then in after[number]:
            missing[then] -= 1
            if not missing[then] and not done[then]:
                heapq.heappush(ready, then)
    return found
