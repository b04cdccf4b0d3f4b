"""Rows that wait in a recorder's memory: those that a runtime left as numbers, packed, and all of them as a batch's
spans.
"""

from __future__ import annotations

import struct
import threading
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
    """Rows that wait in memory. As copies, for a view would forbid others to append meanwhile: narrow ones, and wide
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


class Pending:
    """Rows of one recorder that wait in memory: narrow ones, the few that are wide, and loose ones (`packed`).

    Others append to them meanwhile, each with one call into C and without a lock. ``packing`` is held by who takes the
    loose ones away.
    """

    def __init__(self, loose: list[int]) -> None:
        self.rows, self.wide, self.loose = bytearray(), bytearray(), loose
        self.packing = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Of those that are rows."""
        return len(self.rows) + len(self.wide)

    def pack(self, most_bytes: int) -> int:
        """Make rows of the loose ones, as many as there is room for. Returns how many are lost."""
        numbers = self._loose_now()
        rows, wide = packed(numbers)
        beyond = self.nbytes + len(rows) + len(wide) - most_bytes
        lost = cut_off(rows, ROW, beyond)
        lost += cut_off(wide, SPAN_STRUCT.size, beyond - lost * ROW)
        self.rows.extend(rows)
        self.wide.extend(wide)
        del self.loose[: len(numbers)]
        return lost

    def _loose_now(self) -> list[int]:
        """A copy; others go on writing. No ``tuple(self.loose)``: CPython 3.11 looks where the numbers are before it
        makes room for the tuple, and a collection of garbage begun by that may let another thread write, which moves
        them. A slice makes room first.
        """
        return self.loose[:]

    def waiting(self) -> Waiting:
        """What waits; the caller holds the locks for draining and for packing.

        The mark that ends an iteration was added after what ran in it, and must not be taken without that. So both
        buffers as they were at one moment, for they only grow meanwhile: a mark of more than 4.29 s is wide, and what
        it ends mostly not. Then the loose rows, among which there are no marks.
        """
        while True:
            size, wide_size = len(self.rows), len(self.wide)
            if len(self.rows) == size:
                break
        numbers = self._loose_now()
        rows, wide = self.rows[:size], self.wide[:wide_size]
        if numbers:
            more, more_wide = packed(numbers)
            rows += more
            wide += more_wide
        return Waiting(rows, wide, size, wide_size, len(numbers))

    def forget(self, waiting: Waiting) -> None:
        """It was taken."""
        del self.rows[: waiting.size], self.wide[: waiting.wide_size], self.loose[: waiting.numbers]

    def __len__(self) -> int:
        """How many spans."""
        return len(self.loose) // NUMBERS + len(self.rows) // ROW + len(self.wide) // SPAN_STRUCT.size


def cut_off(rows: bytearray, size: int, beyond: int) -> int:
    """Take the last rows of ``size`` bytes away, for ``beyond`` bytes; returns how many."""
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
