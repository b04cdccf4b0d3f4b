"""Writing down what happens, cheaply: one `Recorder` in each process.

``add`` packs a row and appends it to a byte buffer with one call into C. Under the interpreter lock that append is atomic,
and ``drain`` cuts a *prefix* of the same buffer off instead of swapping it, so that no thread can hold a stale one:
a span that was added is drained exactly once.
"""

from __future__ import annotations

import itertools
import os
import threading

import numpy as np

from rlinf_lab.timeline.batch import COUNTER_DTYPE, SPAN_DTYPE, SPAN_STRUCT, SpanBatch
from rlinf_lab.timeline.clock import Clock, MonotonicClock
from rlinf_lab.timeline.span import Track

_ROW = SPAN_STRUCT.size


class Recorder:
    """Collects spans and counter samples of one process; thread-safe; never blocks a worker.

    ``limit`` is how many spans may wait for a drain (56 bytes each). What comes beyond it is counted, not kept:
    ``dropped`` says how many, the next batch carries the number and the `Timeline` shows it.
    """

    def __init__(self, host: str = "local", clock: Clock | None = None, *, limit: int = 1_000_000) -> None:
        self.host = host
        self.clock: Clock = clock or MonotonicClock()
        self.limit = limit
        self.dropped = 0
        self.source = f"{host}/{os.getpid()}/{os.urandom(6).hex()}"
        self._limit_bytes = limit * _ROW
        self._buffer = bytearray()
        self._extend = self._buffer.extend
        self._pack = SPAN_STRUCT.pack
        self._counters: list[tuple[int, int, float]] = []
        self._tracks: dict[Track, int] = {}
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()
        self._sent = [0, 0, 0]  # tracks, names, dropped spans that earlier batches have carried
        self._seq = itertools.count()

    # --- tables: numbers for what would be long in every row ------------------------------------------
    def track(self, worker: str, rank: int, devices: tuple[str, ...] = ()) -> int:
        """The number of this worker rank's lane; the same arguments give the same number."""
        key = Track(worker, rank, tuple(devices), self.host)
        with self._lock:
            return self._tracks.setdefault(key, len(self._tracks))

    def name(self, text: str) -> int:
        """The number of a name (a method, a label, a channel); the same text gives the same number."""
        number = self._names.get(text)
        if number is None:
            with self._lock:
                number = self._names.setdefault(text, len(self._names))
        return number

    channel = name  # channels live in the same table

    # --- rows -----------------------------------------------------------------------------------------
    def add(
        self,
        track: int,
        kind: int,
        name: int,
        start_ns: int,
        end_ns: int,
        iteration: int = -1,
        items: int = 0,
        nbytes: int = 0,
        channel: int = -1,
        flow: int = -1,
    ) -> None:
        """Write one span (half-open, ns). The hot path: about a quarter of a microsecond above an empty call.

        Raises `struct.error` if a number does not fit (times, bytes and flow: 64 bits, the rest 32, kind 8).
        """
        if len(self._buffer) >= self._limit_bytes:
            self._drop()
            return
        self._extend(self._pack(start_ns, end_ns, nbytes, flow, track, name, channel, iteration, items, kind))

    def counter(self, name: str, time_ns: int, value: float) -> None:
        """Write one sample of a quantity over time (utilisation, channel depth, reward)."""
        if len(self._counters) >= self.limit:
            self._drop()
            return
        self._counters.append((self.name(name), time_ns, value))

    def _drop(self) -> None:
        with self._lock:  # rare; += on an attribute is not atomic
            self.dropped += 1

    # --- the other end --------------------------------------------------------------------------------
    def drain(self) -> SpanBatch:
        """Everything new since the last drain. May be called from any thread, also while others add."""
        with self._lock:
            # Rows first, tables after them: whatever number a row uses is then in a table that this batch has sent.
            size = len(self._buffer)
            data = self._buffer[:size]  # a copy: a view would forbid others to append meanwhile
            del self._buffer[:size]
            count = len(self._counters)
            samples = self._counters[:count]
            del self._counters[:count]
            first_track, first_name, dropped = self._sent
            tracks = tuple(itertools.islice(self._tracks, first_track, None))
            names = tuple(itertools.islice(self._names, first_name, None))
            lost = self.dropped - dropped
            news = bool(data or samples or tracks or names or lost)
            self._sent = [first_track + len(tracks), first_name + len(names), self.dropped]
            return SpanBatch(
                host=self.host,
                source=self.source,
                seq=next(self._seq) if news else -1,  # an empty batch need not be shipped, so it takes no number
                spans=np.frombuffer(data, SPAN_DTYPE),
                tracks=tracks,
                names=names,
                counters=np.array(samples, COUNTER_DTYPE),
                dropped=lost,
            )

    def __len__(self) -> int:
        return len(self._buffer) // _ROW

    def __repr__(self) -> str:
        lost = f", {self.dropped:,} DROPPED (limit {self.limit:,})" if self.dropped else ""
        return f"Recorder on {self.host}: {len(self):,} spans waiting, {len(self._tracks)} tracks{lost}"
