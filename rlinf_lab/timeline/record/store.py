"""Where the spans of many processes come together. There are growing arrays, one table of tracks, one of names.

Batches may come from any thread, hosts in any order; each host's own batches come in their order. An array that was
handed out is never written to again, and the tables only grow.

Rows that need no other numbers wait as they came until somebody reads: of a run they come eight times a second,
and filling in a few hundred rows costs hardly less than filling in some thousands. A live view gets them as they wait
(`SpanStore.waiting`).
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import TimelineError, shown
from rlinf_lab.timeline.record.batch import (
    COUNTER_DTYPE,
    SPAN_DTYPE,
    SpanArray,
    SpanBatch,
)
from rlinf_lab.timeline.record.span import SpanKind, Track, writable

ITERATION = "iteration"  # the name of the MARK spans that say where an iteration begins and ends
# what stands as channel in the mark of an iteration that failed, or was given up because another one did
FAILED = "failed"
#: Bytes of spans that a timeline keeps in memory; a longer one is in a file that the system maps, and pages out as it
#: likes.
MEMORY_BYTES = 64 << 20
_WAITING_BYTES = 1 << 18  # of rows that wait to be filled in: more of them than fit in a cache are no cheaper
_ROW = SPAN_DTYPE.itemsize


class Growing:
    """An array that doubles when it is full. ``view`` is read-only and stays valid for ever.

    Beyond ``memory_bytes`` it lives in a temporary file without a name, mapped into memory: growing copies nothing
    then, old views see the same pages, and the file is gone when the last view is.
    """

    def __init__(self, dtype: np.dtype[Any], memory_bytes: int = MEMORY_BYTES) -> None:
        self._data: NDArray[Any] = np.empty(0, dtype)
        self._size = 0
        self._memory_bytes = memory_bytes
        self._file: IO[bytes] | None = None
        self._process = 0
        self.view: NDArray[Any] = self._data[:0]

    @property
    def in_file(self) -> bool:
        return self._file is not None

    def reserve(self, count: int) -> NDArray[Any]:
        """Room for ``count`` more rows, to be filled in before `commit`."""
        size = self._size + count
        # forked: the pages are those of the parent, who goes on writing
        if self._file is not None and self._process != os.getpid():
            self._file, self._data = None, self._data[: self._size].copy()
        if size > len(self._data):
            self._grow(max(size, 2 * len(self._data), 1024))
        return self._data[self._size : size]

    def commit(self, count: int) -> None:
        """The rows that were reserved are filled in: show them."""
        self._size += count
        view = self._data[: self._size]
        view.flags.writeable = False
        self.view = view

    def frozen(self) -> Growing:
        """The view of now, and nothing else: it cannot grow."""
        kept = object.__new__(Growing)
        kept.view = self.view
        return kept

    def append(self, rows: NDArray[Any]) -> None:
        self.reserve(len(rows))[...] = rows
        self.commit(len(rows))

    def _grow(self, capacity: int) -> None:
        old, size = self._data[: self._size], capacity * self._data.dtype.itemsize
        mapped = self._file is not None
        if size > self._memory_bytes and self._has_disk(size):
            assert self._file is not None
            self._data = np.frombuffer(mmap.mmap(self._file.fileno(), size), self._data.dtype)
        else:
            self._data, mapped = np.empty(capacity, self._data.dtype), False
        if not mapped:  # else the file holds them already
            self._data[: self._size] = old

    def _has_disk(self, size: int) -> bool:
        """Make the file this long, with its blocks. A write into a page that the disk cannot hold would kill the
        process.
        """
        try:
            if self._file is None:
                self._process = os.getpid()
                # lives as long as the array
                self._file = tempfile.TemporaryFile(prefix="rlinf-lab-timeline-")  # noqa: SIM115
            os.posix_fallocate(self._file.fileno(), 0, size)
        except OSError as error:
            self._file, self._memory_bytes = None, 1 << 62
            warnings.warn(
                f"A long timeline stays in memory: no {size >> 20} MiB in {tempfile.gettempdir()!r} ({error}).",
                stacklevel=2,
            )
            return False
        return True


class _Source:
    """What is known of one recorder. That is the next batch's number, and its numbers translated to ours."""

    def __init__(self) -> None:
        self.seq = 0
        self.tracks = self.names = np.array([-1], np.int32)  # the last entry stands for none: number -1 finds it
        self.same = True  # its numbers are ours already

    def learn(self, tracks: list[int], names: list[int]) -> None:
        """Our numbers of the tracks and names that come next."""
        if tracks or names:
            self.tracks = np.concatenate([self.tracks[:-1], np.array([*tracks, -1], np.int32)])
            self.names = np.concatenate([self.names[:-1], np.array([*names, -1], np.int32)])
            self.same = all(
                np.array_equal(table[:-1], np.arange(len(table) - 1)) for table in (self.tracks, self.names)
            )

    def refuse_wrong(self, batch: SpanBatch, spans_are_right: bool) -> None:
        """Raise `TimelineError` for a batch that does not come next. The same goes for spans that this recorder cannot
        have written.
        """
        if batch.seq > self.seq:
            raise TimelineError(
                f"Batch {batch.seq} of {batch.source!r} came, but {self.seq} is the next one. Next: deliver every "
                "batch of a recorder, in order."
            )
        if spans_are_right or not len(batch.spans):
            return
        rows = batch.spans.astype(SPAN_DTYPE, copy=False)
        tracks, names = len(self.tracks) - 1 + len(batch.tracks), len(self.names) - 1 + len(batch.names)
        for field, least, size in (("track", 0, tracks), ("name", -1, names), ("channel", -1, names)):
            strange = rows[field][(rows[field] < least) | (rows[field] >= size)]
            if len(strange):
                raise TimelineError(
                    f"A span of {batch.source!r} has {field} {strange[0]}, of which there are {size}. Next: pass "
                    f"Recorder.add what Recorder.{field}() returned."
                )
        if rows["kind"].max() >= len(SpanKind):
            raise TimelineError(
                f"A span of {batch.source!r} has kind {rows['kind'].max()}. Next: pass Recorder.add a SpanKind."
            )
        wrong = np.flatnonzero(rows["end"] < rows["start"])
        if len(wrong):
            row = rows[wrong[0]]
            raise TimelineError(
                f"{len(wrong)} spans of {batch.source!r} end before they start; the first: track {row['track']},"
                f" {SpanKind(row['kind']).name}, {row['start']} to {row['end']} ns. Next: look at the caller of "
                "Recorder.add."
            )


class SpanStore:
    """The data of a timeline. It has spans, tracks, names, counter samples and the devices they are about."""

    def __init__(self, devices: Sequence[str] = ()) -> None:
        if (
            isinstance(devices, str)
            or not isinstance(devices, Sequence)
            or not all(isinstance(d, str) for d in devices)
        ):
            raise TimelineError(
                f"Timeline({shown(devices)}): names of devices. Next: Timeline(['cpu:0', 'cpu:1']), or Timeline()."
            )
        self._lock = threading.Lock()
        self._devices: dict[str, None] = dict.fromkeys(map(writable, devices))
        self._tracks: dict[Track, int] = {}
        self._names: dict[str, int] = {}
        self._sources: dict[str, _Source] = {}
        self._spans = Growing(SPAN_DTYPE)
        self._marks = Growing(SPAN_DTYPE)
        self._counters = Growing(COUNTER_DTYPE)
        self._waiting = bytearray()  # rows of `SPAN_DTYPE` with our numbers, after those that are filled in
        self._bounds: tuple[int, int] | None = None
        self._now: Self | None = None  # what `snapshot` gave, while nothing has come since
        self._is_snapshot = False
        self.dropped = self.dropped_samples = 0  # spans and samples of counters that a recorder could not keep
        self.foreign_arrows = 0  # that a trace of another tool had, and nothing here can tell
        # iterations that have ended, of which other hosts may have more to tell
        self.arriving: frozenset[int] = frozenset()
        # hosts with a clock of their own: how far their times may be from the others', ns
        self.clock_errors: dict[str, int] = {}
        self.clock_jumps: dict[str, int] = {}  # those of them whose clock was set or stood still meanwhile: how often

    # --- writing ----------------------------------------------------------------------------------------
    def extend(self, batch: SpanBatch, offset_ns: int = 0, *, checked: bool = False) -> None:
        """Add a batch. ``offset_ns`` is what must be added to that host's clock to get this timeline's.

        A batch that was added before is ignored. Raises `TimelineError` when one of the same recorder is missing in
        between, when a span ends before it starts, or has a number that its recorder did not give; the timeline is
        unchanged then.
        ``checked``: the spans need not be looked at, for they were written by a runtime of ours (see
        `rlinf_lab.runtime.host.state.spans`).
        """
        if self._is_snapshot:
            raise TimelineError("This is a snapshot, which does not grow. Next: extend the timeline it was taken from.")
        if (
            not isinstance(batch, SpanBatch)
            or isinstance(offset_ns, bool)
            or not isinstance(offset_ns, int | np.integer)
        ):
            raise TimelineError(
                f"extend({shown(batch)}, offset_ns={shown(offset_ns)}): a SpanBatch, and whole ns. Next: "
                "extend(recorder.drain())."
            )
        if not batch:
            return
        with self._lock:
            source = self._sources.get(batch.source) or _Source()
            if batch.seq < source.seq:
                return
            source.refuse_wrong(batch, checked)
            self._now = None
            if checked and source.same and source.seq and not offset_ns and batch.is_plain:
                source.seq += 1
                self._waiting += batch.spans.tobytes()
                if len(batch.counters):
                    self._counters.append(batch.counters)
                if len(self._waiting) > _WAITING_BYTES:
                    self._fill_in()
                return
            self._fill_in()
            source.learn(self._number(self._tracks, batch.tracks), self._number(self._names, batch.names))
            source.seq += 1
            self._sources[batch.source] = source
            for track in batch.tracks:
                self._devices.update(dict.fromkeys(track.devices))
            self.dropped += batch.dropped
            self.dropped_samples += batch.dropped_samples
            if batch.clock_error_ns:
                self.clock_errors[batch.host] = max(batch.clock_error_ns, self.clock_errors.get(batch.host, 0))
            if batch.clock_jumps:
                self.clock_jumps[batch.host] = batch.clock_jumps
            if len(batch.counters):
                self._add_counters(batch.counters, source, offset_ns)
            if len(batch.spans):
                self._add_spans(batch.spans, source, offset_ns)

    def extend_by_rows(self, source: str, seq: int, rows: bytes | bytearray) -> None:
        """As `extend` by a ``checked`` batch of these rows of `SPAN_DTYPE` only. Without making one: see
        `Recorder.take_rows`.
        """
        with self._lock:
            known = self._sources.get(source)
            if known is not None and known.same and known.seq == seq and not self._is_snapshot:
                known.seq += 1
                self._now = None
                self._waiting += rows
                if len(self._waiting) > _WAITING_BYTES:
                    self._fill_in()
                return
        self.extend(SpanBatch(source.split("/")[0], source, seq, np.frombuffer(rows, SPAN_DTYPE)), checked=True)

    def expect(self, iterations: Iterable[int]) -> None:
        """Their marks come next. Other hosts may have more to tell of them: see ``arriving``."""
        with self._lock:
            self.arriving, self._now = self.arriving | set(iterations), None

    def settle(self, iteration: int) -> None:
        """Every host has told what it recorded of it."""
        with self._lock:
            self.arriving, self._now = self.arriving - {iteration}, None

    @staticmethod
    def _number(table: dict[Any, int], new: Iterable[Any]) -> list[int]:
        return [table.setdefault(key, len(table)) for key in new]

    def _fill_in(self) -> None:
        """Make the rows that wait part of the timeline; the caller holds the lock."""
        if self._waiting:
            rows = np.frombuffer(bytes(self._waiting), SPAN_DTYPE)
            ours = self._spans.reserve(len(rows))
            ours[...] = rows
            self._waiting.clear()
            self._show(ours)

    def so_far(self) -> int:
        """How many spans there are, those that wait to be filled in among them. For who asks many times a second:
        nothing is filled in for it.
        """
        with self._lock:
            return len(self._spans.view) + len(self._waiting) // _ROW

    def waiting(self, since: int) -> bytes | None:
        """The spans from number ``since`` on, as rows of `SPAN_DTYPE`, or None. That where some do not wait to be
        filled in: read ``spans`` then.
        """
        with self._lock:
            at = since - len(self._spans.view)
            return bytes(self._waiting[at * _ROW :]) if at >= 0 else None

    def _add_spans(self, rows: SpanArray, source: _Source, offset_ns: int) -> None:
        ours = self._spans.reserve(len(rows))
        ours[...] = rows
        if not source.same:
            ours["track"] = source.tracks[rows["track"]]
            ours["name"] = source.names[rows["name"]]
            ours["channel"] = source.names[rows["channel"]]
        if offset_ns:
            ours["start"] += offset_ns
            ours["end"] += offset_ns
        self._show(ours)

    def _show(self, ours: SpanArray) -> None:
        """Make reserved rows part of the timeline."""
        start, end, old = int(np.minimum.reduce(ours["start"])), int(np.maximum.reduce(ours["end"])), self._bounds
        kind = ours["kind"]
        if SpanKind.MARK in kind.tobytes():
            self._marks.append(ours[(kind == SpanKind.MARK) & (ours["name"] == self._names.get(ITERATION, -2))])
        self._spans.commit(len(ours))
        self._bounds = (min(start, old[0]), max(end, old[1])) if old else (start, end)

    def _add_counters(self, rows: SpanArray, source: _Source, offset_ns: int) -> None:
        ours = rows.copy()
        ours["name"] = source.names[rows["name"]]
        ours["time"] += offset_ns
        self._counters.append(ours)

    def _restore(
        self, spans: SpanArray, tracks: Iterable[Track], names: Iterable[str], counters: SpanArray, dropped: int,
        clock_errors: Mapping[str, int] | None = None,
        dropped_samples: int = 0, clock_jumps: Mapping[str, int] | None = None, foreign_arrows: int = 0,
    ) -> None:  # fmt: skip
        """Fill an empty store with what another one held."""
        held = SpanBatch("", "", 0, spans, tuple(tracks), tuple(names), counters, dropped, 0, dropped_samples)
        self.extend(held)
        self.clock_errors, self.clock_jumps = dict(clock_errors or {}), dict(clock_jumps or {})
        self.foreign_arrows, self._now = foreign_arrows, None

    def snapshot(self) -> Self:
        """What is there now, as an object that does not grow. The spans are shared, not copied; the same object until
        something comes.
        """
        if self._is_snapshot:
            return self
        with self._lock:
            if self._now is not None:
                return self._now
            self._fill_in()
            copy = object.__new__(type(self))
            copy.__dict__.update(self.__dict__)
            copy._devices, copy._tracks, copy._names = dict(self._devices), dict(self._tracks), dict(self._names)
            copy._spans, copy._marks = self._spans.frozen(), self._marks.frozen()
            copy._counters, copy._waiting, copy._is_snapshot = self._counters.frozen(), bytearray(), True
            copy.clock_errors, copy.clock_jumps = dict(self.clock_errors), dict(self.clock_jumps)
            self._now = copy
            return copy

    # --- reading ----------------------------------------------------------------------------------------
    @property
    def spans(self) -> SpanArray:
        """All spans as a structured array (fields of `SPAN_DTYPE`), in order of arrival. Read-only, does not grow."""
        self._settle()
        return self._spans.view

    def _settle(self) -> None:
        if self._waiting:
            with self._lock:
                self._fill_in()

    @property
    def counter_samples(self) -> SpanArray:
        """All counter samples as a structured array (fields of `COUNTER_DTYPE`), in order of arrival."""
        return self._counters.view

    @property
    def devices(self) -> list[str]:
        """The plan's devices in its order, then those that only a track named."""
        return list(self._devices)

    @property
    def tracks(self) -> list[Track]:
        """Lanes, by the number that ``spans["track"]`` holds."""
        return list(self._tracks)

    @property
    def names(self) -> list[str]:
        """Texts, by the number that ``spans["name"]`` and ``spans["channel"]`` hold."""
        return list(self._names)

    @property
    def start_ns(self) -> int:
        """The earliest start of a span; 0 when there is none."""
        return self._from_to()[0]

    @property
    def end_ns(self) -> int:
        """The latest end of a span; 0 when there is none."""
        return self._from_to()[1]

    @property
    def elapsed_ns(self) -> int:
        start, end = self._from_to()
        return end - start

    def _from_to(self) -> tuple[int, int]:
        self._settle()
        return self._bounds or (0, 0)

    def __len__(self) -> int:
        return len(self.spans)

    def marks(self) -> SpanArray:
        """The MARK spans that say where each iteration begins and ends, by start."""
        self._settle()
        marks = self._marks.view
        return marks[np.argsort(marks["start"], kind="stable")]
