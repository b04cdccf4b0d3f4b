"""The threads of a host and the engine that says which of them may go on.

- One mutex guards the engine and all state; user code never runs under it, and nothing is sent under it.
- A thread that posts an event waits at its own gate until the engine resumes it. It also carries out orders to leave or to
  come onto the device while it waits: no second thread ever touches a worker.
- ``running`` counts the threads that could still cause an event. At zero, with a mock clock, the last thread to block settles the
  collected events of this instant or moves time to the next timer; with the real clock it means that nothing can
  move any more: relief, and if that does not help, a `DeadlockError` that names who waits for what. When there are
  several hosts the driver's `deadlock_watch` finds that out. Fillers keep nobody from that conclusion, and move mock time for nobody but the
  flow: with the real clock their threads are not counted.
"""

from __future__ import annotations

import heapq
import threading
import time
import traceback
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from rlinf_lab.errors import WorkerError
from rlinf_lab.planning.engine.engine import ALL, Do, Engine, Event
from rlinf_lab.planning.engine.fast_path import NOBODY, NOT_AT_ONCE
from rlinf_lab.runtime.host.channels.queues import Queue
from rlinf_lab.runtime.host.elastic.meetings import Meetings
from rlinf_lab.runtime.host.liveness.wait_graph import Wait
from rlinf_lab.runtime.host.protocol import Failure
from rlinf_lab.runtime.host.rank import Process
from rlinf_lab.runtime.host.spans import SpanWriter
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.runtime.threads.gate import Gate
from rlinf_lab.runtime.threads.lookout import Lookout
from rlinf_lab.timeline.record.clock import Clock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind

# Looking a member of an enumeration up costs as much as half of what is done about it.
_EXTEND, _DIVIDE, _RESUME, _STORE, _BOUND = map(int, (Do.EXTEND, Do.DIVIDE, Do.RESUME, Do.STORE, Do.BOUND))
_PUT, _GET, _START, _ASIDE = map(int, (Event.PUT, Event.GET, Event.START, Event.ASIDE))

TOGETHER = 64  # puts one after another, at most


def switch(process: Process, order: str, mates: Sequence[Sequence[Process]]) -> bool:
    """Have its worker carry out "onload" or "offload", by its own thread; whether anything moved. ``mates``: present ones and absent ones."""
    present, absent = ([other.instance for other in some if other.instance is not None] for some in mates)
    return process.instance is not None and process.instance._switch(order, present, absent)  # else it is still to be built there


class Scheduler:
    """The lower half of a `Host`: threads, time and the engine. What an instruction does to items and calls is the upper half's."""

    meetings: Meetings

    def __init__(self, engine: Engine, clock: Clock, recorder: Recorder, alone: bool) -> None:
        self.clock, self.recorder = clock, recorder
        self.stopping = False
        self.relieved = 0
        self._alone = alone  # there is no other host
        self._mock = clock if isinstance(clock, MockClock) else None
        self._mutex = threading.RLock()
        self._engine = engine
        self._spans = SpanWriter(recorder, clock)
        self._processes: list[Process] = []
        self._running = 0
        self._pending: list[tuple[int, int, int, int]] = []
        self._timers: list[tuple[int, int, Process]] = []
        self._batch = 0
        self._has_fillers = False
        self._filled_at = -1
        self._lookout: Lookout | None = None
        self._said: deque[Sequence[tuple[int, int, int, int]]] = deque()  # by the engine; the first of it is being carried out
        self._held: list[Gate] | None = None  # of those who are being let go: opened a little later
        self._outgoing: deque[tuple[str, tuple]] = deque()

    # --- what the upper half does (under the mutex, but for `flush` and `report`) --------------------------------
    def _store(self, process: Process, first: int) -> None:
        """The items of its put enter the channel, from this sequence number on."""
        raise NotImplementedError

    def _hand_over(self, process: Process, lo: int, hi: int) -> None:
        """It gets the items [lo, hi) of its channel."""
        raise NotImplementedError

    def _finished(self, process: Process) -> None:
        """Its call has ended."""
        raise NotImplementedError

    def _divide(self, channel: int, count: int) -> None:
        """What is there of a channel becomes the shares of so many ranks."""
        raise NotImplementedError

    def _extend(self, channel: int, n: int) -> None:
        """Blocked producers of other hosts may send n items more."""
        raise NotImplementedError

    def _put_waits(self, queue: Queue) -> None:
        """A put into a channel that lives on another host waits for room."""
        raise NotImplementedError

    def _ask(self, process: Process, queue: Queue, wanted: int) -> None:
        """A get of a channel that lives on another host."""
        raise NotImplementedError

    def _answer(self, reader: Process) -> None:
        """A rank of another host has got what it asked for."""
        raise NotImplementedError

    def _takes_nothing_more(self, process: Process) -> bool:
        """Whether the get of a rank that leaves ends without items."""
        raise NotImplementedError

    def _delayed(self) -> None:
        """Somebody of the flow waits for a filler's step to end."""
        raise NotImplementedError

    def waits(self) -> list[Wait]:
        raise NotImplementedError

    def deadlock(self, waits: Sequence[Wait]) -> None:
        raise NotImplementedError

    def relieve(self) -> bool:
        raise NotImplementedError

    def report(self, error: Failure) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def write_down(self) -> None:
        """What has come over the links, where that was put off."""
        raise NotImplementedError

    def flush_soon(self) -> None:
        raise NotImplementedError

    def open_lookout(self, own_cores: bool) -> Lookout:
        """From now on a rank that waits may hear messages by itself. ``own_cores``: no other host computes on those of this one."""
        self._lookout = self._lookout or Lookout(lambda: own_cores and self._running == 0, self.write_down)
        return self._lookout

    # --- posting and waiting -----------------------------------------------------------------------------
    def _post(self, process: Process, kind: int, channel: int, n: int, what: str) -> None:
        """Report an event and wait until the engine lets the thread go on."""
        try:
            try:
                self._hand_in(process, kind, channel, n, what)
            finally:
                if kind == _START:  # nothing ran before
                    process.since = process.asked_ns
                else:
                    self._spans.end_run(process, process.asked_ns)
            if self._outgoing:
                if process.streak % TOGETHER > 1:  # one put after another: let several travel together
                    self.flush_soon()
                else:
                    self.flush()
            process.waited = process.waited or bool(process.order)
            if process.parked or process.order:
                self._park(process)
            if process.error is not None:
                self._raise_if_interrupted(process)
        except BaseException:  # what was interrupted is a wait all the same
            self._spans.broke_off(process, kind)
            raise

    def _hand_in(self, process: Process, kind: int, channel: int, n: int, what: str) -> None:
        """Report an event; the thread may go on at once, or is to wait at its gate."""
        held: list[Gate] = []  # of whoever is let go within: he would only meet the mutex taken
        try:
            with self._mutex:
                self._held = held
                try:
                    process.asked_ns = process.lock_from = self.clock.now_ns()
                    if process.error is not None:
                        self._raise_if_interrupted(process)
                    process.bound_ns, process.bound_batch, process.lock_waited, process.first = 0, -1, kind == _START, -1
                    if process.leaving and kind == _GET and n != ALL and self._takes_nothing_more(process):
                        n = 0
                    if not self._at_once(process, kind, channel, n):
                        self._block(process, "engine", what, (process.index, kind, channel, n))
                    if process.queue is not None and process.queue.stub:
                        if kind == _GET and n:
                            self._ask(process, process.queue, n)
                        elif kind == _PUT and not process.woken and self._engine.is_putting(process.index):
                            self._put_waits(process.queue)
                    process.streak = process.streak + 1 if kind == _PUT and process.woken else 0
                    process.waited = process.parked or self._mock is not None  # whose time moves within; here, for it may be let go before it has parked
                finally:
                    self._held = None
        finally:
            if held:
                self._open(held)

    def _at_once(self, process: Process, kind: int, channel: int, n: int) -> bool:
        """Under the mutex: do what follows from a put or a get that need not wait, if the engine answers it at once; whether it has."""
        if self._mock is not None:
            return False
        engine, index, reader = self._engine, process.index, NOBODY
        if kind == _PUT:
            if (first := engine.put_at_once(index, channel, n)) < 0:
                if self._has_fillers or (reader := engine.put_to_waiting(index, channel, n)) < 0:
                    return False
                first = engine.channels[channel].tail - n
            self._store(process, first)
        elif kind == _GET and (first := engine.get_at_once(index, channel, n)) >= 0:
            self._hand_over(process, first, first + abs(n))
        else:
            return False
        process.lock_waited, process.woken = False, True
        if reader >= 0:
            self._bind(self._processes[reader])
        return True

    def _waits_at_once(self, index: int, kind: int, channel: int, n: int) -> bool:
        """Under the mutex: the same for a get that waits, and who goes on instead."""
        if kind != _GET or self._has_fillers or (holder := self._engine.wait_at_once(index, channel, n)) == NOT_AT_ONCE:
            return False
        if holder >= 0:
            self._batch += 1
            self._resume(self._processes[holder])
        return True

    def _raise_if_interrupted(self, process: Process) -> None:
        """A worker that catches it meets it again at its next wait, until its call has ended: nothing that it waits for will come."""
        if (error := process.error) is not None:
            if process.drives:  # the user's own loop, which may go on with something else
                process.error = None
            raise error

    def sleep(self, process: Process, duration_ns: int) -> None:
        """Occupy the thread for a time: mock time moves, or the thread really sleeps (and hears an interruption)."""
        if self._mock is None:
            deadline = self.clock.now_ns() + duration_ns
            while (left := deadline - self.clock.now_ns()) > 0:
                self._raise_if_interrupted(process)
                time.sleep(min(left / 1e9, 0.05))
            return
        with self._mutex:
            if process.filled is not None:  # stopped: no time passes any more
                self._raise_if_interrupted(process)
            heapq.heappush(self._timers, (self.clock.now_ns() + duration_ns, process.index, process))
            self._block(process, "timer", "a timer")
        self._park(process)
        self._raise_if_interrupted(process)

    def _block(self, process: Process, why: str, what: str, event: tuple[int, int, int, int] | None = None) -> None:
        """Under the mutex: from now on this thread causes nothing until it is woken; it may be woken within."""
        process.woken = False
        process.waits_for, process.blocked_at, process.event = why, what, -1 if event is None else event[1]
        self._running -= process.counts
        self._report(event)
        if self._running == 0:
            self._quiescent()
        process.parked = not process.woken

    def _report(self, event: tuple[int, int, int, int] | None) -> None:
        if event is None:
            return
        if self._mock is not None:
            self._pending.append(event)
        elif not self._waits_at_once(*event):
            self._apply(self._engine.settle([event]))
            self._fill()

    def _park(self, process: Process, timeout: float | None = None) -> None:
        """Wait at the gate, carrying out orders meanwhile."""
        while True:
            if process.order:
                self._carry_out(process)
                continue
            if not process.parked:
                return
            if self._lookout is not None and timeout is None and self._listen(process, self._lookout):
                continue
            try:
                if process.gate.wait(timeout):
                    continue
                advice = "Next: wait longer, or without a timeout; status() tells who waits for whom."
                raise TimeoutError(f"{process.label} waited {timeout} s for {process.blocked_at}; it has not come. {advice}")
            except BaseException:  # a time-out or an interrupted kernel: the thread goes on without having been woken
                with self._mutex:
                    if process.parked:  # its gate stays open: it is passed at the next wait, which looks again
                        self._withdraw(process)
                        self._wake(process)
                self.flush()
                raise

    def _listen(self, process: Process, lookout: Lookout) -> bool:
        """Wait where messages come in; False when it has to be at its gate, for another rank listens or a reading thread is at work."""
        if not lookout.take_place():
            return False
        process.lookout = lookout
        try:
            lookout.listen(lambda: not process.parked or bool(process.order))
        finally:
            process.lookout = None
            lookout.leave_place()
        return not process.parked or bool(process.order)  # whoever let it go until now has not opened the gate

    def _wake(self, process: Process, timer: bool = False) -> None:
        """Under the mutex. A thread that carries out an order hears of it when it has finished that."""
        if process.ordering and not timer:
            process.woken_outside = True
            return
        if process.woken:
            return
        process.woken = True
        process.waits_for = process.blocked_at = ""
        self._running += process.counts
        if process.parked:
            process.let_go(self._held)

    def _order(self, process: Process, order: str) -> None:
        """Under the mutex: the process's own thread shall leave or come onto its device, while it goes on waiting."""
        process.order = order
        self._running += 1
        if process.parked:
            process.let_go(self._held)

    def _carry_out(self, process: Process) -> None:
        """Leave or come onto the device and report it; what the thread waits for stays what it was."""
        with self._mutex:
            order, process.order = process.order, ""
            process.ordering, process.woken_outside = True, False
            awake = process.woken  # it was resumed in the same instant in which the order came
            if awake:
                self._running -= 1  # one thread, counted twice
            process.waits_outside = waits_for = process.waits_for
            blocked_at, process.waits_for = process.blocked_at, ""
            mates = self._mates(process)
        start = self.clock.now_ns()
        coming = order == "onload"
        if coming and process.call is not None and start > process.lock_from:
            self._spans.add(process, SpanKind.LOCK, process.lock_from, start)
        moved, units = True, {}
        try:
            moved = switch(process, order, mates)
            units = self._shared_units(process, [*mates[0], *mates[1]])
        except BaseException as error:
            self.report(WorkerError.of(process.worker, process.rank, order, error, traceback.format_exc()))
        end = self.clock.now_ns()
        if moved:  # not what is there for another worker, which shares it
            self._spans.add(process, SpanKind.ONLOAD if coming else SpanKind.OFFLOAD, start, end, name=order)
        with self._mutex:
            process.ordering = False
            for other, n in units.items():
                self._engine.share(process.index, other, n)
            process.lock_from = end if coming else process.lock_from
            came = awake or process.woken_outside or (waits_for == "call" and bool(process.calls or self.stopping or process.leaving))
            process.woken = came
            process.waits_for, process.blocked_at = ("", "") if came else (waits_for, blocked_at)
            if not came:
                self._running -= 1
            self._report((process.index, Event.ONLOADED if coming else Event.OFFLOADED, -1, 0))
            if self._running == 0:
                self._quiescent()
            process.parked = not process.woken
        self.flush()

    def _mates(self, process: Process) -> tuple[list[Process], list[Process]]:
        """Under the mutex: other ranks here that have workers: those that are on their devices or about to come, and the rest."""
        found: tuple[list[Process], list[Process]] = [], []
        for other in self._processes:
            if other.instance is not None and other is not process:
                found[not self._engine.is_present(other.index)].append(other)
        return found

    def _shared_units(self, process: Process, mates: Sequence[Process]) -> dict[int, int]:
        """By processes that use a device of this one, how much of the memory of both is the same: as far as it is true of either."""
        mine, size = process.instance, process.machine.size
        found = {}
        for other in mates:
            theirs = other.instance
            if mine is not None and theirs is not None and not set(process.machine.devices).isdisjoint(other.machine.devices):
                found[other.index] = int(min(size * mine._shared(theirs), other.machine.size * theirs._shared(mine)))
        return found

    # --- the engine's instructions -------------------------------------------------------------------------
    def _apply(self, instructions: Sequence[tuple[int, int, int, int]]) -> None:
        """Under the mutex: carry out what the engine said, in the order in which it said it. Asked within (the end of a call closes a channel), after what is
        left of the one before: the engine has counted that already. Nobody goes on before all of it is done: who is resumed and shall leave its device
        knows both when it looks."""
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
                self._open(held)

    def _carry_on(self, instructions: Sequence[tuple[int, int, int, int]]) -> None:
        self._batch += 1
        for do, index, a, b in instructions:
            if do == _EXTEND:
                self._extend(a, b)
                continue
            if do == _DIVIDE:
                self._divide(a, b)
                continue
            process = self._processes[index]
            if do == _RESUME:
                self._resume(process)
            elif do == _STORE:
                self._store(process, b)
            elif do == _BOUND:
                process.bound_ns = process.lock_from = self.clock.now_ns()
                process.bound_batch = self._batch
                if process.getting:
                    self._hand_over(process, a, b)
            elif do == Do.FINISHED:
                self._finished(process)
            elif do == Do.DELAYED:
                self._delayed()
            elif do == Do.MEET:
                self.meetings.came(process)
            else:
                self._order(process, "onload" if do == Do.ONLOAD else "offload")

    def _resume(self, process: Process) -> None:
        """Under the mutex: it goes on; it has waited for its device if that is another batch of instructions than the one that has bound it."""
        if process.far:
            self._answer(process)
            return
        process.on_device = process.machine.holding and not process.drives
        process.lock_waited = process.on_device and process.bound_batch != self._batch and (process.lock_waited or process.bound_ns > 0)
        self._wake(process)

    def _bind(self, process: Process) -> None:
        """Under the mutex: the same as to carry on with BOUND, and with RESUME if it goes on; see `AtOnce.put_to_waiting` and `arrival_at_once`."""
        self._batch += 1
        process.bound_ns = process.lock_from = self.clock.now_ns()
        process.bound_batch = self._batch
        self._hand_over(process, process.machine.lo, process.machine.hi)
        if process.machine.state == "run":
            self._resume(process)

    def _open(self, held: Iterable[Gate]) -> None:
        for gate in held:
            gate.open()

    # --- nothing runs here ---------------------------------------------------------------------------------
    def _quiescent(self) -> None:
        """Under the mutex, with no thread running: settle this instant, move mock time, or find out that nothing can move."""
        while self._running == 0:
            if self._timers and self._timers[0][0] <= self.clock.now_ns():
                self._fire_timers()
            elif self._pending:
                events, self._pending = self._pending, []
                self._apply(self._engine.settle(events))
            elif self._mock is not None and self._filled_at < self.clock.now_ns() and self._fill():
                self._filled_at = self.clock.now_ns()  # once in an instant: steps of no duration would go on for ever
            elif self._timers and self._moves():
                assert self._mock is not None
                self._mock.time_ns = self._timers[0][0]
            elif not self._alone or self.stopping or not self._is_waiting() or self._engine.is_kept_waiting():
                return
            elif not self.relieve():
                self.deadlock(self.waits())
                return

    def _moves(self) -> bool:
        """Whether the flow does anything, now or later: mock time does not pass for steps of fillers alone."""
        return not self._has_fillers or any(t[2].filled is None for t in self._timers) or self._engine.is_kept_waiting()

    def _fill(self) -> bool:
        """Under the mutex, when an instant has settled: fillers may begin a step; whether any has."""
        if not self._has_fillers or self.stopping:
            return False
        self._apply(steps := self._engine.fill())
        return bool(steps)

    def _is_waiting(self) -> bool:
        """Whether anybody waits at a channel, for a device, or for what another rank gives in the middle of its call."""
        return self._engine.is_waiting() or any(p.waits_for == "value" or p.machine.state == "aside" for p in self._processes)

    def _fire_timers(self) -> None:
        now = self.clock.now_ns()
        while self._timers and self._timers[0][0] <= now:
            self._wake(heapq.heappop(self._timers)[2], timer=True)

    def _relieve(self, spared: Collection[int]) -> bool:
        """Under the mutex: let somebody exceed a capacity, but not of these channels; whether there was anybody."""
        instructions = self._engine.relieve(widen=not self._alone, spared=spared)
        self.relieved += bool(instructions)
        self._apply(instructions)
        return bool(instructions)

    # --- interrupting ------------------------------------------------------------------------------------
    def _withdraw(self, process: Process) -> None:
        """Under the mutex: take a thread out of whatever it waits in, and let it go on."""
        waits_for = process.waits_outside if process.ordering else process.waits_for
        if waits_for == "timer":
            self._timers = [t for t in self._timers if t[2] is not process]
            heapq.heapify(self._timers)
            self._wake(process)
        elif waits_for in ("value", "calls"):
            self._wake(process)
        elif waits_for == "engine":
            # The end of a call and of a switch are facts, which the engine has still to hear.
            kept = [e for e in self._pending if e[0] != process.index or e[1] not in (_PUT, _GET, _START, _ASIDE)]
            if len(kept) < len(self._pending):
                self._pending = kept
                self._wake(process)
            else:
                self._apply(self._engine.cancel(process.index))
