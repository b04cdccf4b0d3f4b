"""Where every nanosecond of every device went: busy plus bubbles equals elapsed, exactly.

The rule, in sentences that the tests quote:

1. A span counts on each device of its track; LABEL and MARK spans do not count.
2. A nanosecond of a device is busy when a RUN span covers it, however many do.
3. Every other nanosecond between the timeline's first start and last end is a bubble of exactly one cause.
4. On a device without a track everything is off.
5. It is switch where an ONLOAD or OFFLOAD covers it; else blocked where a PUT does; else lock where a LOCK does.
6. Otherwise its place in the iteration decides: outside of every iteration it is off.
7. Before the device's first RUN in the iteration it is fill; so it is all through an iteration without a RUN.
8. After its last RUN it is tail until the last RUN, in this iteration, of any rank of a worker placed here; then drain.
9. Between the first and the last it is starved, whether a GET, WAIT or TRANSFER covers it or no call was going on.
10. An iteration is a MARK named "iteration"; one without a MARK yet reaches from the first start to the last end of its spans.
11. Where iterations overlap, time belongs to the one that began last.
12. A timeline in which nothing carries an iteration is one iteration, numbered -1.

Who waited, and for what, is told by the covering span of the highest class (of several, the one that ends last), also
for fill, tail and drain where one covers them; no span, no worker. Integers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.batch import SpanArray
from rlinf_lab.timeline.span import Cause, SpanKind
from rlinf_lab.timeline.store import SpanStore

CAUSES = list(Cause)  # a cause's number in `BUBBLE_DTYPE`
_OFF, _FILL, _STARVED, _TAIL, _DRAIN = (
    CAUSES.index(c) for c in (Cause.OFF, Cause.FILL, Cause.STARVED, Cause.TAIL, Cause.DRAIN)
)
#: Waiting spans by class, highest first; the last class explains, but does not outrank the place in the iteration.
_CLASSES: list[tuple[Cause, tuple[SpanKind, ...]]] = [
    (Cause.SWITCH, (SpanKind.ONLOAD, SpanKind.OFFLOAD)),
    (Cause.BLOCKED, (SpanKind.PUT,)),
    (Cause.LOCK, (SpanKind.LOCK,)),
    (Cause.STARVED, (SpanKind.GET, SpanKind.WAIT, SpanKind.TRANSFER)),
]

#: One bubble: device number, half-open interval in ns, cause number, and of the span that explains it: its track, kind
#: and channel (-1 without one); ``iteration`` is -1 outside of every iteration.
BUBBLE_DTYPE = np.dtype(
    [("device", "<i4"), ("start", "<i8"), ("end", "<i8"), ("cause", "u1"), ("kind", "i1"),
     ("track", "<i4"), ("channel", "<i4"), ("iteration", "<i4")]
)  # fmt: skip

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Accounting:
    """Busy nanoseconds per device and all bubbles, by device and start. Made by `account`."""

    devices: list[str]
    start_ns: int
    end_ns: int
    busy_ns: Ints
    bubbles: SpanArray

    def sum_error_ns(self) -> int:
        """The largest ``|busy + bubbles - elapsed|`` of any device: 0."""
        idle = np.zeros(len(self.devices), np.int64)
        np.add.at(idle, self.bubbles["device"], self.bubbles["end"] - self.bubbles["start"])
        return int(np.abs(self.busy_ns + idle - (self.end_ns - self.start_ns)).max(initial=0))


@dataclass(frozen=True)
class Windows:
    """Iterations as disjoint intervals, by start."""

    starts: Ints
    ends: Ints
    iterations: Ints


def iteration_windows(store: SpanStore) -> Windows:
    """Sentences 10 to 12 of the rule."""
    spans, marks = store.spans, store.marks()
    start, end, number = (marks[field].astype(np.int64) for field in ("start", "end", "iteration"))
    own = spans[(spans["iteration"] >= 0) & (spans["kind"] != SpanKind.MARK)]
    if len(own) and (open_ones := np.setdiff1d(own["iteration"], number)).size:
        own = own[np.isin(own["iteration"], open_ones)]
        slot = np.searchsorted(open_ones, own["iteration"])
        first, last = np.full(open_ones.size, np.iinfo(np.int64).max), np.full(open_ones.size, np.iinfo(np.int64).min)
        np.minimum.at(first, slot, own["start"])
        np.maximum.at(last, slot, own["end"])
        start, end, number = np.append(start, first), np.append(end, last), np.append(number, open_ones)
    if not number.size:
        start, end, number = np.array([store.start_ns]), np.array([store.end_ns]), np.array([-1])
    order = np.lexsort((number, start))
    start, number = start[order], number[order]
    end = np.maximum.accumulate(end[order])
    end[:-1] = np.minimum(end[:-1], start[1:])
    real = end > start
    return Windows(start[real], end[real], number[real])


def account(store: SpanStore) -> Accounting:
    """Busy time and bubbles of every device, after the rule at the top of this file. Takes a snapshot of a timeline."""
    devices, start_ns, end_ns = store.devices, store.start_ns, store.end_ns
    busy, bubbles = np.zeros(len(devices), np.int64), [np.empty(0, BUBBLE_DTYPE)]
    if end_ns > start_ns:
        windows = iteration_windows(store)
        finished = _last_runs(store, windows)
        workers = _workers_of(store)
        for device, spans in _by_device(store):
            runs = _union(spans[spans["kind"] == SpanKind.RUN])
            busy[device] = (runs[1] - runs[0]).sum()
            group_end = np.array([finished[w] for w in workers[device]]).max(axis=0) if workers[device] else None
            zones = _zones(runs, windows, group_end)
            rows = _idle(spans, runs, zones, (start_ns, end_ns))
            rows["device"] = device
            bubbles.append(rows)
    return Accounting(devices, start_ns, end_ns, busy, np.concatenate(bubbles))


# --- which spans and workers belong to a device ------------------------------------------------------------
def _workers_of(store: SpanStore) -> list[set[str]]:
    """Names of the workers that have a track on each device."""
    number = {name: i for i, name in enumerate(store.devices)}
    workers: list[set[str]] = [set() for _ in number]
    for track in store.tracks:
        for device in track.devices:
            workers[number[device]].add(track.worker)
    return workers


def _by_device(store: SpanStore) -> Iterator[tuple[int, SpanArray]]:
    """For each device number: its counting spans of positive length, sorted by start."""
    spans, number = store.spans, {name: i for i, name in enumerate(store.devices)}
    spans = spans[(spans["kind"] < SpanKind.LABEL) & (spans["end"] > spans["start"])]
    spans = spans[np.argsort(spans["start"], kind="stable")]
    placed = [[number[d] for d in dict.fromkeys(track.devices)] for track in store.tracks]
    width = np.array([len(p) for p in placed] or [0])
    flat, offset = np.array([d for p in placed for d in p], np.int32), np.cumsum(width) - width
    # One pair (device, span) for each device of the span's track.
    times = width[spans["track"]]
    which = np.repeat(np.arange(len(spans)), times)
    within = np.arange(which.size) - np.repeat(np.cumsum(times) - times, times)
    device = flat[offset[spans["track"][which]] + within] if which.size else flat[:0]
    order = np.argsort(device, kind="stable")
    which, cuts = which[order], np.searchsorted(device[order], np.arange(len(number) + 1))
    for i in range(len(number)):
        yield i, spans[which[cuts[i] : cuts[i + 1]]]


def _last_runs(store: SpanStore, windows: Windows) -> dict[str, Ints]:
    """For each worker: when the last RUN of any of its ranks ends in each window; the window's start without a RUN."""
    spans, tracks = store.spans, store.tracks
    names = list(dict.fromkeys(t.worker for t in tracks))
    worker = np.array([names.index(t.worker) for t in tracks] or [0], np.int32)
    spans = spans[spans["kind"] == SpanKind.RUN]
    mine = worker[spans["track"]]
    return {name: _last_end(_union(spans[mine == i]), windows) for i, name in enumerate(names)}


# --- intervals -----------------------------------------------------------------------------------------------
def _union(spans: SpanArray) -> tuple[Ints, Ints]:
    """Starts and ends of the disjoint intervals that the spans cover together, in order."""
    spans = spans[spans["end"] > spans["start"]]
    if not len(spans):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(spans["start"], kind="stable")
    start, reach = spans["start"][order], np.maximum.accumulate(spans["end"][order])
    begins = np.append(True, start[1:] > reach[:-1])
    return start[begins], reach[np.append(begins[1:], True)]


def _last_end(runs: tuple[Ints, Ints], windows: Windows) -> Ints:
    """Where the intervals end for the last time inside each window; its start if none reaches into it."""
    start, end = np.append(np.iinfo(np.int64).min, runs[0]), np.append(np.iinfo(np.int64).min, runs[1])
    last = np.searchsorted(start, windows.ends, "left") - 1
    return np.clip(end[last], windows.starts, windows.ends)


def _first_start(runs: tuple[Ints, Ints], windows: Windows) -> Ints:
    """Where the intervals begin first inside each window; its end if none reaches into it."""
    start, end = np.append(runs[0], np.iinfo(np.int64).max), np.append(runs[1], np.iinfo(np.int64).max)
    first = np.searchsorted(end, windows.starts, "right")
    return np.clip(start[first], windows.starts, windows.ends)


@dataclass(frozen=True)
class _Zones:
    """Time cut by position in the iteration: zone i reaches from ``edges[i]`` to ``edges[i + 1]``; before them, off."""

    edges: Ints
    causes: NDArray[np.uint8]
    iterations: Ints


def _zones(runs: tuple[Ints, Ints], windows: Windows, group_end: Ints | None) -> _Zones:
    """Sentences 4 and 6 to 9. ``group_end`` is None on a device without a track."""
    count = windows.starts.size
    first, last = _first_start(runs, windows), _last_end(runs, windows)
    last = np.where(first >= windows.ends, windows.ends, last)  # no RUN: fill to the end
    tail = last if group_end is None else np.maximum(last, group_end)
    edges = np.stack([windows.starts, first, last, tail, windows.ends], axis=1).ravel()
    causes = np.tile(np.array([_FILL, _STARVED, _TAIL, _DRAIN, _OFF], np.uint8), count)
    if group_end is None:
        causes[:] = _OFF
    iterations = np.repeat(windows.iterations, 5)
    iterations[4::5] = -1
    return _Zones(edges, causes, iterations)


def _idle(spans: SpanArray, runs: tuple[Ints, Ints], zones: _Zones, bounds: tuple[int, int]) -> SpanArray:
    """The bubbles of one device: everything between ``bounds`` that is not in ``runs``, cut where its reason changes."""
    waits = spans[spans["kind"] != SpanKind.RUN]
    edges = np.sort(np.concatenate([bounds, *runs, zones.edges, waits["start"], waits["end"]]).astype(np.int64))
    distinct = np.append(True, edges[1:] != edges[:-1])  # np.unique hashes first: ten times slower here
    edges = edges[distinct & (edges >= bounds[0]) & (edges <= bounds[1])]
    at, until = edges[:-1], edges[1:]
    run = np.searchsorted(runs[0], at, "right") - 1
    idle = (run < 0) | (np.append(runs[1], 0)[run] <= at)
    at, until = at[idle], until[idle]

    rows = np.empty(at.size, BUBBLE_DTYPE)
    rows["start"], rows["end"] = at, until
    zone = np.searchsorted(zones.edges, at, "right") - 1
    inside = zone >= 0
    rows["cause"] = np.where(inside, np.append(zones.causes, _OFF)[zone], _OFF)
    rows["iteration"] = np.where(inside, np.append(zones.iterations, -1)[zone], -1)
    rows["track"] = rows["channel"] = rows["kind"] = -1
    for cause, kinds in reversed(_CLASSES):  # the higher overwrites the lower
        mine = waits[np.isin(waits["kind"], kinds)]
        if len(mine):
            covered, by = _covering(mine, at)
            if cause is not Cause.STARVED:
                rows["cause"][covered] = CAUSES.index(cause)
            else:
                covered &= rows["cause"] != _OFF
            for field in ("track", "channel", "kind"):
                rows[field][covered] = mine[field][by[covered]]
    return _merge(rows)


def _covering(spans: SpanArray, at: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Whether a span (sorted by start) covers each instant, and which: of those begun, the one that ends last."""
    reach = np.maximum.accumulate(spans["end"])
    holder = np.maximum.accumulate(np.where(spans["end"] == reach, np.arange(len(spans)), 0))
    begun = np.searchsorted(spans["start"], at, "right") - 1
    return (begun >= 0) & (reach[begun] > at), holder[begun]


def _merge(rows: SpanArray) -> SpanArray:
    """Join neighbours that touch and agree in everything but their times."""
    if len(rows) < 2:
        return rows
    new = rows["start"][1:] != rows["end"][:-1]
    for field in ("cause", "kind", "track", "channel", "iteration"):
        new |= rows[field][1:] != rows[field][:-1]
    firsts = np.append(True, new)
    merged = rows[firsts]
    merged["end"] = rows["end"][np.append(new, True)]
    return merged
