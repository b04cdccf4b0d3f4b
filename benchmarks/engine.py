"""Cost of the engine's decision and of the simulator's operation, as the number of workers grows."""

from __future__ import annotations

import time

from harness import Case

from rlinf_lab.planning.engine import Engine, Event
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.simulator import SimCall, Simulator, get, put, run
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


def microseconds_per_event(pairs: int, rounds: int) -> float:
    """Producer and consumer pairs, each on its own device, one item at a time: a put and a get are two events."""
    engine = Engine(2 * pairs)
    couples = []
    for i in range(pairs):
        a, b = engine.add_process((2 * i,)), engine.add_process((2 * i + 1,))
        couples.append((a, b, engine.open_channel(engine.open_stream(4))))
        engine.settle([(a, Event.START, -1, 1)])
        engine.settle([(b, Event.START, -1, 1)])
    turns = max(1, rounds // pairs)
    start = time.perf_counter()
    for _ in range(turns):
        for a, b, channel in couples:
            engine.settle([(a, Event.PUT, channel, 1)])
            engine.settle([(b, Event.GET, channel, 1)])
    return (time.perf_counter() - start) / (2 * turns * pairs) * 1e6


class Stage(Worker):
    def produce(self, out: Outbox) -> None: ...
    def consume(self, inbox: Inbox) -> None: ...


def operations_per_second(items: int) -> float:
    """get + put + compute of a chain of two on their own devices, bounded channel, spans recorded."""
    flow = Workflow("pair")
    channel = flow.channel("items", capacity=8)
    a, b = flow.worker(Stage, name="a"), flow.worker(Stage, name="b")

    @flow.iteration
    def iteration() -> None:
        a.produce(channel)
        b.consume(channel)

    def source(rank):
        for _ in range(items):
            yield run(3)
            yield put("items")

    def sink(rank):
        while (yield get("items", 1)):
            yield run(4)

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"a": [0], "b": [1]})
    calls = [SimCall("a", "produce", source, writes=("items",)), SimCall("b", "consume", sink, reads=("items",), starts_on_device=False)]
    start = time.perf_counter()
    Simulator(flow.graph, plan).simulate(calls)
    return 4 * items / (time.perf_counter() - start)


def cases(smoke: bool) -> list[Case]:
    rounds = 500 if smoke else 100_000
    sizes = (5, 50) if smoke else (5, 50, 500, 2_000)
    return [
        Case(
            "engine_decision", "us an event", lambda: microseconds_per_event(5, rounds), target="<= 5", target_of="value",
            curve=lambda: [[2 * n, microseconds_per_event(n, rounds)] for n in sizes], note="curve: number of workers, us",
        ),
        Case(
            "simulator_events", "operations/s", lambda: operations_per_second(200 if smoke else 30_000), target=">= 400000", target_of="value",
            note="counted: get, put, compute of both sides; first form, not yet tuned",
        ),
    ]  # fmt: skip
