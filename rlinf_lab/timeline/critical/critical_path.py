"""The critical path: walking back from the end, who was it that everybody waited for?

From the last end of a span the walk goes back through what its rank did. Where the rank waited it goes over to the rank
that ended the wait: of a GET the last put of its items, of a PUT the get that made room, of a LOCK the last to leave
the device, of a WAIT and of time between calls the call that ended last before. The steps follow each other without a
gap, so their times sum to the elapsed time. A rank that would be faster by some time on the path shortens the run by at
most that time: then another path is the longest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.account.group_by import grouped_by
from rlinf_lab.timeline.critical.flows import Ended, arrows
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]

#: What `critical_path` can group by.
COLUMNS = ("worker", "rank", "kind", "name", "iteration")
_BETWEEN = len(SpanKind)  # the kind of a step in which the rank that comes next was in no call
_KINDS = [*(kind.name.lower() for kind in SpanKind), "between calls"]
_WAITS = frozenset(map(int, (SpanKind.GET, SpanKind.PUT, SpanKind.LOCK, SpanKind.WAIT)))
_WORK = (SpanKind.RUN, SpanKind.ONLOAD, SpanKind.OFFLOAD, SpanKind.TRANSFER, SpanKind.SETUP)


class Step(NamedTuple):
    """Part of the path: half-open, ns. ``row``: number of the span, -1 between calls."""

    track: int
    kind: int
    row: int
    start_ns: int
    end_ns: int


def critical_path(store: SpanStore, by: str | Sequence[str] | None = ("worker", "name", "kind")) -> pd.DataFrame:
    """Time on the path summed by one or several of `COLUMNS`, largest first. ``None``: every step, from the first to
    the last.

    Columns after those of ``by``: ns (exact), seconds, share of the elapsed time. ``kind`` "between calls": no call was
    going on.
    """
    import pandas as pd

    keys = list(COLUMNS) if by is None else grouped_by("critical_path", "the critical path", by, COLUMNS)
    track, kind, row, start, end = _steps(store)
    codes, labels = _coded(store, track, kind, row)
    frame = pd.DataFrame({key: codes[key] for key in keys})
    if by is None:
        frame["start_ns"], frame["end_ns"] = start, end
    frame["ns"] = end - start
    if by is not None:  # of numbers: a path may have as many steps as there are spans
        frame = frame.groupby(keys)["ns"].sum().reset_index()
    for key in set(keys) & set(labels):
        frame[key] = labels[key][frame[key].to_numpy()]
    if by is not None:
        frame = frame.sort_values(keys, ignore_index=True).sort_values(
            "ns", ascending=False, kind="stable", ignore_index=True
        )
    frame["seconds"] = frame["ns"] / 1e9
    frame["share"] = frame["ns"] / store.elapsed_ns if store.elapsed_ns else 0.0
    return frame


def _coded(
    store: SpanStore, track: Ints, kind: Ints, row: Ints
) -> tuple[dict[str, Ints], dict[str, NDArray[np.object_]]]:
    """Each of `COLUMNS` as numbers, and what the numbers of texts stand for. -1 of a name: none."""
    spans = store.spans[row] if len(row) else store.spans[:0]
    workers, of_track = np.unique(np.array([t.worker for t in store.tracks], object), return_inverse=True)
    ranks = np.array([t.rank for t in store.tracks], np.int64)
    # between calls: of any span
    name, iteration = (np.where(row >= 0, spans[field], -1).astype(np.int64) for field in ("name", "iteration"))
    codes = {"worker": of_track[track], "rank": ranks[track], "kind": kind, "name": name, "iteration": iteration}
    return codes, {"worker": workers, "kind": np.array(_KINDS, object), "name": np.array([*store.names, ""], object)}


def path(store: SpanStore) -> list[Step]:
    """The steps from the timeline's start to its end."""
    return [Step(*row) for row in _steps(store).T.tolist()]


def _steps(store: SpanStore) -> Ints:
    """The fields of `Step`, one in each row."""
    flat = _Walk(store).steps() if store.elapsed_ns else []
    return np.array(flat, np.int64).reshape(-1, len(Step._fields))[::-1].T


class _Lane:
    """The spans of one track that last, by start. Up to each, the one that reaches farthest is known."""

    def __init__(self, rows: Ints, start: Ints, end: Ints) -> None:
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        ends = end[rows]
        holder = np.maximum.accumulate(np.where(ends == np.maximum.accumulate(ends), np.arange(len(rows)), 0))
        # lists: what is looked up one by one is faster there
        self._start, self._held = start[rows].tolist(), rows[holder].tolist()

    def before(self, time: int) -> int:
        """Of the spans that begin before ``time`` the one that reaches farthest. -1 where none does."""
        i = bisect_left(self._start, time) - 1
        return self._held[i] if i >= 0 else -1


def _ended(rows: Ints, end: Ints, track: NDArray[np.int32]) -> Ended:
    """These spans by their end."""
    found, rows = Ended(), rows[np.argsort(end[rows], kind="stable")]
    for row, *its in zip(rows.tolist(), end[rows].tolist(), track[rows].tolist(), strict=True):
        found.add(row, *its)
    return found


def _groups(rows: Ints, keys: NDArray[np.int32]) -> dict[int, Ints]:
    """``rows`` by their key, in order. ``keys``: of all rows there are."""
    ordered = rows[np.argsort(keys[rows], kind="stable")]
    found, first = np.unique(keys[ordered], return_index=True)
    return dict(zip(found.tolist(), np.split(ordered, first)[1:], strict=True))


class _Walk:
    def __init__(self, store: SpanStore) -> None:
        spans = store.spans
        start, end, kind, track = (spans[field].copy() for field in ("start", "end", "kind", "track"))
        self._begin, self._finish = store.start_ns, store.end_ns
        counts = (kind != SpanKind.LABEL) & (kind != SpanKind.MARK)
        lasting = np.flatnonzero(counts & (end > start))
        lanes = _groups(lasting, track)
        self._lanes = {t: _Lane(rows, start, end) for t, rows in lanes.items()}
        work = lasting[np.isin(kind[lasting], _WORK)]
        self._work = _ended(work, end, track)
        self._on_device: list[list[Ended]] = [[] for _ in store.tracks]  # of each track
        for device in store.devices if (kind == SpanKind.LOCK).any() else ():
            here = np.array([device in t.devices for t in store.tracks], np.bool_)
            ends = _ended(work[here[track[work]]], end, track)
            for number in np.flatnonzero(here).tolist():
                self._on_device[number].append(ends)
        self._gets = {}
        if (kind == SpanKind.PUT).any():
            channel = spans["channel"]
            gets = _groups(np.flatnonzero((kind == SpanKind.GET) & (channel >= 0)), channel)
            self._gets = {c: _ended(rows, end, track) for c, rows in gets.items()}
        self._last_row = int(np.argmax(np.where(counts, end, self._begin - 1)))
        self._put_of = self._last_puts(store).tolist()
        self._start, self._end, self._kind, self._track = start.tolist(), end.tolist(), kind.tolist(), track.tolist()
        self._channel = spans["channel"].tolist()

    def _last_puts(self, store: SpanStore) -> Ints:
        """For each get the put of its items that ended last; -1 for none."""
        spans = store.spans
        puts, gets = arrows(spans)
        found = np.full(len(spans), -1, np.int64)
        order = np.argsort(spans["end"][puts], kind="stable")
        found[gets[order]] = puts[order]  # of several the last assignment stays
        return found

    def steps(self) -> list[int]:
        """The fields of the last `Step`, of the one before, and so on."""
        found: list[int] = []
        begin, ends, starts, kinds, tracks = self._begin, self._end, self._start, self._kind, self._track
        time, track = self._finish, tracks[self._last_row]
        here = {track}  # those that the walk has come through at this instant
        while time > begin:
            lane = self._lanes.get(track)
            row = lane.before(time) if lane else -1
            until = ends[row] if row >= 0 else begin
            if until >= time:
                kind, since, other = kinds[row], max(starts[row], begin), -1
                if kind in _WAITS:
                    other = self._released_by(row, time)
                    if other >= 0 and tracks[other] in here:
                        other = -1
                if other >= 0:
                    since = min(time, max(since, ends[other]))
            else:  # no call was going on: go to who worked last
                kind, row, other = _BETWEEN, -1, self._work.last(time, until)
                since = ends[other] if other >= 0 else until
            if since < time:
                found += (track, kind, row, since, time)
                time = since
                here.clear()
            if other >= 0:
                track = tracks[other]
            here.add(track)
        return found

    def _released_by(self, row: int, time: int) -> int:
        """The span whose end ended this wait, if it ended within it; -1 of work."""
        kind, since, track = self._kind[row], self._start[row], self._track[row]
        if kind == SpanKind.GET:
            put = self._put_of[row]
            return put if put >= 0 and self._end[put] > since else -1
        if kind == SpanKind.PUT:
            gets = self._gets.get(self._channel[row])
            return gets.last(time, since, track) if gets else -1
        if kind == SpanKind.LOCK:
            found = [ends.last(time, since, track) for ends in self._on_device[track]]
            return max(found, key=lambda other: self._end[other] if other >= 0 else -1, default=-1)
        return self._work.last(time, since, track) if kind == SpanKind.WAIT else -1
