"""Writing down what happens, cheaply: one `Recorder` in each process.

``add`` packs a row and appends it to a byte buffer with one call into C. Under the interpreter lock that append is
atomic, and ``drain`` cuts a *prefix* of the same buffer off instead of swapping it, so that no thread can hold a stale
one: a span that was added is drained exactly once.

Between two stretches of computing a row costs three times what it costs in a loop, for what packing needs has left the
caches. So a runtime of ours leaves its rows as numbers (``loose``), with one call into C, and whoever drains packs some
hundred of them at once (`rlinf_lab.timeline.record.pending`).

A process that is forked does not record: what waits is its parent's, and nobody would fetch what it adds. Whoever wants
that makes a recorder there.

Memory is bounded: when nobody drains, what comes beyond ``limit`` is not kept, and counted.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
import weakref
from numbers import Integral

import numpy as np

from rlinf_lab.errors import TimelineError, shown
from rlinf_lab.timeline.record.batch import (
    COUNTER_DTYPE,
    SPAN_DTYPE,
    SPAN_STRUCT,
    SpanBatch,
)
from rlinf_lab.timeline.record.clock import Clock, MonotonicClock
from rlinf_lab.timeline.record.pending import NUMBERS, ROW, Pending
from rlinf_lab.timeline.record.span import SpanKind, Track, writable

NAME_CHARACTERS = 200
_MAX_LOOSE_ROWS = 1024  # rows that may wait as numbers, which take six times as much memory
_COUNTER = struct.Struct("<iqd")  # COUNTER_DTYPE
_NO_SAMPLES = np.empty(0, COUNTER_DTYPE)
_KINDS = tuple(range(len(SpanKind)))  # a plain int of each kind, too
_RECORDERS: weakref.WeakSet[Recorder] = weakref.WeakSet()


class Recorder:
    """Collects spans and counter samples of one process; thread-safe; never blocks a worker.

    ``limit`` is how many spans may wait in memory (56 bytes each), and how many samples of counters. What comes beyond
    it, when nobody drains, is counted and not kept: ``dropped`` and ``dropped_samples`` say how many, the next batch
    carries the numbers and the `Timeline` shows them.
    """

    def __init__(self, host: str = "local", clock: Clock | None = None, *, limit: int = 1 << 20) -> None:
        if not isinstance(host, str):
            raise TimelineError(f"Recorder({shown(host)}): the name of this host. Next: Recorder('local').")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise TimelineError(
                f"Recorder(limit={shown(limit)}): how many spans may wait, at least 1. Next: leave it out."
            )
        self.host = writable(host)
        self.clock: Clock = clock or MonotonicClock()
        self.limit = limit
        self._full_bytes, self._counter_bytes = limit * ROW, limit * _COUNTER.size
        self._pack = SPAN_STRUCT.pack
        # rows by their numbers in the order of `SPAN_DTYPE`, of a runtime of ours, which knows that they are right
        self.loose: list[int] = []
        self.most_loose = NUMBERS * min(_MAX_LOOSE_ROWS, max(limit // 2, 1))  # numbers, then `pack_up` is to be called
        self._tracks: dict[Track, int] = {}
        self._names: dict[str, int] = {}
        self._begin()
        _RECORDERS.add(self)

    def _begin(self) -> None:
        """Begin with nothing that waits. So it is at first, and in a process that was forked, where numbers of tracks
        and names stay what they are.
        """
        self.dropped = self.dropped_samples = 0
        self.source = f"{self.host}/{os.getpid()}/{os.urandom(6).hex()}"
        self._pending = Pending(self.loose)
        self._buffer, self._extend = self._pending.rows, self._pending.rows.extend
        self._counters = bytearray()
        self._lock = threading.Lock()
        self._sent = (0, 0, 0, 0)  # tracks, names, dropped spans and samples that earlier batches have carried
        self._seq = itertools.count()
        self._draining = threading.Lock()  # one at a time takes from memory

    def _after_fork(self) -> None:
        """In the new process: whatever is added here is not kept."""
        self._begin()
        self.loose.clear()
        self._full_bytes = self._counter_bytes = self.most_loose = 0

    # --- tables: numbers for what would be long in every row ------------------------------------------
    def track(self, worker: str, rank: int, devices: tuple[str, ...] = ()) -> int:
        """The number of this worker rank's lane; the same arguments give the same number.

        Raises `TimelineError` for anything but a name, a number of 64 bits and names of devices.
        """
        named = not isinstance(devices, str) and all(isinstance(device, str) for device in devices)
        # tables and files have 64 bits
        if not (named and isinstance(worker, str) and isinstance(rank, Integral) and -(1 << 63) <= rank < 1 << 63):
            said = f"track({shown(worker)}, {shown(rank)}, {shown(devices)})"
            raise TimelineError(
                f"{said}: a worker's name, its rank, names of devices. Next: recorder.track('actor', 0, ('cuda:0',))."
            )
        key = Track(writable(worker), int(rank), tuple(map(writable, devices)), self.host)
        with self._lock:
            return self._tracks.setdefault(key, len(self._tracks))

    def name(self, text: str) -> int:
        """The number of a name (a method, a label, a channel). The same text gives the same number.

        Beyond `NAME_CHARACTERS` it is cut, and what no file can hold (lone surrogates) is written as ``\\udcff``.
        `TimelineError` for anything but a text.
        """
        number = self._names.get(text) if isinstance(text, str) else None
        if number is None:
            if not isinstance(text, str):
                raise TimelineError(f"name({shown(text)}): a text. Next: recorder.name('step').")
            kept = text if len(text) <= NAME_CHARACTERS else f"{text[:NAME_CHARACTERS]}…"
            kept = writable(kept)
            with self._lock:
                number = self._names.setdefault(kept, len(self._names))
        return number

    channel = name  # channels live in the same table

    # --- rows -----------------------------------------------------------------------------------------
    def add(
        self, track: int, kind: int, name: int, start_ns: int, end_ns: int, iteration: int = -1, items: int = 0,
        nbytes: int = 0, channel: int = -1, flow: int = -1,
    ) -> None:  # fmt: skip
        """Write one span (half-open, ns): 0.4 to 0.55 microseconds in a loop.

        Raises `struct.error` if a number does not fit (times, bytes and flow: 64 bits, the rest 32), `TimelineError`
        for what is no `SpanKind`.
        """
        if len(self._buffer) >= self._full_bytes:
            self._drop(1, 0)
            return
        try:
            kind = _KINDS[kind]
        except IndexError:
            raise TimelineError(
                f"add(kind={shown(kind)}): what kind of span it is. Next: SpanKind.RUN, or another of SpanKind."
            ) from None
        self._extend(self._pack(start_ns, end_ns, nbytes, flow, track, name, channel, iteration, items, kind))

    def counter(self, name: str, time_ns: int, value: float) -> None:
        """Write one sample of a quantity over time (utilisation, channel depth, reward). `TimelineError` for anything
        but numbers.
        """
        if len(self._counters) >= self._counter_bytes:
            self._drop(0, 1)
            return
        try:
            self._counters.extend(_COUNTER.pack(self.name(name), time_ns, value))
        except (struct.error, TypeError, OverflowError) as error:
            said = f"counter({shown(name)}, {shown(time_ns)}, {shown(value)})"
            raise TimelineError(
                f"{said}: a name, whole ns and a number. Next: recorder.counter('reward', recorder.clock.now_ns(), "
                "1.5)."
            ) from error

    def _drop(self, spans: int, samples: int) -> None:
        with self._lock:  # rare; += on an attribute is not atomic
            self.dropped += spans
            self.dropped_samples += samples

    def pack_up(self) -> None:
        """For who leaves rows ``loose``, when there are ``most_loose`` numbers: make rows of them. What is beyond the
        limit is counted, not kept.
        """
        if not self._pending.packing.acquire(blocking=False):  # another thread does that
            return
        try:
            if lost := self._pending.pack(self._full_bytes):
                self._drop(lost, 0)
        finally:
            self._pending.packing.release()

    # --- the other end --------------------------------------------------------------------------------
    def drain(self) -> SpanBatch:
        """All that waits. May be called from any thread, also while others add."""
        with self._draining:
            # Rows first, tables after them: whatever number a row uses is then in a table that this batch has sent.
            with self._pending.packing:
                waiting = self._pending.waiting()
                self._pending.forget(waiting)
            spans = np.frombuffer(waiting.rows, SPAN_DTYPE)
            with self._lock:
                samples = np.frombuffer(self._counters[:], COUNTER_DTYPE) if self._counters else _NO_SAMPLES
                del self._counters[: samples.nbytes]
                first_track, first_name, dropped, dropped_samples = self._sent
                tracks = (
                    tuple(itertools.islice(self._tracks, first_track, None)) if len(self._tracks) > first_track else ()
                )
                names = tuple(itertools.islice(self._names, first_name, None)) if len(self._names) > first_name else ()
                lost, lost_samples = self.dropped - dropped, self.dropped_samples - dropped_samples
                news = bool(len(spans) or len(samples) or tracks or names or lost or lost_samples)
                self._sent = (first_track + len(tracks), first_name + len(names), self.dropped, self.dropped_samples)
                # an empty batch need not be shipped, so it takes no number
                seq = next(self._seq) if news else -1
                return SpanBatch(
                    self.host, self.source, seq, spans, tracks, names, samples, lost, dropped_samples=lost_samples
                )

    def take_rows(self, most: int) -> tuple[int, bytearray] | None:
        """(number of the batch, rows of `SPAN_DTYPE`) of the spans that wait. Samples of counters wait on. None where
        there is more to tell, or there are more than ``most``, or somebody drains: ask `drain`. The least that taking
        can cost, for `SpanStore.extend_by_rows`.
        """
        if not self._draining.acquire(blocking=False):
            return None
        try:
            if len(self._buffer) > most * ROW:
                return None
            with self._pending.packing:
                waiting = self._pending.waiting()
                # As in `drain`: the tables are looked at after the rows, so they have all numbers that those use.
                told = (len(self._tracks), len(self._names), self.dropped, self.dropped_samples)
                if len(waiting.rows) > most * ROW or told != self._sent:
                    return None
                self._pending.forget(waiting)
            return next(self._seq) if waiting.rows else -1, waiting.rows
        finally:
            self._draining.release()

    def __len__(self) -> int:
        """How many spans wait."""
        return len(self._pending)

    def __repr__(self) -> str:
        lost = f", {self.dropped:,} DROPPED (limit {self.limit:,})" if self.dropped else ""
        lost += f", {self.dropped_samples:,} counter samples DROPPED" if self.dropped_samples else ""
        return f"Recorder on {self.host}: {len(self):,} spans waiting, {len(self._tracks)} tracks{lost}"


def _after_fork() -> None:
    for recorder in list(_RECORDERS):
        recorder._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
