"""What is new in a growing `Timeline`, as the browser wants it: a cursor over spans, tables, bubbles and their sums."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlinf_lab.timeline import Timeline
from rlinf_lab.timeline.accounting import Accounting
from rlinf_lab.widgets.packing import CAUSES, make_tables, pack_idle, pack_spans

#: Spans of other processes come a little late: an iteration's bubbles are final only after this.
SETTLE_NS = 500_000_000


@dataclass
class Update:
    """News of a timeline. ``tables`` only when they changed; ``bubbles``: seconds by cause, one row per iteration."""

    tables: Mapping[str, Any] | None = None
    spans: bytes = b""
    idle: bytes = b""
    bubbles: list[dict[str, float]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.tables or self.spans or self.idle or self.bubbles)


class TimelineFeed:
    """Reads a timeline from where it stopped the last time. Not thread-safe: one feed, one pushing thread."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._seen = 0
        self._shape = (-1, -1, -1)
        self._origin: int | None = None
        self._idle_until: int | None = None
        self._summed: set[int] = set()
        self._not_before = 0.0

    def take(self, final: bool = False) -> Update:
        """Everything since the last call. ``final``: the run has ended, so the bubbles up to the end are known."""
        now = self.timeline.snapshot()
        update = Update()
        if not len(now) and not now.devices:
            return update
        if self._origin is None and len(now):
            self._origin = self._idle_until = now.start_ns
        origin = self._origin or 0
        shape = (len(now.devices), len(now.tracks), len(now.names))
        if shape != self._shape or not self._seen and len(now):
            self._shape = shape
            update.tables = make_tables(origin, now.devices, now.tracks, now.names)
        update.spans = pack_spans(now.spans[self._seen :], origin)
        self._seen = len(now)
        if len(now):
            self._add_bubbles(now, update, final)
        return update

    def _add_bubbles(self, now: Timeline, update: Update, final: bool) -> None:
        marks = now.marks()
        settled = marks if final else marks[marks["end"] <= now.end_ns - SETTLE_NS]
        until = now.end_ns if final else int(settled["end"].max(initial=0))
        assert self._idle_until is not None and self._origin is not None
        if until <= self._idle_until or not (final or time.monotonic() >= self._not_before):
            return
        began = time.monotonic()
        accounting = now.accounting()
        update.idle = pack_idle(accounting.bubbles, self._origin, len(now.devices), self._idle_until, until)
        self._idle_until = until
        update.bubbles = self._sums(accounting, settled)
        # Accounting looks at the whole timeline: spend at most a twentieth of the time on it.
        self._not_before = time.monotonic() + 20 * (time.monotonic() - began)

    def _sums(self, accounting: Accounting, marks: np.ndarray) -> list[dict[str, float]]:
        rows = []
        bubbles = accounting.bubbles
        for mark in marks:
            number = int(mark["iteration"])
            if number in self._summed:
                continue
            self._summed.add(number)
            own = bubbles[bubbles["iteration"] == number]
            idle = np.zeros(len(CAUSES), np.int64)
            np.add.at(idle, own["cause"], own["end"] - own["start"])
            whole = int(mark["end"] - mark["start"]) * len(accounting.devices)
            row = {cause: float(ns) / 1e9 for cause, ns in zip(CAUSES, idle, strict=True) if ns}
            rows.append({"iteration": number, "busy": max(0, whole - int(idle.sum())) / 1e9, **row})
        return rows
