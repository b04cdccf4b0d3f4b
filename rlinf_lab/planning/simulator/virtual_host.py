"""A host in virtual time: ranks that follow scripts instead of running code, driven by the engine of the executors.

It is the counterpart of `runtime.host.host.Host` and keeps the same rules, so that with equal durations both write
equal spans: all who can go on do so; then all timers of the instant fire; then the engine settles the events of the
instant together; then time moves to the next timer.

`_loop` and `_apply` take a microsecond or two for each operation: integers and tuples, no closures, rows packed in
place.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rlinf_lab.errors import DeadlockError, PlanError, WorkflowError
from rlinf_lab.planning.cancellation import Abandoned, wanted_now
from rlinf_lab.planning.engine.engine import ALL, NOW, Do, Event
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.plan.wait_graph import Wait, standstill
from rlinf_lab.planning.simulator.batched_puts import PutsInARow
from rlinf_lab.planning.simulator.early_stop import Unwanted
from rlinf_lab.planning.simulator.messages import Flights, UnderWay
from rlinf_lab.planning.simulator.ranks import (
    ASKING,
    AWAITING,
    DRIVING,
    ENDING,
    FILLING,
    GETTING,
    IDLE,
    LOOKING,
    PUTTING,
    RUNNING,
    STARTING,
    VALUE,
    Iteration,
    Rank,
    next_of,
)  # fmt: skip
from rlinf_lab.planning.simulator.scripts import (
    CALL,
    GAP,
    GET,
    PUT,
    RUN,
    WAIT,
    WEIGH,
    Outage,
    Script,
    SimCall,
    SimFiller,
    Turn,
    Turnover,
)
from rlinf_lab.planning.simulator.shared_weights import HeldTogether
from rlinf_lab.planning.simulator.span_buffer import Rows
from rlinf_lab.timeline.record.batch import SPAN_STRUCT, SpanBatch
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER

# Operations of the driver's own script, beside those that workers have.
_BEGIN, _AWAIT, _END = 5, 6, 7

# A timer is one integer: its time, then what it is for. An even slot is the timer of a rank, an odd one a switch of it;
# behind those of all ranks come those that come and go (even), and one for all messages (odd).
_BITS = 32
_SLOT = (1 << _BITS) - 1

_EVENT_PUT, _EVENT_GET = int(Event.PUT), int(Event.GET)
_DO_STORE, _DO_BOUND, _DO_RESUME = int(Do.STORE), int(Do.BOUND), int(Do.RESUME)
_KIND_RUN, _KIND_GET, _KIND_PUT, _KIND_LOCK = (
    int(SpanKind.RUN),
    int(SpanKind.GET),
    int(SpanKind.PUT),
    int(SpanKind.LOCK),
)

Stored = Callable[[str, int, int], None]


class VirtualHost:
    """All ranks of a plan in one virtual time. ``switch_ns``: for each worker the nanoseconds to (onload, offload).
    ``flights``: of messages between hosts. ``stored(worker, rank, number)``: told when an item of that rank's put has
    entered its queue, with its number there. ``shared``: as `Simulator` has it."""

    def __init__(
        self, layout: Layout, calls: Sequence[SimCall], loop: Callable[[Turn], Script],
        switch_ns: Mapping[str, tuple[int, int]], relieve: bool,
        outages: Sequence[Outage] = (), fillers: Sequence[SimFiller] = (), turnover: Sequence[Turnover] = (),
        flights: Flights | None = None,
        stored: Stored | None = None, shared: Sequence[Mapping[str, float]] = (),
    ) -> None:  # fmt: skip
        self._stored = stored
        self.layout, self.calls, self.loop = layout, list(calls), loop
        self._switch_ns = switch_ns
        self._relieve = relieve
        self.relieved = 0
        self.rows = Rows()
        self.now = 0
        self._engine = layout.new_engine()
        self._timers: list[int] = []
        self._pending: list[tuple[int, int, int, int]] = []
        self._ready: list[Rank] = []
        self._streams: dict[tuple[str, int, int], int] = {}
        self._queues: dict[tuple[str, int, int, int], int] = {}
        # (iteration, position): who waits; None: it is there
        self._values: dict[tuple[int, int], list[Rank] | None] = {}
        self._open: dict[int, Iteration] = {}
        self._made: list[int] = []  # positions of the calls that the loop has made in its present iteration
        self._sealed: set[str] = set()
        self._is_there: Callable[[], bool] = bool  # whether what the loop waits for has come
        self._round = 0
        self.ranks: list[Rank] = []
        for worker, rank in layout.members:
            index = layout.add_process(self._engine, worker, rank)
            track = self.rows.track(worker, rank, layout.device_names(worker, rank))
            self.ranks.append(Rank(worker, rank, index, track, self._engine.processes[index]))
            names = layout.device_names(worker, rank)
            self.ranks[-1].away = sorted((o.start_ns, o.end_ns, o.lost) for o in outages if o.device in names)
        self._of: dict[str, list[Rank]] = {}
        for p in self.ranks:
            self._of.setdefault(p.worker, []).append(p)
        self._held = HeldTogether(self._engine, {(p.worker, p.rank): p.index for p in self.ranks}, shared)
        self._fillers = [p for f in fillers for p in self._of[f.spec.name]]
        self._scripts = {f.spec.name: f.script for f in fillers}
        self._filled_at = -1
        self._unwanted = Unwanted(layout.graph, self.calls, self._engine, self._queues, self._apply)
        self._absent = set(layout.absent)
        self._turnover = sorted(turnover, key=lambda t: t.at_ns)
        self._elastic = bool(turnover or layout.absent)
        # (iteration, position): the ranks that take part, first those that began
        self._takers: dict[tuple[int, int], list[int]] = {}
        self._began: dict[tuple[int, int], int] = {}  # how many those are
        self._shards = {c.name: layout.sharded(c.name) for c in layout.graph.channels}
        self._shared = {c.name: layout.is_shared(c.name) for c in layout.graph.channels}
        self._keyed = {c.name: c.keyed for c in layout.graph.channels}
        self._capacities = {c.name: layout.capacity(c.name) for c in layout.graph.channels}
        self._under_way = None if flights is None else UnderWay(flights, self._engine, self.rows.data)
        self._askers: dict[int, Rank] = {} if flights is None else {p.index: self._asker(p) for p in list(self.ranks)}
        self._micro_batches = {
            c.name: ALL if (n := layout.plan.micro_batch(c.name)) == ALL else -n for c in layout.graph.channels
        }

    def run(self, iterations: int) -> SpanBatch:
        """The spans of so many iterations. Raises `DeadlockError`."""
        driver = self.ranks[0]
        driver.doing, driver.method = DRIVING, self.rows.name("iteration")
        driver.send = self._drive(iterations).send
        self._ready.append(driver)
        for p in self._fillers:
            p.doing, p.method, p.send = FILLING, self.rows.name(self.layout.filler[p.worker].method), self._fill(p).send
            self._ready.append(p)
        self._timers = [(t.at_ns << _BITS) + 2 * (len(self.ranks) + i) for i, t in enumerate(self._turnover)]
        self._loop()
        if driver.doing != IDLE:
            raise self._deadlock()
        return self.rows.batch(c.name for c in self.layout.graph.channels if not c.is_fifo)

    def _clock(self) -> int:
        return self.now

    # --- the driver ----------------------------------------------------------------------------------------
    def _drive(self, iterations: int) -> Generator[tuple[int, Any, int, int], Any, None]:
        """The user's loop: its own script, once for each iteration; when there are too many of them, it waits for the
        oldest.
        """
        staleness = self.layout.plan.staleness
        for iteration in range(iterations):
            yield from self._until(partial(self._are_over, iteration - staleness - 1))
            yield from self._body(iteration)
        yield from self._until(lambda: not self._open)

    def _body(self, iteration: int) -> Generator[tuple[int, Any, int, int], Any, None]:
        driver, made = self.ranks[0], Iteration(self.now)
        driver.iteration, driver.ports = iteration, {}
        self._open[iteration], self._made, self._sealed = made, [], set()
        self._engine.begin(iteration)
        yield (_BEGIN, None, 0, 0)
        script, got = self.loop(Turn(0, iteration, 0, 1, self._clock)), None
        while (op := next_of(script, got)) is not None:
            got = None
            kind, channel, number, rank = op
            if kind == CALL:
                self._submit(iteration, number)
            elif kind == WAIT:
                self._seal(iteration, self._above(self.calls[number].reads))
                yield from self._until(partial(self._has_ended, iteration, number, rank == 0))
            else:
                if kind == GET:
                    self._seal(iteration, self._above((channel,)))
                elif kind == PUT and channel in self._sealed:
                    fault = "after it has waited for something that may depend on its end. Next: put before."
                    raise WorkflowError(f"The script of the loop puts into {channel!r} {fault}")
                got = yield op
        self._seal(iteration, set(self.layout.graph_channels()))
        made.in_body = False
        self._look(iteration)
        yield (_END, None, 0, 0)

    def _until(self, is_there: Callable[[], bool]) -> Generator[tuple[int, Any, int, int], Any, None]:
        self._is_there = is_there
        while not is_there():
            yield (_AWAIT, None, 0, 0)

    def _has_ended(self, iteration: int, number: int, part: bool) -> bool:
        """A call of this iteration; ``part``: on rank 0."""
        return number not in self._open[iteration].unended or (
            part and self._values.get((iteration, number), ()) is None
        )

    def _are_over(self, latest: int) -> bool:
        """This iteration and all before it."""
        return all(iteration > latest for iteration in self._open)

    def _look(self, iteration: int) -> None:
        """Write down the end of an iteration when it has come."""
        made = self._open[iteration]
        if not made.in_body and not made.unended:
            driver = self.ranks[0]
            self.rows.add(driver.track, SpanKind.MARK, driver.method, made.start, self.now, iteration)
            del self._open[iteration]
            self._engine.over(iteration)
            self._retire(iteration)

    def _submit(self, iteration: int, number: int) -> None:
        call = self.calls[number]
        members = (
            [p for p in self._of[call.worker] if (p.worker, p.rank) not in self._absent]
            if self._absent
            else self._of[call.worker]
        )
        self._made.append(number)
        if self._elastic:
            self._takers[iteration, number], self._began[iteration, number] = [p.rank for p in members], len(members)
        self._open[iteration].unended[number] = len(members)
        for position, p in enumerate(members):
            asked = self._unwanted.asked_by(p, self._open)
            p.calls.append((number, call, Turn(p.rank, iteration, position, len(members), self._clock, *asked)))
            if p.doing == IDLE and len(p.calls) == 1:  # woken once, however many calls it gets
                self._wake(p)

    def _above(self, channels: Iterable[str]) -> set[str]:
        """These channels and all from which they are fed: no producer can come any more once the loop waits
        for them.
        """
        found: set[str] = set()
        open_ = list(channels)
        while open_:
            channel = open_.pop()
            if channel not in found:
                found.add(channel)
                open_ += [c for i in self._made if channel in self.calls[i].writes for c in self.calls[i].reads]
        return found

    def _seal(self, iteration: int, channels: set[str]) -> None:
        new = sorted(channels - self._sealed)
        self._sealed.update(new)
        expected = dict.fromkeys(new, 0)
        for i in self._made:
            for channel in self.calls[i].writes:
                if channel in expected:
                    expected[channel] += self._closes(channel, iteration, i)
        for channel in new:
            if DRIVER in self.layout.graph.producers(channel):
                expected[channel] += 1
                self._close(self.ranks[0], self._stream(channel, iteration, 0))
        for channel in new:
            for shard in range(self.layout.shards(channel)):
                self._apply(self._engine.seal(self._stream(channel, iteration, shard), expected[channel]))

    def _closes(self, channel: str, iteration: int, number: int) -> int:
        """How many producers of one queue a call stands for."""
        if not self._elastic or self._shards[channel]:
            return self.layout.closes(channel, self.calls[number].worker)
        return self._began[iteration, number]

    def _retire(self, iteration: int) -> None:
        """Forget what belonged to an iteration that is over."""
        for queue in [name for name in self._queues if name[1] == iteration]:
            self._engine.forget_channel(self._queues.pop(queue))
        for stream in [name for name in self._streams if name[1] == iteration]:
            self._engine.forget_stream(self._streams.pop(stream))
        self._values = {key: waiters for key, waiters in self._values.items() if key[0] != iteration}
        self._takers = {key: ranks for key, ranks in self._takers.items() if key[0] != iteration}
        self._unwanted.retire(iteration)

    # --- channels --------------------------------------------------------------------------------------------
    def _stream(self, channel: str, iteration: int, shard: int) -> int:
        name = (channel, iteration, shard)
        if name not in self._streams:
            self._streams[name] = self._engine.open_stream(
                self._capacities[channel], name, self.layout.graph.channel(channel).whole
            )
        return self._streams[name]

    def _port(self, p: Rank, channel: str, key: int) -> tuple[int, int, int]:
        """Queue, number of the channel's name and micro-batch, remembered for the rest of the call."""
        if self._keyed[channel] != (key >= 0):
            need = (
                "is keyed. Next: give key="
                if self._keyed[channel]
                else "has no keys. Next: leave key= out, or declare it keyed=True"
            )
            raise WorkflowError(f"The script of {p.label}: channel {channel!r} {need}.")
        name = (channel, p.iteration, p.rank if self._shards[channel] else 0, key)
        if name not in self._queues:
            spec = self.layout.graph.channel(channel)
            self._queues[name] = self._engine.open_channel(
                self._stream(*name[:3]), own=not self._shared[channel], order=spec.taken_by, group=spec.gathered
            )
            if name[:2] in self._unwanted.discarded:
                self._engine.abandon(self._queues[name])
        port = p.ports[channel if key < 0 else (channel, key)] = (
            self._queues[name],
            self.rows.name(channel),
            self._micro_batches[channel],
        )
        return port

    # --- calls -------------------------------------------------------------------------------------------------
    def _begin(self, p: Rank) -> None:
        """Take up the next call, if there is one."""
        if not p.calls:
            p.doing = IDLE
            if p.ends:
                p.ends = False
                self._engine.vacate(p.index)
            return
        p.number, p.call, turn = p.calls.popleft()
        p.iteration, p.method, p.ports = turn.iteration, self.rows.name(p.call.method), {}
        p.machine.part = self.layout.part(
            p.worker, turn.position, self._began.get((turn.iteration, p.number), turn.count)
        )
        p.send = p.call.script(turn).send
        p.waits_for, p.start = list(p.call.after), self.now
        self._await_values(p)

    def _await_values(self, p: Rank) -> None:
        while p.waits_for:
            waiting = self._values.setdefault((p.iteration, p.waits_for.pop(0)), [])
            if waiting is not None:
                waiting.append(p)
                p.doing = VALUE
                return
        assert p.call is not None
        if p.call.after and self.now > p.start:
            self._add(p, SpanKind.WAIT, p.start, self.now)
        p.bound_ns, p.lock_waited, p.lock_from = 0, True, self.now
        p.doing = STARTING
        self._pending.append((p.index, Event.START, p.iteration, int(p.call.starts_on_device)))

    def _end(self, p: Rank) -> None:
        """The script is over."""
        if p.on_device and self.now > p.since:
            self._add(p, SpanKind.RUN, p.since, self.now)
        if p.worker == DRIVER or p.worker in self._scripts:
            p.doing = IDLE
            return
        p.bound_ns, p.doing = 0, ENDING
        self._pending.append((p.index, Event.DONE, -1, 0))

    def _finished(self, p: Rank) -> None:
        p.on_device = False
        call, p.call = p.call, None
        if call is not None:
            for channel in call.writes:
                self._close(p, self._stream(channel, p.iteration, p.rank if self._shards[channel] else 0))
            if p is self._of[p.worker][0]:
                for waiter in self._values.get((p.iteration, p.number)) or ():
                    self._wake(waiter)
                self._values[p.iteration, p.number] = None
            unended = self._open[p.iteration].unended
            unended[p.number] -= 1
            if not unended[p.number]:
                del unended[p.number]
                self._unwanted.look(p.iteration, self._open[p.iteration])
                self._look(p.iteration)
            driver = self.ranks[0]
            if driver.doing == AWAITING and self._is_there():
                driver.doing = DRIVING  # woken once
                self._wake(driver)
        elif (made := self._open.get(p.iteration)) is not None:  # the loop's own
            made.all_known = True
            self._unwanted.look(p.iteration, made)
        self._wake(p)

    def _wake(self, p: Rank) -> None:
        if p.switching:
            p.deferred = True
        else:
            self._ready.append(p)

    def _add(self, p: Rank, kind: SpanKind, start: int, end: int, name: str = "") -> None:
        text = name or (p.call.method if p.call is not None else p.worker)
        self.rows.add(p.track, kind, self.rows.name(text), start, end, p.iteration if p.call is not None else -1)

    # --- the inner loop ----------------------------------------------------------------------------------------
    def _loop(self) -> None:
        """One long function on purpose: a call of its own for each step would cost a third of the speed."""
        timers, ready, settle, apply, ranks = self._timers, self._ready, self._engine.settle, self._apply, self.ranks
        write, pack, pop, push = self.rows.data.extend, SPAN_STRUCT.pack, heapq.heappop, heapq.heappush
        pending: list[tuple[int, int, int, int]] = self._pending
        post = pending.append
        now = self.now
        due = now + 1 << _BITS  # timers below it are due
        limit = 2 * len(ranks)  # the timers of ranks are below, those of their coming and going from here on
        flies = self._flies if self._under_way is not None else None
        in_a_row = (
            None if self._stored is not None else PutsInARow(self._engine, ranks, pending, ready, self.rows.data).done
        )
        discarded, in_vain = self._unwanted.discarded, self._unwanted.ends
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
                            if discarded and in_vain(p, self._open):
                                self._end(p)
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
                    self._end(p)
                    continue
                if kind == RUN:
                    p.doing = RUNNING
                    push(timers, ((now + n if not p.away else self._around(p, n)) << _BITS) + p.slot)
                    continue
                if kind > PUT:
                    self._drive_on(p, kind, channel, n)
                    continue
                if kind == PUT and discarded and in_vain(p, self._open):
                    self._end(p)
                    continue
                queue, p.channel, micro_batch = p.ports.get(channel if key < 0 else (channel, key)) or self._port(
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
                    post((p.index, _EVENT_GET, queue, 0 if p.ends and n != ALL and self._is_streamed(p.call) else n))
                else:
                    p.doing, p.left, p.queue = PUTTING, n - 1, queue
                    post((p.index, _EVENT_PUT, queue, 1))
            ready.clear()
            if timers and timers[0] < due:
                while timers and timers[0] < due:
                    slot = pop(timers) & _SLOT
                    if slot & 1:
                        if slot < limit:
                            self._switched(ranks[slot >> 1])
                        elif self._under_way is not None:
                            apply(self._under_way.land(now))
                    elif slot < limit:
                        self._wake(ranks[slot >> 1])
                    else:
                        self._turn_over(self._turnover[(slot - limit) >> 1])
            elif pending:
                puts = pending[0][1] == _EVENT_PUT and (len(pending) == 1 or all(e[1] == _EVENT_PUT for e in pending))
                if puts and in_a_row and not discarded and in_a_row(now):
                    continue
                events = pending.copy()
                pending.clear()
                apply(settle(events))
            elif self._fillers and self._filled_at < now and (steps := self._engine.fill()):
                self._filled_at = now
                apply(steps)
            elif timers and (not self._fillers or self._moves()):
                if wanted is not None and not wanted():
                    raise Abandoned
                self.now = now = timers[0] >> _BITS
                due = now + 1 << _BITS
            elif (
                self._relieve
                and self._engine.is_waiting()
                and ((out := self._unwanted.relieve(self.ranks[0].iteration, self._open, self._made)) or ready)
            ):
                self.relieved += bool(out)
                apply(out)
            else:
                return

    def _around(self, p: Rank, n: int) -> int:
        """When a run of ``n`` nanoseconds that begins now ends, around the times at which a device of the rank is away;
        writes those down.
        """
        at, left = self.now, n
        for start, end, lost in p.away:
            if end <= at or not p.on_device:
                continue
            if start >= at + left:
                break
            begin = max(at, start)
            if begin > p.since:
                self._add(p, SpanKind.RUN, p.since, begin)
            self._add(p, SpanKind.LOCK, begin, end)
            left = n if lost else left - (begin - at)
            at = p.since = end
        return at + left

    def _goes_on(self, p: Rank) -> bool:
        """Whether somebody who was woken between its script's operations may take up the script."""
        if p.doing == STARTING or p.doing == LOOKING:
            if p.lock_waited and self.now > p.lock_from:
                self._add(p, SpanKind.LOCK, p.lock_from, self.now)
            if p.doing == LOOKING and p.value:
                row = p.start, p.bound_ns, 0, p.first, p.track, p.method, p.channel, p.iteration, p.value, _KIND_GET
                self.rows.data.extend(SPAN_STRUCT.pack(*row))
            p.since = self.now
        elif p.doing == VALUE:
            self._await_values(p)
            return False
        elif p.doing == ASKING:
            self._answered(p)
            return False
        elif p.doing >= IDLE:
            self._begin(p)
            return False
        return True

    def _apply(self, instructions: list[tuple[int, int, int, int]]) -> None:
        ranks, ready, now = self.ranks, self._ready, self.now
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
                if self._stored is not None:
                    self._stored(p.worker, p.rank, b)
            elif do == _DO_BOUND:
                p.bound_ns = p.lock_from = now
                p.bound_round = this
                if b > a and (p.doing == GETTING or p.doing == ASKING or p.doing == LOOKING):
                    p.first = a
            elif do == Do.FINISHED:
                self._finished(p)
            elif do <= Do.ONLOAD:
                self._switch(p, coming=do == Do.ONLOAD)

    def _drive_on(self, driver: Rank, kind: int, channel: Any, n: int) -> None:
        """The driver's own operations, and what any rank does without posting an event."""
        if kind == WEIGH:
            driver.machine.weights = None if n < 0 else (n,)
            driver.machine.ranks = None if channel is None else (channel,)
            driver.doing = RUNNING
            self._ready.append(driver)
            return
        if kind == GAP:
            driver.doing = FILLING
            return
        driver.doing = AWAITING if kind == _AWAIT else DRIVING
        if kind == _BEGIN:
            self._pending.append((driver.index, Event.START, driver.iteration, 0))
        elif kind == _END:
            self._pending.append((driver.index, Event.DONE, -1, 0))

    # --- messages ----------------------------------------------------------------------------------------------
    def _asker(self, p: Rank) -> Rank:
        """Who stands in line for a rank at the queues of other hosts."""
        machine = self._engine.processes[self._engine.add_process()]
        machine.state = "run"
        self.ranks.append(Rank(p.worker, p.rank, machine.index, p.track, machine))
        self.ranks[-1].doing = ASKING
        return self.ranks[-1]

    def _flies(self, p: Rank, kind: int, channel: str, key: int, queue: int, n: int) -> bool:
        """Whether what a rank does at a channel is a message. Then it is on its way."""
        under_way = self._under_way
        assert under_way is not None
        way = under_way.way(p, channel, key, kind)
        if not way or (kind == PUT and not under_way.has_room(queue, n)):
            return False
        shard = p.rank if self._shards[channel] else 0
        stream = self._stream(channel, p.iteration, shard)
        if kind == PUT:
            self._later(under_way.send(p, queue, stream, n, self.now, way))
            p.doing, p.since = RUNNING, self.now
            self._ready.append(p)
            return True
        asker, name = self._askers[p.index], (channel, p.iteration, shard, -2 - p.index)
        if name not in self._queues:
            self._queues[name] = self._engine.open_channel(stream, stub=True)
        asker.queue, asker.since, asker.first, asker.left = self._queues[name], way, 0, p.index
        asker.machine.part = p.machine.part
        p.doing, p.first = GETTING, -1
        self._pending.append((p.index, _EVENT_GET, asker.queue, n))
        self._later(under_way.ask(asker, queue, n, self.now, way, self._pending.append))
        return True

    def _answered(self, asker: Rank) -> None:
        """Items for the rank for which it stood in line, or their end."""
        assert self._under_way is not None
        p = self.ranks[asker.left]
        self._later(self._under_way.answer(p, asker.queue, asker.first, asker.value, self.now, asker.since))

    def _close(self, p: Rank, stream: int) -> None:
        """A producer of a stream has done."""
        when, instructions = (
            (0, self._engine.close(stream)) if self._under_way is None else self._under_way.close(p, stream, self.now)
        )
        self._apply(instructions)
        if when:
            self._later(when)

    def _later(self, when: int) -> None:
        """Messages arrive at that moment."""
        heapq.heappush(self._timers, (when << _BITS) + 2 * len(self.ranks) + 1)

    # --- fillers -----------------------------------------------------------------------------------------------
    def _fill(self, p: Rank) -> Script:
        """One step after another, each in a gap."""
        event = Event.START
        for op in self._scripts[p.worker](p.rank):
            if op[0] == RUN:
                yield op
                self.rows.add(p.track, SpanKind.RUN, p.method, p.since, self.now, -1)
                event = Event.DONE
                p.on_device = False
            else:
                self._pending.append((p.index, event, -1, 1))
                yield op
                p.since = self.now
        if event == Event.DONE:
            self._pending.append((p.index, event, -1, 0))

    def _moves(self) -> bool:
        """Whether the flow does anything, now or later: time does not pass for steps of fillers alone."""
        return len(self._timers) > sum(p.doing == RUNNING for p in self._fillers) or self._engine.is_kept_waiting()

    # --- switching ---------------------------------------------------------------------------------------------
    def _switch(self, p: Rank, coming: bool) -> None:
        """The rank leaves or comes while it goes on waiting. A timer stands for its own thread doing so."""
        p.switching, p.coming, p.switch_from = True, coming, self.now
        if p in self._ready:  # resumed in this very instant: it switches first
            self._ready.remove(p)
            p.deferred = True
        if coming and p.call is not None and self.now > p.lock_from:
            self._add(p, SpanKind.LOCK, p.lock_from, self.now)
        onload, offload = self._switch_ns.get(p.worker, (0, 0))
        end, p.moves = self._held.switched(p.machine, coming, onload if coming else offload, self.now)
        heapq.heappush(self._timers, (end << _BITS) + p.slot + 1)

    def _switched(self, p: Rank) -> None:
        kind, name = (SpanKind.ONLOAD, "onload") if p.coming else (SpanKind.OFFLOAD, "offload")
        if p.moves:
            self._add(p, kind, p.switch_from, self.now, name)
        if p.coming:
            p.lock_from = self.now
        self._pending.append((p.index, Event.ONLOADED if p.coming else Event.OFFLOADED, -1, 0))
        p.switching = False
        if p.deferred:
            p.deferred = False
            self._ready.append(p)

    # --- ranks that come and go (the rules of `runtime.host.elastic.turnover`) ----------------------------------------
    def _turn_over(self, change: Turnover) -> None:
        member = change.worker, change.rank
        p = self._of[change.worker][change.rank]
        if change.comes != (member in self._absent) or (change.comes and p.ends):
            state = "has not left yet" if p.ends else "is not there" if member in self._absent else "is there already"
            raise PlanError(f"{change}: {p.label} {state} at {self.now} ns. Next: absent=..., or another time.")
        if change.comes:
            self._absent.discard(member)
            for iteration, number in list(self._takers):
                self._take_in(p, iteration, number)
            return
        self._absent.add(member)
        p.ends = True
        if p.doing == GETTING and self._is_streamed(p.call):
            mine = [e for e in self._pending if e[0] == p.index and e[1] == _EVENT_GET]
            if any(e[3] == ALL for e in mine) or self._engine.waits_for_all(p.index):
                return  # nobody else gets its share
            if mine:  # of this very instant
                self._pending[self._pending.index(mine[0])] = (*mine[0][:3], 0)
            elif self._engine.is_getting(p.index):
                self._apply(self._engine.dismiss(p.index))
        elif p.doing == IDLE:
            self._wake(p)

    def _take_in(self, p: Rank, iteration: int, number: int) -> None:
        """A rank that has come takes part in a call under way, if that can take it in."""
        call, takers = self.calls[number], self._takers[iteration, number]
        unended = self._open[iteration].unended
        if call.worker != p.worker or p.rank in takers or number not in unended or not self._is_streamed(call):
            return
        streams = [self._stream(channel, iteration, 0) for channel in dict.fromkeys(call.writes)]
        admitted = [stream for stream in streams if self._engine.admit(stream)]
        if len(admitted) < len(streams):
            for stream in admitted:
                self._apply(self._engine.close(stream))
            return
        takers.append(p.rank)
        unended[number] += 1
        asked = self._unwanted.asked_by(p, self._open)
        p.calls.append((number, call, Turn(p.rank, iteration, len(takers) - 1, len(takers), self._clock, *asked)))
        if p.doing == IDLE and len(p.calls) == 1:
            self._wake(p)

    def _is_streamed(self, call: SimCall | None) -> bool:
        """Whether the ranks of a call take items one by one from one channel that they share."""
        if call is None or len(call.reads) != 1 or call.after:
            return False
        spec = self.layout.graph.channel(call.reads[0])
        return not spec.keyed and not spec.whole and not any(self._shards[c] for c in (*call.reads, *call.writes))

    # --- looking -----------------------------------------------------------------------------------------------
    def _deadlock(self) -> DeadlockError:
        return standstill(self._waits())

    def _waits(self) -> list[Wait]:
        """Who waits for what, and whom."""
        names, graph = {queue: name[0] for name, queue in self._queues.items()}, self.layout.graph
        found = []
        for index, why, where in self._engine.waiting():
            p = self.ranks[index]
            if why == "lock":
                holder = self._engine.holder(where)
                on, what = [] if holder is None else [self.ranks[holder].label], self.layout.plan.devices[where]
            else:
                others = graph.producers(names[where]) if why == "get" else graph.consumers(names[where])
                on, what = [w for w in others if w != p.worker] or list(others), f"channel {names[where]!r}"
            found.append(Wait(p.label, f"{what} ({why})", tuple(on)))
        for p in self.ranks:
            if p.doing == VALUE:
                found.append(
                    Wait(
                        p.label, "the value of a call", tuple(dict.fromkeys(self.calls[i].worker for i in p.waits_for))
                    )
                )
        return found
