"""A call sees one version of the weights, on however many ranks, hosts and occasions, and the bound on staleness holds all the same.

Which version is had when, and what misuse is told.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from flows import apart
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import both, opened

from rlinf_lab import ExecutionPlan, Weights, Worker, Workflow
from rlinf_lab.errors import WorkerError, WorkflowError
from rlinf_lab.runtime.host.state.messages import Pull
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.runtime.run.run import session


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
    flow.iteration(lambda: {"acted": acts.act(weights), "other": other.act(weights), "learnt": learns.learn(weights)})
    return flow, apart(flow, {"acts": ranks}, staleness=staleness)


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
    for seed in range(3):
        flow, plan = flow_of(0.003, seed, 3, staleness)
        asked.clear()
        assert_one_version(calls_of("mesh", flow, plan, 6, seed=seed), staleness)
        assert asked and max(asked.values()) == 1, asked


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_between_processes(executor: str) -> None:
    flow, plan = flow_of(0.005, 3, 2, 1)
    with session(flow, plan, executor, emulate=True) as s:
        started = [s.submit() for _ in range(12)]
        s.finish()
        assert_one_version([one.wait() for one in started], 1)


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
def test_few_versions_are_kept_also_of_who_publishes_often(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None that nobody can want. Before, all of an iteration: 30 of them."""
    after, within, over, take = list[int](), list[int](), WeightTable.over, WeightTable._take

    def is_over(self: WeightTable, iteration: int) -> None:
        over(self, iteration)
        after.append(len(self.store("actor").held) + len(self.versions))

    def takes(self: WeightTable, store: Any, new: Any) -> None:
        take(self, store, new)
        within.append(len(store.held))

    monkeypatch.setattr(WeightTable, "over", is_over)
    monkeypatch.setattr(WeightTable, "_take", takes)
    assert_one_version(calls_of(kind, *flow_of(0.002, 1, 2, 0), 8, delay=0.0005), 0)
    assert after and max(after) <= 1, after
    flow = Workflow("often")
    weights = flow.weights("actor")
    acts, learns = flow.worker(Acts, 0.0, 1, name="acts"), flow.worker(Learns, 0.0, 1, name="learns")

    @flow.iteration
    def iteration() -> Any:
        acted = [acts.act(weights)]
        for i in range(30):
            learns.learn(weights).wait()
            if i % 10 == 0:
                acted.append(acts.act(weights))
        return acted

    for calls in calls_of(kind, flow, apart(flow, {"acts": 2}), 3):
        for call in calls:
            assert len({pulled for _, pulled in call}) == 1, call
    assert max(within) <= 10, within  # each call of the ranks has two, at most: its own, and that beyond it


class Actor(Worker):
    def pull(self, wanted: int, weights: Weights) -> Any:
        version, state = weights.pull(at_least=wanted)
        if isinstance(state, np.ndarray):
            state += 1  # its own
            return version, float(state.mean())
        return version, state


class Learner(Worker):
    def publish(self, states: list[Any], fails: bool, weights: Weights) -> list[int]:
        versions = [weights.publish(state) for state in states]
        if fails:
            raise ValueError("after publishing")
        return versions

    def publish_lock(self, weights: Weights) -> int:
        return weights.publish(threading.Lock())

    def publish_from(self, rank: int, weights: Weights) -> int:
        return weights.publish("state") if self.rank == rank else 0

    def keep(self, weights: Weights) -> None:
        self.kept = weights

    def use_kept(self) -> None:
        self.kept.pull()


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_who_comes_late_gets_the_newest_of_what_was_published_well(executor: str) -> None:
    """Of several versions of one call the last one is there and all are counted; what a call that failed has published is never seen."""
    flow = Workflow("store")
    weights = flow.weights("actor")
    actor, learner = flow.worker(Actor, name="actor"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration(pulls: int = 0, states: Any = None, fails: bool = False, lock: bool = False) -> Any:
        if states is not None:
            return learner.publish(states, fails, weights)
        return learner.publish_lock(weights) if lock else actor.pull(pulls, weights)

    with session(flow, ExecutionPlan("store", ("cpu:0", "cpu:1"), {"actor": ((0,),), "learner": ((1,),)}), executor=executor) as s:
        assert s.step(0) == (0, None)
        assert s.step(0, ["a", "b"]) == [1, 2] and s.step(1) == s.step(2) == (2, "b")
        with pytest.raises(WorkerError, match="after publishing"):
            s.step(0, ["bad"], True)
        assert s.step(1) == (2, "b") and s.step(0, [np.ones(20_000)]) == [3] and s.step(3) == (3, 2.0)
        assert s.step(0, None, False, True) == 4
        for _ in range(2 if executor == "processes" else 0):
            told = r"(?s)rank 0 failed in publish\(\): .*Version 4 of the weights 'actor' cannot be sent .*: TypeError: cannot pickle '_thread.lock'"
            with pytest.raises(WorkerError, match=told):
                s.step(2)
        assert s.step(0, ["good"]) == [5] and s.step(2) == (5, "good")


def test_misuse_is_named() -> None:
    flow = Workflow("misused")
    weights, other = flow.weights("actor"), Workflow("other").weights("actor")
    with pytest.raises(WorkflowError, match="has weights 'actor' already"):
        flow.weights("actor")
    with pytest.raises(WorkflowError, match="belongs into a worker's method"):
        weights.pull()
    learner = flow.worker(Learner, name="learner")
    second = flow.worker(Learner, name="second")

    @flow.iteration
    def iteration() -> Any:
        return learner.publish([1], False, other)

    with pytest.raises(WorkflowError, match="'weights' is the weights 'actor' of another workflow"):
        _ = flow.graph

    @flow.iteration
    def again(what: str = "keep", rank: int = 0) -> Any:
        if what == "keep":
            return learner.keep(weights)
        if what == "kept":
            return learner.use_kept()
        return (second if what == "second" else learner).publish_from(rank, weights)

    plan = ExecutionPlan("misused", ("cpu:0", "cpu:1"), {"learner": ((0,), (1,)), "second": ((0,),)})
    with session(flow, plan) as s:
        s.step("keep")
        assert s.step("learner", 0) == [1, 0]
        for step, told in (
            (("kept",), "were given to a call of iteration 0"), (("learner", 1), "published by rank 0"), (("second", 0), "are published by 'learner'"),
        ):  # fmt: skip
            with pytest.raises(WorkerError, match=told):
                s.step(*step)


def test_a_store_of_its_own_for_trying_a_worker_out() -> None:
    weights = Weights("mine")
    assert weights.pull() == (0, None) and weights.publish("a") == 1 and weights.pull(1) == (1, "a")
    with pytest.raises(WorkflowError, match="nobody else publishes"):
        weights.pull(2)
    assert repr(weights) == "Weights('mine', version 1)"
