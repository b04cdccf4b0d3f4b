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
from rlinf_lab.workflow.graph import Call, Node, WorkflowGraph
from rlinf_lab.workflow.specs import ChannelSpec


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
            for item in batch:
                out.put(item)

    def puts_first(self, inbox: Inbox, out: Outbox) -> Any:
        out.put(0)
        return inbox.take()


def made(kind: str) -> tuple[Workflow, ExecutionPlan]:
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

    return flow, ExecutionPlan("by hand", ("cpu:0", "cpu:1"), {"twice": ((0,),), "echo": ((1,),)}, {"forth": 1, "back": 1})


@pytest.mark.parametrize("kind", ["puts_first", "one call"])
def test_what_can_end_does(kind: str) -> None:
    flow, plan = made(kind)
    with session(flow, plan) as s:
        assert s.step() in ((0, 1), 1)


def test_calls_of_a_worker_in_the_wrong_order_are_told_by_the_watch_with_their_ring() -> None:
    flow, plan = made("reads_first")
    with session(flow, plan) as s, pytest.raises(DeadlockError, match=r"twice\[0\].*echo\[0\]|echo\[0\].*twice\[0\]"):
        s.step()


def test_a_cell_is_named_along_its_channels() -> None:
    names = "abcd"
    nodes = [Node(n, n, (Call("do", "()", (f"{m}{n}",), (f"{n}{o}",), False),)) for m, n, o in zip("dabc", names, "bcda", strict=True)]
    channels = tuple(ChannelSpec(f"{n}{o}") for n, o in zip(names, "bcda", strict=True))
    graph = WorkflowGraph("ring", tuple(nodes), channels, ())
    assert graph.ring_over(graph.edges[0]) == "a --ab--> b --bc--> c --cd--> d --da--> a"


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
