"""Small workflows that several tests run. Importable, so that classes travel by name; `notebook_flow` builds one that does not."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

DEVICES = ["cpu:0", "cpu:1"]


class Sim(Worker):
    """Counts: its state is the sum of the actions; ends with the state of each slot."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def collect(self, actions: Inbox, observations: Outbox, trajectories: Outbox) -> None:
        slots = [self.rank * self.sub_batches + k for k in range(self.sub_batches)]
        state = dict.fromkeys(slots, 0.0)
        for slot in slots:
            observations.put((slot, np.full(3, state[slot], np.float32)))
        for t in range(self.steps):
            for slot in slots:
                state[slot] += actions.take(key=slot)
                if t < self.steps - 1:
                    observations.put((slot, np.full(3, state[slot], np.float32)))
        trajectories.put_all(state.items())


class Policy(Worker):
    def setup(self) -> None:
        self.weight = 1.0

    def act(self, observations: Inbox, actions: Outbox) -> None:
        for batch in observations:
            for slot, observation in batch:
                actions.put(self.weight + 0 * float(observation[0]), key=slot)

    def load_weights(self, weight: float) -> None:
        self.weight = weight


class Learner(Worker):
    def setup(self) -> None:
        self.updates = 0

    def train(self, trajectories: Inbox) -> dict:
        received = trajectories.get_all()
        self.updates += 1
        self.log(slots=len(received))
        return {"metrics": {"total": sum(v for _, v in received)}, "weights": 1.0 + self.updates}


class Fails(Worker):
    def work(self, n: int) -> int:
        if n == 13:
            raise ValueError(f"unlucky {n}")
        return n if n >= 0 else os._exit(-n)


class Numbers(Worker):
    """Puts those below one, one by one; passes them on; says how many it was given, or what they come to."""

    def make(self, count: int, out: Outbox) -> int:
        for i in range(count):
            out.put(i)
        return count

    def pass_on(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            out.put_all(batch)

    def count(self, inbox: Inbox) -> int:
        return sum(len(batch) for batch in inbox)

    def total(self, inbox: Inbox) -> int:
        return sum(sum(batch) for batch in inbox)


def apart(flow: Workflow, ranks: Mapping[str, int] = {}, **fields: Any) -> ExecutionPlan:
    """Each rank on a device, and so on a host, of its own. ``ranks``: of who has several."""
    count = itertools.count()
    places = {worker: tuple((next(count),) for _ in range(ranks.get(worker, 1))) for worker in flow.graph.workers}
    return ExecutionPlan("apart", tuple(f"cpu:{i}" for i in range(next(count))), places, **fields)


def cell_flow(steps: int = 6) -> Workflow:
    flow = Workflow("cell")
    obs, act, traj = flow.channel("obs"), flow.channel("act", keyed=True), flow.channel("traj", whole=True)
    sim, policy, learner = flow.worker(Sim, steps, name="sim"), flow.worker(Policy, name="policy"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration():
        sim.collect(act, obs, traj)
        policy.act(obs, act)
        update = learner.train(traj)
        policy.load_weights(update.weights)
        return update.metrics

    return flow


def cell_plans(flow: Workflow) -> list[ExecutionPlan]:
    spatial = {"sim": [0], "policy": [1], "learner": [1]}
    return [
        ExecutionPlan.temporal(flow, DEVICES, {"sim": 2}),
        ExecutionPlan.fused_cells(flow, DEVICES, {"sim": 2}),
        ExecutionPlan.spatial(flow, DEVICES, spatial, sub_batches={"sim": 2}),
    ]


def failing_flow() -> Workflow:
    flow = Workflow("failing")
    good, bad = flow.worker(Fails, name="good"), flow.worker(Fails, name="bad")

    @flow.iteration
    def iteration(n: int = 1):
        first, second = good.work(1), bad.work(n)
        return first.wait() + second.wait()

    return flow


def notebook_flow() -> Workflow:
    """Its classes exist nowhere but in this function, as those of a notebook cell do."""

    class Source(Worker):
        def produce(self, n: int, out: Outbox) -> None:
            for i in range(n):
                out.put({"x": np.arange(i, dtype=np.float64), "i": i})

    class Sink(Worker):
        def consume(self, inbox: Inbox) -> float:
            return float(sum(item["x"].sum() + item["i"] for batch in inbox for item in batch))

    flow = Workflow("cells")
    items, doubled = flow.channel("items", capacity=3), flow.channel("doubled", capacity=2)
    source, sink = flow.worker(Source, name="source"), flow.worker(Sink, name="sink")
    double = flow.worker(lambda batch: [{"x": 2 * b["x"], "i": 2 * b["i"]} for b in batch], name="double")

    @flow.iteration
    def iteration():
        source.produce(20, items)
        double(items, doubled)
        return sink.consume(doubled)

    return flow


NOTEBOOK_RESULT = float(sum(2 * sum(range(i)) + 2 * i for i in range(20)))
