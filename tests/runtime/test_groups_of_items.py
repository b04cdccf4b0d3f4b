"""Channels of groups: n items of one key go on together, whole, once, in order of completion, or the oldest first; put together by who writes or who reads
them; the graph, profiles and plans know it."""

from __future__ import annotations

from typing import Any

import pytest
from flows import apart
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import both, opened, recorded, step_within

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, WorkerError, WorkflowError
from rlinf_lab.planning.simulator.scripts import Script, Turn, get, put, run, weigh
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.record.span import SpanKind

SIZE, PROMPTS, MS = 3, 4, 1_000_000


class Sampler(lab.Worker):
    """Puts (prompt, number) in a given order: the responses to a prompt do not end together."""

    def of_own_prompts(self, order: list[int], out: lab.Outbox) -> None:
        self.put([(i, prompt) for i, prompt in enumerate(order) if prompt % self.ranks == self.rank], out)

    def of_all_prompts(self, order: list[int], out: lab.Outbox) -> None:
        """A prompt's samples come from several ranks: only who reads can put them together."""
        self.put([(i, order[i]) for i in range(self.rank, len(order), self.ranks)], out)

    def put(self, mine: list[tuple[int, int]], out: lab.Outbox) -> None:
        for i, prompt in mine:
            self.compute(0.001 * (1 + self.rank))
            out.put((prompt, i), key=prompt, weight=i + 1)

    def keyless(self, order: list[int], out: lab.Outbox) -> None:
        out.put(order)


class Learner(lab.Worker):
    def learn(self, groups: lab.Inbox) -> list[Any]:
        found = []
        for batch in groups:
            found += batch
            self.compute(0.002 * len(batch))
        return found

    def by_weight(self, groups: lab.Inbox) -> list[Any]:
        return list(iter(lambda: groups.get_weight(20), []))


SAMPLES = {"writers": "of_own_prompts", "readers": "of_all_prompts"}
gathered = pytest.mark.parametrize("gather", SAMPLES)


def grpo(gather: str, method: str = "learn", samples: str = "", **options: Any) -> lab.Workflow:
    flow = lab.Workflow("grpo")
    groups = flow.channel("groups", **{"group": SIZE, "gather": gather, **options})
    sampler, learner = flow.worker(Sampler, name="sampler"), flow.worker(Learner, name="learner")
    flow.iteration(lambda order: (getattr(sampler, samples or SAMPLES[gather])(order, groups), getattr(learner, method)(groups))[1])
    return flow


def learnt(flow: lab.Workflow, plan: lab.ExecutionPlan, order: list[int], kind: str = "mock") -> list[Any]:
    with opened(kind, flow, plan, 0.0005) as s:
        found = step_within(s, order)
    return found if plan.ranks("learner") == 1 else [group for mine in found for group in mine]


def completed(order: list[int]) -> list[int]:
    """Prompts in the order in which their last items are put."""
    return [p for i, p in enumerate(order) if order[: i + 1].count(p) == SIZE]


ORDERS = st.permutations([p for p in range(PROMPTS) for _ in range(SIZE)])


@gathered
@settings(max_examples=15, deadline=None)
@given(
    ORDERS, st.integers(1, 3), st.integers(1, 2), st.sampled_from([1, 2, None]), st.integers(1, 3), st.sampled_from(["fifo", "oldest_group"]),
    st.sampled_from(["mock", "mesh"]),
)  # fmt: skip
def test_every_group_comes_whole_and_once_in_the_order_of_its_completion(
    gather: str, order: list[int], samplers: int, learners: int, capacity: int | None, micro_batch: int, how: str, kind: str
) -> None:
    """Whoever made its members, and wherever they are put together."""
    flow = grpo(gather, capacity=capacity, order=how if gather == "readers" else "fifo")
    groups = learnt(flow, apart(flow, {"sampler": samplers, "learner": learners}, micro_batches={"groups": micro_batch}), order, kind)
    assert all(len({prompt for prompt, _ in group}) == 1 and len(group) == SIZE for group in groups)
    assert sorted(i for group in groups for _, i in group) == list(range(len(order)))
    if samplers == learners == 1 and (kind, how) == ("mock", "fifo"):
        assert [group[0][0] for group in groups] == completed(order)


@pytest.mark.parametrize(("how", "order"), [("fifo", [0, 1, 1, 1, 2, 2, 2, 0, 0]), ("oldest_group", [0, 1, 1, 1, 2, 0, 2, 2, 0])])
def test_groups_leave_as_they_are_whole_or_the_oldest_first(how: str, order: list[int]) -> None:
    """0 begins, 1 is whole first; while the learner is busy with it 2 becomes whole before 0 does."""
    flow = grpo("readers", order=how)
    found = [group[0][0] for group in learnt(flow, apart(flow, micro_batches={"groups": 1}), order)]
    assert found == completed(order), "who is not kept waiting gets them as they are whole"
    # On one device the learner begins when all are there: now their ages count, also of items that nobody puts together.
    late = [group[0][0] for group in learnt(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), order)]
    assert late == (completed(order) if how == "fifo" else [0, 1, 2])
    alone = grpo("writers", group=1, order="oldest_group")
    assert [p for p, _ in learnt(alone, lab.ExecutionPlan.temporal(alone, ["cpu:0"]), [5, 9, 7, 5, 7, 9, 5])] == [5, 5, 5, 9, 9, 7, 7]


@gathered
def test_a_group_weighs_what_its_members_weigh(gather: str) -> None:
    flow = grpo(gather, "by_weight")
    order = [0, 0, 0, 1, 1, 1, 2, 2, 2]  # weights 6, 15, 24
    assert [[g[0][0] for g in batch] for batch in learnt(flow, apart(flow), order)] == [[0, 1], [2]]


@both
def test_an_incomplete_group_is_told_unless_that_is_meant(kind: str) -> None:
    order = [0, 0, 0, 1, 1]
    with pytest.raises(WorkerError, match=r"sampler\[0\]: channel 'groups' has groups of 3, and the call ended with 2 of key 1"):
        learnt(flow := grpo("writers"), apart(flow), order, kind)
    with pytest.raises(WorkflowError, match=r"Channel 'groups': 2 of 5 items are left.*Next: put 3 items of each key \(one that failed is an item, too\)"):
        learnt(flow := grpo("readers"), apart(flow, {"sampler": 2}), order, kind)
    found = learnt(flow := grpo("readers", discard_unread=True), apart(flow, {"sampler": 2}), order, kind)
    assert [[p for p, _ in group] for group in found] == [[0, 0, 0]]


@pytest.mark.parametrize("samplers", [1, 3])
@pytest.mark.parametrize("how", ["fifo", "oldest_group"])
def test_the_simulator_says_when_each_group_is_taken(samplers: int, how: str) -> None:
    flow = grpo("readers", capacity=2, order=how)
    plan = apart(flow, {"sampler": samplers}, micro_batches={"groups": 1})
    order = [0, 1, 2, 0, 3, 1, 1, 2, 3, 0, 3, 2]

    def sampler(turn: Turn) -> Script:
        for i in range(turn.position, len(order), turn.count):
            yield run(MS * (1 + turn.rank))
            yield weigh(i + 1, order[i])
            yield put("groups")

    def learner(turn: Turn) -> Script:
        while n := (yield get("groups")):
            yield run(2 * MS * n)

    calls = [SimCall("sampler", "of_all_prompts", sampler, (), ("groups",)), SimCall("learner", "learn", learner, ("groups",), (), starts_on_device=False)]
    ran = lab.run(flow, plan, 1, dashboard=False, clock=MockClock(), inputs=[order], emulate=True)
    ran.wait(60)
    puts = ran.timeline.spans[ran.timeline.spans["kind"] == SpanKind.PUT]
    assert puts["end"].tolist() == [SIZE * MS * (1 + i) for i in range(PROMPTS if samplers == 1 else samplers)]
    assert taken(ran.timeline) == taken(Simulator(flow.graph, plan).simulate(calls, 1))


def taken(timeline: lab.Timeline) -> list[tuple[int, int]]:
    gets = timeline.spans[timeline.spans["kind"] == SpanKind.GET]
    return sorted(zip(gets["end"].tolist(), gets["items"].tolist(), strict=True))


def test_the_loop_puts_groups_too() -> None:
    flow = lab.Workflow("by the loop")
    prompts, learner = flow.channel("prompts", group=2), flow.worker(Learner, name="learner")
    flow.iteration(lambda keys: ([prompts.put(key, key=key) for key in keys], learner.learn(prompts))[1])
    with opened("local", flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])) as s:
        assert s.step([1, 2, 2, 1]) == [[2, 2], [1, 1]]
        with pytest.raises(WorkflowError, match="ended with 1 of key 2"):
            s.step([1, 2, 1])
        assert s.step([3, 3]) == [[3, 3]]


def test_the_graph_the_profile_and_the_plan_know_groups() -> None:
    flow = grpo("writers", capacity=2)
    assert [e.group for e in flow.graph.edges] == [SIZE] and "groups of 3" in flow.graph._repr_html_()
    plan = apart(flow, micro_batches={"groups": 1})
    with opened("mock", flow, plan) as s:
        for _ in range(3):
            s.step([p for p in range(PROMPTS) for _ in range(SIZE)])
    timeline = recorded(s)
    profile = lab.planning.profile_from_run(flow, plan, timeline)
    assert profile.items == PROMPTS * SIZE and [(e.group, e.items) for e in profile.edges] == [(SIZE, None)]
    plans = lab.plan(flow, ["cpu:0", "cpu:1"], profile)
    assert {p.execution.micro_batches["groups"] for p in plans if p.mode == "spatial"} <= {1, 2, 4}  # groups, of which there are four
    assert lab.estimate(flow, plan, timeline).simulate(plan, 3).elapsed_ns == timeline.elapsed_ns


def test_bad_declarations_and_puts_are_refused() -> None:
    flow = lab.Workflow("bad")
    for options, told in [
        ({"group": 0}, "group is 0; it must be a whole number of items, at least 1"),
        ({"group": 2, "keyed": True}, "the key says which group an item is of, or who reads it"),
        ({"group": 3, "gather": "nobody"}, "gather is 'nobody'; it must be 'writers' or 'readers'"),
        ({"gather": "readers"}, "gather='readers' with group=1"),
        ({"group": 3, "gather": "readers", "order": "lifo"}, "in order 'fifo' or 'oldest_group'"),
        ({"group": 3, "order": "oldest_group"}, "order='oldest_group' with groups of writers"),
        ({"keyed": True, "order": "oldest_group"}, "order='oldest_group' with keyed=True"),
    ]:
        with pytest.raises(ConfigError, match=told):
            flow.channel("c", **options)
    for gather in SAMPLES:
        with pytest.raises(WorkerError, match=r"has groups.*[sS]ay of which group the item is"):
            learnt(flow := grpo(gather, samples="keyless"), apart(flow), [0])
    assert "groups of 3 of any rank" in repr(lab.Workflow("told").channel("c", group=3, gather="readers"))
    assert "groups of 2" in repr(lab.Workflow("told").channel("c", group=2))
