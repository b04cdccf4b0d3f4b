"""The driver's side of a run: the thread of the user's loop at its host. It has iterations and calls, and their end."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_lab.errors import Cancelled, DeadlockError, ExecutorError, WorkflowError, said
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.planning.plan.wait_graph import Wait, standstill
from rlinf_lab.runtime.host.calls.work import Calls
from rlinf_lab.runtime.host.channels.ends import ChannelEnds
from rlinf_lab.runtime.host.driver.iterations import Iterations, OpenIteration, Streams
from rlinf_lab.runtime.host.driver.members import Members
from rlinf_lab.runtime.host.driver.remarks import Remarks
from rlinf_lab.runtime.host.driver.under_way import CallsUnderWay
from rlinf_lab.runtime.host.driver.waiting import Waiting
from rlinf_lab.runtime.host.liveness.failures import death
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Failure, Message, Moved
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.specs import READ, CallSpec, ChannelArg, Nested, RefArg, WeightsArg


class Loop:
    """Lives at the driver's host (`Host.loop`). What it says to all hosts it also does at its own.

    One thread at a time executes the loop (the driver's): it is inside one iteration function at most, while earlier
    iterations go on at the workers. From the first beginning to the last end it counts as running, so that mock time
    stands still meanwhile.
    """

    def __init__(
        self, state: HostState, control: parts.RankControl, post: parts.Post, calls: Calls, ends: ChannelEnds
    ) -> None:
        self._state, self._control, self._post, self._calls, self._ends = state, control, post, calls, ends
        self._driver = state.members[DRIVER, 0]
        self.others = sorted(set(state.place.values()) - {state.name})
        self.watch_reset: Callable[[], object] = bool
        self.iterations, self.under_way = Iterations(state.mutex), CallsUnderWay()
        self.streams = Streams(state, self.iterations, self._tell_all, self.failed)
        self.waiting = Waiting(state, control, post, self.iterations, self.under_way)
        self.lost: ExecutorError | None = None
        self.members = Members(state, post, lambda: self.lost)
        self.remarks = Remarks(post)
        self._open = self.iterations.open
        post.on(messages.Ended, lambda m: self._ended(m.call_id, m.rank, m.iteration, m.error, m.moved))
        post.on(messages.Failed, self._has_failed)
        post.on(messages.Broken, self._break_off)
        post.on(messages.LeftOver, lambda m: self.streams.left(m.channel, m.iteration, m.left))

    # --- iterations --------------------------------------------------------------------------------------
    def begin(self, iteration: int) -> None:
        """The calling thread begins an iteration. `ExecutorError` when the run is over or a host died, `Cancelled` when
        an earlier one has failed."""
        state, driver = self._state, self._driver
        with state.mutex:
            if state.stopping:
                raise ExecutorError(
                    "The session has ended: its workers are gone. Next: open a new one with lab.session(flow, plan)."
                )
            if self.lost is not None:
                raise ExecutorError(*self.lost.args)
            if self.waiting.ending:
                raise Cancelled("the run was stopped")
            if (failed := self.iterations.first_failed()) is not None:
                raise Cancelled(f"iteration {failed} has failed")
            self.watch_reset()
            self._control.begins(not self._open)
            self._open[iteration] = OpenIteration(state.clock.now_ns())
            driver.thread = threading.get_ident()
            driver.call = CallSpec(-1, DRIVER, "iteration", iteration=iteration)
            driver.method = state.recorder.name("iteration")
            driver.error = None

    def enter(self, iteration: int) -> None:
        """Tell the engine that it has begun; `leave` follows, whatever happens."""
        self._control.post(self._driver, Event.START, iteration, 0, "the start of the iteration")
        self._control.spans.resumed(self._driver)

    def leave(self, iteration: int) -> None:
        """The iteration function has returned (or raised). The iteration ends by itself, when its calls have."""
        driver = self._driver
        with self._state.mutex:
            assert driver.call is not None
            self._calls.will_end(driver, driver.call)
            driver.call = driver.error = None
            self._open[iteration].in_body = False
            self._look(iteration)
            self._control.block(driver, "engine", "the end of the iteration", (driver.index, Event.DONE, -1, 0))
        self._post.flush()
        self._control.park(driver)

    def close(self, iteration: int) -> OpenIteration:
        """It is over, or was given up: forget it."""
        with self._state.mutex:
            one = self._open.pop(iteration)
            self._control.ends(not self._open)
            return one

    def is_open(self) -> bool:
        """Whether any iteration has begun and was not closed. It goes on, or nobody has taken it in."""
        return bool(self._open)

    def broadcast(self, message: Message) -> None:
        """Tell every host, this one too."""
        with self._state.mutex:
            self._tell_all(message)
        self._post.flush()

    def _tell_all(self, message: Message) -> None:
        for other in self.others:
            self._post.say(other, message)
        self._post.tell(self._state.name, message)

    # --- failing, under the mutex ------------------------------------------------------------------------
    def give_up(self, iteration: int, cause: BaseException) -> None:
        """The calls of this iteration and of all later ones that wait shall end, everywhere. Takes the mutex itself."""
        with self._state.mutex:
            self._give_up(iteration, cause)
        self._post.flush()

    def failed(self, error: Failure | WorkflowError, iteration: int | None = None) -> None:
        """This iteration, or the oldest one, cannot go on; whoever made it known flushes."""
        driver = self._driver
        if iteration is None and driver.waits_for == "value" and driver.call is None:
            self._control.interrupt(driver, error)  # a result of an iteration that is over will not come
        if self._open:
            self._give_up(self.iterations.first_going_on() if iteration is None else iteration, error)

    def _has_failed(self, message: messages.Failed) -> None:
        self._state.failure = self._state.failure or message.error
        self.failed(message.error)

    def _give_up(self, iteration: int, cause: BaseException) -> None:
        for number, one in list(self._open.items()):
            if number >= iteration and one.failure is None:
                one.failure = cause
                self._tell_all(messages.Cancel(number, Cancelled(short(cause))))
        self.waiting.look()

    def host_died(self, name: str) -> None:
        """A host has; its calls will not report their end. Takes the mutex itself; the caller flushes."""
        state, error = self._state, death(self._state, name)
        with state.mutex:
            state.dead.add(name)
            self.lost = self.lost or error
            for iteration in self.under_way.lose(name):
                self._count(iteration)
            self._post.fail(error)
            for process in state.ranks:
                if process.call is not None:
                    self._control.interrupt(process, Cancelled(str(error)))

    def deadlock(self, waits: Sequence[Wait]) -> None:
        """Nothing can move any more, for these reasons."""
        if self.streams.end_stranded(waits):
            self._post.flush_soon()
            return
        error = standstill(waits)
        self._post.fail(error)
        for process in self._state.ranks:
            if process.call is not None:
                self._control.interrupt(process, DeadlockError(*error.args))

    def _break_off(self, message: messages.Broken) -> None:
        """The hosts do not know any more what the others know. Nothing begins after this."""
        self.lost = self.lost or message.error
        self._post.fail(message.error)
        self.members.give_up()

    # --- calls ---------------------------------------------------------------------------------------------
    def submit(self, call: CallSpec) -> CallSpec:
        """Hand a call to the ranks of its worker that are there. The call, with those. Raises `WorkflowError` for an
        argument that cannot travel."""
        state, ranks = self._state, self._state.layout.ranks(call.worker)
        far = any(state.place[call.worker, r] != state.name for r in range(ranks))
        travelling = packed(call) if far else call
        with state.mutex:
            for channel in call.channels(READ):
                self.streams.refuse_told(channel, call.iteration, f"{call.worker}.{call.method}()")
            call, travelling = self.members.fixed(call), self.members.fixed(travelling)
            taking = call.taken_by(ranks)
            if self.lost is not None:
                raise ExecutorError(*self.lost.args)
            for rank in taking:
                self.under_way.add(call, rank, state.place[call.worker, rank])
            self._open[call.iteration].calls += len(taking)
            self.streams.begin(call, len(taking))
            for name in sorted({state.place[call.worker, r] for r in taking}):
                self._post.tell(name, messages.Perform(call if name == state.name else travelling))
        self._post.flush()
        return call

    def _ended(
        self, call_id: int, rank: int, iteration: int, error: Failure | None, moved: Sequence[Moved]
    ) -> None:
        """One rank has done its part of a call, and put and taken so much."""
        if error is not None and iteration in self._open:
            self.failed(error, iteration)
        if (label := self.under_way.end(call_id, rank)) is not None:
            self.streams.end(call_id, iteration, label, moved)
            self._count(iteration)
        if iteration in self._open:
            self.streams.judge(iteration, loop_ended=call_id < 0)

    def close_channel(self, channel: str, iteration: int) -> None:
        """The driver will put nothing more into this channel in this iteration."""
        with self._state.mutex:
            self._ends.close(channel, iteration, 0)
        self._post.flush()

    def _count(self, iteration: int) -> None:
        """One call less."""
        one = self._open.get(iteration)
        if one is not None:
            one.calls -= 1
            self._look(iteration)
        self.waiting.look()

    def _look(self, iteration: int) -> None:
        """Whether it has ended now."""
        one = self._open[iteration]
        if one.is_over():
            one.ended_ns = self._state.clock.now_ns()

    def is_done(self, call_id: int, ranks: int) -> bool:
        """Whether all ranks have ended a call."""
        with self._state.mutex:
            return not self.under_way.has(call_id, range(ranks))

    def waits_in_iteration(self) -> bool:
        """Under the mutex: an iteration is going on, and the loop waits."""
        state = self._state
        return self.is_open() and state.running == 0 and not state.stopping and not state.dead


def packed(call: CallSpec) -> CallSpec:
    """The call with its plain arguments pickled one by one. `WorkflowError` names the argument that cannot travel."""

    def pack_one(name: str, value: Any) -> Any:
        if value is None or isinstance(value, (ChannelArg, RefArg, WeightsArg, bool, int, float, str)):
            return value
        if isinstance(value, Nested):
            return dataclasses.replace(value, template=pack_one(name, value.template))
        try:
            return Packed.of(value)
        except WorkflowError as error:
            told = f"Call of {call.worker}.{call.method}(), argument {name}: {error}"
            raise WorkflowError(told) from error.__cause__

    args = tuple(pack_one(str(i + 1), a) for i, a in enumerate(call.args))
    return dataclasses.replace(call, args=args, kwargs={k: pack_one(k, v) for k, v in call.kwargs.items()})


def short(error: BaseException) -> str:
    """The first line of what an error says."""
    return said(error).split("\n", 1)[0] or type(error).__name__
