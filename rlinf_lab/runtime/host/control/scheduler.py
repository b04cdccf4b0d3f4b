"""The threads of a host. The engine says which of them may go on.

- One mutex guards the engine and all state; user code never runs under it, and nothing is sent under it.
- A thread that posts an event waits at its own gate until the engine resumes it. It also carries out orders to leave
  or to come onto the device while it waits (`residency`): no second thread ever touches a worker.
- ``HostState.running`` counts the threads that could still cause an event. At zero, with a mock clock, the last thread
  to block settles the collected events of this instant or moves time to the next timer (`instants`); with the real
  clock it means that nothing can move any more: relief, and if that does not help, a `DeadlockError` that names who
  waits for what. When there are several hosts the driver's `deadlock_watch` finds that out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rlinf_lab.planning.engine.engine import ALL, Do, Event
from rlinf_lab.planning.engine.fast_path import NOBODY, NOT_AT_ONCE
from rlinf_lab.runtime.host.control.instants import Instants
from rlinf_lab.runtime.host.control.post import Post
from rlinf_lab.runtime.host.control.residency import Residency
from rlinf_lab.runtime.host.state import parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Message
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.state.spans import SpanWriter
from rlinf_lab.runtime.threads.gate import Gate
from rlinf_lab.runtime.threads.lookout import Lookout

# Looking a member of an enumeration up costs as much as half of what is done about it.
_EXTEND, _DIVIDE, _RESUME, _STORE, _BOUND = map(int, (Do.EXTEND, Do.DIVIDE, Do.RESUME, Do.STORE, Do.BOUND))
_PUT, _GET, _START = map(int, (Event.PUT, Event.GET, Event.START))

TOGETHER = 64  # puts one after another, at most


class Scheduler:
    """See the module's docstring, and `state.parts.RankControl` for what parts use of it."""

    def __init__(self, state: HostState, post: Post) -> None:
        self._state, self._post = state, post
        self._mutex, self._engine, self._processes = state.mutex, state.engine, state.processes
        self._now, self._mock = state.clock.now_ns, state.mock
        self.spans = SpanWriter(state.recorder, state.clock)
        self.instants = Instants(state, self)
        self.residency = Residency(state, self, post, self.spans)
        self.settle = self.instants.settle
        self._batch = 0
        self._lookout: Lookout | None = None
        self._said: deque[Sequence[parts.Event]] = deque()  # by the engine; the first of it is being carried out
        self._held: list[Gate] | None = None  # of those who are being let go: opened a little later

    def connect(
        self, items: parts.Items, finished: Callable[[Process], None], came: Callable[[Process], None],
        takes_nothing_more: Callable[[Process], bool], stuck: Callable[[], bool], write_down: Callable[[], None],
    ) -> None:  # fmt: skip
        """Connect what parts above do when the engine, or a lack of movement, asks. Once, before the first thread; they
        are called under the mutex but for the last.

        ``items``: of channels; ``finished(rank)``: its call has ended; ``came(rank)``: it steps aside for a meeting;
        ``takes_nothing_more(rank)``: whether the get of one that leaves ends without items; ``stuck()``: see
        `Instants`; ``write_down()``: what has come over the links is recorded.
        """
        self._items, self._finished, self._came, self._write_down = items, finished, came, write_down
        self._takes_nothing_more, self.instants.stuck = takes_nothing_more, stuck

    def open_lookout(self, own_cores: bool) -> Lookout:
        """A rank that waits may hear messages by itself. ``own_cores``: no other host computes on those of this one."""
        if self._lookout is None:
            self._lookout = Lookout(lambda: own_cores and self._state.running == 0, self._write_down)
        return self._lookout

    def has_listener(self) -> bool:
        """Whether the calling thread hears messages for a rank that waits."""
        return self._lookout is not None and self._lookout.is_mine()

    # --- posting and waiting, by a rank's own thread ------------------------------------------------------
    def post(self, process: Process, kind: int, channel: int, n: int, what: str) -> None:
        try:
            try:
                self._hand_in(process, kind, channel, n, what)
            finally:
                if kind == _START:  # nothing ran before
                    process.since = process.asked_ns
                else:
                    self.spans.end_run(process, process.asked_ns)
            if self._post.unsent:
                if process.streak % TOGETHER > 1:  # one put after another: let several travel together
                    self._post.flush_soon()
                else:
                    self._post.flush()
            process.waited = process.waited or bool(process.order)
            if process.parked or process.order:
                self.park(process)
            if process.error is not None:
                process.raise_if_interrupted()
        except BaseException:  # what was interrupted is a wait all the same
            self.spans.broke_off(process, kind)
            raise

    def _hand_in(self, process: Process, kind: int, channel: int, n: int, what: str) -> None:
        """Report an event. The thread may go on at once, or is to wait at its gate."""
        held: list[Gate] = []  # of whoever is let go within: he would only meet the mutex taken
        try:
            with self._mutex:
                self._held = held
                try:
                    process.asked_ns = process.lock_from = self._now()
                    if process.error is not None:
                        process.raise_if_interrupted()
                    process.bound_ns, process.bound_batch, process.first = 0, -1, -1
                    process.lock_waited = kind == _START
                    if process.leaving and kind == _GET and n != ALL and self._takes_nothing_more(process):
                        n = 0
                    if not self._at_once(process, kind, channel, n):
                        self.block(process, "engine", what, (process.index, kind, channel, n))
                    if process.queue is not None and process.queue.stub:
                        if kind == _GET and n:
                            self._items.ask(process, process.queue, n)
                        elif kind == _PUT and not process.woken and self._engine.is_putting(process.index):
                            self._items.put_waits(process.queue)
                    process.streak = process.streak + 1 if kind == _PUT and process.woken else 0
                    # a mock clock's time moves within; here, for it may be let go before it has parked
                    process.waited = process.parked or self._mock is not None
                finally:
                    self._held = None
        finally:
            for gate in held:
                gate.open()

    def _at_once(self, process: Process, kind: int, channel: int, n: int) -> bool:
        """Under the mutex: do what follows from a put or get that need not wait. The engine must answer at once."""
        if self._mock is not None:
            return False
        engine, index, reader = self._engine, process.index, NOBODY
        if kind == _PUT:
            if (first := engine.put_at_once(index, channel, n)) < 0:
                if (reader := engine.put_to_waiting(index, channel, n)) < 0:
                    return False
                first = engine.channels[channel].tail - n
            self._items.store(process, first)
        elif kind == _GET and (first := engine.get_at_once(index, channel, n)) >= 0:
            self._items.hand_over(process, first, first + abs(n))
        else:
            return False
        process.lock_waited, process.woken = False, True
        if reader >= 0:
            self.bind(self._processes[reader])
        return True

    def _waits_at_once(self, index: int, kind: int, channel: int, n: int) -> bool:
        """Under the mutex: the same for a get that waits, and who goes on instead."""
        if kind != _GET:
            return False
        if (holder := self._engine.wait_at_once(index, channel, n)) == NOT_AT_ONCE:
            return False
        if holder >= 0:
            self._batch += 1
            self._resume(self._processes[holder])
        return True

    def park(self, process: Process, timeout: float | None = None) -> None:
        while True:
            if process.order:
                self.residency.carry_out(process)
                continue
            if not process.parked:
                return
            if self._lookout is not None and timeout is None and _listen(process, self._lookout):
                continue
            try:
                if process.gate.wait(timeout):
                    continue
                advice = "Next: wait longer, or without a timeout; status() tells who waits for whom."
                raise TimeoutError(
                    f"{process.label} waited {timeout} s for {process.blocked_at}; it has not come. {advice}"
                )
            except BaseException:  # a time-out or an interrupted kernel: the thread goes on without having been woken
                with self._mutex:
                    if process.parked:  # its gate stays open: it is passed at the next wait, which looks again
                        self._withdraw(process)
                        self.wake(process)
                self._post.flush()
                raise

    # --- who runs, under the mutex ------------------------------------------------------------------------
    def block(self, process: Process, why: str, what: str, event: parts.Event | None = None) -> None:
        process.woken = False
        process.waits_for, process.blocked_at, process.event = why, what, -1 if event is None else event[1]
        self._state.running -= 1
        self.report(event)
        if self._state.running == 0:
            self.settle()
        process.parked = not process.woken

    def report(self, event: parts.Event | None) -> None:
        """Tell the engine, now or when this instant settles."""
        if event is None:
            return
        if self._mock is not None:
            self.instants.add(event)
        elif not self._waits_at_once(*event):
            self.apply(self._engine.settle([event]))

    def wake(self, process: Process, timer: bool = False) -> None:
        """A thread that carries out an order hears of it when it has finished that."""
        if process.ordering and not timer:
            process.woken_outside = True
            return
        if process.woken:
            return
        process.woken = True
        process.waits_for = process.blocked_at = ""
        self._state.running += 1
        if process.parked:
            process.let_go(self._held)

    def let_go(self, process: Process) -> None:
        process.let_go(self._held)

    def begins(self, threads: int = 1) -> None:
        self._state.running += threads

    def ends(self, threads: int = 1) -> None:
        self._state.running -= threads

    def is_quiet(self) -> bool:
        with self._mutex:
            return self._state.running == 0

    # --- the engine's instructions, under the mutex -------------------------------------------------------
    def deliver(self, message: Message) -> None:
        """Do what a message from another host says. Who is let go by it is so afterwards, without the mutex."""
        held: list[Gate] = []
        try:
            with self._mutex:
                self._held = held
                try:
                    self._post.handle(message)
                    if message.counted:
                        self._post.heard += 1
                finally:
                    self._held = None
        finally:  # also after an error: nobody else would
            for gate in held:
                gate.open()

    def apply(self, instructions: Sequence[parts.Event]) -> None:
        """Do what the engine said. Asked within (the end of a call closes a channel), after what is left of the one
        before, which the engine has counted. Nobody goes on before all is done: who is resumed and shall leave its
        device knows both.
        """
        if not instructions:
            return
        self._said.append(instructions)
        if len(self._said) > 1:
            return
        held: list[Gate] | None = None
        if self._held is None:
            self._held = held = []
        try:
            while self._said:
                self._carry_on(self._said[0])
                self._said.popleft()
        finally:
            self._said.clear()
            if held is not None:
                self._held = None
                for gate in held:
                    gate.open()

    def _carry_on(self, instructions: Sequence[parts.Event]) -> None:
        self._batch += 1
        for do, index, a, b in instructions:
            if do == _EXTEND:
                self._items.extend(a, b)
                continue
            if do == _DIVIDE:
                self._items.divide(a, b)
                continue
            process = self._processes[index]
            if do == _RESUME:
                self._resume(process)
            elif do == _STORE:
                self._items.store(process, b)
            elif do == _BOUND:
                process.bound_ns = process.lock_from = self._now()
                process.bound_batch = self._batch
                if process.getting:
                    self._items.hand_over(process, a, b)
            elif do == Do.FINISHED:
                self._finished(process)
            elif do == Do.MEET:
                self._came(process)
            else:
                self.residency.order(process, "onload" if do == Do.ONLOAD else "offload")

    def _resume(self, process: Process) -> None:
        """It goes on. It has waited for its device if another batch of instructions has bound it."""
        if process.far:
            self._items.answer(process)
            return
        process.on_device = process.machine.holding and not process.drives
        has_waited = process.lock_waited or process.bound_ns > 0
        process.lock_waited = process.on_device and process.bound_batch != self._batch and has_waited
        self.wake(process)

    def bind(self, process: Process) -> None:
        """As to carry on with BOUND, and with RESUME if it goes on. See `AtOnce.put_to_waiting`, `arrival_at_once`."""
        self._batch += 1
        process.bound_ns = process.lock_from = self._now()
        process.bound_batch = self._batch
        self._items.hand_over(process, process.machine.lo, process.machine.hi)
        if process.machine.state == "run":
            self._resume(process)

    # --- interrupting, under the mutex ---------------------------------------------------------------------
    def interrupt(self, process: Process, error: BaseException) -> None:
        process.error = error
        self._withdraw(process)

    def _withdraw(self, process: Process) -> None:
        """Take a thread out of whatever it waits in, and let it go on."""
        waits_for = process.waits_outside if process.ordering else process.waits_for
        if waits_for == "timer":
            self.instants.wakes_no_more(process)
            self.wake(process)
        elif waits_for in ("value", "calls"):
            self.wake(process)
        elif waits_for == "engine":
            if self.instants.takes_back(process):
                self.wake(process)
            else:
                self.apply(self._engine.cancel(process.index))


def _listen(process: Process, lookout: Lookout) -> bool:
    """Wait where messages come in. False when it has to be at its gate: another rank listens, or a thread reads."""
    if not lookout.take_place():
        return False
    process.lookout = lookout
    try:
        lookout.listen(lambda: not process.parked or bool(process.order))
    finally:
        process.lookout = None
        lookout.leave_place()
    return not process.parked or bool(process.order)  # whoever let it go until now has not opened the gate
