"""The two clocks of a host. One is the machine's, the other one a test or a dry run moves by itself."""

from __future__ import annotations

from rlinf_lab.timeline.record.clock import MonotonicClock

__all__ = ["MockClock", "MonotonicClock"]


class MockClock:
    """Time that stands still while any thread runs, and jumps when all wait. It jumps to the next timer.

    The host moves it; with it, threads that run in any order give the same timeline every time.
    """

    def __init__(self, start_ns: int = 0) -> None:
        self.time_ns = start_ns

    def now_ns(self) -> int:
        return self.time_ns
