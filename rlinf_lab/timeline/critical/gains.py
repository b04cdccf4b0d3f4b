"""What would be gained if a worker were faster: the recorded spans, replayed with some of them shortened.

The replay keeps what each rank did, in its order, and who waited for whom; only times change:

- a RUN takes its recorded time, divided by ``times`` if it belongs to what is made faster; what is set up or moved
  takes as long as before, and bytes of a channel leave when the last put before them is over;
- a GET ends when all of its items are put, and one that took less than its micro-batch (`short_gets`) when the next PUT
  begins, if no more fitted into the channel, or when those who put there have done; a PUT that waited when the get
  before has ended, a LOCK when the rank before has left the device, a WAIT and a call that begins when what ended last
  before it has ended; each as much later than that as was recorded;
- ranks that share a device use it one after another where they did, in the recorded order.

With ``times`` 1 every span ends when it did. Orders do not change, so a schedule that decides anew may gain more or
less. A channel that was never full is taken for one that never fills: where it would, the gain told is too large.

So all this is for timelines of which nothing but the spans is known (files, other tools). Whose run is known has a
`Rerun`: the run once more in virtual time, under its plan, by the scheduler itself. Each answer says which of the two
it rests on, ``attrs["basis"]``. What another *plan* brings is a question for `rlinf_lab.plan` and its simulator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import RlinfLabError, TimelineError, shown
from rlinf_lab.timeline.account.group_by import grouped_by
from rlinf_lab.timeline.account.tables import Standing, whole_iterations
from rlinf_lab.timeline.critical.causal_order import in_causal_order
from rlinf_lab.timeline.critical.flows import arrows
from rlinf_lab.timeline.critical.short_gets import cut_short, takes_the_rest
from rlinf_lab.timeline.record.batch import SpanArray
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("worker", "rank", "name")
#: Spans that are replayed: of a longer timeline the last iterations, as many as fit.
MAX_REPLAYED_SPANS = 60_000
#: Spans of all the runs that are done again for one answer, a few seconds; where that is not enough for every row,
#: those that gain most by the spans are.
MAX_RERUN_SPANS = 500_000
#: What an answer rests on: the run done again by its scheduler, or the recorded spans in their recorded orders.
SCHEDULER, SPANS = "scheduler", "spans"
TOLERANCE_SHARE = 0.1  # of the recorded time: a run that takes otherwise when it is done again was not understood
Times = Callable[[str, int, str], float]
"""for worker, rank and call: how many times as fast its RUN spans are"""
_MAX_NUMBERS = 1 << 24  # numbers in memory at a time
_NOBODYS = 1 << 40  # the number of no group
_EVER = -(1 << 63)  # before all times
_WORK = (SpanKind.RUN, SpanKind.ONLOAD, SpanKind.OFFLOAD, SpanKind.TRANSFER, SpanKind.SETUP)


class Again(Protocol):
    """Some iterations of a run, to be done again."""

    def __call__(self, times: Times) -> int:
        """What they take, ns, when RUN spans are so many times as fast."""

    @property
    def notes(self) -> Sequence[str]:
        """What was assumed so far."""


Rerun = Callable[[SpanStore, Sequence[int]], Again]
"""For a timeline and some of its finished iterations. Raises `RlinfLabError` where they cannot be done again.
`rlinf_lab.planning.replay.rerun` does it: the scheduler is above this floor."""


def gains(
    store: SpanStore,
    times: float = 2.0,
    by: str | Sequence[str] = "worker",
    rerun: Rerun | None = None,
    most: int | None = None,
) -> pd.DataFrame:
    """One row for each worker (``by``: `COLUMNS`, one or several), largest gain first.

    Columns after those of ``by``: run_seconds (in RUN spans), seconds (by which the timeline would be shorter if these
    spans were ``times`` as fast), share of the elapsed time. ``attrs``: ``basis``, `SCHEDULER` or `SPANS`;
    ``replayed_spans``, how many spans the answer rests on, ``spans``, how many there are, and ``note``, which says in
    words what makes the answer uncertain ("" for nothing): a part that is taken for the whole in proportion to their
    times, why a run that is known could not be done again, or for which rows it was not. ``most``: rows for which it is
    (default: see `MAX_RERUN_SPANS`).
    """
    import pandas as pd

    if isinstance(times, bool) or not isinstance(times, int | float) or not times > 0:
        raise TimelineError(f"gains(times={shown(times)}): how many times as fast, a positive number. Next: gains(2).")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise TimelineError(
            f"gains(most={shown(most)}): for how many rows the run is done again, a whole number from 1. Next: "
            "gains(most=100)."
        )
    keys = grouped_by("gains", "gains", by, COLUMNS)
    spans, count = _last_iterations(store)
    runs = spans["kind"] == SpanKind.RUN
    groups = {label: mine & runs for label, mine in _groups(store, spans, keys).items() if (mine & runs).any()}
    told = _answer(store, spans, count, groups, [_times_of(keys, label, times) for label in groups], times, rerun, most)
    rows = []
    for (label, mine), saved in zip(groups.items(), told.saved_ns, strict=True):
        seconds = float((spans["end"][mine] - spans["start"][mine]).sum()) / 1e9
        rows.append((*label, seconds, saved / 1e9, saved / max(store.elapsed_ns, 1)))
    frame = pd.DataFrame(rows, columns=[*keys, "run_seconds", "seconds", "share"])
    frame = frame.sort_values("seconds", ascending=False, kind="stable", ignore_index=True)
    frame.attrs |= {"basis": told.basis, "replayed_spans": len(spans), "spans": count, "note": told.note}
    if len(spans) < count:
        part = f"the last {len(spans):,} of {count:,} spans, {told.elapsed_ns / 1e9:.3g} of {told.whole_ns / 1e9:.3g} s"
        extrapolated = f"EXTRAPOLATED: replayed are {part}; the gain is taken as the same share of the rest."
        frame.attrs["note"] = " ".join(filter(None, [told.note, extrapolated]))
    return frame


class _Told(NamedTuple):
    """What was replayed takes ``elapsed_ns``, what it stands for ``whole_ns``; ``saved_ns``: of that, by group."""

    basis: str
    note: str
    elapsed_ns: int
    whole_ns: int
    saved_ns: list[float]

    @classmethod
    def of(cls, basis: str, note: str, elapsed_ns: int, whole_ns: int, faster_ns: Iterable[int]) -> _Told:
        """The rest is as what was replayed."""
        return cls(
            basis, note, elapsed_ns, whole_ns, [(elapsed_ns - ns) * whole_ns / max(elapsed_ns, 1) for ns in faster_ns]
        )


def _answer(
    store: SpanStore, spans: SpanArray, count: int, groups: Mapping[tuple, NDArray[np.bool_]], faster: Sequence[Times],
    times: float, rerun: Rerun | None,
    most: int | None,
) -> _Told:  # fmt: skip
    def by_spans(why: str = "") -> _Told:
        whole_ns = _extent(spans) if len(spans) == count else _extent_of_iterations(store)
        return _Told.of(SPANS, why, *_replayed(store, spans, whole_ns, list(groups.values()), times))

    if rerun is None or not groups:
        return by_spans()
    try:
        return _by_scheduler(store, spans, rerun, faster, most, by_spans)
    except RlinfLabError as error:
        return by_spans(f"ABOUT: orders are taken as recorded, for the run could not be done again: {error}")


def _replayed(
    store: SpanStore, spans: SpanArray, whole_ns: int, groups: Sequence[NDArray[np.bool_]], times: float
) -> tuple[int, int, list[int]]:
    elapsed, faster = _Replay(store, spans).finish(groups, times)
    return elapsed, whole_ns, faster


def _by_scheduler(
    store: SpanStore,
    spans: SpanArray,
    rerun: Rerun,
    faster: Sequence[Times],
    most: int | None,
    by_spans: Callable[[], _Told],
) -> _Told:
    """Of as many groups as there is time for, the others by the spans. Raises `RlinfLabError` where the run, done
    again, is not as recorded.
    """
    marks = _over(store)
    whole_ns = _extent(marks)
    marks = marks[np.isin(marks["iteration"], spans["iteration"]) & (marks["start"] >= spans["start"].min())]
    if not len(marks):
        raise TimelineError("no iteration has come to its end")
    measured = _extent(marks)
    again = rerun(store, sorted(marks["iteration"].tolist()))
    was = again(lambda worker, rank, name: 1.0)
    if abs(was - measured) > TOLERANCE_SHARE * measured:
        raise TimelineError(f"it takes {was / 1e9:.4g} s in virtual time, {measured / 1e9:.4g} s were recorded")
    words = Standing.of(store, spans["iteration"]).words
    notes = [f"PART: {words}; not counted."] if words else []
    allowed = max(1, MAX_RERUN_SPANS // len(spans)) if most is None else most
    if allowed >= len(faster):
        found = _Told.of(SCHEDULER, "", was, whole_ns, map(again, faster))
    else:
        saved = by_spans().saved_ns
        ranked = sorted(range(len(faster)), key=lambda i: -saved[i])
        for i in ranked[:allowed]:
            saved[i] = (was - again(faster[i])) * whole_ns / max(was, 1)
        found = _Told(SCHEDULER, "", was, whole_ns, saved)
        notes.append(
            f"PART: the run was done again for {allowed} of {len(faster)} rows, those that gain most by the spans; "
            "what the others gain is what the spans "
            f"tell, {max(saved[i] for i in ranked[allowed:]) / 1e9:.3g} s at most. Next: gains(most={len(faster)})."
        )
    return found._replace(note=" ".join([*notes, *([f"ABOUT: {'; '.join(again.notes)}."] if again.notes else [])]))


def _times_of(keys: Sequence[str], label: tuple, times: float) -> Times:
    """How many times as fast a call's RUN spans are, when those of one row are."""
    wanted = dict(zip(keys, label, strict=True))

    def of(worker: str, rank: int, name: str) -> float:
        values = {"worker": worker, "rank": rank, "name": name}
        return times if all(values[key] == value for key, value in wanted.items()) else 1.0

    return of


def _over(store: SpanStore) -> SpanArray:
    """The marks of iterations that came to their end: one that goes on, or failed, holds a part of its work and tells
    of no gain.
    """
    marks = store.marks()
    return marks[np.isin(marks["iteration"], sorted(whole_iterations(store) or ()))]


def _extent(rows: SpanArray) -> int:
    """From the first start to the last end, ns."""
    return int(rows["end"].max() - rows["start"].min()) if len(rows) else 0


def _extent_of_iterations(store: SpanStore) -> int:
    """What the iterations took together, ns; of a timeline without any, all there is. Setting up gains nothing."""
    spans = store.spans[(store.spans["kind"] != SpanKind.LABEL) & (store.spans["kind"] != SpanKind.MARK)]
    own = spans["iteration"] >= 0
    return _extent(spans[own] if own.any() else spans)


def _last_iterations(store: SpanStore) -> tuple[SpanArray, int]:
    """Spans that count, by what can cause what. Of a long timeline those of the last iterations. And how many there
    are.
    """
    spans = store.spans
    spans = spans[(spans["kind"] != SpanKind.LABEL) & (spans["kind"] != SpanKind.MARK)]
    count = len(spans)
    if count > MAX_REPLAYED_SPANS:
        starts = np.sort(spans["start"])
        low = starts[-MAX_REPLAYED_SPANS]
        begins = store.marks()["start"]
        later = begins[begins >= low]
        spans = spans[spans["start"] >= (later.min() if later.size else low)]
    return in_causal_order(spans), count


def _groups(store: SpanStore, spans: SpanArray, keys: Sequence[str]) -> dict[tuple, NDArray[np.bool_]]:
    tracks, names = store.tracks, [*store.names, ""]
    pairs, which = np.unique(np.stack([spans["track"], spans["name"]]), axis=1, return_inverse=True)
    found: dict[tuple, NDArray[np.bool_]] = {}
    for number, (track, name) in enumerate(pairs.T.tolist()):
        values = {"worker": tracks[track].worker, "rank": tracks[track].rank, "name": names[name]}
        label = tuple(values[key] for key in keys)
        found[label] = found.get(label, np.zeros(len(spans), np.bool_)) | (which.ravel() == number)
    return found


class _Replay:
    """Spans in an order in which causes come first, and for each what its start and its end wait for."""

    def __init__(self, store: SpanStore, spans: SpanArray) -> None:
        self._spans = spans
        self._start, self._end = spans["start"].tolist(), spans["end"].tolist()
        self._track, self._channel = spans["track"].tolist(), spans["channel"].tolist()
        self._call = list(zip(spans["iteration"].tolist(), spans["name"].tolist(), strict=True))
        self._producers = defaultdict[tuple[int, int], set[int]](set)  # tracks that put, by channel and iteration
        for track, channel, iteration in spans[["track", "channel", "iteration"]][
            spans["kind"] == SpanKind.PUT
        ].tolist():
            self._producers[channel, iteration].add(track)
        self._rests = set(np.flatnonzero(takes_the_rest(spans)).tolist())
        self._devices = [track.devices for track in store.tracks]
        self._puts_of = defaultdict[int, list[int]](list)
        for put, get in zip(*(rows.tolist() for rows in arrows(spans)), strict=True):
            self._puts_of[get].append(put)
        self._of_track, self._on_device = defaultdict[int, _Ended](_Ended), defaultdict[str, _Ended](_Ended)
        self._puts_in, self._gets_of = defaultdict[int, _Ended](_Ended), defaultdict[int, _Ended](_Ended)  # by channel
        self._causes = _Ended()  # whose end others may have waited for
        self._before: list[list[tuple[int, int]]] = []  # of each: what its start waits for, and how much later it is
        self._until: list[list[int]] = []  # what its end waits for
        for i, kind in enumerate(spans["kind"].tolist()):
            self._before.append(self._start_of(i, kind))
            self._until.append(self._end_of(i, kind))
            self._ended(i, kind)
        # A get that is cut short and the put that cuts it are over when both have begun: of each, when the other did,
        # and what that start waited for.
        self._met: list[tuple[int, list[tuple[int, int]]] | None] = [None] * len(spans)
        for get, put in zip(*(rows.tolist() for rows in cut_short(spans)), strict=True):
            for one, other in ((get, put), (put, get)):
                began = [(before, lag) for before, lag in self._before[other] if before < one]
                if began:
                    self._met[one] = (self._start[other], began)

    def _start_of(self, i: int, kind: int) -> list[tuple[int, int]]:
        at, track = self._start[i], self._track[i]
        last = self._of_track[track].last(at)
        other = -1
        if kind == SpanKind.TRANSFER and self._channel[i] >= 0:  # bytes leave: somebody put them
            other = self._puts_in[self._channel[i]].last(at)
        if other < 0 and (last < 0 or self._call[last] != self._call[i]):  # a call begins: somebody made it
            other = self._causes.last(at, _EVER if last < 0 else self._end[last], track)
        found = [(other, at - self._end[other])] if other >= 0 else []
        if last >= 0:
            found.append((last, 0 if found else at - self._end[last]))
        if kind in _WORK:
            users = [self._on_device[device].last(at, _EVER, track) for device in self._devices[track]]
            found += [(user, 0) for user in users if user >= 0]
        return found

    def _end_of(self, i: int, kind: int) -> list[int]:
        if kind == SpanKind.GET:
            puts = [put for put in self._puts_of[i] if put < i]
            return puts + self._stream_end(i) if i in self._rests else puts
        if kind in _WORK or self._end[i] == self._start[i]:
            return []
        track, places = self._track[i], [self._causes]
        if kind == SpanKind.PUT:
            places = [self._gets_of[self._channel[i]]]
        elif kind == SpanKind.LOCK:
            places = [self._on_device[device] for device in self._devices[track]]
        found = [ended.last(self._end[i], self._start[i], track) for ended in places]
        return [other for other in found if other >= 0]

    def _stream_end(self, i: int) -> list[int]:
        """Of a get that got nothing, or but what was left: what those who put into its channel did last before."""
        producers = self._producers[self._channel[i], self._call[i][0]]
        found = [self._of_track[track].last(self._end[i]) for track in producers if track != self._track[i]]
        return [last for last in found if last >= 0]

    def _ended(self, i: int, kind: int) -> None:
        end, track = self._end[i], self._track[i]
        self._of_track[track].add(i, end, track)
        if kind in _WORK:
            for device in self._devices[track]:
                self._on_device[device].add(i, end, track)
        if kind in _WORK or kind == SpanKind.WAIT:
            self._causes.add(i, end, track)
        if kind in (SpanKind.GET, SpanKind.PUT):
            of_channel = self._gets_of if kind == SpanKind.GET else self._puts_in
            of_channel[self._channel[i]].add(i, end, track)

    def finish(self, groups: Sequence[NDArray[np.bool_]], times: float) -> tuple[int, list[int]]:
        """The length of the timeline, ns, as it was, and when the spans of each group are so many times as fast. No
        span is in two groups.
        """
        if not self._start:
            return 0, [0] * len(groups)
        group = np.full(len(self._start), _NOBODYS)
        for number, mine in enumerate(groups):
            group[mine] = number
        width, found = max(1, _MAX_NUMBERS // len(self._start)), list[int]()
        for low in range(0, len(groups) + 1, width):
            found += self._lengths(group - low, min(width, len(groups) + 1 - low), times)
        return found[-1], found[:-1]

    def _lengths(self, group: NDArray[np.int64], width: int, times: float) -> list[int]:
        """The same for groups 0 to ``width``, side by side. A last one without spans is the timeline as it was."""
        start, end = self._start, self._end
        new = np.empty((len(start), width), np.int64)
        for i, (before, until, met, mine) in enumerate(
            zip(self._before, self._until, self._met, group.tolist(), strict=True)
        ):
            at = _latest(new, before) if before else np.full(width, start[i])
            if until or met:  # as much later than the last of its reasons, or than its start, as it was
                was, now = max([start[i], *(end[other] for other in until)]), at
                for other in until:
                    now = np.maximum(now, new[other])
                if met:
                    was, now = max(was, met[0]), np.maximum(now, _latest(new, met[1]))
                new[i] = now + (end[i] - was)
            else:
                new[i] = at + (end[i] - start[i])
                if 0 <= mine < width:
                    new[i, mine] = at[mine] + round((end[i] - start[i]) / times)
        return (new.max(axis=0) - min(start)).tolist()


def _latest(new: NDArray[np.int64], causes: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """When the last of the causes is over, each with what lies between it and its effect."""
    other, lag = causes[0]
    found = new[other] + lag
    for other, lag in causes[1:]:
        np.maximum(found, new[other] + lag, out=found)
    return found


class _Ended:
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

    def last(self, until: int, after: int = _EVER, not_track: int = -1) -> int:
        """The one that ended last in (after, until], on another track than ``not_track``; -1 for none."""
        at = bisect_right(self._ends, until) - 1
        if at >= 0 and self._tracks[at] == not_track:
            at = self._other[at]
        return self._numbers[at] if at >= 0 and self._ends[at] > after else -1
