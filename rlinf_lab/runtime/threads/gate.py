"""Where a thread waits until another one lets it go on."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref

MOST = 256  # gates of a process that have a counter each
# those whose gates are gone; kept, for a finaliser that closes files lets other threads run in the middle of anything
_FREE: list[_Counter] = []
_USED: set[_Counter] = set()


class _Counter(weakref.ref["Gate"]):
    """The counter of a gate, as a reference to it. When the gate goes, the reference joins the free ones by itself: no
    line of Python is run in between, which an interrupt could hit."""

    __slots__ = ("file",)
    file: int


class Gate:
    """Closed at first, and again behind each passing. Opening it twice before somebody passes is opening it once.

    An event counter of the kernel (eventfd): two threads that take turns need 5 us a round on it and 14 on a lock,
    which wakes them on two cores (Linux 6.18, 2 cores, AMD EPYC). Where there is none, or the process has many gates,
    it is a lock.
    """

    _made = 0
    _counter = -1

    def __init__(self) -> None:
        self._counter = _counter(self)
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """By any thread."""
        if self._counter >= 0:
            os.eventfd_write(self._counter, 1)
        else:
            with contextlib.suppress(RuntimeError):  # it is open
                self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Pass it, as soon as it is open. False when it has not been within ``timeout`` seconds. By one thread at a
        time.
        """
        if self._counter < 0:
            return self._lock.acquire(timeout=-1 if timeout is None else timeout)
        if timeout is not None:
            poll = select.poll()
            poll.register(self._counter, select.POLLIN)
            if not poll.poll(max(0.0, timeout) * 1e3):
                return False
        os.eventfd_read(self._counter)
        return True


def _counter(gate: Gate) -> int:
    """The file of one that is zero; -1 if there is none to be had."""
    file = -1
    with contextlib.suppress(IndexError):
        used = _FREE.pop()
        _USED.discard(used)
        file = used.file
        os.eventfd_write(file, 1)
        os.eventfd_read(file)
    if file < 0 and hasattr(os, "eventfd") and Gate._made < MOST:
        with contextlib.suppress(OSError):  # no more files
            file = os.eventfd(0, os.EFD_CLOEXEC)
            Gate._made += 1
    if file >= 0:
        counter = _Counter(gate, _FREE.append)
        counter.file = file
        _USED.add(counter)
    return file


def _forked() -> None:
    """In a new process: the counters are its parent's."""
    _FREE.clear()
    _USED.clear()
    Gate._made = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
