"""The session that users get. It is watched while it works, with the same eyes as a run."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from typing import Any

from rlinf_lab.errors import Cancelled
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.run.observer import Observed, Observer
from rlinf_lab.runtime.session.session import Executor, Iteration, Session
from rlinf_lab.runtime.threads.main_thread_guard import aside


class ObservedSession(Session, Observed):
    """What `session` gives. A `Session` whose timeline, metrics, frames and counters grow while it works, and stay
    after its end.
    """

    iterations = None  # nobody knows how many there will be
    eta_seconds = None

    def __init__(self, executor: Executor, observer: Observer | None = None) -> None:
        super().__init__(executor)
        self._started_at, self._seconds = time.monotonic(), 0.0
        self._show(executor, observer or Observer(executor, self._tell, afterwards=self._tell_afterwards))
        self._starting, self._stopping = threading.Lock(), threading.Lock()
        self._over = False

    def submit(self, *args: Any, **kwargs: Any) -> Iteration:
        self._observer.began()  # may be torn apart: it looks, and notes the time
        return super().submit(*args, **kwargs)

    submit.__doc__ = Session.submit.__doc__

    def _ended(self, number: int, seconds: float, result: Any) -> None:
        self._observer.finished(number, seconds, result)

    @property
    def state(self) -> str:
        """running (an iteration), idle (between two), finished, or failed (left by an exception)."""
        if self._over:
            return "finished" if self.error is None else "failed"
        return "running" if self._loop.is_open() else "idle"

    @property
    def elapsed_seconds(self) -> float:
        return self._seconds if self._over else time.monotonic() - self._started_at

    def _is_over(self) -> bool:
        return self._over

    def open(self) -> None:
        """Start the workers; `rlinf_lab.session` has done it."""
        self._servant.do(self._started)

    def _started(self) -> None:
        with self._starting:
            if self._over:
                raise Cancelled("The session was closed before its workers were started.")
            self._observer.start()
            self._executor.start()
            self._observer.running()

    def close(self) -> BaseException | None:
        """End the workers; the end of the ``with`` block does it. What went wrong, if anything.

        Warns of ranks that compute on.
        """
        late, problem = aside(self._stopped)
        self.tell_remarks()
        if late:
            warnings.warn(left_behind(late, self._executor.driver_host), RuntimeWarning, stacklevel=4)
        return problem

    def _stopped(self) -> tuple[list[str], BaseException | None]:
        with self._stopping:
            if self._over:
                return [], None
            if self._starting.locked():  # the start was interrupted: this ends it
                with contextlib.suppress(Exception):  # it is told below
                    self._executor.stop()
            with self._starting:
                late, problem = self._observer.stop()
                self.error = self.error or problem
                self._seconds, self._over = self.elapsed_seconds, True
                self._observer.end()
            return late, problem


def left_behind(late: list[str], host: Host) -> str:
    """What to tell the user about ranks that did not end. ``host``: of this process."""
    here = {process.label for process in host.state.ranks}
    own, others = [label for label in late if label in here], [label for label in late if label not in here]
    found = (
        [
            f"{', '.join(own)} did not end in time, and goes on in a thread of this process until it returns or the "
            "program ends."
        ]
        if own
        else []
    )
    found += [f"{', '.join(others)} did not end in time, and was ended together with its process."] if others else []
    return f"{' '.join(found)} Next: a method that computes for long looks at self.cancelled now and then, and returns."
