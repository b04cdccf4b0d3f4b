"""A script waits at its exit for the runs that it has started. A notebook and an interactive shell do not: they are
closed on purpose.

Ctrl+C meanwhile ends them cleanly: the iteration that goes on is finished, the weights are kept. No signal handler is
installed.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import weakref
from typing import Protocol

from rlinf_lab.notebook import in_notebook


class Waits(Protocol):
    """A `TrainingRun`."""

    def wait(self) -> object: ...
    def stop(self) -> None: ...


_STARTED: weakref.WeakSet[Waits] = weakref.WeakSet()


def is_script() -> bool:
    """Whether this program ends by itself."""
    return not hasattr(sys, "ps1") and not sys.flags.interactive and not in_notebook()


def wait_at_exit(run: Waits) -> None:
    """From now on. What is registered last is done first: called again when the executor has been started, which
    registers its own end.
    """
    if is_script():
        _STARTED.add(run)
        atexit.unregister(_wait_for_all)
        atexit.register(_wait_for_all)


def told(run: Waits) -> None:
    """The exit does not say again why the run failed. It has been raised where somebody waited."""
    _STARTED.discard(run)


def stop_all() -> None:
    """End the runs that a script has begun: it was interrupted. Its exit does not wait for them."""
    for run in list(_STARTED):
        _STARTED.discard(run)
        with contextlib.suppress(Exception):  # of one that was interrupted while it was made
            run.stop()


def _wait_for_all() -> None:
    # the program ends by an exception: nobody wants what it has begun
    failed = getattr(sys, "last_value", None) is not None
    for run in list(_STARTED):
        _STARTED.discard(run)
        try:
            run.stop() if failed else run.wait()
        except KeyboardInterrupt:
            print("interrupted; the run was stopped.", file=sys.stderr)
        except SystemExit:  # it was told to end, and has
            continue
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
