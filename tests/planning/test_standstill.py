"""Micro-batches larger than what circulates in a cell are refused with the ring; what stands still in the simulator is told with it."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import random_flows

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import DeadlockError, PlanError
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator, Turn, get, put
from rlinf_lab.runtime.run.run import session


class Twice(Worker):
    def first(self, back: Inbox) -> Any:
        return back.take()

    def second(self, out: Outbox) -> int:
        out.put(1)
        return 1

    def both(self, out: Outbox, back: Inbox) -> Any:
        out.put(1)
        return back.take()


class Echo(Worker):
    def reads_first(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            out.put_all(batch)

    def puts_first(self, inbox: Inbox, out: Outbox) -> Any:
        out.put(0)
        return inbox.take()


@pytest.mark.parametrize("kind", ["one call", "puts_first", "reads_first"])
def test_what_can_end_does_and_a_wrong_order_of_calls_is_told_by_the_watch_with_its_ring(kind: str) -> None:
    flow = Workflow(kind)
    forth, back = flow.channel("forth"), flow.channel("back")
    twice, echo = flow.worker(Twice, name="twice"), flow.worker(Echo, name="echo")

    @flow.iteration
    def iteration() -> Any:
        if kind == "one call":
            echo.reads_first(forth, back)
            return twice.both(forth, back).wait()
        got = twice.first(back)
        sent = twice.second(forth)
        getattr(echo, kind)(forth, back)
        return got, sent

    with session(flow, ExecutionPlan("by hand", ("cpu:0", "cpu:1"), {"twice": ((0,),), "echo": ((1,),)}, {"forth": 1, "back": 1})) as s:
        if kind == "reads_first":
            with pytest.raises(DeadlockError, match=r"twice\[0\].*echo\[0\]|echo\[0\].*twice\[0\]"):
                s.step()
        else:
            assert s.step() in ((0, 1), 1)


def test_random_plans_are_refused_with_their_ring_or_go_on() -> None:
    """Micro-batches and capacities at random, also in cells: what passes ends in the simulator."""
    refused = 0
    for seed in range(60):
        rng, made = random.Random(seed + 10**6), random_flows.scenario(seed, [])
        graph = made.flow.graph
        micro_batches = {c: rng.choice((0, 1, 2, 3, 5)) for c in graph.channels_by_name()}
        capacities = {c.name: rng.choice((1, 2, 3, None)) for c in graph.channels if rng.random() < 0.5 and not c.whole}
        plan = dataclasses.replace(made.plan, micro_batches=micro_batches, capacities=capacities)
        made = dataclasses.replace(made, plan=plan)
        try:
            plan.validate(graph)
        except PlanError as error:
            refused += 1
            assert "simulator --obs--> policy --act--> simulator" in str(error)
        else:
            Simulator(made.flow, plan, made.switch).simulate(made.sim_calls(), 2)
    assert refused > 5


def test_the_simulator_names_the_ring_that_only_counts_can_tell() -> None:
    """An exact get of more than circulates: how many a worker asks for is not in the graph."""
    flow = Workflow("counts")
    obs, act = flow.channel("obs"), flow.channel("act")
    left, right = flow.worker(Twice, name="left"), flow.worker(Echo, name="right")

    @flow.iteration
    def iteration() -> Any:
        right.reads_first(obs, act)
        return left.both(obs, act)

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"left": [0], "right": [1]})

    def ask(turn: Turn) -> Any:
        yield put("obs")
        yield get("act", 1)

    def answer(turn: Turn) -> Any:
        yield get("obs", 2)
        yield put("act")

    calls = [SimCall("right", "reads_first", answer, ("obs",), ("act",)), SimCall("left", "both", ask, ("act",), ("obs",))]
    with pytest.raises(DeadlockError, match=r"any more: (left\[0\] → right\[0\] → left\[0\]|right\[0\] → left\[0\] → right\[0\])\n") as stands:
        Simulator(flow, plan).simulate(calls)
    assert {wait.who: wait.on for wait in stands.value.waits} == {"left[0]": ("right",), "right[0]": ("left",)}
