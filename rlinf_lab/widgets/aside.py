"""Work for a widget in a thread beside the kernel's own. New work has the running one given up
(`planning.cancellation`), so nothing waits for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from rlinf_lab.planning.cancellation import Abandoned, as_long_as


class Aside:
    """One piece of work at a time, the newest that was asked for. The thread ends when nothing is left to do."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._due: Callable[[], object] | None = None
        self._thread: threading.Thread | None = None
        self._generation = 0  # work of earlier ones is given up

    def instead(self, work: Callable[[], object]) -> None:
        """Do this, and give up what runs and what waits."""
        with self._lock:
            self._forget()
            self._due = work
            if self._thread is None:
                self._thread = threading.Thread(target=self._go_on, name=self._name, daemon=True)
                self._thread.start()

    def give_up(self) -> None:
        """Nothing of what runs or waits is wanted any more."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._generation += 1
        self._due = None

    def _go_on(self) -> None:
        while True:
            with self._lock:
                if self._due is None:
                    self._thread = None
                    return
                work, mine, self._due = self._due, self._generation, None
            self._do(work, mine)

    def _do(self, work: Callable[[], object], mine: int) -> None:
        """An error is shown as that of any thread. What waits is done all the same."""
        with suppress(Abandoned), as_long_as(lambda: self._generation == mine):
            try:
                work()
            except Exception:
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
