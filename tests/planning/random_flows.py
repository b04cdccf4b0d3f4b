"""Random workflows and plans, described once and interpreted twice: as worker code, and as scripts for the simulator.

The two interpreters are written apart from each other on purpose: the parity test compares them through the engine.
"""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.simulator.simulator import SimCall, Turn, get, put, run
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

MS = 1_000_000


@dataclass
class Stage:
    """``kind``: source, map, whole, join, sink, simulator, policy. Durations in whole milliseconds, ties on purpose."""

    kind: str
    name: str
    fixed: int = 0  # per batch
    each: int = 0  # per item
    count: int = 0  # items of a source per rank, steps of a simulator
    explicit: int | None = None  # an explicit get(n)
    epilogue: int = 0
    first: int | None = None  # a call of its own before: a second call of the same worker in an iteration
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


@dataclass
class Scenario:
    seed: int
    stages: list[Stage]
    flow: Workflow
    plan: ExecutionPlan
    switch: dict[str, tuple[int, int]]
    sub_batches: int = 1

    def sim_calls(self) -> list[SimCall]:
        before = [SimCall(s.name, "prepare", preparation(s)) for s in self.stages if s.first is not None]
        return before + [SimCall(s.name, METHODS[s.kind], script(self, s), tuple(s.inputs), tuple(s.outputs), starts_on_device=s.kind in STARTS) for s in self.stages]


METHODS = {"source": "produce", "map": "convert", "whole": "gather", "join": "combine", "sink": "consume",
           "simulator": "collect", "policy": "act"}  # fmt: skip
STARTS = ("source", "simulator")  # who begins before it has got something


# --- interpretation 1: worker code ---------------------------------------------------------------------
class Actor(Worker):
    """Imperative; the durations go through `compute`. ``log`` holds what arrived, for the contract assertions."""

    def __init__(self, stage: Stage, switch: tuple[int, int], log: list, unit: float) -> None:
        self.stage, self.switch, self.log, self.unit = stage, switch, log, unit

    def onload(self) -> None:
        self.compute(self.switch[0] * self.unit)

    def offload(self) -> None:
        self.compute(self.switch[1] * self.unit)

    def work(self, items: int) -> None:
        self.compute((self.stage.fixed + self.stage.each * items) * self.unit)

    def prepare(self) -> None:
        self.compute(self.stage.first * self.unit)

    def note(self, channel: str, items: list) -> None:
        self.log.append((channel, self.name, self.rank, list(items)))

    def produce(self, out: Outbox, second: Outbox | None = None) -> None:
        for i in range(self.stage.count):
            self.work(1)
            out.put((self.rank, i))
            if second is not None:
                second.put((self.rank, i))

    def convert(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            self.note(self.stage.inputs[0], batch)
            self.work(len(batch))
            for item in batch:
                out.put(item)
        if self.stage.epilogue:
            self.compute(self.stage.epilogue * self.unit)

    def gather(self, inbox: Inbox, out: Outbox) -> None:
        batch = inbox.get_all()
        self.note(self.stage.inputs[0], batch)
        self.work(len(batch))
        for item in batch:
            out.put(item)

    def combine(self, left: Inbox, right: Inbox, out: Outbox) -> None:
        for batch in left:
            other = right.get(len(batch))
            self.note(self.stage.inputs[0], batch)
            self.note(self.stage.inputs[1], other)
            self.work(len(batch))
            for item in batch:
                out.put(item)
        rest = right.get_all()
        if rest:
            self.note(self.stage.inputs[1], rest)

    def consume(self, inbox: Inbox) -> None:
        while batch := inbox.get(self.stage.explicit):
            self.note(self.stage.inputs[0], batch)
            self.work(len(batch))

    def collect(self, actions: Inbox, out: Outbox, results: Outbox) -> None:
        slots = [self.rank * self.sub_batches + k for k in range(self.sub_batches)]
        for slot in slots:
            self.work(1)
            out.put(slot)
        for _ in range(self.stage.count):
            for slot in slots:
                actions.take(key=slot)
                self.work(1)
                out.put(slot)
        for slot in slots:
            actions.take(key=slot)
            results.put((self.rank, slot))

    def act(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            self.work(len(batch))
            for slot in batch:
                out.put(slot, key=slot)


# --- interpretation 2: scripts ---------------------------------------------------------------------------
def preparation(s: Stage):
    def prepare(turn: Turn):
        yield run(s.first * MS)

    return prepare


def script(scenario: Scenario, s: Stage):
    def cost(n: int) -> int:
        return (s.fixed + s.each * n) * MS

    def source(turn: Turn):
        for _ in range(s.count):
            yield run(cost(1))
            for channel in s.outputs:
                yield put(channel)

    def convert(turn: Turn):
        while n := (yield get(s.inputs[0])):
            yield run(cost(n))
            yield put(s.outputs[0], n)
        if s.epilogue:
            yield run(s.epilogue * MS)

    def whole(turn: Turn):
        n = yield get(s.inputs[0], ALL)
        yield run(cost(n))
        yield put(s.outputs[0], n)

    def join(turn: Turn):
        while n := (yield get(s.inputs[0])):
            yield get(s.inputs[1], n)
            yield run(cost(n))
            yield put(s.outputs[0], n)
        yield get(s.inputs[1], ALL)

    def sink(turn: Turn):
        while n := (yield get(s.inputs[0], s.explicit)):
            yield run(cost(n))

    def simulator(turn: Turn):
        slots = [turn.rank * scenario.sub_batches + k for k in range(scenario.sub_batches)]
        for _ in slots:
            yield run(cost(1))
            yield put(s.outputs[0])
        for _ in range(s.count):
            for slot in slots:
                yield get(s.inputs[0], 1, slot)
                yield run(cost(1))
                yield put(s.outputs[0])
        for slot in slots:
            yield get(s.inputs[0], 1, slot)
            yield put(s.outputs[1])

    def policy(turn: Turn):
        # Which slots a batch holds depends on arrival; with one simulator rank a unit they come round and round.
        step = 0
        slots = order_of_slots(scenario, turn.rank)
        while n := (yield get(s.inputs[0])):
            yield run(cost(n))
            for _ in range(n):
                yield put(s.outputs[0], 1, slots[step % len(slots)])
                step += 1

    return {"source": source, "map": convert, "whole": whole, "join": join, "sink": sink, "simulator": simulator, "policy": policy}[s.kind]


def order_of_slots(scenario: Scenario, rank: int) -> list[int]:
    fused = bool(scenario.plan.fused)
    ranks = [rank] if fused else range(scenario.plan.ranks("simulator"))
    return [r * scenario.sub_batches + k for r in ranks for k in range(scenario.sub_batches)]


# --- generation ------------------------------------------------------------------------------------------
def scenario(seed: int, log: list, unit: float = 1e-3) -> Scenario:
    """A random workflow with a random plan that fits it. ``unit``: seconds that stand for a millisecond when it is executed."""
    rng = random.Random(seed)
    stages = _cell(rng) if rng.random() < 0.35 else _dag(rng)
    for s in stages:
        s.first = rng.choice((None, None, None, 0, 2))
    flow = Workflow(f"random_{seed}")
    switch = {s.name: (rng.randint(0, 4), rng.randint(0, 4)) for s in stages}
    _declare(rng, flow, stages, switch, log, unit)
    tokens = rng.choice((1, 1, 2, 3))
    plan = dataclasses.replace(_plan(rng, flow, stages, tokens), staleness=rng.choice((0, 0, 1, 2, 3)))
    ns = {w: (a * MS, b * MS) for w, (a, b) in switch.items()}
    return Scenario(seed, stages, flow, plan, ns, plan.sub_batches.get("simulator", 1))


def _stage(rng: random.Random, kind: str, name: str, **fields) -> Stage:
    return Stage(kind, name, rng.randint(0, 4), rng.randint(0, 4), **fields)


def _dag(rng: random.Random) -> list[Stage]:
    stages = [_stage(rng, "source", "source", count=rng.randint(1, 9), outputs=["c0"])]
    if rng.random() < 0.35:  # fan-out and join
        stages[0].outputs = ["c0", "d0"]
        stages.append(_stage(rng, "map", "left", inputs=["c0"], outputs=["c1"]))
        stages.append(_stage(rng, "map", "right", inputs=["d0"], outputs=["d1"]))
        stages.append(_stage(rng, "join", "join", inputs=["c1", "d1"], outputs=["c2"]))
        last = "c2"
    else:
        last = "c0"
        for i in range(rng.randint(0, 3)):
            kind = "whole" if rng.random() < 0.25 else "map"
            epilogue = rng.choice((0, 0, 3)) if kind == "map" else 0
            stages.append(_stage(rng, kind, f"m{i}", inputs=[last], outputs=[f"e{i}"], epilogue=epilogue))
            last = f"e{i}"
    stages.append(_stage(rng, "sink", "sink", inputs=[last], explicit=rng.choice((None, None, 1, 3, 7))))
    return stages


def _cell(rng: random.Random) -> list[Stage]:
    return [
        _stage(rng, "simulator", "simulator", count=rng.randint(1, 6), inputs=["act"], outputs=["obs", "traj"]),
        _stage(rng, "policy", "policy", inputs=["obs"], outputs=["act"]),
        _stage(rng, "sink", "learner", inputs=["traj"]),
    ]


def _declare(rng: random.Random, flow: Workflow, stages: list[Stage], switch: dict, log: list, unit: float) -> None:
    wholes = {s.inputs[0] for s in stages if s.kind == "whole" and s.fixed}  # the others ask for everything of an ordinary channel
    channels = {}
    for name in dict.fromkeys(c for s in stages for c in (*s.inputs, *s.outputs)):
        capacity = rng.choice((1, 2, 4, 8, None))
        channels[name] = flow.channel(name, capacity=capacity, keyed=name == "act", whole=name in wholes)
    handles = {s.name: flow.worker(Actor, s, switch[s.name], log, unit, name=s.name) for s in stages}

    @flow.iteration
    def iteration() -> None:
        for s in stages:
            if s.first is not None:
                handles[s.name].prepare()
        for s in stages:
            getattr(handles[s.name], METHODS[s.kind])(*[channels[c] for c in (*s.inputs, *s.outputs)])


def _plan(rng: random.Random, flow: Workflow, stages: list[Stage], tokens: int) -> ExecutionPlan:
    count = rng.randint(1, 4)
    devices = [f"cpu:{i}" for i in range(count)]
    cell = stages[0].kind == "simulator"
    memory = {}
    if rng.random() < 0.4:
        memory = {"memory": {s.name: 1 for s in stages}, "device_memory": rng.randint(1, 2)}
    if cell:
        ranks = rng.randint(1, count)
        sub = {"sub_batches": {"simulator": tokens}}
        kind = rng.choice(("temporal", "fused", "spatial"))
        if kind == "fused":
            return ExecutionPlan.fused_cells(flow, devices, {"simulator": ranks}, **sub, **memory)
        # With several simulator ranks in one shared queue the order of slots depends on arrivals: keep to one.
        if kind == "temporal":
            return ExecutionPlan.temporal(flow, devices, {"simulator": 1}, **sub, **memory)
        on = {s.name: [rng.randrange(count)] for s in stages}
        return ExecutionPlan.spatial(flow, devices, on, **sub, **memory)
    placements = {}
    for s in stages:
        ranks = 1 if s.kind == "join" else rng.randint(1, min(3, count))
        homes = rng.sample(range(count), ranks)
        placements[s.name] = tuple((d,) for d in homes)
        if ranks == 1 and count > 1 and rng.random() < 0.25:
            placements[s.name] = (tuple(sorted(rng.sample(range(count), 2))),)
        elif rng.random() < 0.1:
            placements[s.name] = ((),) * ranks  # works on no device
    micro_batches = {c: rng.choice((0, 1, 2, 3, 5)) for c in flow.graph.channels_by_name()}
    plan = ExecutionPlan("random", tuple(devices), placements, micro_batches, **memory)
    plan.validate(flow.graph)
    return plan
