"""For a moment, threads wait less for the interpreter.

Python lets a thread that computes go on for 5 ms before another one has its turn. News pass through three threads on
their way to a page, so beside a loop of Python's own they took 15 ms longer. For all the time that would cost threads
that compute a tenth of their speed (more switches).
"""

from __future__ import annotations

import sys
import threading

QUICK_SECONDS = 0.0005
_LOCK = threading.Lock()
_usual: list[float] = []  # what it is otherwise, once for each moment under way


class quick_turns:  # not contextlib's, which takes three times as many calls, eight times a second
    """Several at a time are one. Who sets the interval meanwhile has the last word."""

    __slots__ = ()

    def __enter__(self) -> None:
        with _LOCK:
            _usual.append(_usual[0] if _usual else sys.getswitchinterval())
            if _usual[0] > QUICK_SECONDS:
                sys.setswitchinterval(QUICK_SECONDS)

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            usual = _usual.pop()
            if not _usual and abs(sys.getswitchinterval() - QUICK_SECONDS) < 1e-6:
                sys.setswitchinterval(usual)
