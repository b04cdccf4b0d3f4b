"""SIGTERM, for a script that asks for it. A cluster's time limit ends a run with its state written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from rlinf_lab.errors import ConfigError

EXIT_STATUS = 128 + signal.SIGTERM


class Termination:
    """Calls ``end()`` when the process is told to end; ``came`` says whether it was. The handler that was there before
    comes back with `leave`.
    """

    def __init__(self, end: Callable[[], object]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                "train(checkpoint_on_sigterm=True): a signal can be asked for in the main thread only. Next: call "
                "train there."
            )
        self.came = False
        self._end = end
        self._before = signal.signal(signal.SIGTERM, self._told)

    def _told(self, *_: Any) -> None:
        self.came = True
        # a handler interrupts any line, also one that holds a lock
        threading.Thread(target=self._end, daemon=True).start()

    def leave(self) -> None:
        """The run has ended. Nothing outside of the main thread, where nobody can ask for signals: the next run in it
        replaces the handler.
        """
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self._told:
            signal.signal(signal.SIGTERM, self._before)
