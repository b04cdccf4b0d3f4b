"""The clocks of hosts on other nodes. They are asked at the start and from then on twice a second, and what they
recorded is put on ours.

A question goes over the host's link and is answered by the thread that reads it, beside whatever the workers do; a late
answer makes a wide interval, which does no harm (see `rlinf_lab.timeline.record.clock_offset`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from rlinf_lab.timeline.record.batch import SpanBatch
from rlinf_lab.timeline.record.clock_offset import AlignedClock

ASK_NS = 500_000_000
AT_ONCE = 8  # round trips at the start, one after another: the fastest of them counts


class NodeClocks:
    """``ask(host, asked_ns)`` sends a question; its answer comes to `heard`. Hosts that were not added have our clock.
    Thread-safe.
    """

    def __init__(self, now_ns: Callable[[], int], ask: Callable[[str, int], None]) -> None:
        self._now_ns, self._ask = now_ns, ask
        self._clocks: dict[str, AlignedClock] = {}
        self._asked_at: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, host: str) -> None:
        """This host has a clock of its own."""
        self._clocks[host] = AlignedClock()

    def hosts(self) -> Collection[str]:
        """Those with a clock of their own."""
        return self._clocks.keys()

    def ask(self, host: str) -> None:
        """Ask now."""
        now = self._now_ns()
        self._asked_at[host] = now
        self._ask(host, now)

    def heard(self, host: str, asked_ns: int, theirs_ns: int) -> None:
        """It said ``theirs_ns`` when it was asked at ``asked_ns``. Asks again while it knows little."""
        with self._lock:
            offset = self._clocks[host].offset
            offset.heard(asked_ns, theirs_ns, self._now_ns())
        if offset.answers < AT_ONCE and host in self._asked_at:
            self.ask(host)

    def aligned(self, batch: SpanBatch) -> SpanBatch:
        """The batch on our clock; asks when it is time to."""
        clock = self._clocks.get(batch.host)
        if clock is None:
            return batch
        now = self._now_ns()
        if now - self._asked_at.get(batch.host, -ASK_NS) >= ASK_NS:
            self.ask(batch.host)
        with self._lock:
            return clock.aligned(batch, now)
