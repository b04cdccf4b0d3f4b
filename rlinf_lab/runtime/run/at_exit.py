"""Runs that go on when the program ends are stopped. Threads of theirs that compute in a library of C++ would take the
process down with them, by an abort.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Sequence
from typing import Protocol


class GoesOn(Protocol):
    """A `Run`."""

    _ended: threading.Event

    def stop(self, wait: bool = True) -> None: ...
    def _warn(self) -> None: ...


# for all of them; longer than an executor takes to end who can be ended and to kill who does not answer, so that these
# are named
EXIT_SECONDS = 30.0
# the same, when Ctrl+C was pressed meanwhile: processes end with their driver, and threads with their process
IMPATIENT_SECONDS = 1.0
_STARTED: weakref.WeakKeyDictionary[GoesOn, int] = weakref.WeakKeyDictionary()  # and the process that it was started in


def end_with_program(run: GoesOn) -> None:
    """From now on."""
    _STARTED[run] = os.getpid()
    atexit.unregister(_end_all)
    atexit.register(_end_all)


def before_what_was_loaded() -> None:
    """What is registered last is done first. An executor has been started, and Ray, which it may have loaded, ends its
    processes at exit, too.
    """
    atexit.register(_end_all)


def _end_all() -> None:
    mine = [run for run, process in list(_STARTED.items()) if process == os.getpid()]
    _STARTED.clear()  # registered more than once
    going_on = [run for run in mine if not run._ended.is_set()]
    try:
        _end(going_on, EXIT_SECONDS)
    except KeyboardInterrupt:  # it may have come before all were stopped; who goes on then is no news
        with contextlib.suppress(KeyboardInterrupt):
            _end(going_on, IMPATIENT_SECONDS)
        mine = [run for run in mine if run._ended.is_set()]
    with contextlib.suppress(KeyboardInterrupt):
        for run in mine:
            try:
                _tell(run)
            except Warning:  # where they are errors; Python could but print it, too, and would end this
                traceback.print_exc()


def _end(runs: Sequence[GoesOn], seconds: float) -> None:
    for run in runs:
        with contextlib.suppress(RuntimeError):  # no more threads can be begun
            run.stop(wait=False)
    late = time.monotonic() + seconds
    for run in runs:
        run._ended.wait(max(0.0, late - time.monotonic()))


def _tell(run: GoesOn) -> None:
    if run._ended.is_set():
        run._warn()  # nobody may have asked it before
    else:
        warnings.warn(
            f"{run!r} goes on while the program ends. Next: run.wait() or run.stop() before its last line.",
            RuntimeWarning,
            stacklevel=1,
        )
