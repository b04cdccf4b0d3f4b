"""Channels of groups: n items of one key go on together, whole, once, in order of completion; the graph, profiles and plans know it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, WorkflowError
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session
from rlinf_lab.runtime.threads.clocks import MockClock

GROUP = 3


class Sampler(lab.Worker):
    """Puts the items of its prompts in a given order: the responses to a prompt do not end together."""

    def sample(self, order: list[int], out: lab.Outbox) -> None:
        made: dict[int, int] = {}
        for prompt in order:
            if prompt % self.ranks == self.rank:
                self.compute(0.001)
                made[prompt] = made.get(prompt, 0) + 1
                out.put((prompt, made[prompt]), key=prompt)

    def forgets(self, order: list[int], out: lab.Outbox) -> None:
        out.put_all(order, key=5)

    def keyless(self, order: list[int], out: lab.Outbox) -> None:
        out.put(1)


class Advantage(lab.Worker):
    def compare(self, inbox: lab.Inbox) -> list[Any]:
        found = []
        for groups in inbox:
            self.compute(0.002 * len(groups))
            found += groups
        return found


def grpo(method: str = "sample") -> lab.Workflow:
    flow = lab.Workflow("grpo")
    completions = flow.channel("completions", capacity=2, group=GROUP)
    sampler, advantage = flow.worker(Sampler, name="sampler"), flow.worker(Advantage, name="advantage")

    @flow.iteration
    def iteration(order: Any = (0, 1) * GROUP) -> Any:
        getattr(sampler, method)(order, completions)
        return advantage.compare(completions).wait()

    return flow


def plan_of(flow: lab.Workflow, samplers: int = 1, advantages: int = 1, **fields: Any) -> lab.ExecutionPlan:
    used = {"sampler": list(range(samplers)), "advantage": list(range(samplers, samplers + advantages))}
    return lab.ExecutionPlan.spatial(flow, [f"cpu:{i}" for i in range(samplers + advantages)], used, **fields)


def completed(order: list[int]) -> list[int]:
    """Prompts in the order in which their last items are put."""
    return [p for i, p in enumerate(order) if order[: i + 1].count(p) == GROUP]


@settings(max_examples=25, deadline=None)
@given(st.permutations([p for p in range(4) for _ in range(GROUP)]), st.integers(1, 2), st.integers(1, 2), st.integers(1, 3))
def test_groups_arrive_whole_once_and_in_the_order_of_their_completion(order: list[int], samplers: int, advantages: int, micro_batch: int) -> None:
    flow = grpo()
    executor = LocalExecutor(flow, plan_of(flow, samplers, advantages, micro_batches={"completions": micro_batch}), MockClock())
    executor.start()
    found = Session(executor).step(order)
    executor.stop()
    groups = [g for of_rank in (found if advantages > 1 else [found]) for g in of_rank]
    assert sorted(groups) == [[(p, i + 1) for i in range(GROUP)] for p in range(4)]
    if samplers == advantages == 1:
        assert [g[0][0] for g in groups] == completed(order)


def test_groups_go_from_process_to_process() -> None:
    flow = grpo()
    with lab.session(flow, plan_of(flow), executor="processes", emulate=True) as session:
        assert session.step([7, 8, 7, 8, 8, 7]) == [[(p, i + 1) for i in range(GROUP)] for p in (8, 7)]


@pytest.mark.parametrize(
    ("method", "message"),
    [("forgets", r"sampler\[0\]: channel 'completions' has groups of 3, and the call ended with 2 of key 5"), ("keyless", "say of which group the item is")],
)
def test_what_does_not_come_together_is_an_error_by_name(method: str, message: str) -> None:
    flow = grpo(method)
    with lab.session(flow, plan_of(flow), emulate=True) as session:
        with pytest.raises(lab.errors.WorkerError, match=message):
            session.step([1, 2])
        if method == "forgets":
            assert session.step([1, 2, 3]) == [[1, 2, 3]]


def test_the_loop_puts_groups_too() -> None:
    flow = lab.Workflow("by the loop")
    prompts = flow.channel("prompts", group=2)
    advantage = flow.worker(Advantage, name="advantage")

    @flow.iteration
    def iteration(keys: list[int]) -> Any:
        for key in keys:
            prompts.put(key, key=key)
        return advantage.compare(prompts)

    with lab.session(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"])) as session:
        assert session.step([1, 2, 2, 1]) == [[2, 2], [1, 1]]
        with pytest.raises(WorkflowError, match="ended with 1 of key 2"):
            session.step([1, 2, 1])
        assert session.step([3, 3]) == [[3, 3]]


def test_the_graph_the_profile_and_the_plan_know_groups() -> None:
    flow = grpo()
    assert [e.group for e in flow.graph.edges] == [GROUP] and "groups of 3" in flow.graph._repr_html_()
    plan = plan_of(flow, micro_batches={"completions": 1})
    executor = LocalExecutor(flow, plan, MockClock())
    executor.start()
    session = Session(executor)
    for _ in range(3):
        session.step([p for p in range(4) for _ in range(GROUP)])
    timeline = lab.Timeline(plan.devices)
    for batch in executor.news.drain():
        timeline.extend(batch)
    executor.stop()
    profile = lab.planning.profile_from_run(flow, plan, timeline)
    assert profile.items == 4 * GROUP and [(e.group, e.items) for e in profile.edges] == [(GROUP, None)]
    plans = lab.plan(flow, ["cpu:0", "cpu:1"], profile)
    assert {p.execution.micro_batches["completions"] for p in plans if p.mode == "spatial"} <= {1, 2, 4}  # groups, of which there are four
    known = lab.estimate(flow, plan, timeline)
    assert known.simulate(plan, 3).elapsed_ns == timeline.elapsed_ns


def test_a_group_is_declared_once_and_for_items_without_a_reader_of_their_own() -> None:
    flow = lab.Workflow("wrong")
    with pytest.raises(ConfigError, match="group is 0; it must be a whole number of items, at least 1"):
        flow.channel("a", group=0)
    with pytest.raises(ConfigError, match="the key says which group an item is of, or who reads it"):
        flow.channel("b", group=2, keyed=True)
    assert "groups of 2" in repr(flow.channel("c", group=2))
