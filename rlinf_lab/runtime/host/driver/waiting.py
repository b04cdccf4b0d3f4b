"""What the driver's own thread waits for besides items and values. It waits for ends of iterations and late calls."""

from __future__ import annotations

import logging
from collections.abc import Callable

from rlinf_lab.errors import Cancelled
from rlinf_lab.runtime.host.driver.iterations import Iterations
from rlinf_lab.runtime.host.driver.under_way import CallsUnderWay
from rlinf_lab.runtime.host.state import parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.workflow.graph import DRIVER

SETTLE_SECONDS = 3.0
UNSAID_SECONDS = 2.0  # for which an iteration waits for calls of an earlier one without a word


class Waiting:
    """Of the loop. ``ending``: the run is being stopped, and nobody needs idle workers."""

    def __init__(
        self,
        state: HostState,
        control: parts.RankControl,
        post: parts.Post,
        iterations: Iterations,
        under_way: CallsUnderWay,
    ) -> None:
        self._state, self._control, self._post = state, control, post
        self._iterations, self._under_way = iterations, under_way
        self._driver = state.members[DRIVER, 0]
        self._has_come: Callable[[], bool] = bool  # while its ``waits_for`` is "calls"
        self._end_of, self._timed = -1, False  # the iteration whose end it waits for, and whether not for ever
        self.on_look: Callable[[], object] = bool
        self.ending = False

    def until_over(self, iteration: int, timeout: float | None = None) -> None:
        """Block until this iteration and all before it are over, or it was given up. `TimeoutError` after so long."""
        self._end_of, self._timed = iteration, timeout is not None
        try:
            self._until(lambda: self._iterations.is_over(iteration), f"the calls of iteration {iteration}", timeout)
        finally:
            self._end_of = -1

    def waits_for_end_of(self, iteration: int) -> bool:
        """Under the mutex: nothing is called before this iteration is over. The loop waits for that, or the plan lets
        no later one begin.
        """
        if self._driver.waits_for != "calls" or self._end_of < iteration:
            return False
        latest = max(self._iterations.open, default=iteration)
        return not self._timed or latest >= iteration + self._state.layout.plan.staleness

    def for_the_late(self) -> None:
        """Block until what computes on since its iteration was given up has ended. The next one wants idle workers."""
        open_, what = self._iterations.open, "calls of an iteration that was given up"
        try:
            self._until(lambda: not self._under_way.but_of(open_), what, UNSAID_SECONDS)
        except TimeoutError:
            late = ", ".join(sorted(self._under_way.but_of(open_)))
            logging.getLogger("rlinf_lab").warning(
                "The next iteration waits for %s, which an interrupt or a failure has left computing. Next: wait; a "
                "method that computes for long looks at self.cancelled now and then, and returns.",
                late,
            )
            self._until(lambda: not self._under_way.but_of(open_), what)

    def settle(self) -> list[str]:
        """Wait until every call of the iterations that were given up has ended. Returns those that compute on after
        `SETTLE_SECONDS`."""
        driver, now_ns = self._driver, self._state.clock.now_ns
        seconds = 0.0 if self.ending else SETTLE_SECONDS
        deadline = now_ns() + round(seconds * 1e9)
        while self._given_up_calls():
            driver.error = None
            try:
                left = max(0.0, (deadline - now_ns()) / 1e9)
                self._until(lambda: not self._given_up_calls(), "calls of an iteration that was given up", left)
            except Cancelled:
                if self._state.stopping:
                    break
            except TimeoutError:
                break
        driver.error = None
        with self._state.mutex:
            return sorted(self._given_up_calls())

    def _given_up_calls(self) -> list[str]:
        return self._under_way.of(self._iterations.given_up())

    def _until(self, has_come: Callable[[], bool], what: str, timeout: float | None = None) -> None:
        driver = self._driver
        with self._state.mutex:
            waits = not has_come()
            if waits:
                self._has_come = has_come
                self._control.block(driver, "calls", what)
                self.on_look()
        self._post.flush()
        if waits:
            self._control.park(driver, timeout)
        driver.raise_if_interrupted()

    def stop(self) -> None:
        """The driver's thread, if it waits here, gives that up and raises `Cancelled`. By any thread."""
        with self._state.mutex:
            if self._driver.waits_for == "calls":
                self._control.interrupt(self._driver, Cancelled("it was interrupted"))

    def look(self) -> None:
        """Under the mutex: something has ended; perhaps what it waits for has come."""
        self.on_look()
        if self._driver.waits_for == "calls" and self._has_come():
            self._control.wake(self._driver)
