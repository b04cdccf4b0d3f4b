"""Where a rank that waits listens to the links of its host itself. What it waits for then wakes one thread instead of
two.

There is one place; who finds it taken waits at its gate, and the reading threads of the links do the rest as ever.
Nothing is handed over between them: a connection is watched by the lookout first and by its own thread behind it, both
exclusively, so the kernel wakes the rank if there is one that listens, and else the thread. What a rank leaves unread
it has the thread roused for.

Where nobody else has anything to do on its core, and the waits are usually not much longer than it takes to sleep and
be woken (a round trip with another process), a rank stays awake and looks again and again, as adaptive locks do. To the
kernel it does not wait then: the connection's own thread would be woken for every message, to find nothing, on the same
core. So the connection that has spoken last is hushed for as long.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

# who usually waits longer sleeps at once, and nobody looks for longer than this: a round trip on a busy machine
AWAKE_NS = 400_000
IN_TURN = select.EPOLLIN | getattr(select, "EPOLLEXCLUSIVE", 0)


class Heard(Protocol):
    """A connection that can be listened to."""

    def fileno(self) -> int: ...

    def hear_what_is_there(self) -> bool:
        """Hear messages without waiting. False: its own thread has to do it, and so much may take a while."""

    def hush(self) -> None:
        """Its own thread is not woken by what comes, until `heed`."""

    def heed(self) -> None:
        """Its own thread is woken again, also by what has come meanwhile."""


class Lookout:
    """Of one host. ``has_core``: whether nobody else computes now where its ranks wait. ``before``: what is done before
    each wait.
    """

    def __init__(self, has_core: Callable[[], bool], before: Callable[[], None] = lambda: None) -> None:
        self._has_core, self._before = has_core, before
        self._usual_ns = 0  # what the last waits have taken
        self._poll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll.register(self._bell, select.EPOLLIN)
        self._place = threading.Lock()
        self._thread = 0
        self._heard: dict[int, Heard] = {}
        self._spoke: Heard | None = None  # last
        self._hushed: Heard | None = None

    def watch(self, connection: Heard) -> None:
        """Before its own thread watches it. `OSError` when that cannot be."""
        number = connection.fileno()
        self._poll.register(number, IN_TURN)
        self._heard[number] = connection

    def forget(self, connection: Heard) -> None:
        """It is about to be closed."""
        number = connection.fileno()
        if self._heard.pop(number, None) is not None:
            self._poll.unregister(number)
        if self._spoke is connection:
            self._spoke = None

    def take_place(self) -> bool:
        """Whether the calling thread may listen; it leaves the place when it has done."""
        taken = self._place.acquire(blocking=False)
        if taken:
            self._thread = threading.get_ident()
        return taken

    def leave_place(self) -> None:
        self._thread = 0
        self._place.release()

    def is_mine(self) -> bool:
        """Whether the calling thread has the place."""
        return self._thread == threading.get_ident()

    def ring(self) -> None:
        """Whoever listens looks whether it still has to wait. By any thread."""
        if not self.is_mine():
            os.eventfd_write(self._bell, 1)

    def listen(self, until: Callable[[], bool]) -> bool:
        """Hear messages until that is true. False when it is better to wait elsewhere: a reading thread is at work."""
        try:
            while not until():
                self._before()
                helped = True
                for number, _ in self._news():
                    if number == self._bell:
                        os.eventfd_read(self._bell)
                    elif (connection := self._heard.get(number)) is not None:
                        self._spoke = connection
                        helped = connection.hear_what_is_there() and helped
                if not helped:
                    return False
            return True
        finally:
            self._heed()

    def _news(self) -> list[tuple[int, int]]:
        """What has come; waits for it."""
        begun, most = time.perf_counter_ns(), len(self._heard) + 1
        news: list[tuple[int, int]] = []
        if self._usual_ns < AWAKE_NS and self._has_core():
            self._hush()
            while not news and time.perf_counter_ns() - begun < AWAKE_NS and self._has_core():
                news = self._poll.poll(0, most)
        if not news:
            self._heed()
            news = self._poll.poll(-1, most)
        self._usual_ns += (min(time.perf_counter_ns() - begun, 10 * AWAKE_NS) - self._usual_ns) // 4
        return news

    def _hush(self) -> None:
        if self._hushed is not self._spoke:
            self._heed()
            self._hushed = self._spoke
            if self._hushed is not None:
                self._hushed.hush()

    def _heed(self) -> None:
        hushed, self._hushed = self._hushed, None
        if hushed is not None:
            hushed.heed()
