"""Plans by hand and their errors; the simulator's arithmetic in closed form; predictions from a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlinf_lab.errors import DeadlockError, PlanError, UnknownNameError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.replay.estimate import Recorded, _one_token, estimate
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator, get, put, run
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from flows import DEVICES, cell_flow, cell_plans

MS = 1_000_000


class Stage(Worker):
    def produce(self, out: Outbox) -> None:
        out.put(1)

    def convert(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            out.put_all(batch)

    def consume(self, inbox: Inbox) -> None:
        for _ in inbox:
            pass


def chain() -> Workflow:
    flow = Workflow("chain")
    first, second = flow.channel("first", capacity=None), flow.channel("second", capacity=None)
    a, b, c = flow.worker(Stage, name="a"), flow.worker(Stage, name="b"), flow.worker(Stage, name="c")

    @flow.iteration
    def iteration() -> None:
        a.produce(first)
        b.convert(first, second)
        c.consume(second)

    return flow


def chain_calls(items: int, costs: tuple[int, int, int]) -> list[SimCall]:
    def a(turn):
        for _ in range(items):
            yield run(costs[0] * MS)
            yield put("first")

    def b(turn):
        while n := (yield get("first")):
            yield run(costs[1] * n * MS)
            yield put("second", n)

    def c(turn):
        while n := (yield get("second")):
            yield run(costs[2] * n * MS)

    return [
        SimCall("a", "produce", a, writes=("first",)),
        SimCall("b", "convert", b, reads=("first",), writes=("second",), starts_on_device=False),
        SimCall("c", "consume", c, reads=("second",), starts_on_device=False),
    ]


def test_a_simulated_deadlock_is_named() -> None:
    flow = chain()

    def stuck(turn):
        yield get("second", 1)

    calls = chain_calls(1, (1, 1, 1))[:2]
    calls[1] = SimCall("b", "convert", stuck, reads=("second",))
    calls[0] = SimCall("c", "consume", stuck, reads=("second",), writes=("second",))
    with pytest.raises(DeadlockError, match=r"c\[0\] waits for channel 'second'"):
        Simulator(flow.graph, ExecutionPlan.temporal(flow, ["cpu:0"])).simulate(calls)


def test_negative_durations_are_refused() -> None:
    with pytest.raises(WorkflowError, match="run\\(-1\\)"):
        run(-1)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda f: ExecutionPlan.temporal(f, [], {}), PlanError, "no devices"),
        (lambda f: ExecutionPlan.temporal(f, DEVICES, {"sim": 3}), PlanError, r"ranks\['sim'\] is 3.*one rank for each of the 2 devices"),
        (lambda f: ExecutionPlan.temporal(f, DEVICES, {"simm": 1}), UnknownNameError, "Did you mean 'sim'"),
        (lambda f: ExecutionPlan.temporal(f, DEVICES, micro_batchez={}), UnknownNameError, "Did you mean 'micro_batches'"),
        (lambda f: ExecutionPlan.temporal(f, DEVICES, micro_batches={"obs": 9}), PlanError, "only 1 tokens circulate"),
        (lambda f: ExecutionPlan.spatial(f, DEVICES, {"sim": [0]}), PlanError, "no devices for 'policy', 'learner'"),
        (lambda f: ExecutionPlan.spatial(f, DEVICES, {"sim": [0], "policy": [7], "learner": [1]}), PlanError, "on device 7"),
        (lambda f: ExecutionPlan.spatial(f, DEVICES, {"sim": [0, 0], "policy": [1], "learner": [1]}), PlanError, "more ranks than devices"),
        (lambda f: ExecutionPlan.temporal(f, ["cpu:0", "cpu:0"]), PlanError, "twice"),
        (lambda f: ExecutionPlan.temporal(f, DEVICES, memory={"sim": 9}, device_memory=4), PlanError, "needs 9 units"),
        (lambda f: ExecutionPlan.from_json('{"name": "x", "devicez": []}'), UnknownNameError, "Did you mean 'devices'"),
        (lambda f: ExecutionPlan.from_json('{"name": "x", "devices": []}'), PlanError, "without the field 'placements'"),
    ],
)
def test_plans_that_cannot_work_are_refused_by_name(make, error, text) -> None:
    with pytest.raises(error, match=text):
        make(cell_flow())


def test_plans_survive_json_and_print() -> None:
    flow = cell_flow()
    for plan in cell_plans(flow):
        assert ExecutionPlan.from_json(plan.to_json()) == plan
        assert plan.name in repr(plan) and "sim" in repr(plan) and "<table" in plan._repr_html_()


class SlowSim(Worker):
    def collect(self, actions: Inbox, observations: Outbox) -> None:
        slots = [self.rank * self.sub_batches + k for k in range(self.sub_batches)]
        for slot in slots:
            observations.put(slot)
        for t in range(8):
            for slot in slots:
                actions.take(key=slot)
                self.compute(0.004)
                if t < 7:
                    observations.put(slot)


class SlowPolicy(Worker):
    def act(self, observations: Inbox, actions: Outbox) -> None:
        for batch in observations:
            self.compute(0.002)
            for slot in batch:
                actions.put(0, key=slot)


def measured(flow: Workflow, plan: ExecutionPlan, iterations: int) -> Timeline:
    """Executed with a clock that computes alone move."""
    executor = LocalExecutor(flow, plan, MockClock())
    executor.start()
    session = Session(executor)
    for _ in range(iterations):
        session.step()
    executor.stop()
    timeline = Timeline(plan.devices)
    for batch in executor.news.drain():
        timeline.extend(batch)
    return timeline


def test_a_run_under_one_plan_predicts_another() -> None:
    flow = Workflow("slow")
    obs, act = flow.channel("obs"), flow.channel("act", keyed=True)
    sim, policy = flow.worker(SlowSim, name="sim"), flow.worker(SlowPolicy, name="policy")

    @flow.iteration
    def iteration() -> None:
        sim.collect(act, obs)
        policy.act(obs, act)

    together = ExecutionPlan.temporal(flow, DEVICES, {"sim": 2})
    apart = ExecutionPlan.spatial(flow, DEVICES, {"sim": [0], "policy": [1]}, sub_batches={"sim": 2})
    found = estimate(flow.graph, together, measured(flow, together, 4))
    assert "every batch had 2 items" in found.notes[0]
    # In closed form: one simulator rank works without pause on 16 steps of 4 ms, and the first answer takes 2 ms.
    assert found.simulate(apart, 1).elapsed_ns == 16 * 4_000_000 + 2_000_000
    with pytest.raises(PlanError, match="would hold 1 tokens"):
        found.simulate(ExecutionPlan.spatial(flow, DEVICES, {"sim": [0], "policy": [1]}))


@pytest.mark.parametrize("tokens", [1, 2, 3])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_what_a_rank_does_for_one_token_is_found_in_its_record(tokens: int, steps: int) -> None:
    """A simulator's record with several tokens, as it is written: puts of all, then step by step in turn, then what each hands over."""
    seen, taken, given = (SpanKind.PUT, "obs", 1, 0), (SpanKind.GET, "act", 1, 0), (SpanKind.PUT, "traj", 1, 0)

    def worked(ns: int) -> tuple:
        return (SpanKind.RUN, "", 0, ns)

    record = [op for k in range(tokens) for op in (worked(1 + 10 * k), seen)]
    for left in range(steps - 1, -1, -1):
        record += [op for k in range(tokens) for op in ([taken, worked(5 + 10 * k), seen] if left else [taken, worked(5 + 10 * k)])]
    record += [given] + [op for _ in range(tokens - 1) for op in (worked(2), given)]
    for k in range(tokens):
        step = worked(5 + 10 * k)
        expected = [worked(1 + 10 * k), seen, *([taken, step, seen] * (steps - 1)), taken, step, *[worked(2)] * (k > 0), given]
        assert _one_token(Recorded(tuple(record)), tokens, k) == expected
