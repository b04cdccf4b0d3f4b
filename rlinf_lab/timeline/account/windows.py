"""Iterations as disjoint intervals of time, kept up to date while spans arrive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.record.batch import SpanArray
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import Growing

Ints = NDArray[np.int64]
#: An iteration: half-open interval in ns, number.
WINDOW_DTYPE = np.dtype([("start", "<i8"), ("end", "<i8"), ("iteration", "<i8")])


@dataclass(frozen=True)
class Windows:
    """Iterations as disjoint half-open intervals, by start."""

    starts: Ints
    ends: Ints
    iterations: Ints

    @classmethod
    def of(cls, rows: SpanArray) -> Windows:
        """From rows of `WINDOW_DTYPE`."""
        return cls(rows["start"], rows["end"], rows["iteration"])

    def rows(self) -> SpanArray:
        """As rows of `WINDOW_DTYPE`."""
        rows = np.empty(len(self), WINDOW_DTYPE)
        rows["start"], rows["end"], rows["iteration"] = self.columns()
        return rows

    def __len__(self) -> int:
        return self.starts.size

    def between(self, start_ns: int, end_ns: int) -> Windows:
        """Those that begin in [start_ns, end_ns)."""
        part = slice(*self.starts.searchsorted([start_ns, end_ns]).tolist())
        return Windows(self.starts[part], self.ends[part], self.iterations[part])

    def columns(self) -> tuple[Ints, Ints, Ints]:
        return self.starts, self.ends, self.iterations

    def equals(self, other: Windows) -> bool:
        return len(self) == len(other) and all(
            (ours == theirs).all() for ours, theirs in zip(self.columns(), other.columns(), strict=True)
        )


class WindowTracker:
    """Sentences 10 to 12 of the rule in `rlinf_lab.timeline.account.accounting`, over spans that come in portions."""

    def __init__(self) -> None:
        self._marks = Growing(WINDOW_DTYPE, memory_bytes=1 << 23)
        self._reach: dict[int, tuple[int, int]] = {}  # first start and last end of each iteration's spans

    def add(self, rows: SpanArray, mark_name: int) -> None:
        """Take note of new spans. ``mark_name``: the number of the name that iteration marks have."""
        kind, iteration = rows["kind"], rows["iteration"]
        mark = kind == SpanKind.MARK
        marks = (mark & (rows["name"] == mark_name)).nonzero()[0]
        if marks.size:
            ours = self._marks.reserve(marks.size)
            for field in ("start", "end", "iteration"):
                ours[field] = rows[field][marks]
            self._marks.commit(marks.size)
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

    def windows(self, start_ns: int, end_ns: int) -> Windows:
        """The iterations of a timeline with these bounds."""
        start, end, number = Windows.of(self._marks.view).columns()
        for done in [
            i for i, marked in zip(self._reach, np.isin(list(self._reach), number).tolist(), strict=True) if marked
        ]:
            del self._reach[done]  # comes back with the next late span, and is dropped again here
        if self._reach:
            unmarked = np.array([(*reach, i) for i, reach in self._reach.items()], np.int64)
            start, end, number = (np.append(a, b) for a, b in zip((start, end, number), unmarked.T, strict=True))
        if not number.size:
            start, end, number = np.array([start_ns]), np.array([end_ns]), np.array([-1])
        order = np.lexsort((number, start))
        start, number = start[order], number[order]
        end = np.maximum.accumulate(end[order])
        end[:-1] = np.minimum(end[:-1], start[1:])
        real = end > start
        return Windows(start[real], end[real], number[real])
