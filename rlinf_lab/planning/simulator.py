"""The engine in virtual time: the same scheduler that runs the workers, fed with durations instead of work.

A call is described by a *script*: a generator that yields what the method would do, and receives how many items each get
brought. `run(ns)` occupies the device, `get` and `put` use channels. With the durations that the workers really
have, the simulated timeline is equal to that of the local executor with a mock clock, span by span (`tests/planning`).

>>> def double(rank):
...     while n := (yield get("numbers")):
...         yield run(2_000_000 * n)
...         yield put("doubled", n)
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_lab.errors import DeadlockError, PlanError, WorkflowError
from rlinf_lab.planning.engine import ALL, Do, Event
from rlinf_lab.planning.layout import Layout, checked_layout
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.timeline.recorder import Recorder
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER, WorkflowGraph

RUN, GET, PUT = 0, 1, 2
Op = tuple[int, Any, int, int]
Script = Generator[Op, int, None]


def run(duration_ns: int) -> Op:
    """Occupy the devices for so many nanoseconds."""
    if not isinstance(duration_ns, int) or duration_ns < 0:
        raise WorkflowError(f"run({duration_ns!r}): a duration is a whole number of nanoseconds, not negative.")
    return (RUN, None, duration_ns, -1)


def get(channel: str, n: int | None = None, key: int = -1) -> Op:
    """Take items: ``n`` of them, ``None`` for a chunk of the plan, `engine.ALL` for everything. Yields how many came."""
    return (GET, channel, 0 if n is None else n, key)


def put(channel: str, n: int = 1, key: int = -1) -> Op:
    """Hand over ``n`` items one after another."""
    return (PUT, channel, n, key)


@dataclass(frozen=True)
class SimCall:
    """One call of an iteration. ``script(rank)`` makes the generator; ``after``: positions of calls whose value it needs."""

    worker: str
    method: str
    script: Callable[[int], Script]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    starts_on_device: bool = True


@dataclass(eq=False, slots=True)
class _Process:
    worker: str
    rank: int
    index: int
    track: int
    calls: deque[tuple[int, SimCall, int]] = field(default_factory=deque)
    life: Generator[Any, int, None] | None = None
    waits_for: str = ""
    result: int = 0
    call: SimCall | None = None
    iteration: int = -1
    getting: bool = False
    first: int = -1
    bound_ns: int = 0
    bound_round: int = -1
    lock_from: int = 0
    lock_waited: bool = False
    since: int = 0
    on_device: bool = False
    switching: bool = False
    deferred: list[int] = field(default_factory=list)  # woken while it switches: goes on after that


class Simulator:
    """Runs scripts under a plan in virtual time.

    ``switch_ns``: for each worker (onload, offload) in nanoseconds, paid when the plan's memory makes it leave the device.
    ``relieve``: let a channel exceed its capacity when nothing else can move (as the executors do); False raises instead.
    """

    def __init__(
        self, graph: WorkflowGraph, plan: ExecutionPlan, switch_ns: Mapping[str, tuple[int, int]] | None = None, relieve: bool = True
    ) -> None:
        self.layout: Layout = checked_layout(graph, plan)
        self._switch_ns = dict(switch_ns or {})
        self._relieve = relieve
        self.relieved = 0

    def simulate(self, calls: Sequence[SimCall], iterations: int = 1) -> Timeline:
        """``iterations`` times the calls of one iteration, with a barrier between iterations. Raises `DeadlockError`."""
        if iterations < 1:
            raise PlanError(f"simulate(iterations={iterations}): at least one.")
        self._prepare(calls)
        for iteration in range(iterations):
            self._iteration(iteration)
        timeline = Timeline(self.layout.plan.devices)
        timeline.extend(self._recorder.drain())
        return timeline

    # --- setting up --------------------------------------------------------------------------------------
    def _prepare(self, calls: Sequence[SimCall]) -> None:
        self._calls = list(calls)
        for call in self._calls:
            self.layout.graph.node(call.worker)
            for channel in (*call.reads, *call.writes):
                self.layout.graph.channel(channel)
        self.now = 0
        self._recorder = Recorder("simulated", self)
        self._names = self._recorder.name
        self._engine = self.layout.new_engine()
        self._timers: list[tuple[int, int, Any]] = []
        self._pending: list[tuple[int, int, int, int]] = []
        self._ready: deque[tuple[_Process, int]] = deque()
        self._streams: dict[tuple[str, int, int], int] = {}
        self._queues: dict[tuple[str, int, int, int], int] = {}
        self._values: dict[tuple[int, int], list[_Process] | None] = {}
        self._round = 0
        self._outstanding = 0
        self._processes: list[_Process] = []
        for worker, rank in self.layout.members:
            index = self.layout.add_process(self._engine, worker, rank)
            track = self._recorder.track(worker, rank, self.layout.device_names(worker, rank))
            self._processes.append(_Process(worker, rank, index, track))
        for p in self._processes[1:]:
            p.life = self._life(p)
            self._advance(p, 0)

    def now_ns(self) -> int:
        return self.now

    def _iteration(self, iteration: int) -> None:
        """The driver: start, submit, seal, wait for all, end."""
        start, driver = self.now, self._processes[0]
        self._outstanding = 0
        driver.life = self._drive(iteration)
        self._advance(driver, 0)
        self._loop()
        if driver.life is not None:
            raise DeadlockError("Nothing can move any more:\n" + "\n".join(f"  {line}" for line in self._waits()))
        self._recorder.add(driver.track, SpanKind.MARK, self._names("iteration"), start, self.now, iteration)
        self._streams.clear()
        self._queues.clear()
        self._values.clear()

    def _drive(self, iteration: int) -> Generator[Any, int, None]:
        driver = self._processes[0]
        yield ("event", (driver.index, Event.START, -1, 0))
        expected: dict[str, int] = {}
        for number, call in enumerate(self._calls):
            for p in self._processes:
                if p.worker == call.worker:
                    self._outstanding += 1
                    p.calls.append((number, call, iteration))
                    if p.waits_for == "call":
                        self._wake(p, 0)
            for channel in call.writes:
                expected[channel] = expected.get(channel, 0) + self.layout.closes(channel, call.worker)
        for channel, count in sorted(expected.items()):
            for shard in range(self.layout.shards(channel)):
                self._apply(self._engine.seal(self._stream(channel, iteration, shard), count))
        if self._outstanding:
            yield ("wait", "calls")
        yield ("event", (driver.index, Event.DONE, -1, 0))

    # --- the life of a rank ----------------------------------------------------------------------------
    def _life(self, p: _Process) -> Generator[Any, int, None]:
        while True:
            while not p.calls:
                yield ("wait", "call")
            number, call, p.iteration = p.calls.popleft()
            p.call = call
            start = self.now
            for other in call.after:
                waiting = self._values.setdefault((other, 0), [])
                if waiting is not None:
                    waiting.append(p)
                    yield ("wait", "value")
            if call.after and self.now > start:
                self._add(p, SpanKind.WAIT, start, self.now)
            p.bound_ns, p.bound_round, p.lock_waited, p.lock_from = 0, -1, True, self.now
            yield ("event", (p.index, Event.START, -1, int(call.starts_on_device)))
            self._resumed(p)
            yield from self._body(p, call)
            self._end_run(p)
            self._finishing = number
            p.bound_ns = 0
            yield ("done", (p.index, Event.DONE, -1, 0), number)

    def _body(self, p: _Process, call: SimCall) -> Generator[Any, int, None]:
        body = call.script(p.rank)
        got = 0
        started = False
        while True:
            try:
                kind, channel, n, key = body.send(got) if started else next(body)
            except StopIteration:
                return
            started = True
            if kind == RUN:
                yield ("timer", n)
                got = 0
            elif kind == PUT:
                for _ in range(n):
                    start = self._end_run(p)
                    yield self._channel_event(p, Event.PUT, channel, 1, key)
                    self._resumed(p, SpanKind.PUT, start, 1, channel)
                got = 0
            else:
                start = self._end_run(p)
                chunk = self.layout.plan.chunk(channel)
                wanted = n if n else (ALL if chunk == ALL else -chunk)
                got = (yield self._channel_event(p, Event.GET, channel, wanted, key)) or 0
                self._resumed(p, SpanKind.GET, start, got, channel)

    def _channel_event(self, p: _Process, kind: Event, channel: str, n: int, key: int) -> tuple[str, tuple[int, int, int, int]]:
        queue = self._queue(channel, p.iteration, self.layout.shard(channel, p.rank), key)
        p.getting = kind == Event.GET
        p.bound_ns, p.bound_round, p.lock_waited, p.lock_from, p.first = 0, -1, False, self.now, -1
        return ("event", (p.index, kind, queue, n))

    def _stream(self, channel: str, iteration: int, shard: int) -> int:
        name = (channel, iteration, shard)
        if name not in self._streams:
            self._streams[name] = self._engine.open_stream(self.layout.capacity(channel), name)
        return self._streams[name]

    def _queue(self, channel: str, iteration: int, shard: int, key: int) -> int:
        name = (channel, iteration, shard, key)
        if name not in self._queues:
            self._queues[name] = self._engine.open_channel(self._stream(channel, iteration, shard))
        return self._queues[name]

    # --- spans (the same rules as the host's) --------------------------------------------------------
    def _end_run(self, p: _Process) -> int:
        if p.on_device and self.now > p.since:
            self._add(p, SpanKind.RUN, p.since, self.now)
        return self.now

    def _resumed(self, p: _Process, kind: SpanKind | None = None, start: int = 0, items: int = 0, channel: str = "") -> None:
        end = p.bound_ns if p.lock_waited else self.now
        if kind is not None:
            self._add(p, kind, start, max(start, end), items, self._names(channel), p.first)
        if p.lock_waited and self.now > p.lock_from:
            self._add(p, SpanKind.LOCK, p.lock_from, self.now)
        p.since = self.now

    def _add(
        self, p: _Process, kind: SpanKind, start: int, end: int, items: int = 0, channel: int = -1, first: int = -1, name: str = ""
    ) -> None:
        text = name or (p.call.method if p.call is not None else p.worker)
        iteration = p.iteration if p.call is not None else -1
        self._recorder.add(p.track, kind, self._names(text), start, end, iteration, items, 0, channel, first)

    # --- the loop ------------------------------------------------------------------------------------------
    def _advance(self, p: _Process, value: int) -> None:
        """Let the process go on to its next wait."""
        assert p.life is not None
        try:
            wait = next(p.life) if not value else p.life.send(value)
        except StopIteration:
            p.life = None
            return
        kind = wait[0]
        p.waits_for = kind
        if kind == "event":
            self._pending.append(wait[1])
        elif kind == "done":
            self._pending.append(wait[1])
            p.result = wait[2]
        elif kind == "timer":
            heapq.heappush(self._timers, (self.now + wait[1], p.index, p))
        else:
            p.waits_for = wait[1]

    def _wake(self, p: _Process, value: int) -> None:
        p.waits_for = ""
        if p.switching:
            p.deferred.append(value)
        else:
            self._ready.append((p, value))

    def _loop(self) -> None:
        timers = self._timers
        while True:
            while self._ready:
                self._advance(*self._ready.popleft())
            if timers and timers[0][0] <= self.now:
                while timers and timers[0][0] <= self.now:
                    self._fire(heapq.heappop(timers)[2])
            elif self._pending:
                events, self._pending = self._pending, []
                self._apply(self._engine.settle(events))
            elif timers:
                self.now = timers[0][0]
            elif self._relieve and self._engine.waiting() and (out := self._engine.relieve()):
                self.relieved += 1
                self._apply(out)
            else:
                return

    def _fire(self, timer: Any) -> None:
        if isinstance(timer, _Process):
            self._wake(timer, 0)
        else:
            timer()

    def _apply(self, instructions: list[tuple[int, int, int, int]]) -> None:
        self._round += 1
        this = self._round
        for do, index, a, b in instructions:
            p = self._processes[index]
            if do == Do.RESUME:
                p.on_device = self._engine.processes[index].holding
                p.lock_waited = p.on_device and p.bound_round != this and (p.lock_waited or p.bound_ns > 0)
                self._wake(p, b - a if p.getting else 0)
            elif do == Do.BOUND:
                p.bound_ns = p.lock_from = self.now
                p.bound_round = this
                if p.getting:
                    p.first = a if b > a else -1
            elif do == Do.STORE:
                p.first = b
            elif do == Do.FINISHED:
                self._finished(p)
            else:
                self._switch(p, coming=do == Do.ONLOAD)

    def _finished(self, p: _Process) -> None:
        p.on_device = False
        call, p.call = p.call, None
        if call is not None:
            for channel in call.writes:
                self._apply(self._engine.close(self._stream(channel, p.iteration, self.layout.shard(channel, p.rank))))
            for waiter in self._values.get((p.result, p.rank)) or ():
                self._wake(waiter, 0)
            self._values[p.result, p.rank] = None
            self._outstanding -= 1
            driver = self._processes[0]
            if self._outstanding == 0 and driver.waits_for == "calls":
                self._wake(driver, 0)
        self._wake(p, 0)

    def _switch(self, p: _Process, coming: bool) -> None:
        """The process leaves or comes while it goes on waiting; a timer stands for its own thread doing so."""
        start = self.now
        p.switching = True
        p.deferred = [value for q, value in self._ready if q is p]  # resumed in this very instant: it switches first
        if p.deferred:
            self._ready = deque(entry for entry in self._ready if entry[0] is not p)
        if coming and p.call is not None and start > p.lock_from:
            self._add(p, SpanKind.LOCK, p.lock_from, start)
        onload, offload = self._switch_ns.get(p.worker, (0, 0))

        def arrived() -> None:
            name = "onload" if coming else "offload"
            self._add(p, SpanKind.ONLOAD if coming else SpanKind.OFFLOAD, start, self.now, name=name)
            if coming:
                p.lock_from = self.now
            self._pending.append((p.index, Event.ONLOADED if coming else Event.OFFLOADED, -1, 0))
            p.switching = False
            self._ready.extend((p, value) for value in p.deferred)
            p.deferred = []

        heapq.heappush(self._timers, (self.now + (onload if coming else offload), p.index, arrived))

    def _waits(self) -> list[str]:
        names = {queue: name[0] for name, queue in self._queues.items()}
        rows = []
        for index, why, where in self._engine.waiting():
            p = self._processes[index]
            what = self.layout.plan.devices[where] if why == "lock" else f"channel {names.get(where, where)!r}"
            rows.append(f"{p.worker}[{p.rank}] waits for {what} ({why})")
        return rows or [f"{p.worker}[{p.rank}] waits for a {p.waits_for}" for p in self._processes if p.life and p.waits_for]


__all__ = ["ALL", "DRIVER", "SimCall", "Simulator", "get", "put", "run"]
