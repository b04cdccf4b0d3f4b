"""Operations a second of the simulator, as workers and items grow.

Counted: every get, put and compute of a chain of three stages (source, map, sink), one item at a time, that is seven operations
for each item; with the engine that also drives the executors, bounded channels, a device for each worker, durations that differ from
item to item, and every span recorded. The peer is the least that any discrete-event simulation does: generators that yield delays, and a heap.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator

from harness import Case

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.simulator.simulator import Script, SimCall, Simulator, Turn, get, put, run
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

OPERATIONS = 7  # an item: compute, put; get, compute, put; get, compute


class Stage(Worker):
    def produce(self, out: Outbox) -> None: ...
    def convert(self, inbox: Inbox, out: Outbox) -> None: ...
    def consume(self, inbox: Inbox) -> None: ...


def chain(workers: int, items: int) -> tuple[Workflow, ExecutionPlan, list[SimCall]]:
    """About ``workers`` ranks in three stages, and ``items`` items through all of them."""
    flow = Workflow("chain")
    first, second = flow.channel("first", capacity=8), flow.channel("second", capacity=8)
    a, b, c = (flow.worker(Stage, name=name) for name in "abc")

    @flow.iteration
    def iteration() -> None:
        a.produce(first)
        b.convert(first, second)
        c.consume(second)

    ranks = max(1, workers // 3)
    devices = [f"cpu:{i}" for i in range(3 * ranks)]
    plan = ExecutionPlan.spatial(flow, devices, {name: list(range(i * ranks, (i + 1) * ranks)) for i, name in enumerate("abc")})

    def source(turn: Turn) -> Script:
        for i in range(turn.share(items)):
            yield run(1_000_003 + 7_919 * ((turn.rank + i) % 101))
            yield put("first")

    def convert(turn: Turn) -> Script:
        while n := (yield get("first", 1)):
            yield run(900_007 + 104_729 * (turn.rank % 13))
            yield put("second", n)

    def sink(turn: Turn) -> Script:
        while (yield get("second", 1)):
            yield run(800_011 + 130_363 * (turn.rank % 11))

    calls = [
        SimCall("a", "produce", source, writes=("first",)),
        SimCall("b", "convert", convert, reads=("first",), writes=("second",), starts_on_device=False),
        SimCall("c", "consume", sink, reads=("second",), starts_on_device=False),
    ]
    return flow, plan, calls


def seconds(workers: int, items: int) -> float:
    """Of one simulation: from the plan and the scripts to the timeline."""
    flow, plan, calls = chain(workers, items)
    start = time.process_time()
    timeline = Simulator(flow.graph, plan).simulate(calls)
    elapsed = time.process_time() - start
    assert sum(timeline.spans["items"]) == 4 * items  # two puts and two gets of each item
    return elapsed


def operations_per_second(workers: int, items: int) -> float:
    return OPERATIONS * items / seconds(workers, items)


def timeouts_per_second(workers: int, timeouts: int) -> float:
    """The peer: ``workers`` generators that do nothing but wait."""

    def process(number: int) -> Iterator[int]:
        for i in range(timeouts // workers):
            yield 1_000_003 + 7_919 * ((number + i) % 101)

    start = time.process_time()
    heap = [(0, i, process(i)) for i in range(workers)]
    heapq.heapify(heap)
    while heap:
        now, number, life = heapq.heappop(heap)
        delay = next(life, None)
        if delay is not None:
            heapq.heappush(heap, (now + delay, number, life))
    return timeouts / (time.process_time() - start)


def cases(smoke: bool) -> list[Case]:
    items = 200 if smoke else 30_000
    points = [(10, 100)] if smoke else [(w, n) for w in (10, 100, 1_000, 4_096) for n in (1_000, 10_000, 100_000)]
    return [
        Case(
            "simulator_events", "operations/s", lambda: operations_per_second(64, items),
            peers={"bare timeouts/s": lambda: timeouts_per_second(64, OPERATIONS * items)}, target=">= 400000", target_of="value",
            curve=lambda: [[w, n, operations_per_second(w, n)] for w, n in points],
            note="CPU s; counted: get, put, compute, one item at a time, bounded channels, spans recorded; 63 workers; curve: workers, items, operations/s",
        ),
        Case(
            "simulator_4096", "s", lambda: seconds(96 if smoke else 4_096, 300 if smoke else 100_000), target="<= 3", target_of="value",
            note="CPU seconds of one core; 4096 devices, 100,000 items through three stages one by one, 700,000 operations, 700,000 spans",
        ),
    ]  # fmt: skip
