"""Groups that are put together where they are read, from whichever ranks and hosts; and the oldest group first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from mesh import MeshExecutor
from sessions import step_within

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, WorkerError, WorkflowError
from rlinf_lab.planning.simulator.scripts import Script, Turn, get, put, run, weigh
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.record.span import SpanKind

SIZE, PROMPTS, MS = 3, 4, 1_000_000


class Judge(lab.Worker):
    """Its share of (prompt, sample) in an order of its own; a prompt's samples are judged by several ranks."""

    def judge(self, order: list[int], judged: lab.Outbox) -> None:
        for i in range(self.rank, len(order), self.ranks):
            self.compute(0.001 * (1 + self.rank))
            judged.put((order[i], i), key=order[i], weight=i + 1)

    def keyless(self, order: list[int], judged: lab.Outbox) -> None:
        judged.put(order)


class Learner(lab.Worker):
    def learn(self, groups: lab.Inbox) -> list[Any]:
        found = []
        for batch in groups:
            found += batch
            self.compute(0.002 * len(batch))
        return found

    def by_weight(self, groups: lab.Inbox) -> list[Any]:
        return list(iter(lambda: groups.get_weight(20), []))


def grpo(method: str = "learn", judge: str = "judge", **options: Any) -> lab.Workflow:
    flow = lab.Workflow("gathered")
    groups = flow.channel("groups", group=SIZE, gather="readers", **options)
    judges, learner = flow.worker(Judge, name="judge"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration(order: list[int]) -> Any:
        getattr(judges, judge)(order, groups)
        return getattr(learner, method)(groups)

    return flow


def plan_of(flow: lab.Workflow, judges: int = 1, learners: int = 1, **fields: Any) -> lab.ExecutionPlan:
    places = {"judge": list(range(judges)), "learner": list(range(judges, judges + learners))}
    return lab.ExecutionPlan.spatial(flow, [f"cpu:{i}" for i in range(judges + learners)], places, **fields)


def learnt(flow: lab.Workflow, plan: lab.ExecutionPlan, order: list[int], far: bool = False) -> list[Any]:
    executor: Any = MeshExecutor(flow, plan, delay=0.0005) if far else LocalExecutor(flow, plan, MockClock())
    executor.start()
    try:
        found = step_within(Session(executor), order)
    finally:
        assert executor.stop() == Ended()
    return found if plan.ranks("learner") == 1 else [group for mine in found for group in mine]


ORDERS = st.permutations([p for p in range(PROMPTS) for _ in range(SIZE)])


@settings(max_examples=25, deadline=None)
@given(ORDERS, st.integers(1, 3), st.integers(1, 2), st.sampled_from([1, 2, None]), st.sampled_from(["fifo", "oldest_group"]), st.booleans())
def test_every_group_comes_whole_and_once_whoever_judged_its_members(
    order: list[int], judges: int, learners: int, capacity: int | None, how: str, far: bool
) -> None:
    flow = grpo(capacity=capacity, order=how)
    groups = learnt(flow, plan_of(flow, judges, learners, micro_batches={"groups": 1}), order, far)
    assert all(len({prompt for prompt, _ in group}) == 1 and len(group) == SIZE for group in groups)
    assert sorted(i for group in groups for _, i in group) == list(range(len(order)))


@pytest.mark.parametrize("executor", ["processes"])
def test_from_process_to_process(executor: str) -> None:
    flow = grpo()
    order = [0, 1, 2, 3] * SIZE
    with lab.session(flow, plan_of(flow, 2), executor=executor, emulate=True) as session:
        assert sorted(sorted(i for _, i in group) for group in session.step(order)) == [[p, p + 4, p + 8] for p in range(4)]


@pytest.mark.parametrize(("how", "first"), [("fifo", [1, 0, 2]), ("oldest_group", [1, 0, 2])])
def test_groups_leave_as_they_are_whole_or_the_oldest_first(how: str, first: list[int]) -> None:
    """0 begins, 1 is whole first; while the learner is busy with it 2 becomes whole before 0 does."""
    flow = grpo(order=how)
    order = [0, 1, 1, 1, 2, 2, 2, 0, 0] if how == "fifo" else [0, 1, 1, 1, 2, 0, 2, 2, 0]
    learner_waits = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"judge": [0], "learner": [1]}, micro_batches={"groups": 1})
    whole = [p for i, p in enumerate(order) if order[: i + 1].count(p) == SIZE]
    found = [group[0][0] for group in learnt(flow, learner_waits, order)]
    assert found == whole, "who is not kept waiting gets them as they are whole"
    # On one device the learner begins when all are there: now their ages count.
    late = [group[0][0] for group in learnt(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), order)]
    assert late == (whole if how == "fifo" else [0, 1, 2])


def test_items_of_the_oldest_group_go_first_where_nothing_is_put_together() -> None:
    flow = lab.Workflow("oldest")
    samples = flow.channel("samples", order="oldest_group")
    judges, learner = flow.worker(Judge, name="judge"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration() -> Any:
        judges.judge([5, 9, 7, 5, 7, 9, 5], samples)
        return learner.learn(samples)

    executor = LocalExecutor(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), MockClock())
    executor.start()
    try:
        assert [p for p, _ in Session(executor).step()] == [5, 5, 5, 9, 9, 7, 7]
    finally:
        executor.stop()


def test_a_group_weighs_what_its_members_weigh() -> None:
    flow = grpo("by_weight")
    order = [0, 0, 0, 1, 1, 1, 2, 2, 2]  # weights 6, 15, 24
    assert [[g[0][0] for g in batch] for batch in learnt(flow, plan_of(flow), order)] == [[0, 1], [2]]


@pytest.mark.parametrize("far", [False, True])
def test_an_incomplete_group_is_told_unless_that_is_meant(far: bool) -> None:
    order = [0, 0, 0, 1, 1]
    with pytest.raises(WorkflowError, match=r"Channel 'groups': 2 of 5 items are left.*Next: put 3 items of each key \(one that failed is an item, too\)"):
        learnt(flow := grpo(), plan_of(flow, 2), order, far)
    found = learnt(flow := grpo(discard_unread=True), plan_of(flow, 2), order, far)
    assert [[p for p, _ in group] for group in found] == [[0, 0, 0]]


@pytest.mark.parametrize("judges", [1, 2, 3])
@pytest.mark.parametrize("how", ["fifo", "oldest_group"])
def test_the_simulator_says_when_each_group_is_taken(judges: int, how: str) -> None:
    flow = grpo(capacity=2, order=how)
    plan = plan_of(flow, judges, micro_batches={"groups": 1})
    order = [0, 1, 2, 0, 3, 1, 1, 2, 3, 0, 3, 2]

    def judge(turn: Turn) -> Script:
        for i in range(turn.position, len(order), turn.count):
            yield run(MS * (1 + turn.rank))
            yield weigh(i + 1, order[i])
            yield put("groups")

    def learner(turn: Turn) -> Script:
        while n := (yield get("groups")):
            yield run(2 * MS * n)

    calls = [
        SimCall("judge", "judge", judge, (), ("groups",)),
        SimCall("learner", "learn", learner, ("groups",), (), starts_on_device=False),
    ]
    simulated = Simulator(flow.graph, plan).simulate(calls, 1)
    ran = lab.run(flow, plan, 1, dashboard=False, clock=MockClock(), inputs=[order], emulate=True)
    ran.wait(60)
    assert taken(ran.timeline) == taken(simulated)


def taken(timeline: lab.Timeline) -> list[tuple[int, int]]:
    spans = timeline.spans
    gets = spans[spans["kind"] == SpanKind.GET]
    return sorted(zip(gets["end"].tolist(), gets["items"].tolist(), strict=True))


def test_bad_declarations_and_puts_are_refused() -> None:
    flow = lab.Workflow("bad")
    for options, told in [
        ({"group": 3, "gather": "nobody"}, "gather is 'nobody'; it must be 'writers' or 'readers'"),
        ({"gather": "readers"}, "gather='readers' with group=1"),
        ({"group": 3, "gather": "readers", "order": "lifo"}, "in order 'fifo' or 'oldest_group'"),
        ({"group": 3, "order": "oldest_group"}, "order='oldest_group' with groups of writers"),
        ({"keyed": True, "order": "oldest_group"}, "order='oldest_group' with keyed=True"),
    ]:
        with pytest.raises(ConfigError, match=told):
            flow.channel("c", **options)
    with pytest.raises(WorkerError, match=r"has groups\. Next: say of which group the item is, put\(item, key=\.\.\.\)"):
        learnt(flow := grpo(judge="keyless"), plan_of(flow), [0])
    assert "groups of 3 of any rank" in repr(lab.Workflow("told").channel("c", group=3, gather="readers"))
