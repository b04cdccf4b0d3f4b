"""Rows that wait in a recorder's memory. Some are packed, others a runtime left as numbers."""

from __future__ import annotations

import struct
import threading
from typing import NamedTuple

from rlinf_lab.timeline.record.batch import SPAN_DTYPE, SPAN_STRUCT

NUMBERS = len(SPAN_DTYPE.names or ())  # of a row
ROW = SPAN_STRUCT.size
_PACKS = [
    (count, struct.Struct(SPAN_STRUCT.format[0] + count * SPAN_STRUCT.format[1:]).pack) for count in (256, 64, 16, 4, 1)
]


class Waiting(NamedTuple):
    """Rows that wait, as a copy, for a view would forbid others to append meanwhile."""

    rows: bytearray
    size: int  # bytes of them that were packed; the others were loose
    numbers: int  # that were loose


class Pending:
    """Rows of one recorder that wait in memory: packed ones, and loose ones (`packed`).

    Others append to them meanwhile, each with one call into C and without a lock. ``packing`` is held by who takes the
    loose ones away.
    """

    def __init__(self, loose: list[int]) -> None:
        self.rows, self.loose = bytearray(), loose
        self.packing = threading.Lock()

    def pack(self, most_bytes: int) -> int:
        """Make rows of the loose ones, as many as there is room for. Returns how many are lost."""
        numbers = self._loose_now()
        rows = packed(numbers)
        kept = min(len(rows), max(most_bytes - len(self.rows), 0) // ROW * ROW)
        self.rows.extend(rows[:kept])
        del self.loose[: len(numbers)]
        return (len(rows) - kept) // ROW

    def _loose_now(self) -> list[int]:
        """A copy; others go on writing. No ``tuple(self.loose)``: CPython 3.11 looks where the numbers are before it
        makes room for the tuple, and a collection of garbage begun by that may let another thread write, which moves
        them. A slice makes room first.
        """
        return self.loose[:]

    def waiting(self) -> Waiting:
        """What waits; the caller holds the locks for draining and for packing.

        The mark that ends an iteration was added after what ran in it, and must not be taken without that: so the rows
        as they were at one moment, then the loose ones, among which there are no marks.
        """
        rows = self.rows[:]
        size, numbers = len(rows), self._loose_now()
        return Waiting(rows + packed(numbers), size, len(numbers))

    def forget(self, waiting: Waiting) -> None:
        """It was taken."""
        del self.rows[: waiting.size], self.loose[: waiting.numbers]

    def __len__(self) -> int:
        """How many spans."""
        return len(self.loose) // NUMBERS + len(self.rows) // ROW


def packed(numbers: list[int]) -> bytearray:
    """Rows of these numbers, which are in the order of `SPAN_DTYPE`."""
    rows, at = bytearray(), 0
    for count, pack in _PACKS:
        size = count * NUMBERS
        while len(numbers) - at >= size:
            rows += pack(*numbers[at : at + size])
            at += size
    return rows
