"""Rows that wait in a recorder's memory: those that a runtime left as numbers, packed, and all of them as a batch's
spans.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from rlinf_lab.timeline.record.batch import NARROW_DTYPE, NARROW_STRUCT, SPAN_DTYPE, SPAN_STRUCT, SpanArray, widened

NUMBERS = len(NARROW_DTYPE.names or ())  # of a row
ROW = NARROW_STRUCT.size
_PACKS = [
    (count, struct.Struct(NARROW_STRUCT.format[0] + count * NARROW_STRUCT.format[1:]).pack)
    for count in (256, 64, 16, 4, 1)
]


class Waiting(NamedTuple):
    """Rows that wait in memory, as copies, for a view would forbid others to append meanwhile: narrow ones, and wide
    ones.
    """

    rows: bytearray
    wide: bytearray
    size: int  # bytes of them that are in the buffers; the others were loose
    wide_size: int
    numbers: int  # that were loose

    def spans(self) -> SpanArray:
        narrow = widened(np.frombuffer(self.rows, NARROW_DTYPE))
        if not self.wide:
            return narrow
        # np.concatenate would take the padding away
        both = np.empty(len(narrow) + len(self.wide) // SPAN_STRUCT.size, SPAN_DTYPE)
        both[: len(narrow)], both[len(narrow) :] = narrow, np.frombuffer(self.wide, SPAN_DTYPE)
        return both


def cut_off(rows: bytearray, size: int, beyond: int) -> int:
    """Take the last rows of ``size`` bytes away, as many as make up for ``beyond`` bytes; returns how many."""
    lost = min(max(-(-beyond // size), 0), len(rows) // size)
    del rows[len(rows) - lost * size :]
    return lost


def packed(numbers: list[int]) -> tuple[bytearray, bytearray]:
    """Rows of these numbers, which are in the order of `NARROW_DTYPE`: narrow ones, and wide ones of what is long or
    large.
    """
    rows, wide, at = bytearray(), bytearray(), 0
    for count, pack in _PACKS:
        size = count * NUMBERS
        while len(numbers) - at >= size:
            part = numbers[at : at + size]
            try:
                rows += pack(*part)
            except struct.error:  # one of them is no narrow row
                if count > 1:
                    break
                start, duration, flow, moment, nbytes, track, name, channel, items = part
                wide += SPAN_STRUCT.pack(
                    start, start + duration, nbytes, flow, track, name, channel, moment >> 4, items, moment & 15
                )
            at += size
    return rows, wide
