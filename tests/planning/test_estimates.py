"""What a run under one plan says about another: with a mock clock the prediction is exact, or refused by name."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from driving import executed
from random_flows import Scenario, scenario
from sweeps import sweep
from timed_flows import Timed, cell

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.replay.batch_model import fit
from rlinf_lab.planning.replay.estimate import Estimate, estimate
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator, call, get, put, run, wait
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

MS = 1_000_000
TWO, THREE, APART = ["cpu:0", "cpu:1"], ["cpu:0", "cpu:1", "cpu:2"], {"w": [0], "v": [1]}


def predicted_ms(found: Estimate, plan: ExecutionPlan) -> float:
    return found.simulate(plan, 4).elapsed_ns / 4 / MS


def executed_ms(flow: Workflow, plan: ExecutionPlan) -> float:
    return executed(flow, plan, 4).elapsed_ns / 4 / MS


def assert_predicts(flow: Workflow, plans: list[ExecutionPlan]) -> Estimate:
    """Measured under the first plan (with batches of two sizes, which give both parts of a cost), every one is predicted exactly."""
    found = estimate(flow, plans[0], executed(flow, plans[0]))
    for plan in plans:
        assert predicted_ms(found, plan) == executed_ms(flow, plan), plan.name
    return found


# --- calls ---------------------------------------------------------------------------------------------------------
class Worked(Worker):
    def go(self, ms: float) -> float:
        self.compute(ms / 1e3)
        return ms

    def other(self, ms: float) -> None:
        self.compute(ms / 1e3)

    def make(self, n: int, out: Outbox) -> None:
        for i in range(n):
            self.compute(0.002)
            out.put(i)
        self.compute(0.001)

    def use(self, inbox: Inbox) -> None:
        for batch in inbox:
            self.compute(0.001 + 0.003 * len(batch))
        self.compute(0.004)


class Silent(Worked):
    """Computes before its last put only: with a mock clock the first call's end and the second's begin cannot be told apart."""

    def make(self, n: int, out: Outbox) -> None:
        out.put(n)


def test_calls_that_cannot_be_told_apart_are_refused_by_name() -> None:
    assert_predicts(told := twice(Worked), [ExecutionPlan.spatial(told, TWO, APART)])
    plan = ExecutionPlan.spatial(flow := twice(Silent), TWO, APART)
    with pytest.raises(PlanError, match=r"w\[0\] in iteration 1: make\(\) is called 2 times in a row.*Next: give the calls methods of their own"):
        estimate(flow, plan, executed(flow, plan))


def twice(makes: type[Worked]) -> Workflow:
    flow = Workflow("twice")
    a = flow.channel("a")
    w, v = flow.worker(makes, name="w"), flow.worker(Worked, name="v")

    @flow.iteration
    def iteration() -> None:
        w.make(3, a)
        w.make(3, a)
        v.use(a)

    return flow


def test_iterations_that_did_something_else_are_refused_by_name() -> None:
    flow = Workflow("now_and_then")
    w = flow.worker(Worked, name="w")

    @flow.iteration
    def iteration(more: bool = False) -> None:
        w.go(2)
        if more:
            w.other(1)

    plan = ExecutionPlan.temporal(flow, TWO)
    timeline = executed(flow, plan, 6, lambda i: (i % 2 == 1,))
    with pytest.raises(PlanError, match=r"w\[0\] in iteration 1 did go\(\), other\(\), but an iteration of the dry run does go\(\).*iterations="):
        estimate(flow, plan, timeline)
    assert estimate(flow, plan, timeline, iterations=[0, 2, 4]).measured_seconds == 0.002


# --- joins ---------------------------------------------------------------------------------------------------------
class Join(Worker):
    def in_step(self, left: Inbox, right: Inbox, out: Outbox) -> None:
        for batch in left:
            self.compute(0.001)
            right.get(2 * len(batch))
            self.compute(0.001 * len(batch))
            out.put_all(batch)

    def at_whim(self, left: Inbox, right: Inbox, out: Outbox) -> None:
        while batch := left.get(1):
            self.compute(0.001)
            if batch[0] % 2:
                right.get(4)
            out.put_all(batch)


def joining(method: str, capacity: int | None) -> tuple[Workflow, list[ExecutionPlan]]:
    flow = Workflow(method)
    left, right, out = (flow.channel(c, capacity=capacity) for c in ("left", "right", "out"))
    one, two = flow.worker(Timed, 6, 0.0, 0.005, 1, name="one"), flow.worker(Timed, 12, 0.0, 0.003, 1, name="two")
    join, end = flow.worker(Join, name="join"), flow.worker(Timed, 0, 0.0, 0.001, 1, name="end")

    @flow.iteration
    def iteration() -> Any:
        one.make(left)
        two.make(right)
        getattr(join, method)(left, right, out)
        return end.work(out)

    on = {"one": [0], "two": [1], "join": [2], "end": [2]}
    return flow, [
        ExecutionPlan.temporal(flow, ["cpu:0"], micro_batches={"left": 4, "out": 4}),
        ExecutionPlan.spatial(flow, THREE, on, micro_batch=3, micro_batches={"right": 1}, name="three"),
        ExecutionPlan.spatial(flow, THREE, on, name="one by one"),
    ]


def test_a_call_that_reads_two_channels_waits_for_both() -> None:
    flow, plans = joining("in_step", 4)
    rows = assert_predicts(flow, plans).simulate(plans[-1], 1).rows()
    taken = {c: sum(r.items for r in rows if r.kind == SpanKind.GET and r.channel == c) for c in ("left", "right", "out")}
    assert taken == {"left": 6, "right": 12, "out": 6}


def test_gets_in_no_order_are_refused_by_name() -> None:
    flow, (plan, *_) = joining("at_whim", None)
    with pytest.raises(PlanError, match=r"join\.at_whim\(\) reads its channels in an order that is not understood.*Next: "):
        estimate(flow, plan, executed(flow, plan))


# --- the loop itself -----------------------------------------------------------------------------------------------
def feeding() -> Workflow:
    flow = Workflow("feeding")
    numbers, doubled = flow.channel("numbers", capacity=2), flow.channel("doubled", capacity=3)
    w, v = flow.worker(Worked, name="w"), flow.worker(Doubler, name="v")

    @flow.iteration
    def iteration() -> Any:
        before = w.go(7)
        v.double(numbers, doubled)
        numbers.put_all(range(10))
        found = doubled.get_all()
        if before.wait() > 3:
            w.go(4)
        return found

    return flow


class Doubler(Worker):
    def double(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            self.compute(0.001 + 0.002 * len(batch))
            out.put_all([2 * x for x in batch])


def test_a_loop_at_its_channels_is_simulated_as_it_runs() -> None:
    """The same loop as a script: equal span by span to the run."""
    flow = feeding()
    assert flow.graph.cells == (), "a loop that feeds a worker and reads it is no cell"
    plan = ExecutionPlan.spatial(flow, TWO, APART, micro_batch=2)

    def loop(turn):
        assert (turn.rank, turn.position, turn.count) == (0, 0, 1)
        yield call(0)
        yield call(1)
        yield put("numbers", 10)
        assert (yield get("doubled", 10)) == 10
        yield wait(0)
        yield call(2)

    def double(turn):
        while n := (yield get("numbers")):
            yield run((1 + 2 * n) * MS)
            yield put("doubled", n)

    def busy(ms: int):
        return lambda turn: (run(ms * MS) for _ in range(1))

    calls = [SimCall("w", "go", busy(7)), SimCall("v", "double", double, ("numbers",), ("doubled",), starts_on_device=False), SimCall("w", "go", busy(4))]
    done = executed(flow, plan, 2)
    for simulated in (Simulator(flow, plan).simulate(calls, 2, loop), estimate(flow, plan, done).simulate(plan, 2)):
        difference = done.diff(simulated)
        assert not difference, str(difference)
    with pytest.raises(PlanError, match=r"loop of workflow 'feeding' feeds channel 'numbers' itself.*loop=script"):
        Simulator(flow, plan).simulate(calls)


# --- fits ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sizes", "spent", "expected", "note"),
    [
        ((1, 4), (3e6, 9e6), (1e6, 2e6), ""),
        ((1, 4), (20e6, 4e6), (12e6, 0.0), "larger batches were not slower (batches of 1 items took 0.02 s, of 4 items 0.004 s); every batch is assumed"),
        ((1, 4), (1e6, 13e6), (0.0, 53e6 / 17), "would give -0.003 s for none; assumed to grow with the items alone"),
        ((3, 3), (5e6, 7e6), (0.0, 2e6), "every batch had 3 items; others are assumed to take time in proportion"),
        ((1, 2, 3), (1.0e6, 2.001e6, 3e6), (0.0, 1.0001e6), ""),
        ((10, 30), (1.004e9, 0.996e9), (1e9, 0.0), ""), ((10, 30), (1.006e9, 0.994e9), (1e9, 0.0), "larger batches were not slower"),
    ],
)  # fmt: skip
def test_a_fit_that_comes_out_negative_says_so(sizes: tuple, spent: tuple, expected: tuple, note: str) -> None:
    fixed, each, said = fit(np.array(sizes, float), np.array(spent, float))
    assert (fixed, each) == pytest.approx(expected, rel=1e-3, abs=1e3)
    assert note in said and bool(said) == bool(note)


def test_batches_of_one_size_count_in_proportion_and_another_plan_is_told_both_readings() -> None:
    flow = Workflow("one size")
    a, w, v = flow.channel("a"), flow.worker(Worked, name="w"), flow.worker(Worked, name="v")
    flow.iteration(lambda: (w.make(16, a), v.use(a))[1])
    first, other = (ExecutionPlan.temporal(flow, ["cpu:0"], name=f"{n} each", micro_batches={"a": n}) for n in (8, 2))
    found = estimate(flow, first, executed(flow, first))
    assert found.iteration_seconds(first) == pytest.approx(0.033 + 2 * 0.025 + 0.004)
    with pytest.warns(UserWarning, match=r"'2 each': 0.087 s .* in proportion .*, 0.237 s if .* at any size.* v.use had one size.*lab.profile\(flow\)"):
        assert found.iteration_seconds(other) == pytest.approx(0.033 + 16 * 0.025 / 8 + 0.004)


def test_sources_and_single_gets_on_other_ranks_are_refused() -> None:
    flow = Workflow("ranks")
    a = flow.channel("a")
    w, v = flow.worker(Timed, 6, 0.0, 0.001, 1, name="w"), flow.worker(Taking, name="v")

    @flow.iteration
    def iteration() -> None:
        w.make(a)
        v.take(a)

    plan = ExecutionPlan.spatial(flow, TWO, APART)
    found = estimate(flow, plan, executed(flow, plan))
    with pytest.raises(PlanError, match=r"w\.make\(\) makes items on 1 ranks.*how many each of 2 would make is not known"):
        found.simulate(ExecutionPlan.spatial(flow, TWO, {"w": [0, 1], "v": [1]}))
    with pytest.raises(PlanError, match=r"v\.take\(\) takes 2, 4 items of channel 'a' on each of 1 ranks"):
        found.simulate(ExecutionPlan.spatial(flow, TWO, {"w": [0], "v": [0, 1]}))
    assert predicted_ms(found, ExecutionPlan.temporal(flow, ["cpu:0"])) == executed_ms(flow, ExecutionPlan.temporal(flow, ["cpu:0"]))


class Taking(Worker):
    def take(self, inbox: Inbox) -> None:
        for n in (4, 2):
            self.compute(0.001 * len(inbox.get(n)))


def test_switching_costs_what_it_did_or_is_refused() -> None:
    flow = Workflow("switching")
    a = flow.channel("a")
    w, v = flow.worker(Heavy, name="w"), flow.worker(Heavy, name="v")

    @flow.iteration
    def iteration() -> None:
        w.make(4, a)
        v.use(a)

    tight = ExecutionPlan.temporal(flow, ["cpu:0"], name="tight", memory={"w": 1, "v": 1}, device_memory=1)
    roomy = ExecutionPlan.temporal(flow, ["cpu:0"])
    found = estimate(flow, tight, executed(flow, tight))
    assert predicted_ms(found, tight) == executed_ms(flow, tight)
    with pytest.raises(PlanError, match=r"Plan 'tight' may move 'w' off its devices and back.*Next: measure"):
        estimate(flow, roomy, executed(flow, roomy)).simulate(tight)


class Heavy(Worked):
    def onload(self) -> None:
        self.compute(0.003)

    def offload(self) -> None:
        self.compute(0.002)


# --- many flows ------------------------------------------------------------------------------------------------------
def measured_flow(seed: int) -> tuple[Scenario, Timeline, Estimate]:
    made = scenario(seed, [])
    for stage in made.stages:
        stage.first = 1 if stage.first == 0 else stage.first  # a call that takes no time leaves no span
    timeline = executed(made.flow, made.plan)
    return made, timeline, estimate(made.flow, made.plan, timeline)


@sweep(32, 200)
def test_random_flows_are_predicted_as_they_ran_and_in_other_micro_batches(seeds: range) -> None:
    """Chains, joins and cells with random costs, capacities, ranks and memory: exactly, or with a note that says what is assumed."""
    exact = others = 0
    for seed in seeds:
        made, timeline, found = measured_flow(seed)
        equal = found.simulate(made.plan, 3).elapsed_ns == timeline.elapsed_ns
        assert equal or found.notes, f"seed {seed}, {made.plan}\n{found}"
        exact += equal
        if made.stages[0].kind == "simulator" or any(s.explicit == made.plan.micro_batch(s.inputs[0]) for s in made.stages if s.explicit):
            continue  # where the number that is asked for is the micro-batch, it counts as the micro-batch
        rng = random.Random(seed)
        other = dataclasses.replace(made.plan, name="other", micro_batches={c: rng.choice((0, 1, 2, 3, 5)) for c in made.plan.micro_batches}, device_memory=None)
        equal = found.simulate(other, 3).elapsed_ns == executed(made.flow, other).elapsed_ns
        assert equal or found.notes, f"seed {seed}, {other}\n{found}"
        others += equal
    assert exact > 0.8 * len(seeds) and others > len(seeds) // 5


# --- who answers whom ----------------------------------------------------------------------------------------------
def test_ranks_that_share_a_queue_answer_whoever_asked() -> None:
    """Answered in turn, the tokens of one rank would get the answers of another, and the prediction would stand still."""
    flow = cell(0.001, 0.002, 5, uneven=3.0)
    devices = [f"cpu:{i}" for i in range(8)]
    plans = [
        ExecutionPlan.spatial(flow, devices, {"sim": [0], "policy": [1]}, name="one", sub_batches={"sim": 4}),
        ExecutionPlan.spatial(flow, devices, {"sim": [0], "policy": [1, 2]}, name="two answer", sub_batches={"sim": 4}),
        ExecutionPlan.spatial(flow, devices, {"sim": [0, 1], "policy": [2, 3, 4]}, name="three answer two", sub_batches={"sim": 2}),
        ExecutionPlan.spatial(flow, devices, {"sim": [0, 1, 2, 3], "policy": [4, 5]}, name="two answer four"),
    ]
    found = assert_predicts(flow, plans)
    with pytest.raises(PlanError, match="would hold 1 tokens"):
        found.simulate(dataclasses.replace(plans[0], sub_batches={}))
