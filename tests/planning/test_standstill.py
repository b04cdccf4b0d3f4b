"""Plans under which calls would wait for each other for ever are refused before a run, with the ring; whatever is refused really stands still."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import random_flows

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import DeadlockError, PlanError
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.plan.standstill import ring_of_calls, ring_of_channels
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator, Turn, get, put
from rlinf_lab.runtime.run.preflight import check
from rlinf_lab.runtime.run.run import session
from rlinf_lab.workflow.graph import Call, Node, Step, WorkflowGraph
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

    def ends(self, number: int, out: Outbox) -> None:
        out.put(number)


def made(kind: str) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow(kind)
    forth, back = flow.channel("forth", whole=kind == "whole"), flow.channel("back")
    twice, echo = flow.worker(Twice, name="twice"), flow.worker(Echo, name="echo")

    @flow.iteration
    def iteration() -> Any:
        if kind == "one call":
            echo.reads_first(forth, back)
            return twice.both(forth, back).wait()
        if kind == "whole":
            echo.reads_first(forth, back)
            return twice.both(forth, back)
        if kind == "values":
            got = twice.first(back)
            return echo.ends(got, back)
        if kind == "the loop waits":
            echo.reads_first(forth, back)
            got = twice.first(back).wait()
            twice.second(forth)
            return got
        got = twice.first(back)
        sent = twice.second(forth)
        getattr(echo, "puts_first" if kind == "puts first" else "reads_first")(forth, back)
        return got, sent

    return flow, ExecutionPlan("by hand", ("cpu:0", "cpu:1"), {"twice": ((0,),), "echo": ((1,),)}, {"forth": 1, "back": 1})


def test_calls_of_a_worker_in_the_wrong_order_are_refused_with_their_ring() -> None:
    flow, plan = made("reads first")
    with pytest.raises(PlanError) as refused:
        plan.validate(flow)
    ring = (
        "twice.first() waits for items of 'back', which echo.reads_first() puts; echo.reads_first() waits for items of 'forth', which twice.second() "
        "puts; twice.second() begins when twice.first() has ended"
    )
    assert ring in str(refused.value) and "Next:" in str(refused.value)
    assert check(flow, plan).checks[0].found.count("twice.second()") == 2  # before a launch, too


@pytest.mark.parametrize("kind", ["puts first", "one call"])
def test_what_can_end_is_not_refused_and_does(kind: str) -> None:
    flow, plan = made(kind)
    plan.validate(flow)
    with session(flow, plan) as s:
        assert s.step() in ((0, 1), 1)


def test_a_call_that_is_given_what_only_its_own_items_would_bring_is_refused() -> None:
    flow, plan = made("values")
    with pytest.raises(PlanError, match=r"waits for items of 'back', which echo\.ends\(\) puts; echo\.ends\(\) needs the value of twice\.first\(\)\."):
        plan.validate(flow)


def test_where_the_loop_waits_what_comes_later_writes_nothing() -> None:
    """The streams have ended when the loop waits for what depends on them, so nobody stands still: `take` meets the end."""
    flow, _ = made("the loop waits")
    assert ring_of_calls(flow.graph) == []


def test_a_whole_batch_of_what_is_made_step_by_step_is_refused() -> None:
    flow, plan = made("whole")
    waits = r"echo\.reads_first\(\) waits for all items of 'forth', until twice\.both\(\) has ended; twice\.both\(\) waits for items of 'back', which echo"
    with pytest.raises(PlanError, match=waits):
        plan.validate(flow)


def test_a_cell_is_named_along_its_channels() -> None:
    names = "abcd"
    nodes = [Node(n, n, (Call("do", "()", (f"{m}{n}",), (f"{n}{o}",), False),)) for m, n, o in zip("dabc", names, "bcda", strict=True)]
    channels = tuple(ChannelSpec(f"{n}{o}") for n, o in zip(names, "bcda", strict=True))
    graph = WorkflowGraph("ring", tuple(nodes), channels, ())
    assert ring_of_channels(graph, graph.edges[0]) == "a --ab--> b --bc--> c --cd--> d --da--> a"


# --- random programs: refused where, and only where, the simulator stands still ------------------------------------
def program(rng: random.Random) -> WorkflowGraph:
    """Some workers with some calls: each channel is read by one call and written by one or two, each call reads one at most."""
    workers = [f"w{i}" for i in range(rng.randint(1, 3))]
    count = rng.randint(2, 5)
    channels = [f"c{i}" for i in range(rng.randint(1, count))]
    reads = [(c,) for c in channels] + [()] * (count - len(channels))
    rng.shuffle(reads)
    writes: list[list[str]] = [[] for _ in range(count)]
    for channel in channels:
        for i in rng.sample(range(count), min(count, rng.randint(1, 2))):
            writes[i].append(channel)
    steps = []
    for i in range(count):
        after = tuple(j for j in range(i) if rng.random() < 0.15)
        early = rng.random() < 0.4
        steps.append(Step(rng.choice(workers), Call(f"m{i}", "()", reads[i], tuple(writes[i]), early, reads[i], () if early else reads[i]), after))
    nodes = tuple(Node(w, "W", tuple(s.call for s in steps if s.worker == w)) for w in workers)
    specs = tuple(ChannelSpec(c, whole=rng.random() < 0.25) for c in channels)
    return WorkflowGraph("random", nodes, specs, (), tuple(steps))


def calls_of(graph: WorkflowGraph) -> list[SimCall]:
    def script(call: Call) -> Any:
        def play(turn: Turn) -> Any:
            if call.starts_on_device:
                for channel in call.writes:
                    yield put(channel)
            for channel in call.reads:
                yield get(channel, ALL if graph.channel(channel).whole else 1)
            if not call.starts_on_device:
                for channel in call.writes:
                    yield put(channel)

        return play

    return [SimCall(s.worker, s.call.method, script(s.call), s.call.reads, s.call.writes, s.after, s.call.starts_on_device) for s in graph.program]


def test_what_is_refused_stands_still_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutionPlan, "validate", lambda plan, graph: None)  # what it refuses shall be simulated
    refused = 0
    for seed in range(600):
        graph = program(random.Random(seed))
        plan = ExecutionPlan("apart", ("cpu:0", "cpu:1", "cpu:2"), {w: ((i,),) for i, w in enumerate(graph.workers)})
        try:
            Simulator(graph, plan).simulate(calls_of(graph))
            stands = False
        except DeadlockError:
            stands = True
        assert bool(ring_of_calls(graph)) == stands, (seed, graph.program)
        refused += stands
    assert 100 < refused < 500


def test_random_plans_are_refused_with_their_ring_or_go_on() -> None:
    """Micro-batches and capacities at random, also in cells: what passes ends in the simulator."""
    refused = 0
    for seed in range(250):
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
    assert refused > 30


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
