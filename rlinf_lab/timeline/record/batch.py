"""How spans travel: one fixed-width row, narrow where it fits.

A `SpanBatch` is everything one `Recorder` saw since its last drain. Track and name numbers in it are the
recorder's own; `Timeline.extend` translates them.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
#: The same row for `struct`: what `Recorder.add` writes for a span that does not fit into a narrow row.
SPAN_STRUCT = struct.Struct("<qqqqiiiiiBxxx")
#: One span as it waits in a recorder, 32 bytes: a duration of up to 4.29 s, up to 65,535 items, 4 GiB and 32,767 names;
#: the kind is in the low four bits of ``moment``, the iteration in the others.
NARROW_DTYPE = np.dtype(
    {
        "names": ["start", "duration", "flow", "moment", "nbytes", "track", "name", "channel", "items"],
        "formats": ["<i8", "<u4", "<i4", "<i4", "<u4", "<u2", "<i2", "<i2", "<u2"],
    }
)
#: The machine's own packing gives the same bytes, where it has this order, in three quarters of the time.
NARROW_STRUCT = struct.Struct(f"{'@' if sys.byteorder == 'little' else '<'}qIiiIHhhH")
FEW_SPANS = 50_000  # spans: to take, or to send, more of them holds up a thread that others wait for by tens of ms
#: One sample of a counter: number of its name, ns, value in the counter's own unit.
COUNTER_DTYPE = np.dtype([("name", "<i4"), ("time", "<i8"), ("value", "<f8")])

SpanArray = NDArray[np.void]


def _part(dtype: np.dtype, names: list[str]) -> np.dtype:
    """The same rows with these fields only."""
    fields: Any = dtype.fields
    return np.dtype(
        {
            "names": names,
            "formats": [fields[n][0] for n in names],
            "offsets": [fields[n][1] for n in names],
            "itemsize": dtype.itemsize,
        }
    )


_SAME = ["start", "flow", "nbytes", "track", "name", "channel", "items"]  # fields that mean the same in both
_SAME_WIDE, _SAME_NARROW = _part(SPAN_DTYPE, _SAME), _part(NARROW_DTYPE, _SAME)


def stacked(parts: Sequence[SpanArray]) -> SpanArray:
    """Rows of one structured dtype after each other. As bytes: numpy takes 0.5 ms for promoting the fields of a
    structured dtype to itself.
    """
    if len(parts) == 1:
        return parts[0]
    whole = np.dtype((np.void, parts[0].dtype.itemsize))
    return np.concatenate([part.view(whole) for part in parts]).view(parts[0].dtype)


def widened(narrow: SpanArray) -> SpanArray:
    """Rows of `NARROW_DTYPE` as rows of `SPAN_DTYPE`."""
    spans = np.zeros(narrow.size, SPAN_DTYPE)
    widen(narrow, spans)
    return spans


def widen(narrow: SpanArray, spans: SpanArray) -> None:
    """Fill in rows of `SPAN_DTYPE` from as many of `NARROW_DTYPE`."""
    spans.view(_SAME_WIDE)[...] = narrow.view(_SAME_NARROW)  # all at once
    np.add(narrow["start"], narrow["duration"], out=spans["end"])
    moment = narrow["moment"]
    np.right_shift(moment, 4, out=spans["iteration"])
    np.bitwise_and(moment, 15, out=spans["kind"], casting="unsafe")


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
    spans: SpanArray  # of SPAN_DTYPE; only of NARROW_DTYPE where the reader of a recorder asked for it
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

    def wide(self) -> SpanBatch:
        """The same with rows of `SPAN_DTYPE`."""
        narrow = self.spans.itemsize == NARROW_DTYPE.itemsize
        return replace(self, spans=widened(self.spans)) if narrow else self
