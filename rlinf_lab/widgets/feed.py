"""What is new in a growing `Timeline`, for the browser. A cursor goes over spans, tables, bubbles and their sums."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rlinf_lab.timeline import Timeline
from rlinf_lab.timeline.formats.packed import pack_delta, pack_rows
from rlinf_lab.timeline.record.batch import SPAN_DTYPE, SpanArray, stacked
from rlinf_lab.timeline.record.store import Growing
from rlinf_lab.widgets.packing import CAUSES, IDLE_WIRE, make_tables, pack_idle, pack_samples

#: Spans of other processes come a little late: an iteration's bubbles are final only after this.
SETTLE_NS = 500_000_000
LOOK_SECONDS = 0.25  # between looks for iterations that have settled
_REST = 2000  # accounting takes a two-thousandth of a core, unless that would mean
LATE_SECONDS = 5.0  # that device time is told later than this
# a five-hundredth where this process computes less than a quarter of the time and a core is idle: it disturbs nobody
# then
_REST_ALONE = 500
# and a three-hundredth of all accounting so far: looks follow each other soon at first, for 17 ms of a core at most in
# all
_REST_EARLY = 300
_FEW_SPANS = 10_000  # spans of a delta that a browser brings into order by itself
_MEMORY_BYTES = 8 << 20  # of device time, and of sums by iteration: more of them go to files
#: The sums of an iteration: seconds by cause.
_SUM = np.dtype([("iteration", "<i8"), ("busy", "<f8"), *((cause, "<f8") for cause in CAUSES)])


_MARK_START, _MARK_END, _MARK_ITERATION = (
    list(SPAN_DTYPE.names or ()).index(field) for field in ("start", "end", "iteration")
)


@dataclass
class Update:
    """News of a timeline. ``tables`` only when they changed; ``bubbles``: seconds by cause, one row per iteration.

    ``layout`` says where the columns of ``spans`` are and how far their times are shifted against the origin; without
    columns they are rows as `rlinf_lab.timeline.formats.packed.pack_delta` has them.
    ``idle`` replaces all device time from ``idle_from`` (ns after the origin) on: what was said of the end of a
    timeline may have been grown past.
    """

    tables: Mapping[str, Any] | None = None
    layout: Mapping[str, Any] | None = None
    spans: bytes = b""
    idle: bytes = b""
    idle_from: int = 0
    samples: bytes = b""
    bubbles: list[dict[str, float]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tables or self.spans or self.idle or self.samples or self.bubbles)

    def content(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """(JSON-able part, binary parts) of the message that carries it."""
        content: dict[str, Any] = {}
        parts: dict[str, bytes] = {}
        if self.tables is not None:
            content["tables"] = self.tables
        if self.spans:
            content["layout"], parts["spans"] = self.layout, self.spans
        if self.idle:
            content["idle_from"], parts["idle"] = self.idle_from, self.idle
        if self.samples:
            parts["samples"] = self.samples
        if self.bubbles:
            content["bubbles"] = self.bubbles
        return content, parts


def message(updates: Sequence[Update]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """One message for the news of one timeline, or of two. Those of the second are in ``over`` and its parts in
    ``over_...``.
    """
    content, parts = updates[0].content()
    for update in updates[1:]:
        content["over"], own = update.content()
        parts |= {f"over_{name}": data for name, data in own.items()}
    return content, parts


def _a_core_is_idle() -> bool:
    """By the system's load of the last minute; False where it does not say."""
    try:
        return os.getloadavg()[0] < len(os.sched_getaffinity(0)) - 1
    except (OSError, AttributeError):  # AttributeError: other systems than Linux
        return False


class Numbers:
    """A set of whole numbers of which nearly all follow each other: those of iterations. What it takes does not grow
    with them.
    """

    def __init__(self) -> None:
        self._below = 0  # all from 0 on below this are in
        self._others: set[int] = set()

    def add(self, number: int) -> bool:
        """False when it was in before."""
        if number in self._others or 0 <= number < self._below:
            return False
        self._others.add(number)
        while self._below in self._others:
            self._others.remove(self._below)
            self._below += 1
        return True

    def has(self, numbers: np.ndarray) -> np.ndarray:
        """Which of these are in."""
        return ((numbers >= 0) & (numbers < self._below)) | np.isin(numbers, list(self._others))


class TimelineFeed:
    """Reads a timeline from where it stopped the last time. Not thread-safe: one feed, one pushing thread."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._now = self.accounted = timeline.snapshot()  # what was looked at last; and for device time
        self._seen = self._sampled = 0
        # device time up to _idle_until, and once more what is known of the rest
        self._idle = Growing(IDLE_WIRE, _MEMORY_BYTES)
        self._rest = b""
        self._bubbles = Growing(_SUM, _MEMORY_BYTES)
        self._shape: tuple[Any, ...] = ()
        self._origin: int | None = None
        self._idle_until: int | None = None
        self._told_until = 0
        self._summed = Numbers()
        self._marked = 0  # marks of the timeline that were looked at, and those among them that have not settled
        self._unsettled = np.empty(0, SPAN_DTYPE)
        self._not_before = self._grown_at = 0.0
        self._accounted = 0.0  # seconds of a core
        # when the last look ended, and what this process had computed until then
        self._load = time.monotonic(), time.process_time()

    @property
    def origin_ns(self) -> int | None:
        """The time that is 0 on the page; None before the first span."""
        return self._origin

    @property
    def told_spans(self) -> int:
        """How many were taken so far."""
        return self._seen

    def behind(self) -> int:
        """How many spans of the timeline were not taken yet."""
        return self.timeline.so_far() - self._seen

    def take(self, final: bool = False) -> Update:
        """Everything since the last call. ``final``: nothing is known to come, so the bubbles up to the end
        are told.
        """
        update = self.take_spans()
        self._account(update, final)
        return update

    def take_spans(self) -> Update:
        """What is new without device time and bubbles."""
        update = self.take_waiting()
        if update is not None:
            self._add_known_samples(update)
            return update
        now, update = self.timeline.snapshot(), Update()
        if now is not self._now or not self._shape:
            self._now = now
            self._add_spans(now, update)
        return update

    def take_waiting(self, most: int | None = None) -> Update | None:
        """New spans as they wait in the timeline, and nothing else. None where `take_spans` has to be asked, or they
        are more than ``most``.

        The least that a look can cost.
        """
        rows = self.timeline.waiting(self._seen) if self._origin is not None else None
        if (
            rows is None
            or (most is not None and len(rows) > most * SPAN_DTYPE.itemsize)
            or self._shape_of(self.timeline) != self._shape
        ):
            return None
        update = Update()
        if rows:
            self._grown_at = time.monotonic()
            update.layout, update.spans = pack_delta(rows, self._origin or 0)
            self._seen += update.layout["count"]
        return update

    def take_samples(self) -> Update:
        """New samples of counters, where the page knows their names."""
        update = Update()
        self._add_known_samples(update)
        return update

    def take_bubbles(self, at_once: bool = False) -> Update:
        """Device time and bubbles, where it is time to look at them, or ``at_once``. They are of the spans that were
        taken, and of those that came since.
        """
        update = Update()
        self._account(update, False, at_once)
        return update

    def _account(self, update: Update, final: bool, at_once: bool = False) -> None:
        if final or at_once or time.monotonic() >= self._not_before:
            now = self.accounted = self.timeline.snapshot()
            if self._seen:
                # Of what the page knows the tables of: the others' come with the next spans.
                self._add_bubbles(now if self._shape_of(now) == self._shape else self._now, update, final)

    @staticmethod
    def _shape_of(store: Timeline) -> tuple[Any, ...]:
        """What changes where the tables do."""
        jumps = store.clock_jumps.items()
        return (
            len(store._devices),
            len(store._tracks),
            len(store._names),
            store.dropped,
            store.dropped_samples,
            *store.clock_errors.items(),
            *jumps,
        )

    def _add_spans(self, now: Timeline, update: Update) -> None:
        count = len(now)
        if not count and not now._devices:
            return
        if self._origin is None and count:
            self._origin = self._idle_until = self._told_until = now.start_ns
            self._shape = ()  # the origin is in the tables
        shape = self._shape_of(now)
        if shape != self._shape:
            self._shape = shape
            update.tables = make_tables(self._origin or 0, now)
        if count > self._seen:
            self._grown_at = time.monotonic()
            update.layout, update.spans = self._spans(now, self._seen, count)
            self._seen = count
        self._add_samples(now.counter_samples[self._sampled :], update)

    def _add_known_samples(self, update: Update) -> None:
        """Others extend the timeline meanwhile. So what is there is read first, and then whether the page knows the
        names of all that.
        """
        fresh = self.timeline.counter_samples[self._sampled :]
        if self._shape_of(self.timeline) == self._shape:
            self._add_samples(fresh, update)

    def _add_samples(self, fresh: SpanArray, update: Update) -> None:
        if len(fresh) and self._origin is not None:
            self._sampled += len(fresh)
            update.samples = pack_samples(fresh, self._origin)

    def everything(self) -> Update:
        """All that was taken so far, as one update; nothing is kept twice for it."""
        now = self.timeline.snapshot()
        layout, spans = self._spans(now, 0, self._seen) if self._seen else (None, b"")
        rows = [dict(zip(_SUM.names or (), row, strict=True)) for row in self._bubbles.view.tolist()]
        bubbles = [{key: value for key, value in row.items() if value or key in ("iteration", "busy")} for row in rows]
        samples = pack_samples(now.counter_samples[: self._sampled], self._origin or 0)
        return Update(
            make_tables(self._origin or 0, now),
            layout,
            spans,
            self._idle.view.tobytes() + self._rest,
            0,
            samples,
            bubbles,
        )

    def _spans(self, now: Timeline, since: int, until: int) -> tuple[dict[str, Any], bytes]:
        if until - since <= _FEW_SPANS:
            return pack_delta(now.spans[since:until].tobytes(), self._origin or 0)
        header, data = pack_rows(now, since, until)
        return header | {"shift": now.start_ns - (self._origin or 0)}, data

    def _add_bubbles(self, now: Timeline, update: Update, final: bool) -> None:
        marks = self._marks(now)
        still = time.monotonic() - self._grown_at >= SETTLE_NS / 1e9  # paused, or everybody waits
        over = marks["end"] <= (now.end_ns if final or still else now.end_ns - SETTLE_NS)
        settled = marks[over]
        assert self._idle_until is not None and self._origin is not None
        self._not_before = time.monotonic() + LOOK_SECONDS
        sure = int(settled["end"].max(initial=self._idle_until))
        until = now.end_ns if final else sure
        if until <= self._told_until:
            return
        began = time.thread_time()
        self._unsettled = marks[~over]
        fresh = settled[~self._summed.has(settled["iteration"])]
        rows = now.accounting().since(min(self._idle_until, int(fresh["start"].min(initial=self._idle_until))))
        pack = partial(pack_idle, rows, self._origin, len(now.devices))
        settled_rows, self._rest = pack(self._idle_until, sure), pack(sure, until)
        update.idle, update.idle_from = settled_rows + self._rest, self._idle_until - self._origin
        self._idle_until, self._told_until = sure, until
        update.bubbles = self._sums(rows, fresh, len(now.devices))
        self._idle.append(np.frombuffer(settled_rows, IDLE_WIRE))
        self._bubbles.append(
            np.array([tuple(row.get(key, 0.0) for key in _SUM.names or ()) for row in update.bubbles], _SUM)
        )
        self._not_before += self._pause(time.thread_time() - began)

    def _pause(self, took: float) -> float:
        """Seconds until accounting is worth it again. It took ``took`` seconds of a core just now."""
        (at, computed), self._load = self._load, (time.monotonic(), time.process_time())
        is_alone = self._load[1] - computed - took < 0.25 * (self._load[0] - at) and _a_core_is_idle()
        self._accounted += took
        return min(LATE_SECONDS, (_REST_ALONE if is_alone else _REST) * took, _REST_EARLY * self._accounted)

    def _marks(self, now: Timeline) -> SpanArray:
        """Marks of iterations that have come or settled since the last look, by start. That look told something; a long
        run's are not all gone through each time.
        """
        come = now._marks.view[self._marked :]
        self._marked += len(come)
        if len(come):
            marks = stacked([self._unsettled, come])
            self._unsettled = marks[np.argsort(marks["start"], kind="stable")]
        return self._unsettled

    def _sums(self, bubbles: np.ndarray, marks: np.ndarray, devices: int) -> list[dict[str, float]]:
        """Seconds by cause of each of these iterations, whose bubbles are among the given ones."""
        # two marks of one number: the first counts
        fresh = [mark for mark in marks.tolist() if self._summed.add(mark[_MARK_ITERATION])]
        numbers = np.array(sorted(mark[_MARK_ITERATION] for mark in fresh), np.int64)
        of = bubbles["iteration"]
        at = np.minimum(np.searchsorted(numbers, of), max(0, len(numbers) - 1))
        among = numbers[at] == of if len(numbers) else np.zeros(len(of), np.bool_)
        idle = np.zeros((len(numbers), len(CAUSES)), np.int64)
        np.add.at(idle, (at[among], bubbles["cause"][among]), (bubbles["end"] - bubbles["start"])[among])
        rows = []
        for mark in fresh:
            own = idle[np.searchsorted(numbers, mark[_MARK_ITERATION])].tolist()
            whole = (mark[_MARK_END] - mark[_MARK_START]) * devices
            row = {cause: ns / 1e9 for cause, ns in zip(CAUSES, own, strict=True) if ns}
            rows.append({"iteration": mark[_MARK_ITERATION], "busy": max(0, whole - sum(own)) / 1e9, **row})
        return rows
