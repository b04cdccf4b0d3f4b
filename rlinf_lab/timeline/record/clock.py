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


def seconds_shown(seconds: float) -> str:
    """Four figures without an exponent: less than a millisecond in microseconds."""
    if 0 < seconds < 1e-3:
        return f"{1e6 * seconds:.3g} µs"
    return f"{seconds:,.0f} s" if seconds >= 1e4 else f"{seconds:.4g} s"
