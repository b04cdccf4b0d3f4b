"""Who says what time it is. Nanoseconds, integers only, so that a simulated and a measured timeline can be equal."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time in integer nanoseconds."""

    def now_ns(self) -> int: ...


class MonotonicClock:
    """The machine's monotonic clock: the same for all processes of a node, never set back."""

    now_ns = staticmethod(time.monotonic_ns)
