"""What lies between two clocks that nobody has set to each other. It is known within a bound.

Whoever asks a clock at ``asked`` and has its answer at ``answered`` knows that it was read in between: the offset (ours
less theirs) lies between ``asked - theirs`` and ``answered - theirs``. The best answers were fast: of all of them
together holds what they have in common, widened by what the clocks may have drifted apart since each (Marzullo and
Owicki 1983; NTP, RFC 5905, section 11.2.1).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.timeline.record.batch import SpanBatch
from rlinf_lab.timeline.record.store import Growing

#: How far two clocks drift apart at most, in millionths: quartz is good for 50, and NTP pulls one towards another a
#: little.
DRIFT_PPM = 100.0
_KNOT = np.dtype([("theirs", "<i8"), ("offset", "<i8")])


class ClockOffset:
    """What must be added to another clock to get ours. Integers, ns. Not thread-safe.

    ``jumps``: how often an answer contradicted all before it: one of the clocks was set, or stood still; it begins anew
    then.
    """

    def __init__(self, drift_ppm: float = DRIFT_PPM) -> None:
        self._drift = drift_ppm * 1e-6
        self._low = self._high = self._at = 0
        self.answers = self.jumps = 0

    def heard(self, asked_ns: int, theirs_ns: int, answered_ns: int) -> None:
        """We asked at ``asked_ns``; they answered that it was ``theirs_ns``; we heard it at ``answered_ns``."""
        at = max(self._at, answered_ns) if self.answers else answered_ns
        own, before = self.drifted(at - asked_ns), self.drifted(at - self._at)
        low, high = asked_ns - theirs_ns - own, answered_ns - theirs_ns + own
        if self.answers:
            both = max(low, self._low - before), min(high, self._high + before)
            if both[0] <= both[1]:
                low, high = both
            else:
                self.jumps += 1
        self._low, self._high, self._at = low, high, at
        self.answers += 1

    def drifted(self, ns: int) -> int:
        """By how much the offset may change in so many ns."""
        return math.ceil(self._drift * max(0, ns))

    def at(self, now_ns: int) -> tuple[int, int]:
        """(offset, how far from the truth it is at most) when our clock says ``now_ns``."""
        offset = (self._low + self._high) // 2
        return offset, self._high - offset + self.drifted(now_ns - self._at)


class AlignedClock:
    """The times of a recorder with a clock of its own, on ours. Not thread-safe.

    Between batches the offset moves from one estimate to the next in a straight line, so that what followed each other
    there does so here: the same time there is always the same time here, and no later one is before it. ``error_ns``:
    how far from the truth any time so far may be.
    """

    def __init__(self, drift_ppm: float = DRIFT_PPM) -> None:
        self.offset = ClockOffset(drift_ppm)
        self.error_ns = self._first_error_ns = 0
        self._knots = Growing(_KNOT)

    def aligned(self, batch: SpanBatch, now_ns: int) -> SpanBatch:
        """The batch, which has come at ``now_ns`` of our clock, on our clock."""
        parts = [part for part in (batch.spans["start"], batch.spans["end"], batch.counters["time"]) if len(part)]
        if not parts or not self.offset.answers:
            return batch
        self._learn(min(int(part.min()) for part in parts), max(int(part.max()) for part in parts), now_ns)
        spans, counters = batch.spans.copy(), batch.counters.copy()
        for rows, fields in ((spans, ("start", "end")), (counters, ("time",))):
            for field in fields:
                rows[field] = self._ours(rows[field])
        return replace(
            batch, spans=spans, counters=counters, clock_error_ns=self.error_ns, clock_jumps=self.offset.jumps
        )

    def _learn(self, earliest: int, latest: int, now_ns: int) -> None:
        """The offset at the latest time that has come. The estimate of now is reached with half the speed of time at
        most.
        """
        drifted, knots = self.offset.drifted, self._knots.view
        wished, error = self.offset.at(now_ns)
        offset, gap = wished, 0
        if len(knots):
            frontier, before = int(knots["theirs"][-1]), int(knots["offset"][-1])
            gap = latest - frontier
            offset = before + max(-(gap // 2), min(gap // 2, wished - before))
        if not len(knots) or gap > 0:
            self._knots.append(np.array([(latest, offset)], _KNOT))
            # A straight line is off by half of what may have drifted between its ends; and what comes late was written
            # down long ago.
            error += abs(wished - offset) + drifted(gap) // 2 + drifted(now_ns - latest - offset)
            self.error_ns = max(self.error_ns, error)
            self._first_error_ns = self._first_error_ns or error
        elif self.offset.jumps:  # a clock that was set back says times that it has said before, with the offset of then
            times = np.array([earliest, latest])
            self.error_ns = max(self.error_ns, error + int(abs(self._ours(times) - times - wished).max()))
        self.error_ns = max(
            self.error_ns, self._first_error_ns + drifted(int(self._knots.view["theirs"][0]) - earliest)
        )

    def _ours(self, theirs: NDArray[np.int64]) -> NDArray[np.int64]:
        knots = self._knots.view
        base = int(knots["offset"][0])  # differences are small, so that a double is exact
        shift = np.interp(theirs - knots["theirs"][0], knots["theirs"] - knots["theirs"][0], knots["offset"] - base)
        return theirs + base + np.rint(shift).astype(np.int64)
