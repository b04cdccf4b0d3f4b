"""The accounting of one stretch of time, for all devices at once.

The devices' time axes are laid end to end on one long axis (device d at ``d * stride``), so that intervals of thousands
of devices are united, cut and looked up by the same few operations on arrays as those of one. Integers only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.account.windows import Ints
from rlinf_lab.timeline.record.batch import SpanArray, stacked
from rlinf_lab.timeline.record.span import Cause, SpanKind, Track

CAUSES = list(Cause)  # a cause's number in `BUBBLE_DTYPE`
_OFF, _FILL, _STARVED, _TAIL, _DRAIN = (
    CAUSES.index(c) for c in (Cause.OFF, Cause.FILL, Cause.STARVED, Cause.TAIL, Cause.DRAIN)
)
#: Waiting spans by class, highest first; the last class explains, but does not outrank the place in the iteration.
_CLASSES: list[tuple[Cause, tuple[SpanKind, ...]]] = [
    (Cause.SETUP, (SpanKind.SETUP,)),
    (Cause.SWITCH, (SpanKind.ONLOAD, SpanKind.OFFLOAD)),
    (Cause.BLOCKED, (SpanKind.PUT,)),
    (Cause.LOCK, (SpanKind.LOCK,)),
    (Cause.STARVED, (SpanKind.GET, SpanKind.WAIT, SpanKind.TRANSFER)),
]
_UNCOUNTED = 255
#: Class of each kind of span: its place in `_CLASSES`, ``_RUNNING``, or ``_UNCOUNTED``.
_RUNNING = len(_CLASSES)
_CLASS_OF = np.full(256, _UNCOUNTED, np.uint8)
_CLASS_OF[SpanKind.RUN] = _RUNNING
for _number, (_, _kinds) in enumerate(_CLASSES):
    _CLASS_OF[list(_kinds)] = _number

#: One bubble: device number, half-open interval in ns, cause number, and of the span that explains it: its track, kind
#: and channel (-1 without one); ``iteration`` is -1 outside of every iteration.
BUBBLE_DTYPE = np.dtype(
    [("device", "<i4"), ("start", "<i8"), ("end", "<i8"), ("cause", "u1"), ("kind", "i1"),
     ("track", "<i4"), ("channel", "<i4"), ("iteration", "<i4")]
)  # fmt: skip

_LONGEST_NS = 1 << 62  # of the long axis
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Spans:
    """The columns of the spans that the accounting looks at, in order of arrival."""

    start: Ints
    end: Ints
    kind: NDArray[np.uint8]
    track: NDArray[np.int32]
    channel: NDArray[np.int32]

    @classmethod
    def of(cls, rows: SpanArray, which: Ints) -> Spans:
        return cls(
            rows["start"][which], rows["end"][which], rows["kind"][which], rows["track"][which], rows["channel"][which]
        )

    def __len__(self) -> int:
        return self.start.size

    def __getitem__(self, which: NDArray | slice) -> Spans:
        return Spans(self.start[which], self.end[which], self.kind[which], self.track[which], self.channel[which])

    def __add__(self, other: Spans) -> Spans:
        if not len(self):
            return other
        return Spans(
            np.concatenate([self.start, other.start]),
            np.concatenate([self.end, other.end]),
            np.concatenate([self.kind, other.kind]),
            np.concatenate([self.track, other.track]),
            np.concatenate([self.channel, other.channel]),
        )


@dataclass(frozen=True)
class Placement:
    """Which devices each track is on and which workers each device has, as numbers."""

    width: Ints  # devices of each track
    flat: Ints  # their numbers, track after track
    worker: Ints  # number of each track's worker
    pairs: tuple[Ints, Ints]  # (device, worker) of every worker with a track on a device, by device
    devices: int
    workers: int

    @classmethod
    def of(cls, tracks: list[Track], devices: list[str]) -> Placement:
        number = {name: i for i, name in enumerate(devices)}
        workers: dict[str, int] = {}
        worker = [workers.setdefault(t.worker, len(workers)) for t in tracks]
        placed = [[number[d] for d in dict.fromkeys(t.devices)] for t in tracks]
        pairs = sorted({(d, w) for w, of_track in zip(worker, placed, strict=True) for d in of_track})
        return cls(
            np.array([len(p) for p in placed], np.int64),
            np.array([d for p in placed for d in p], np.int64),
            np.array(worker, np.int64),
            (np.array([d for d, _ in pairs], np.int64), np.array([w for _, w in pairs], np.int64)),
            len(devices),
            len(workers),
        )

    def same_pairs(self, other: Placement) -> bool:
        """Whether the same workers (by number) are on the same devices."""
        return self.devices == other.devices and all(
            np.array_equal(a, b) for a, b in zip(self.pairs, other.pairs, strict=True)
        )

    def spread(self, track: NDArray[np.int32]) -> tuple[NDArray[np.intp], Ints]:
        """One pair (row, device) for each device of each row's track, by row."""
        if (self.width == 1).all():
            return np.arange(track.size), self.flat[track]
        times = self.width[track]
        row = np.repeat(np.arange(track.size), times)
        within = np.arange(row.size) - np.repeat(np.cumsum(times) - times, times)
        offset = np.cumsum(self.width) - self.width
        return row, self.flat[offset[track[row]] + within]


class Stretch:
    """Busy time and bubbles of all devices between two instants. ``busy`` is ns per device, ``bubbles`` are by device
    and start.

    ``spans``, by start, may hold others than those that reach into the stretch; ``windows`` are those that begin in it,
    and none of them may reach over its end.
    """

    def __init__(self, spans: Spans, place: Placement, windows: SpanArray, start_ns: int, end_ns: int) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self._place, self._windows = place, windows
        self._length = end_ns - start_ns
        of_class = _CLASS_OF[spans.kind]
        inside = (spans.end > np.maximum(spans.start, start_ns)) & (spans.start < end_ns) & (of_class != _UNCOUNTED)
        which = inside.nonzero()[0]
        spans, self._class = spans[which], of_class[which]
        # Ends are not cut off at the stretch's (who explains a bubble must not depend on where a stretch ends), so the
        # axis of each device has room for them; one more, so that neighbours never touch.
        self._stride = max(self._length, int(spans.end.max(initial=start_ns)) - start_ns) + 1
        group_end = self._group_ends(spans)
        row, device = place.spread(spans.track)
        parts = []
        for low, high in self._portions(place.devices):
            mine = slice(None) if high - low == place.devices else (device >= low) & (device < high)
            parts.append(self._devices(spans, row[mine], device[mine] - low, (low, high), group_end))
        self.busy = np.concatenate([np.zeros(0, np.int64), *(busy for busy, _ in parts)])
        self.bubbles = stacked([rows for _, rows in parts] or [np.empty(0, BUBBLE_DTYPE)])

    def _portions(self, lanes: int) -> list[tuple[int, int]]:
        """As many lanes at a time as fit on one axis of 64 bits. That is 4,096 devices for 13 days."""
        at_once = max(1, _LONGEST_NS // self._stride)
        return [(low, min(low + at_once, lanes)) for low in range(0, lanes, at_once)]

    def _lay(
        self, spans: Spans, row: NDArray[np.intp], lane: Ints, lanes: int
    ) -> tuple[Ints, Ints, NDArray[np.intp], Ints]:
        """Starts and ends on the long axis, sorted by lane, start and arrival. With them come the rows in that order,
        and where the lane of each begins.
        """
        if lanes > 1:  # by start they are already
            # narrow ones are sorted ten times faster
            order = np.argsort(lane.astype(np.int16) if lanes < 1 << 15 else lane, kind="stable")
            row, lane = row[order], lane[order]
        begin = lane * self._stride
        offset = begin - self.start_ns
        return np.maximum(spans.start[row], self.start_ns) + offset, spans.end[row] + offset, row, begin

    def _group_ends(self, spans: Spans) -> Ints:
        """When the last RUN of any rank of a worker placed on a device ends. Shape (devices, windows); the window's
        start where there is none.
        """
        place, windows = self._place, self._windows
        ends = np.full((place.devices, len(windows)), _FIRST, np.int64)
        run = (self._class == _RUNNING).nonzero()[0]
        worker = place.worker[spans.track[run]]
        last = np.empty((place.workers, len(windows)), np.int64)
        for low, high in self._portions(place.workers):
            mine = slice(None) if high - low == place.workers else (worker >= low) & (worker < high)
            start, end, _, _ = self._lay(spans, run[mine], worker[mine] - low, high - low)
            lane = np.arange(high - low)[:, None] * self._stride - self.start_ns
            last[low:high] = _last_end(start, end, windows["start"] + lane, windows["end"] + lane) - lane
        np.maximum.at(ends, place.pairs[0], last[place.pairs[1]])
        return ends

    def _devices(
        self, spans: Spans, row: NDArray[np.intp], lane: Ints, portion: tuple[int, int], group_end: Ints
    ) -> tuple[Ints, SpanArray]:
        """Busy time and bubbles of the devices in ``portion``. ``row``, ``lane``: the spans on them."""
        count = portion[1] - portion[0]
        begins = np.arange(count) * self._stride
        start, end, row, begin = self._lay(spans, row, lane, count)
        stop = np.minimum(end, begin + self._length)
        of_class = self._class[row]
        running = of_class == _RUNNING
        run, wait = running.nonzero()[0], (~running).nonzero()[0]
        runs = _union(start[run], stop[run])
        busy = np.zeros(count, np.int64)
        np.add.at(busy, runs[0] // self._stride, runs[1] - runs[0])
        zones = self._zones(runs, portion, group_end)

        at, until = self._idle(begins, start[wait], stop[wait], runs, zones.edges)
        columns = _Columns.of_zones(zones, at)
        for number in reversed(range(len(_CLASSES))):  # the higher overwrites the lower
            mine = (of_class == number).nonzero()[0]
            if mine.size:
                covered, by = _covering(start[mine], end[mine], at)
                columns.explain(_CLASSES[number][0], covered, row[mine[by]], spans)
        return busy, self._rows(columns, at, until, portion[0])

    def _zones(self, runs: tuple[Ints, Ints], portion: tuple[int, int], group_end: Ints) -> _Zones:
        """Sentences 4 and 6 to 9."""
        used = np.zeros(self._place.devices, np.bool_)
        used[self._place.pairs[0]] = True
        used = used[slice(*portion)]
        lane = np.arange(portion[1] - portion[0])[:, None] * self._stride - self.start_ns
        starts, ends = self._windows["start"] + lane, self._windows["end"] + lane
        group = np.where(used[:, None], group_end[slice(*portion)] + lane, starts)
        begin = _first_start(*runs, starts, ends)
        last = _last_end(*runs, starts, ends)
        last = np.where(begin >= ends, ends, last)  # no RUN: fill to the end
        shape = (*starts.shape, 5)
        edges = np.empty(shape, np.int64)
        for i, column in enumerate((starts, begin, last, np.maximum(last, group), ends)):
            edges[..., i] = column
        # Before the first window of a device it is still off, as after the last one of the device before; the very
        # first wraps.
        causes, iterations = np.full(edges.size + 1, _OFF, np.uint8), np.full(edges.size + 1, -1, np.int32)
        causes[:-1].reshape(shape)[used] = [_FILL, _STARVED, _TAIL, _DRAIN, _OFF]
        iterations[:-1].reshape(shape)[..., :4] = self._windows["iteration"][:, None]
        return _Zones(edges.ravel(), causes, iterations)

    def _idle(
        self, begins: Ints, start: Ints, end: Ints, runs: tuple[Ints, Ints], zone_edges: Ints
    ) -> tuple[Ints, Ints]:
        """Everything that is not in ``runs``, cut where its reason may change."""
        stops = begins + self._length
        edges = np.concatenate([begins, stops, *runs, zone_edges, start, end])
        edges.sort(kind="stable")  # sorted runs: a merge
        edges = edges[_begins(edges[1:] != edges[:-1])]  # np.unique hashes first: ten times slower here
        at, until = edges[:-1], edges[1:]
        run = runs[0].searchsorted(at, "right") - 1
        idle = np.concatenate([runs[1], [-1]])[run] <= at
        idle[at.searchsorted(stops[:-1])] = False  # the steps from one device to the next
        return at[idle], until[idle]

    def _rows(self, columns: _Columns, at: Ints, until: Ints, first: int) -> SpanArray:
        """The bubbles as rows. Neighbours that touch and agree in everything but their times are one."""
        if not at.size:
            return np.empty(0, BUBBLE_DTYPE)
        new = at[1:] != until[:-1]
        for values in columns.all():
            new |= values[1:] != values[:-1]
        firsts = _begins(new).nonzero()[0]
        rows = np.empty(firsts.size, BUBBLE_DTYPE)
        lane = at[firsts] // self._stride
        shift = self.start_ns - lane * self._stride
        rows["device"] = lane + first
        rows["start"], rows["end"] = at[firsts] + shift, until[np.concatenate([firsts[1:], [at.size]]) - 1] + shift
        for field, values in zip(("cause", "kind", "track", "channel", "iteration"), columns.all(), strict=True):
            rows[field] = values[firsts]
        return rows


@dataclass(frozen=True)
class _Zones:
    """Time cut by position in the iteration. Zone i reaches from ``edges[i]`` on; the last cause is that before all
    edges.
    """

    edges: Ints
    causes: NDArray[np.uint8]
    iterations: NDArray[np.int32]


@dataclass
class _Columns:
    """What is known of each idle interval."""

    cause: NDArray[np.uint8]
    kind: NDArray[np.int8]
    track: NDArray[np.int32]
    channel: NDArray[np.int32]
    iteration: NDArray[np.int32]

    @classmethod
    def of_zones(cls, zones: _Zones, at: Ints) -> _Columns:
        zone = zones.edges.searchsorted(at, "right") - 1
        none = np.full(at.size, -1, np.int32)
        return cls(zones.causes[zone], none.astype(np.int8), none, none.copy(), zones.iterations[zone])

    def all(self) -> tuple[NDArray, ...]:
        return self.cause, self.kind, self.track, self.channel, self.iteration

    def explain(self, cause: Cause, covered: NDArray[np.bool_], by: NDArray[np.intp], spans: Spans) -> None:
        """Lay this cause on the covered intervals. The spans ``by`` (one for each interval) say who waited for what."""
        if cause is Cause.STARVED:
            covered = covered & (self.cause != _OFF)
        else:
            self.cause[covered] = CAUSES.index(cause)
        which = covered.nonzero()[0]
        by = by[which]
        self.kind[which], self.track[which], self.channel[which] = spans.kind[by], spans.track[by], spans.channel[by]


# --- intervals -----------------------------------------------------------------------------------------------
def _begins(differs: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which elements begin something: the first one, and each that differs from the one before. (`np.append` takes five
    times as long for few.)
    """
    return np.concatenate([[True], differs])


def _union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The disjoint intervals that the given ones (sorted by start) cover together. Starts and ends are in order."""
    if not start.size:
        return start, end
    reach = np.maximum.accumulate(end)
    begins = _begins(start[1:] > reach[:-1]).nonzero()[0]
    return start[begins], reach[np.concatenate([begins[1:], [reach.size]]) - 1]


def _last_end(start: Ints, end: Ints, starts: Ints, ends: Ints) -> Ints:
    """Where intervals (sorted by start) end for the last time inside each window. Its start if none reaches into it."""
    reach = np.maximum.accumulate(np.concatenate([[_FIRST], end]))
    return np.minimum(np.maximum(reach[start.searchsorted(ends, "left")], starts), ends)


def _first_start(start: Ints, end: Ints, starts: Ints, ends: Ints) -> Ints:
    """Where disjoint intervals begin first inside each window; its end if none reaches into it."""
    first = end.searchsorted(starts, "right")
    return np.minimum(np.maximum(np.concatenate([start, [_LAST]])[first], starts), ends)


def _covering(start: Ints, end: Ints, at: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Whether an interval (sorted by start) covers each instant, and which. Of those begun, it is the one ending last.
    """
    reach = np.maximum.accumulate(end)
    holder = np.maximum.accumulate(np.where(end == reach, np.arange(end.size), 0))
    begun = start.searchsorted(at, "right") - 1
    return (begun >= 0) & (reach[begun] > at), holder[begun]
