"""A call sees one version of the weights, on however many ranks, hosts and occasions, and the bound on staleness holds all the same."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import both, opened

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.state.messages import Pull
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.runtime.run.run import session
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Acts(Worker):
    """Its ranks come to their pulls at times of their own, before and after the learner has published."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds, self.seed = seconds, seed

    def setup(self) -> None:
        self.rng = random.Random(f"{self.seed} {self.name} {self.rank}")

    def act(self, weights: Weights) -> Any:
        pulled = []
        for at_least in (0, self.iteration, 0, 1):
            self.compute(self.rng.random() * self.seconds if at_least != 1 else 0.0)
            version, state = weights.pull(at_least)
            assert state == (f"state {version}" if version else None)
            pulled.append(version)
        return self.rank, tuple(pulled)


class Learns(Worker):
    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds, self.rng, self.count = seconds, random.Random(seed), 0

    def learn(self, weights: Weights) -> None:
        self.compute(self.rng.random() * self.seconds)
        self.count += 1
        weights.publish(f"state {self.count}")


def flow_of(seconds: float, seed: int, ranks: int, staleness: int) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("versions")
    weights = flow.weights("actor")
    acts, other = flow.worker(Acts, seconds, seed, name="acts"), flow.worker(Acts, seconds, seed, name="other")
    learns = flow.worker(Learns, 2 * seconds, seed + 1, name="learns")

    @flow.iteration
    def iteration() -> Any:
        acted, others = acts.act(weights), other.act(weights)
        learns.learn(weights)
        return {"acted": acted, "other": others}

    devices = [f"cpu:{i}" for i in range(ranks + 2)]
    places = {"acts": list(range(ranks)), "other": [ranks], "learns": [ranks + 1]}
    return flow, ExecutionPlan.spatial(flow, devices, places, staleness=staleness)


def ranks_of(value: Any) -> list[Any]:
    """What the ranks returned: a list where there are several."""
    return value if isinstance(value, list) else [value]


def assert_one_version(calls: list[Any], staleness: int) -> int:
    """Of each call; by how many versions the oldest lagged behind its iteration."""
    lag = 0
    for i, call in enumerate(calls):
        for of_call in (call["acted"], call["other"]):
            versions = {pulled for _, pulled in ranks_of(of_call)}
            assert len(versions) == 1, (i, of_call)
            plain, waited, again, one = versions.pop()
            assert plain == again and (not plain or one == plain), (i, of_call)
            assert max(0, i - staleness) <= plain <= waited and i <= waited <= i + 1 + staleness, (i, of_call)
            lag = max(lag, i - plain)
    return lag


def calls_of(kind: str, flow: Workflow, plan: ExecutionPlan, iterations: int, **options: Any) -> list[Any]:
    with opened(kind, flow, plan, **options) as s:
        started = [s.submit() for _ in range(iterations)]
        s.finish()
        return [one.wait() for one in started]


@settings(deadline=None, max_examples=25, derandomize=True)
@given(staleness=st.integers(0, 3), ranks=st.integers(1, 3), seed=st.integers(0, 1 << 20))
def test_threads_and_a_mock_clock(staleness: int, ranks: int, seed: int) -> None:
    flow, plan = flow_of(0.01, seed, ranks, staleness)
    assert_one_version(calls_of("mock", flow, plan, 6), staleness)


def test_with_staleness_versions_lag_behind_and_without_they_do_not() -> None:
    lags = {n: max(assert_one_version(calls_of("mock", *flow_of(0.01, seed, 2, n), 8), n) for seed in range(6)) for n in (0, 1)}
    assert lags == {0: 0, 1: 1}


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_many_hosts_with_messages_on_their_way(staleness: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each version travels once to each host."""
    asked, ask = Counter[tuple[str, int]](), WeightTable._asked

    def counted(self: WeightTable, message: Pull) -> None:
        asked[message.asker, message.version] += 1
        ask(self, message)

    monkeypatch.setattr(WeightTable, "_asked", counted)
    for seed in range(6):
        flow, plan = flow_of(0.003, seed, 3, staleness)
        asked.clear()
        assert_one_version(calls_of("mesh", flow, plan, 6, seed=seed), staleness)
        assert asked and max(asked.values()) == 1, asked


@pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_under_every_executor(executor: str) -> None:
    for staleness in (0, 1) if executor == "local" else (1,):
        flow, plan = flow_of(0.005, 3, 2, staleness)
        with session(flow, plan, executor, emulate=True) as s:
            started = [s.submit() for _ in range(12)]
            s.finish()
            assert_one_version([one.wait() for one in started], staleness)


@both
def test_who_has_joined_pulls_with_the_others(kind: str) -> None:
    with opened(kind, *flow_of(0.003, 5, 2, 0), absent={"acts": [1]}) as s:
        calls = [s.step() for _ in range(2)]
        s.join("acts", 1)
        calls += [s.step() for _ in range(4)]
        s.leave("acts", 1)
        calls.append(s.step())
    assert [len(ranks_of(call["acted"])) for call in calls] == [1, 1, 2, 2, 2, 2, 1]
    assert_one_version(calls, 0)


@both
def test_versions_that_nobody_can_want_are_not_kept(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    over = WeightTable.over

    def counted(self: WeightTable, iteration: int) -> None:
        over(self, iteration)
        held.append(len(self.store("actor").held) + len(self.versions))

    monkeypatch.setattr(WeightTable, "over", counted)
    assert_one_version(calls_of(kind, *flow_of(0.002, 1, 2, 0), 8, delay=0.0005), 0)
    assert held and max(held) <= 1, held


class LearnsOften(Worker):
    count = 0

    def learn(self, weights: Weights) -> int:
        self.count += 1
        return weights.publish(f"state {self.count}")


@both
def test_who_publishes_often_keeps_few_versions(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, all of an iteration: 30 of them."""
    held: list[int] = []
    take = WeightTable._take

    def counted(self: WeightTable, store: Any, new: Any) -> None:
        take(self, store, new)
        held.append(len(store.held))

    monkeypatch.setattr(WeightTable, "_take", counted)
    flow = Workflow("often")
    weights = flow.weights("actor")
    acts, learns = flow.worker(Acts, 0.0, 1, name="acts"), flow.worker(LearnsOften, name="learns")

    @flow.iteration
    def iteration() -> Any:
        acted = [acts.act(weights)]
        for i in range(30):
            learns.learn(weights).wait()
            if i % 10 == 0:
                acted.append(acts.act(weights))
        return acted

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"acts": [0, 1], "learns": [2]})
    for calls in calls_of(kind, flow, plan, 3):
        for call in calls:
            assert len({pulled for _, pulled in call}) == 1, call
    assert max(held) <= 10, held  # each call of the ranks has two, at most: its own, and that beyond it


class PullsTwice(Worker):
    def act(self, weights: Weights, out: Outbox) -> tuple[int, ...]:
        first = weights.pull().version
        out.put(first)
        return first, weights.pull(at_least=first + 1).version, weights.pull().version


class Follows(Worker):
    def learn(self, inbox: Inbox, weights: Weights) -> None:
        weights.publish(f"after {inbox.take()}")


def test_a_call_of_one_rank_keeps_its_version_too() -> None:
    """Else the plan would decide what a worker sees that pulls twice."""
    flow = Workflow("twice")
    weights, pulled = flow.weights("actor"), flow.channel("pulled")
    acts, follows = flow.worker(PullsTwice, name="acts"), flow.worker(Follows, name="follows")

    @flow.iteration
    def iteration() -> Any:
        acted = acts.act(weights, pulled)
        follows.learn(pulled, weights)
        return acted

    with session(flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"acts": [0], "follows": [1]}), emulate=True) as s:
        assert [s.step() for _ in range(2)] == [(0, 1, 0), (1, 2, 1)]
