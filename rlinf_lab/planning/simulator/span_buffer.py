"""The spans of a simulation, packed row by row as they come."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rlinf_lab.timeline.record.batch import SPAN_DTYPE, SPAN_STRUCT, SpanBatch
from rlinf_lab.timeline.record.span import Track

SIMULATED = "simulated"  # the host of its tracks


class Rows:
    """The spans of a simulation, packed as `Recorder` packs them, without its lock and its limit."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.names: dict[str, int] = {}
        self.tracks: dict[Track, int] = {}

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def track(self, worker: str, rank: int, devices: tuple[str, ...]) -> int:
        return self.tracks.setdefault(Track(worker, rank, devices, SIMULATED), len(self.tracks))

    def add(
        self,
        track: int,
        kind: int,
        name: int,
        start: int,
        end: int,
        iteration: int,
        items: int = 0,
        channel: int = -1,
        flow: int = -1,
    ) -> None:
        self.data += SPAN_STRUCT.pack(start, end, 0, flow, track, name, channel, iteration, items, kind)

    def batch(self, unnumbered: Iterable[str] = ()) -> SpanBatch:
        """``unnumbered``: channels whose items are not taken in the order of their coming, so that no number joins a
        get to a put.
        """
        spans = np.frombuffer(self.data, SPAN_DTYPE)
        names = [self.names[c] for c in unnumbered if c in self.names]
        if names:
            spans["flow"][np.isin(spans["channel"], names)] = -1
        return SpanBatch("simulated", "simulated", 0, spans, tuple(self.tracks), tuple(self.names))
