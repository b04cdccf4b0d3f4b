"""What nobody fetches in time goes from a recorder's memory to files, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from rlinf_lab.timeline.record.pending import Pending
from rlinf_lab.timeline.record.span import Track
from rlinf_lab.timeline.record.spill import Spill


class Overflow:
    """See the module's docstring. ``tables``: all tracks and names so far; ``most_bytes``: that may wait in memory."""

    def __init__(
        self, pending: Pending, tables: Callable[[], tuple[list[Track], list[str]]], spill: Spill, most_bytes: int
    ) -> None:
        self._pending, self._tables, self._most_bytes = pending, tables, most_bytes
        self.spill = spill
        self.draining = threading.Lock()  # one at a time takes from memory: a drain, or the thread that writes
        self.is_writing = False
        self._starting = threading.Lock()

    def begin(self) -> None:
        """Have what waits written. Not while that is under way, or the disk has just refused it."""
        if self.is_writing or not self.spill.may_write:
            return
        with self._starting:
            start, self.is_writing = not self.is_writing, True
        if start:
            try:
                threading.Thread(target=self._write, name="span spill", daemon=True).start()
            except RuntimeError as error:  # no threads left: no fault of the worker that adds
                self.spill.refuse(f"cannot start the thread that writes spans to disk: {error}")
                self.is_writing = False

    def _write(self) -> None:
        with self.draining:
            try:
                if self._pending.nbytes >= self._most_bytes:  # else a drain came first
                    self._move()
            except MemoryError as error:
                self.spill.refuse(f"no memory to write spans to disk: {error}")
            finally:
                self.is_writing = False

    def _move(self) -> None:
        with self._pending.packing:
            waiting = self._pending.waiting()
            spans = waiting.spans()
            del self._pending.loose[: waiting.numbers]
        is_written = False
        try:
            is_written = self.spill.write(spans, *self._tables())
        finally:
            if is_written:
                self._pending.forget(waiting._replace(numbers=0))
            else:
                self._pending.keep(waiting)
