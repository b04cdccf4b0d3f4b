"""What would be gained if a worker were faster. The recorded spans are replayed with some of them shortened.

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

What another *plan* brings is a question for `rlinf_lab.plan` and its simulator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import TimelineError, shown
from rlinf_lab.timeline.account.group_by import grouped_by
from rlinf_lab.timeline.critical.causal_order import in_causal_order
from rlinf_lab.timeline.critical.flows import EVER, Ended, arrows
from rlinf_lab.timeline.critical.short_gets import cut_short, takes_the_rest
from rlinf_lab.timeline.record.batch import SpanArray
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("worker", "rank", "name")
#: Spans that are replayed: of a longer timeline the last iterations, as many as fit.
MAX_REPLAYED_SPANS = 60_000
_MAX_NUMBERS = 1 << 24  # numbers in memory at a time
_NOBODYS = 1 << 40  # the number of no group
_WORK = (SpanKind.RUN, SpanKind.ONLOAD, SpanKind.OFFLOAD, SpanKind.TRANSFER, SpanKind.SETUP)


def gains(store: SpanStore, times: float = 2.0, by: str | Sequence[str] = "worker") -> pd.DataFrame:
    """One row for each worker (``by``: `COLUMNS`, one or several), largest gain first.

    Columns after those of ``by``: run_seconds (in RUN spans), seconds (by which the timeline would be shorter if these
    spans were ``times`` as fast), share of the elapsed time. ``attrs``: ``replayed_spans``, how many spans the answer
    rests on, ``spans``, how many there are, and ``note``, which says where a part is taken for the whole, in proportion
    to their times ("" otherwise).
    """
    import pandas as pd

    if isinstance(times, bool) or not isinstance(times, int | float) or not times > 0:
        raise TimelineError(f"gains(times={shown(times)}): how many times as fast, a positive number. Next: gains(2).")
    keys = grouped_by("gains", "gains", by, COLUMNS)
    spans, count = _last_iterations(store)
    runs = spans["kind"] == SpanKind.RUN
    groups = {label: mine & runs for label, mine in _groups(store, spans, keys).items() if (mine & runs).any()}
    elapsed_ns, faster_ns = _Replay(store, spans).finish(list(groups.values()), times)
    whole_ns = elapsed_ns if len(spans) == count else _extent_of_iterations(store)
    rows = []
    for (label, mine), takes_ns in zip(groups.items(), faster_ns, strict=True):
        seconds = float((spans["end"][mine] - spans["start"][mine]).sum()) / 1e9
        saved_ns = (elapsed_ns - takes_ns) * whole_ns / max(elapsed_ns, 1)  # the rest is as what was replayed
        rows.append((*label, seconds, saved_ns / 1e9, saved_ns / max(store.elapsed_ns, 1)))
    frame = pd.DataFrame(rows, columns=[*keys, "run_seconds", "seconds", "share"])
    frame = frame.sort_values("seconds", ascending=False, kind="stable", ignore_index=True)
    part = f"the last {len(spans):,} of {count:,} spans, {elapsed_ns / 1e9:.3g} of {whole_ns / 1e9:.3g} s"
    note = f"EXTRAPOLATED: replayed are {part}; the gain is taken as the same share of the rest."
    frame.attrs |= {"replayed_spans": len(spans), "spans": count, "note": note if len(spans) < count else ""}
    return frame


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
    """Spans with causes first, and what the start and the end of each wait for."""

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
        self._of_track, self._on_device = defaultdict[int, Ended](Ended), defaultdict[str, Ended](Ended)
        self._puts_in, self._gets_of = defaultdict[int, Ended](Ended), defaultdict[int, Ended](Ended)  # by channel
        self._causes = Ended()  # whose end others may have waited for
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
            other = self._causes.last(at, EVER if last < 0 else self._end[last], track)
        found = [(other, at - self._end[other])] if other >= 0 else []
        if last >= 0:
            found.append((last, 0 if found else at - self._end[last]))
        if kind in _WORK:
            users = [self._on_device[device].last(at, EVER, track) for device in self._devices[track]]
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
        """The causes of a get that got nothing, or only what was left. They are what those who put into its channel did
        last before.
        """
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
        """The length of the timeline, ns, as it was and with groups of spans faster. The spans of each group are so
        many times as fast; no span is in two groups.
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
    """When the last of the causes is over. Each is given with what lies between it and its effect."""
    other, lag = causes[0]
    found = new[other] + lag
    for other, lag in causes[1:]:
        np.maximum(found, new[other] + lag, out=found)
    return found
