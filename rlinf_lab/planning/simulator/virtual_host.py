"""A host in virtual time. Its ranks follow scripts instead of running code, driven by the engine of the executors.

It is the counterpart of `runtime.host.host.Host` and keeps the same rules, so that with equal durations both write
equal spans: all who can go on do so; then all timers of the instant fire; then the engine settles the events of the
instant together; then time moves to the next timer.

`_loop` and `_apply` take a microsecond or two for each operation: integers and tuples, no closures, rows packed in
place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlinf_lab.planning.cancellation import Abandoned, wanted_now
from rlinf_lab.planning.engine.engine import NOW, Do, Event
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.plan.wait_graph import standstill
from rlinf_lab.planning.simulator.batched_puts import PutsInARow
from rlinf_lab.planning.simulator.calls import Calls
from rlinf_lab.planning.simulator.early_stop import Unwanted
from rlinf_lab.planning.simulator.messages import Flights, UnderWay
from rlinf_lab.planning.simulator.scripts import (
    GET,
    PUT,
    RUN,
    WEIGH,
    Script,
    SimCall,
    Turn,
)
from rlinf_lab.planning.simulator.state import (
    ASKING,
    BITS,
    DRIVING,
    GETTING,
    IDLE,
    LOOKING,
    PUTTING,
    RUNNING,
    SLOT,
    STARTING,
    VALUE,
    Instructions,
    Rank,
    State,
)  # fmt: skip
from rlinf_lab.planning.simulator.switches import Switches
from rlinf_lab.planning.simulator.user_loop import UserLoop
from rlinf_lab.timeline.record.batch import SPAN_STRUCT, SpanBatch
from rlinf_lab.timeline.record.span import SpanKind

_EVENT_PUT, _EVENT_GET = int(Event.PUT), int(Event.GET)
_DO_STORE, _DO_BOUND, _DO_RESUME = int(Do.STORE), int(Do.BOUND), int(Do.RESUME)
_KIND_RUN, _KIND_GET, _KIND_PUT, _KIND_LOCK = (
    int(SpanKind.RUN),
    int(SpanKind.GET),
    int(SpanKind.PUT),
    int(SpanKind.LOCK),
)


class VirtualHost:
    """All ranks of a plan in one virtual time. ``loop``: the user's. ``flights``: of messages between hosts.
    The rest: as `Simulator` has it."""

    def __init__(
        self, layout: Layout, calls: Sequence[SimCall], loop: Callable[[Turn], Script],
        switch_ns: Mapping[str, tuple[int, int]], relieve: bool,
        flights: Flights | None = None, shared: Sequence[Mapping[str, float]] = (),
    ) -> None:  # fmt: skip
        state = self.state = State(layout, calls)
        self._relieve = relieve
        self.relieved = 0
        self._round = 0
        self._switches = Switches(state, switch_ns, shared)
        self._unwanted = Unwanted(state, self._apply)
        self._under_way = None if flights is None else UnderWay(flights, state, self._apply)
        close = self._close if self._under_way is None else self._under_way.close
        self._loop_of_user = UserLoop(state, loop, self._unwanted, close, self._apply)
        self._calls = Calls(state, self._unwanted, self._loop_of_user, close)

    def run(self, iterations: int) -> SpanBatch:
        """The spans of so many iterations. Raises `DeadlockError`."""
        state = self.state
        driver = state.ranks[0]
        driver.doing, driver.method = DRIVING, state.rows.name("iteration")
        driver.send = self._loop_of_user.drive(iterations).send
        state.ready.append(driver)
        self._loop()
        if driver.doing != IDLE:
            raise standstill(state.waits())
        return state.rows.batch(c.name for c in state.layout.graph.channels if not c.is_fifo)

    def _close(self, _p: Rank, stream: int) -> None:
        """A producer of a stream has done."""
        self._apply(self.state.engine.close(stream))

    # --- the inner loop ----------------------------------------------------------------------------------------
    def _loop(self) -> None:
        """One long function on purpose. A call of its own for each step would cost a third of the speed."""
        state, apply = self.state, self._apply
        timers, ready, pending, ranks, settle = (
            state.timers,
            state.ready,
            state.pending,
            state.ranks,
            state.engine.settle,
        )
        write, pack, pop, push = state.rows.data.extend, SPAN_STRUCT.pack, heapq.heappop, heapq.heappush
        post, settle, now = pending.append, state.engine.settle, state.now
        due = now + 1 << BITS  # timers below it are due
        limit = 2 * len(ranks)  # the timers of ranks are below, that of all messages is here
        flies = self._under_way.flies if self._under_way is not None else None
        in_a_row = PutsInARow(state).done
        discarded, in_vain = state.discarded, self._unwanted.ends
        wanted = wanted_now()  # `cancellation.check`, without its calls
        while True:
            for p in ready:  # grows meanwhile
                doing = p.doing
                value = None
                if doing <= PUTTING:
                    end = now
                    if p.lock_waited:
                        end = p.bound_ns
                        if now > p.lock_from:
                            write(pack(p.lock_from, now, 0, -1, p.track, p.method, -1, p.iteration, 0, _KIND_LOCK))
                    p.since = now
                    if doing == GETTING:
                        value = p.value
                        write(
                            pack(p.start, end, 0, p.first, p.track, p.method, p.channel, p.iteration, value, _KIND_GET)
                        )
                    else:
                        write(pack(p.start, end, 0, p.first, p.track, p.method, p.channel, p.iteration, 1, _KIND_PUT))
                        if p.left:
                            if discarded and in_vain(p):
                                self._calls.end(p)
                                continue
                            p.left -= 1
                            p.start = p.lock_from = now
                            p.bound_ns, p.lock_waited = 0, False
                            post((p.index, _EVENT_PUT, p.queue, 1))
                            continue
                elif doing > RUNNING:
                    if not self._goes_on(p):
                        continue
                    if doing == LOOKING:
                        value = p.value
                try:
                    kind, channel, n, key = p.send(value)
                    while kind == PUT and not n:
                        kind, channel, n, key = p.send(0)
                except StopIteration:
                    self._calls.end(p)
                    continue
                if kind == RUN:
                    p.doing = RUNNING
                    push(timers, (now + n << BITS) + p.slot)
                    continue
                if kind > PUT:
                    self._drive_on(p, kind, channel, n)
                    continue
                if kind == PUT and discarded and in_vain(p):
                    self._calls.end(p)
                    continue
                queue, p.channel, micro_batch = p.ports.get(channel if key < 0 else (channel, key)) or state.port(
                    p, channel, key
                )
                if p.on_device and now > p.since:
                    write(pack(p.since, now, 0, -1, p.track, p.method, -1, p.iteration, 0, _KIND_RUN))
                p.start = p.lock_from = now
                p.bound_ns, p.lock_waited = 0, False
                if flies is not None and flies(p, kind, channel, key, queue, n or micro_batch):
                    continue
                if kind == GET:
                    n = n or micro_batch
                    p.doing, p.first = GETTING if n > NOW else LOOKING, -1
                    post((p.index, _EVENT_GET, queue, n))
                else:
                    p.doing, p.left, p.queue = PUTTING, n - 1, queue
                    post((p.index, _EVENT_PUT, queue, 1))
            ready.clear()
            if timers and timers[0] < due:
                while timers and timers[0] < due:
                    slot = pop(timers) & SLOT
                    if slot & 1:
                        if slot < limit:
                            self._switches.end(ranks[slot >> 1])
                        elif self._under_way is not None:
                            apply(self._under_way.land())
                    else:
                        state.wake(ranks[slot >> 1])
            elif pending:
                puts = pending[0][1] == _EVENT_PUT and (len(pending) == 1 or all(e[1] == _EVENT_PUT for e in pending))
                if puts and not discarded and in_a_row(now):
                    continue
                events = pending.copy()
                pending.clear()
                apply(settle(events))
            elif timers:
                if wanted is not None and not wanted():
                    raise Abandoned
                state.now = now = timers[0] >> BITS
                due = now + 1 << BITS
            elif (
                self._relieve
                and state.engine.is_waiting()
                and ((out := self._unwanted.relieve(ranks[0].iteration, self._loop_of_user.made)) or ready)
            ):
                self.relieved += bool(out)
                apply(out)
            else:
                return

    def _goes_on(self, p: Rank) -> bool:
        """Whether somebody who was woken between its script's operations may take up the script."""
        if p.doing == STARTING or p.doing == LOOKING:
            state = self.state
            if p.lock_waited and state.now > p.lock_from:
                state.add(p, SpanKind.LOCK, p.lock_from, state.now)
            if p.doing == LOOKING and p.value:
                row = p.start, p.bound_ns, 0, p.first, p.track, p.method, p.channel, p.iteration, p.value, _KIND_GET
                state.rows.data.extend(SPAN_STRUCT.pack(*row))
            p.since = state.now
        elif p.doing == VALUE:
            self._calls.await_values(p)
            return False
        elif p.doing == ASKING and self._under_way is not None:
            self._under_way.answered(p)
            return False
        elif p.doing >= IDLE:
            self._calls.begin(p)
            return False
        return True

    def _apply(self, instructions: Instructions) -> None:
        state = self.state
        ranks, ready, now = state.ranks, state.ready, state.now
        self._round = this = self._round + 1
        for do, index, a, b in instructions:
            p = ranks[index]
            if do == _DO_RESUME:
                p.on_device = p.machine.holding and index > 0  # the loop's own work is nobody's run
                if p.lock_waited or p.bound_ns:
                    p.lock_waited = p.on_device and p.bound_round != this
                p.value = b - a
                if p.switching:
                    p.deferred = True
                else:
                    ready.append(p)
            elif do == _DO_STORE:
                p.first = b
            elif do == _DO_BOUND:
                p.bound_ns = p.lock_from = now
                p.bound_round = this
                if b > a and (p.doing == GETTING or p.doing == ASKING or p.doing == LOOKING):
                    p.first = a
            elif do == Do.FINISHED:
                self._calls.finished(p)
            elif do <= Do.ONLOAD:
                self._switches.begin(p, coming=do == Do.ONLOAD)

    def _drive_on(self, p: Rank, kind: int, channel: Any, n: int) -> None:
        """The driver's own operations, and what any rank does without posting an event."""
        if kind == WEIGH:
            p.machine.weights = None if n < 0 else (n,)
            p.machine.ranks = None if channel is None else (channel,)
            p.doing = RUNNING
            self.state.ready.append(p)
        else:
            self._loop_of_user.does(p, kind)
