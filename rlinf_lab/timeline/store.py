"""Where the spans of many processes come together: growing arrays, one table of tracks, one of names.

Batches may come from any thread, hosts in any order; each host's own batches come in their order. Readers take no lock:
an array that was handed out is never written to again, and the tables only grow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline.batch import COUNTER_DTYPE, SPAN_DTYPE, SpanArray, SpanBatch
from rlinf_lab.timeline.span import SpanKind, Track

ITERATION = "iteration"  # the name of the MARK spans that say where an iteration begins and ends


class Growing:
    """An array that doubles when it is full; ``view`` is read-only and stays valid for ever."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._data: NDArray[Any] = np.empty(1024, dtype)
        self._size = 0
        self.view: NDArray[Any] = self._data[:0]

    def append(self, rows: NDArray[Any]) -> None:
        size = self._size + len(rows)
        if size > len(self._data):
            grown = np.empty(max(size, 2 * len(self._data)), self._data.dtype)
            grown[: self._size] = self._data[: self._size]
            self._data = grown
        self._data[self._size : size] = rows
        self._size = size
        view = self._data[:size]
        view.flags.writeable = False
        self.view = view


class _Source:
    """What is known of one recorder: the next batch's number, and its numbers translated to ours."""

    def __init__(self) -> None:
        self.seq = 0
        self.tracks = np.empty(0, np.int32)
        self.names = np.empty(0, np.int32)


class SpanStore:
    """The data of a timeline: spans, tracks, names, counter samples and the devices they are about."""

    def __init__(self, devices: Sequence[str] = ()) -> None:
        self._lock = threading.Lock()
        self._devices: dict[str, None] = dict.fromkeys(devices)
        self._tracks: dict[Track, int] = {}
        self._names: dict[str, int] = {}
        self._sources: dict[str, _Source] = {}
        self._spans = Growing(SPAN_DTYPE)
        self._counters = Growing(COUNTER_DTYPE)
        self._bounds: tuple[int, int] | None = None
        self.dropped = 0

    # --- writing ----------------------------------------------------------------------------------------
    def extend(self, batch: SpanBatch, offset_ns: int = 0) -> None:
        """Add a batch. ``offset_ns`` is what must be added to that host's clock to get this timeline's.

        A batch that was added before is ignored. Raises `TimelineError` when one of the same recorder is missing in
        between, or when a span ends before it starts; the timeline is unchanged then.
        """
        if not batch:
            return
        with self._lock:
            source = self._sources.get(batch.source) or _Source()
            if batch.seq < source.seq:
                return
            self._check(batch, source)
            source.tracks = np.append(source.tracks, self._number(self._tracks, batch.tracks))
            source.names = np.append(source.names, self._number(self._names, batch.names))
            source.seq += 1
            self._sources[batch.source] = source
            for track in batch.tracks:
                self._devices.update(dict.fromkeys(track.devices))
            self.dropped += batch.dropped
            if len(batch.counters):
                self._add_counters(batch.counters, source, offset_ns)
            if len(batch.spans):
                self._add_spans(batch.spans, source, offset_ns)

    @staticmethod
    def _check(batch: SpanBatch, source: _Source) -> None:
        if batch.seq > source.seq:
            raise TimelineError(
                f"Batch {batch.seq} of {batch.source!r} came, but {source.seq} is the next one."
                " Next: deliver every batch of a recorder, in order."
            )
        tracks, names = len(source.tracks) + len(batch.tracks), len(source.names) + len(batch.names)
        for field, low, size in (("track", 0, tracks), ("name", -1, names), ("channel", -1, names)):
            strange = batch.spans[field][(batch.spans[field] < low) | (batch.spans[field] >= size)]
            if len(strange):
                raise TimelineError(
                    f"A span of {batch.source!r} has {field} {strange[0]}, of which there are {size}."
                    f" Next: pass Recorder.add what Recorder.{field}() returned."
                )
        wrong = np.flatnonzero(batch.spans["end"] < batch.spans["start"])
        if len(wrong):
            row = batch.spans[wrong[0]]
            raise TimelineError(
                f"{len(wrong)} spans of {batch.source!r} end before they start; the first: track {row['track']},"
                f" {SpanKind(row['kind']).name}, {row['start']} to {row['end']} ns. Next: look at the caller of Recorder.add."
            )

    @staticmethod
    def _number(table: dict[Any, int], new: Iterable[Any]) -> NDArray[np.int32]:
        return np.array([table.setdefault(key, len(table)) for key in new], np.int32)

    def _add_spans(self, rows: SpanArray, source: _Source, offset_ns: int) -> None:
        ours = rows.copy()
        ours["track"] = source.tracks[rows["track"]]
        ours["name"] = _translate(rows["name"], source.names)
        ours["channel"] = _translate(rows["channel"], source.names)
        ours["start"] += offset_ns
        ours["end"] += offset_ns
        start, end = int(ours["start"].min()), int(ours["end"].max())
        old = self._bounds
        self._spans.append(ours)
        self._bounds = (min(start, old[0]), max(end, old[1])) if old else (start, end)

    def _add_counters(self, rows: SpanArray, source: _Source, offset_ns: int) -> None:
        ours = rows.copy()
        ours["name"] = source.names[rows["name"]]
        ours["time"] += offset_ns
        self._counters.append(ours)

    def _restore(
        self, spans: SpanArray, tracks: Iterable[Track], names: Iterable[str], counters: SpanArray, dropped: int
    ) -> None:
        """Fill an empty store with what another one held."""
        for track in tracks:
            self._tracks[track] = len(self._tracks)
            self._devices.update(dict.fromkeys(track.devices))
        for name in names:
            self._names[name] = len(self._names)
        self.dropped = dropped
        self._counters.append(counters)
        if len(spans):
            self._spans.append(spans)
            self._bounds = (int(spans["start"].min()), int(spans["end"].max()))

    def snapshot(self) -> Self:
        """What is there now, as an object that does not grow. The spans are shared, not copied."""
        with self._lock:
            copy = type(self)(list(self._devices))
            copy._tracks, copy._names = dict(self._tracks), dict(self._names)
            copy._spans.view, copy._counters.view = self._spans.view, self._counters.view
            copy._bounds, copy.dropped = self._bounds, self.dropped
            copy.extend = copy._frozen  # type: ignore[method-assign]
            return copy

    def _frozen(self, batch: SpanBatch, offset_ns: int = 0) -> None:
        raise TimelineError("This is a snapshot, which does not grow. Next: extend the timeline it was taken from.")

    # --- reading ----------------------------------------------------------------------------------------
    @property
    def spans(self) -> SpanArray:
        """All spans as a structured array (fields of `SPAN_DTYPE`), in order of arrival; read-only, does not grow."""
        return self._spans.view

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
        return self._bounds[0] if self._bounds else 0

    @property
    def end_ns(self) -> int:
        """The latest end of a span; 0 when there is none."""
        return self._bounds[1] if self._bounds else 0

    @property
    def elapsed_ns(self) -> int:
        bounds = self._bounds
        return bounds[1] - bounds[0] if bounds else 0

    def __len__(self) -> int:
        return len(self.spans)

    def marks(self) -> SpanArray:
        """The MARK spans that say where each iteration begins and ends, by start."""
        number = self._names.get(ITERATION)
        spans = self.spans
        marks = spans[(spans["kind"] == SpanKind.MARK) & (spans["name"] == (-2 if number is None else number))]
        return marks[np.argsort(marks["start"], kind="stable")]


def _translate(numbers: NDArray[np.int32], table: NDArray[np.int32]) -> NDArray[np.int32]:
    """Table lookup in which -1 (none) stays -1."""
    return np.append(table, np.int32(-1))[numbers]
