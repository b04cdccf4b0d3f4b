"""Iterations as disjoint intervals of time, kept up to date while spans arrive."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.record.batch import SpanArray, stacked
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import Growing

Ints = NDArray[np.int64]
#: An iteration: half-open interval in ns, number.
WINDOW_DTYPE = np.dtype([("start", "<i8"), ("end", "<i8"), ("iteration", "<i8")])


def between(windows: SpanArray, start_ns: int, end_ns: int) -> SpanArray:
    """Those of some windows, by start, that begin in [start_ns, end_ns)."""
    return windows[slice(*windows["start"].searchsorted([start_ns, end_ns]).tolist())]


class WindowTracker:
    """Sentences 10 to 12 of the rule in `rlinf_lab.timeline.account.accounting`, over spans that come in portions."""

    def __init__(self) -> None:
        self._marks = Growing(WINDOW_DTYPE, memory_bytes=1 << 23)
        self._reach: dict[int, tuple[int, int]] = {}  # first start and last end of each iteration's spans

    def add(self, rows: SpanArray, mark_name: int) -> None:
        """Take note of new spans. ``mark_name``: the number of the name that iteration marks have."""
        kind, iteration = rows["kind"], rows["iteration"]
        mark = kind == SpanKind.MARK
        marks = rows[mark & (rows["name"] == mark_name)]
        if len(marks):
            self._marks.append(marks[list(WINDOW_DTYPE.names or ())])
        own = ((iteration >= 0) & ~mark).nonzero()[0]
        if not own.size:
            return
        # Spans of one iteration mostly come one after the other: look at stretches, not at spans.
        iteration = iteration[own]
        begins = np.concatenate([[0], (iteration[1:] != iteration[:-1]).nonzero()[0] + 1])
        first = np.minimum.reduceat(rows["start"][own], begins)
        last = np.maximum.reduceat(rows["end"][own], begins)
        for number, low, high in zip(iteration[begins].tolist(), first.tolist(), last.tolist(), strict=True):
            before = self._reach.get(number)
            self._reach[number] = (min(low, before[0]), max(high, before[1])) if before else (low, high)

    @property
    def open_iterations(self) -> int:
        """How many have no mark yet, as of the last `windows`."""
        return len(self._reach)

    def windows(self, start_ns: int, end_ns: int) -> SpanArray:
        """The iterations of a timeline with these bounds: rows of `WINDOW_DTYPE`, disjoint, by start."""
        rows = self._marks.view
        marked = np.isin(list(self._reach), rows["iteration"]).tolist()
        for done in [i for i, is_marked in zip(self._reach, marked, strict=True) if is_marked]:
            del self._reach[done]  # comes back with the next late span, and is dropped again here
        if self._reach:
            rows = stacked([rows, np.array([(*reach, i) for i, reach in self._reach.items()], WINDOW_DTYPE)])
        if not len(rows):
            rows = np.array([(start_ns, end_ns, -1)], WINDOW_DTYPE)
        rows = rows[np.lexsort((rows["iteration"], rows["start"]))]
        rows["end"] = np.maximum.accumulate(rows["end"])
        rows["end"][:-1] = np.minimum(rows["end"][:-1], rows["start"][1:])
        return rows[rows["end"] > rows["start"]]
