"""The driver's side of a run: the thread of the user's loop at its host, the calls it has submitted, the end of an iteration."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import Cancelled, ExecutorError, WorkflowError, said
from rlinf_lab.planning.engine import Event
from rlinf_lab.runtime.pickling import Packed
from rlinf_lab.runtime.watch import Watch
from rlinf_lab.workflow.calls import CallSpec, ChannelArg, Nested, RefArg
from rlinf_lab.workflow.graph import DRIVER

if TYPE_CHECKING:
    from rlinf_lab.runtime.host import Host
    from rlinf_lab.runtime.wire import Failure


class Loop:
    """Lives at the driver's host (`Host.loop`). What it says to all hosts it also does at its own."""

    SETTLE_SECONDS = 3.0

    def __init__(self, host: Host) -> None:
        self.host = host
        self.others = sorted(set(host.place.values()) - {host.name})
        self.watch = Watch(host, self.others)
        self.iteration = -1
        self.ending = False  # the run ends with this iteration: nobody needs idle workers after it
        self.lost: ExecutorError | None = None
        self._open: dict[tuple[int, int], tuple[str, str]] = {}  # (call, rank) that has not ended: its host, its label

    # --- iterations --------------------------------------------------------------------------------------
    def enter(self, iteration: int) -> None:
        """The user's loop begins an iteration on the calling thread. Raises `ExecutorError` when the run is over or a host died."""
        host, driver = self.host, self.host.driver
        with host._mutex:
            if host.stopping:
                raise ExecutorError("The session has ended: its workers are gone. Next: open a new one with lab.session(flow, plan).")
            if self.lost is not None:
                raise ExecutorError(*self.lost.args)
            self.iteration = iteration
            self.watch.reset()
            host.failure = None
            host._running += 1
            driver.thread = threading.get_ident()
            driver.call = CallSpec(-1, DRIVER, "iteration", iteration=iteration)
            driver.error = None
        host._post(driver, Event.START, -1, 0, "the start of the iteration")
        host._spans.resumed(driver)

    def leave(self) -> None:
        """The iteration is over (or has failed)."""
        host, driver = self.host, self.host.driver
        with host._mutex:
            assert driver.call is not None
            host._finishing[driver] = (driver.call, None, None)
            driver.error = None
            host._block(driver, "engine", "the end of the iteration", (driver.index, Event.DONE, -1, 0))
        host.flush()
        host._park(driver)
        with host._mutex:
            host._running -= 1

    def broadcast(self, message: tuple) -> None:
        """Tell every host, this one too."""
        with self.host._mutex:
            self._tell_all(message)
        self.host.flush()

    def _tell_all(self, message: tuple) -> None:
        for other in self.others:
            self.host.say(other, message)
        self.host.handle(message)

    def give_up(self, iteration: int, cause: BaseException) -> None:
        """The calls of this iteration that wait shall end, everywhere."""
        self.broadcast(("cancel", iteration, Cancelled(short(cause))))

    def failed(self, error: Failure) -> None:
        """Under the mutex: the first failure of the iteration; whoever made it known flushes."""
        self._tell_all(("cancel", self.iteration, Cancelled(short(error))))

    # --- calls ---------------------------------------------------------------------------------------------
    def submit(self, call: CallSpec) -> None:
        """Hand a call to the ranks of its worker. Raises `WorkflowError` for an argument that cannot travel."""
        host = self.host
        places = {(call.call_id, r): host.place[call.worker, r] for r in range(host.layout.ranks(call.worker))}
        where = sorted(set(places.values()))
        travelling = packed(call) if where != [host.name] else call
        with host._mutex:
            if self.lost is not None:
                raise ExecutorError(*self.lost.args)
            self._open.update({key: (home, f"{call.worker}[{key[1]}].{call.method}") for key, home in places.items()})
            for name in where:
                if name == host.name:
                    host.submit(call)
                else:
                    host.say(name, ("call", travelling))
        host.flush()

    def ended(self, call_id: int, rank: int, iteration: int, error: Failure | None) -> None:
        """Under the mutex: one rank has done its part of a call."""
        known = self._open.pop((call_id, rank), None)
        if error is not None and iteration == self.iteration:
            self.host._fail(error)
        driver = self.host.driver
        if known and not self._open and driver.waits_for == "calls":
            self.host._wake(driver)

    def is_done(self, call_id: int, ranks: int) -> bool:
        with self.host._mutex:
            return not any((call_id, rank) in self._open for rank in range(ranks))

    def forget(self, name: str, error: ExecutorError) -> None:
        """Under the mutex: a host has died; its calls will not report their end."""
        self.lost = self.lost or error
        self._open = {key: at for key, at in self._open.items() if at[0] != name}
        if not self._open and self.host.driver.waits_for == "calls":
            self.host._wake(self.host.driver)

    def wait_for_calls(self, timeout: float | None = None) -> None:
        """Block until every submitted call has ended. Raises the first failure; `TimeoutError` after ``timeout`` seconds."""
        host, driver = self.host, self.host.driver
        with host._mutex:
            waits = bool(self._open)
            if waits:
                host._block(driver, "calls", "the calls of this iteration")
        host.flush()
        if waits:
            host._park(driver, timeout)
        host._raise_if_interrupted(driver)

    def settle(self) -> list[str]:
        """Wait until every call of the failed iteration has ended. Returns those that compute on after `SETTLE_SECONDS`."""
        seconds = 0.0 if self.ending else self.SETTLE_SECONDS
        deadline = self.host.clock.now_ns() + round(seconds * 1e9)
        while True:
            self.host.driver.error = None
            try:
                self.wait_for_calls(max(0.0, (deadline - self.host.clock.now_ns()) / 1e9))
                return []
            except Cancelled:
                if self.host.stopping:
                    return self.busy()
            except TimeoutError:
                return self.busy()

    def busy(self) -> list[str]:
        """Calls that have not ended, as worker[rank].method."""
        with self.host._mutex:
            return sorted(self.open_calls())

    def open_calls(self) -> list[str]:
        """As `busy`, in no order, of any moment; for a look without the mutex."""
        return [label for _, label in list(self._open.values())]

    # --- channels that the driver writes --------------------------------------------------------------------
    def close_channel(self, channel: str) -> None:
        """The driver will put nothing more into this channel in this iteration."""
        with self.host._mutex:
            self.host._close(channel, self.iteration, 0)
        self.host.flush()


def packed(call: CallSpec) -> CallSpec:
    """The call with its plain arguments pickled one by one. `WorkflowError` names the argument that cannot travel."""

    def pack_one(name: str, value: Any) -> Any:
        if value is None or isinstance(value, (ChannelArg, RefArg, bool, int, float, str)):
            return value
        if isinstance(value, Nested):
            return dataclasses.replace(value, template=pack_one(name, value.template))
        try:
            return Packed.of(value)
        except WorkflowError as error:
            raise WorkflowError(f"Call of {call.worker}.{call.method}(), argument {name}: {error}") from error.__cause__

    args = tuple(pack_one(str(i + 1), a) for i, a in enumerate(call.args))
    return dataclasses.replace(call, args=args, kwargs={k: pack_one(k, v) for k, v in call.kwargs.items()})


def short(error: BaseException) -> str:
    """The first line of what an error says."""
    return said(error).split("\n", 1)[0] or type(error).__name__
