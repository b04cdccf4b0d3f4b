"""The critical path: walking back from the end, who was it that everybody waited for?

From the last end of a span the walk goes back through what its rank did. Where the rank waited it goes over to the rank that ended the
wait: of a GET the last put of its items, of a PUT the get that made room, of a LOCK the last to leave the device, of a WAIT and
of time between calls the call that ended last before. The steps follow each other without a gap, so their times sum to the elapsed time.
A rank that would be faster by some time on the path shortens the run by at most that time: then another path is the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import UnknownNameError
from rlinf_lab.timeline.flows import arrows
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.timeline.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]

#: What `critical_path` can group by.
COLUMNS = ("worker", "rank", "kind", "name", "iteration")
_BETWEEN = len(SpanKind)  # the kind of a step in which the rank that comes next was in no call
_KINDS = [*(kind.name.lower() for kind in SpanKind), "between calls"]
_WORK = (SpanKind.RUN, SpanKind.ONLOAD, SpanKind.OFFLOAD, SpanKind.TRANSFER, SpanKind.SETUP)


@dataclass(frozen=True, slots=True)
class Step:
    """Part of the path: half-open, ns. ``row``: number of the span, -1 between calls."""

    track: int
    kind: int
    row: int
    start_ns: int
    end_ns: int


def critical_path(store: SpanStore, by: str | Sequence[str] | None = ("worker", "name", "kind")) -> pd.DataFrame:
    """Time on the path summed by one or several of `COLUMNS`, largest first; ``None``: every step, from the first to the last.

    Columns after those of ``by``: ns (exact), seconds, share of the elapsed time. ``kind`` "between calls": no call was going on.
    """
    import pandas as pd

    keys = list(COLUMNS) if by is None else [by] if isinstance(by, str) else list(by)
    for key in keys:
        if key not in COLUMNS:
            raise UnknownNameError.of("column to group the critical path by", key, COLUMNS)
    steps, tracks, names, spans = path(store), store.tracks, [*store.names, ""], store.spans
    columns = {
        "worker": [tracks[s.track].worker for s in steps],
        "rank": [tracks[s.track].rank for s in steps],
        "kind": [_KINDS[s.kind] for s in steps],
        "name": [names[spans["name"][s.row]] if s.row >= 0 else "" for s in steps],
        "iteration": [int(spans["iteration"][s.row]) if s.row >= 0 else -1 for s in steps],
    }
    frame = pd.DataFrame({key: columns[key] for key in keys})
    if by is None:
        frame["start_ns"], frame["end_ns"] = [s.start_ns for s in steps], [s.end_ns for s in steps]
    frame["ns"] = np.array([s.end_ns - s.start_ns for s in steps], np.int64)
    if by is not None:
        frame = frame.groupby(keys, sort=True)["ns"].sum().reset_index().sort_values("ns", ascending=False, kind="stable", ignore_index=True)
    frame["seconds"] = frame["ns"] / 1e9
    frame["share"] = frame["ns"] / store.elapsed_ns if store.elapsed_ns else 0.0
    return frame


def path(store: SpanStore) -> list[Step]:
    """The steps from the timeline's start to its end."""
    if not store.elapsed_ns:
        return []
    return _Walk(store).steps()


class _Lane:
    """The spans of one track that last: by start, with the one that reaches farthest up to each."""

    def __init__(self, rows: Ints, start: Ints, end: Ints) -> None:
        order = np.lexsort((-end[rows], start[rows]))
        self.rows = rows[order]
        self.start, ends = start[self.rows], end[self.rows]
        self.reach = np.maximum.accumulate(ends)
        self.holder = np.maximum.accumulate(np.where(ends == self.reach, np.arange(len(rows)), 0))

    def before(self, time: int) -> int:
        """Of the spans that begin before ``time`` the one that reaches farthest; -1 where none does."""
        i = int(np.searchsorted(self.start, time)) - 1
        return int(self.rows[self.holder[i]]) if i >= 0 else -1


class _Ends:
    """Spans by their end: which ended last in a stretch of time?"""

    def __init__(self, rows: Ints, end: Ints) -> None:
        self.rows = rows[np.argsort(end[rows], kind="stable")]
        self.ends = end[self.rows]

    def last(self, after: int, until: int, tracks: NDArray[np.int32], not_track: int) -> int:
        """The row with the latest end in (after, until] that is on another track; -1 where there is none."""
        i = int(np.searchsorted(self.ends, until, "right")) - 1
        while i >= 0 and self.ends[i] > after:
            if tracks[self.rows[i]] != not_track:
                return int(self.rows[i])
            i -= 1
        return -1


class _Walk:
    def __init__(self, store: SpanStore) -> None:
        spans = store.spans
        self.start, self.end = spans["start"].copy(), spans["end"].copy()
        self.kind, self.track, self.channel = spans["kind"].copy(), spans["track"].copy(), spans["channel"].copy()
        self.begin, self.finish = store.start_ns, store.end_ns
        counts = (self.kind != SpanKind.LABEL) & (self.kind != SpanKind.MARK)
        lasting = np.flatnonzero(counts & (self.end > self.start))
        self.lanes = {int(t): _Lane(lasting[self.track[lasting] == t], self.start, self.end) for t in np.unique(self.track[lasting])}
        work = lasting[np.isin(self.kind[lasting], _WORK)]
        self.work = _Ends(work, self.end)
        self.on_device = {}
        for device in store.devices:
            here = [n for n, track in enumerate(store.tracks) if device in track.devices]
            self.on_device[device] = _Ends(work[np.isin(self.track[work], here)], self.end)
        self.devices = [track.devices for track in store.tracks]
        gets = np.flatnonzero(self.kind == SpanKind.GET)
        self.gets = {int(c): _Ends(gets[self.channel[gets] == c], self.end) for c in np.unique(self.channel[gets]) if c >= 0}
        self.put_of = self._last_puts(store)

    def _last_puts(self, store: SpanStore) -> Ints:
        """For each get the put of its items that ended last; -1 for none."""
        puts, gets = arrows(store.spans)
        found = np.full(len(self.start), -1, np.int64)
        order = np.argsort(self.end[puts], kind="stable")
        found[gets[order]] = puts[order]  # of several the last assignment stays
        return found

    def steps(self) -> list[Step]:
        steps: list[Step] = []
        time, row = self.finish, int(np.argmax(np.where(np.isin(self.kind, (SpanKind.LABEL, SpanKind.MARK)), self.begin - 1, self.end)))
        track, here = int(self.track[row]), set[int]()  # tracks that the walk has come through at this instant

        def step(kind: int, number: int, since: int) -> None:
            nonlocal time
            if since < time:
                steps.append(Step(track, kind, number, since, time))
                time = since
                here.clear()

        while time > self.begin:
            here.add(track)
            lane = self.lanes.get(track)
            row = lane.before(time) if lane else -1
            until = int(self.end[row]) if row >= 0 else self.begin
            if until < time:  # no call was going on: go to who worked last
                other = self.work.last(until, time, self.track, -1)
                step(_BETWEEN, -1, int(self.end[other]) if other >= 0 else until)
                track = int(self.track[other]) if other >= 0 else track
                continue
            kind, since = int(self.kind[row]), max(int(self.start[row]), self.begin)
            other = self._released_by(row, time)
            if other >= 0 and int(self.track[other]) not in here:
                step(kind, row, min(time, max(since, int(self.end[other]))))
                track = int(self.track[other])
            else:
                step(kind, row, since)
        return steps[::-1]

    def _released_by(self, row: int, time: int) -> int:
        """The span whose end ended this wait, if it ended within it; -1 of work."""
        kind, since, track = self.kind[row], int(self.start[row]), int(self.track[row])
        if kind == SpanKind.GET:
            put = int(self.put_of[row])
            return put if put >= 0 and self.end[put] > since else -1
        if kind == SpanKind.PUT:
            gets = self.gets.get(int(self.channel[row]))
            return gets.last(since, time, self.track, track) if gets else -1
        if kind == SpanKind.LOCK:
            found = [self.on_device[d].last(since, time, self.track, track) for d in self.devices[track] if d in self.on_device]
            return max(found, key=lambda other: self.end[other] if other >= 0 else -1, default=-1)
        return self.work.last(since, time, self.track, track) if kind == SpanKind.WAIT else -1
