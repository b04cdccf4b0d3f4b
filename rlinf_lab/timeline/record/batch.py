"""How spans wait, travel and are kept: one fixed-width row.

A `SpanBatch` is everything one `Recorder` saw since its last drain. Track and name numbers in it are the
recorder's own; `Timeline.extend` translates them.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.record.span import Track

#: One span, 56 bytes, little-endian: times in ns, ``nbytes`` in bytes, ``track``/``name``/``channel`` are table numbers
#: (``channel`` and ``name`` share one table), -1 where there is none.
SPAN_DTYPE = np.dtype(
    {
        "names": ["start", "end", "nbytes", "flow", "track", "name", "channel", "iteration", "items", "kind"],
        "formats": ["<i8"] * 4 + ["<i4"] * 5 + ["u1"],
        "itemsize": 56,
    }
)
#: The same row for `struct`. The machine's own packing gives the same bytes, where it has this order, in three quarters
#: of the time.
SPAN_STRUCT = struct.Struct(f"{'@' if sys.byteorder == 'little' else '<'}qqqqiiiiiB3x")
FEW_SPANS = 50_000  # spans: to take, or to send, more of them holds up a thread that others wait for by tens of ms
#: One sample of a counter: number of its name, ns, value in the counter's own unit.
COUNTER_DTYPE = np.dtype([("name", "<i4"), ("time", "<i8"), ("value", "<f8")])

SpanArray = NDArray[np.void]


def stacked(parts: Sequence[SpanArray]) -> SpanArray:
    """Rows of one structured dtype after each other. As bytes: numpy takes 0.5 ms for promoting the fields of a
    structured dtype to itself.
    """
    if len(parts) == 1:
        return parts[0]
    whole = np.dtype((np.void, parts[0].dtype.itemsize))
    return np.concatenate([part.view(whole) for part in parts]).view(parts[0].dtype)


@dataclass(frozen=True)
class SpanBatch:
    """New spans, tracks, names and counters of one recorder.

    ``source`` is unique to the recorder, ``seq`` counts its batches from 0 without a gap; ``tracks`` and ``names`` are
    those that are new since the batch before, numbered on from there; ``dropped`` is how many
    spans were lost since then because nobody drained in time, ``dropped_samples`` how many samples of counters;
    ``clock_error_ns``: how far the times may be from those of the reader's clock, after `AlignedClock.aligned` (0: they
    are of that clock); ``clock_jumps``: how often, so far, that host's clock was set or stood still. False when there
    is nothing to ship.
    """

    host: str
    source: str
    seq: int
    spans: SpanArray  # of SPAN_DTYPE
    tracks: tuple[Track, ...] = ()
    names: tuple[str, ...] = ()
    counters: SpanArray = field(default_factory=lambda: np.empty(0, COUNTER_DTYPE))
    dropped: int = 0
    clock_error_ns: int = 0
    dropped_samples: int = 0
    clock_jumps: int = 0

    def __len__(self) -> int:
        return len(self.spans)

    def __bool__(self) -> bool:
        return bool(
            len(self.spans) or len(self.counters) or self.tracks or self.names or self.dropped or self.dropped_samples
        )

    @property
    def is_plain(self) -> bool:
        """Spans and samples, and nothing else to be learnt."""
        return not (
            self.tracks or self.names or self.dropped or self.dropped_samples or self.clock_error_ns or self.clock_jumps
        )

    def __repr__(self) -> str:
        return f"SpanBatch {self.seq} of {self.host}: {len(self.spans):,} spans, {len(self.counters):,} counter samples"
