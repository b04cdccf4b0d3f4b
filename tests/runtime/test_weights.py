"""Versioned weights: the bound on staleness holds under every plan, on one host and on several; nothing travels twice."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from mesh import MeshExecutor

from rlinf_lab.errors import DeadlockError, WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.host.state.messages import Pull
from rlinf_lab.runtime.host.weights.stores import Store
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.session.session import Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

DEVICES = [f"cpu:{i}" for i in range(5)]


class Actor(Worker):
    """Its records are (iteration, version it acted with)."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds, self.rng = seconds, random.Random(seed)

    def act(self, records: Outbox, weights: Weights) -> list[int]:
        version, state = weights.pull()
        self.compute(self.rng.random() * self.seconds)
        assert state == (f"state {version}" if version else None)
        records.put((self._iteration(), version))
        return [self._iteration(), version]

    def act_late(self, wanted: int, weights: Weights) -> Any:
        return weights.pull(at_least=wanted)

    def _iteration(self) -> int:
        return self._context.iteration  # type: ignore[attr-defined]


class Learner(Worker):
    def __init__(self, seconds: float, seed: int) -> None:
        self.seconds, self.rng, self.count = seconds, random.Random(seed), 0

    def train(self, records: Inbox, weights: Weights) -> list[Any]:
        received = records.get_all()
        self.compute(self.rng.random() * self.seconds)
        if self.rank == 0:
            self.count += 1
            assert weights.publish(f"state {self.count}") == self.count
        return received

    def publish(self, what: Any, fails: bool, weights: Weights) -> int:
        version = weights.publish(what)
        if fails:
            raise ValueError("after publishing")
        return version

    def publish_all(self, states: list[Any], weights: Weights) -> list[int]:
        return [weights.publish(state) for state in states]

    def publish_lock(self, weights: Weights) -> int:
        return weights.publish(threading.Lock())

    def publish_from(self, rank: int, weights: Weights) -> int:
        return weights.publish("state") if self.rank == rank else 0

    def keep(self, weights: Weights) -> None:
        self.kept = weights

    def use_kept(self) -> None:
        self.kept.pull()


def asynchronous(staleness: int, actors: int, seconds: float, seed: int) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("asynchronous")
    records, weights = flow.channel("records"), flow.weights("actor")
    actor, learner = flow.worker(Actor, seconds, seed, name="actor"), flow.worker(Learner, seconds, seed + 1, name="learner")

    @flow.iteration
    def iteration() -> Any:
        acted = actor.act(records, weights)
        return {"acted": acted, "learnt": learner.train(records, weights)}

    placements = {"actor": tuple((i,) for i in range(actors)), "learner": ((actors,),)}
    return flow, ExecutionPlan("asynchronous", tuple(DEVICES[: actors + 1]), placements, staleness=staleness)


def records_of(executor: Any, iterations: int) -> list[tuple[int, int]]:
    executor.start()
    s = Session(executor)
    try:
        started = [s.submit() for _ in range(iterations)]
        s.finish()
        return [tuple(record) for one in started for record in one.wait()["learnt"]]
    finally:
        executor.stop()


def assert_bounded(records: list[tuple[int, int]], staleness: int) -> None:
    for iteration, version in records:
        assert iteration - staleness <= version <= iteration, (iteration, version, staleness)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(staleness=st.integers(0, 3), actors=st.integers(1, 3), seed=st.integers(0, 1 << 20))
def test_no_record_is_older_than_the_plan_allows(staleness: int, actors: int, seed: int) -> None:
    flow, plan = asynchronous(staleness, actors, 0.01, seed)
    records = records_of(LocalExecutor(flow, plan, MockClock()), 6)
    assert len(records) == 6 * actors
    assert_bounded(records, staleness)


def test_with_staleness_versions_lag_behind_and_without_they_do_not() -> None:
    lags = {}
    for staleness in (0, 2):
        flow, plan = asynchronous(staleness, 2, 0.01, 7)
        lags[staleness] = max(i - v for i, v in records_of(LocalExecutor(flow, plan, MockClock()), 8))
    assert lags == {0: 0, 2: 2}


def test_the_same_clock_gives_the_same_versions() -> None:
    flow, plan = asynchronous(2, 3, 0.01, 11)
    first, second = (records_of(LocalExecutor(flow, plan, MockClock()), 6) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("delay", [0.0, 0.002])
def test_the_bound_holds_over_several_hosts(staleness: int, delay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, str, int]] = []
    original = WeightTable._asked

    def counted(self: WeightTable, message: Pull) -> None:
        sent.append((message.name, message.asker, message.version))
        original(self, message)

    monkeypatch.setattr(WeightTable, "_asked", counted)
    for seed in range(8):
        flow, plan = asynchronous(staleness, 2, 0.002, seed)
        executor = MeshExecutor(flow, plan, delay, seed)
        assert len(executor.hosts) == 4
        assert_bounded(records_of(executor, 6), staleness)
        assert len(sent) == len(set(sent)), "once for each version and host"
        assert sent
        sent.clear()


def one_store(*steps: tuple[str, str, tuple]) -> tuple[Workflow, ExecutionPlan]:
    """Each iteration makes the call of its number; actor and learner on devices of their own."""
    flow = Workflow("store")
    weights = flow.weights("actor")
    workers = {"actor": flow.worker(Actor, 0.0, 0, name="actor"), "learner": flow.worker(Learner, 0.0, 0, name="learner")}

    @flow.iteration
    def iteration(number: int = 0) -> Any:
        for i, (worker, method, arguments) in enumerate(steps):
            if number == i:
                return getattr(workers[worker], method)(*arguments, weights)

    return flow, ExecutionPlan("store", ("cpu:0", "cpu:1"), {"actor": ((0,),), "learner": ((1,),)})


def test_who_comes_late_gets_the_newest() -> None:
    flow, plan = one_store(("learner", "publish", ({"w": 1}, False)), ("learner", "publish", ({"w": 2}, False)), ("actor", "act_late", (0,)))
    assert run(flow, plan, inputs=[2, 0, 1, 1, 2]).wait() == [(0, None), 1, 2, 3, (3, {"w": 2})]


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_of_several_versions_of_one_call_the_last_is_there_and_all_are_counted(executor: str) -> None:
    flow, plan = one_store(("learner", "publish_all", (["a", "b"],)), ("learner", "publish_all", (["c"],)), ("actor", "act_late", (1,)), ("actor", "act_late", (3,)))
    with session(flow, plan, executor=executor) as s:
        assert [s.step(number) for number in (0, 2, 1, 3)] == [[1, 2], (2, "b"), [3], (3, "c")]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_an_old_version_can_be_asked_for_as_long_as_an_iteration_may_that_began_before_the_next_one(staleness: int) -> None:
    published = [(1, 0), (2, 1), (3, 1), (4, 5)]  # version, iteration
    for over in range(10):
        table, store = WeightTable.__new__(WeightTable), Store("weights", announced=list(published))
        state = SimpleNamespace(layout=SimpleNamespace(plan=SimpleNamespace(staleness=staleness)))
        table.__dict__.update(_stores={"weights": store}, _state=state, versions=SimpleNamespace(over=lambda _: None, wanted=lambda _: []))
        table.over(over)
        kept = [v for (v, _), (_, after) in itertools.pairwise([*published, (0, 99)]) if after + staleness > over]
        assert [version for version, _ in store.announced] == kept
        assert store.first(2) == next(v for v in kept if v >= 2)


def test_what_a_failed_call_published_is_never_seen() -> None:
    flow, plan = one_store(("learner", "publish", ("good", False)), ("learner", "publish", ("bad", True)), ("actor", "act_late", (1,)))
    with session(flow, plan) as s:
        assert s.step(0) == 1
        with pytest.raises(WorkerError, match="after publishing"):
            s.step(1)
        assert s.step(2) == (1, "good")
        assert s.step(0) == 2 and s.step(2) == (2, "good")


def test_weights_that_cannot_travel_fail_their_reader_and_newer_ones_arrive() -> None:
    flow, plan = one_store(("learner", "publish_lock", ()), ("learner", "publish", ("good", False)), ("actor", "act_late", (1,)))
    with session(flow, plan, executor="processes") as s:
        assert s.step(0) == 1
        for _ in range(2):
            with pytest.raises(WorkerError, match="cannot pickle '_thread.lock'"):
                s.step(2)
        assert s.step(1) == 2
        assert s.step(2) == (2, "good")


def test_waiting_for_a_version_that_nobody_publishes_is_a_deadlock() -> None:
    flow, plan = one_store(("actor", "act_late", (1,)))
    with session(flow, plan) as s, pytest.raises(DeadlockError, match=r"actor\[0\] waits for version 1 of the weights 'actor'"):
        s.step(0)


def test_a_version_may_be_waited_for_within_an_iteration() -> None:
    flow = Workflow("within")
    weights = flow.weights("actor")
    actor, learner = flow.worker(Actor, 0.0, 0, name="actor"), flow.worker(Learner, 0.0, 0, name="learner")

    @flow.iteration
    def iteration() -> Any:
        pulled = actor.act_late(1, weights)
        learner.publish("state", False, weights)
        return pulled

    plan = ExecutionPlan("within", ("cpu:0", "cpu:1"), {"actor": ((0,),), "learner": ((1,),)})
    for executor in (LocalExecutor(flow, plan), MeshExecutor(flow, plan, 0.001)):
        executor.start()
        assert tuple(Session(executor).step()) == (1, "state")
        executor.stop()


def test_misuse_is_named() -> None:
    flow = Workflow("misused")
    weights, other = flow.weights("actor"), Workflow("other").weights("actor")
    with pytest.raises(WorkflowError, match="has weights 'actor' already"):
        flow.weights("actor")
    with pytest.raises(WorkflowError, match="belongs into a worker's method"):
        weights.pull()
    learner = flow.worker(Learner, 0.0, 0, name="learner")
    second = flow.worker(Learner, 0.0, 0, name="second")

    @flow.iteration
    def iteration() -> Any:
        return learner.publish(1, False, other)

    with pytest.raises(WorkflowError, match="'weights' is the weights 'actor' of another workflow"):
        _ = flow.graph

    @flow.iteration
    def again(what: str = "keep", rank: int = 0) -> Any:
        if what == "keep":
            return learner.keep(weights)
        if what == "kept":
            return learner.use_kept()
        if what == "second":
            return second.publish_from(rank, weights)
        return learner.publish_from(rank, weights)

    plan = ExecutionPlan("misused", ("cpu:0", "cpu:1"), {"learner": ((0,), (1,)), "second": ((0,),)})
    with session(flow, plan) as s:
        s.step("keep")
        with pytest.raises(WorkerError, match="were given to a call of iteration 0"):
            s.step("kept")
        with pytest.raises(WorkerError, match="published by rank 0"):
            s.step("learner", 1)
        assert s.step("learner", 0) == [1, 0]
        with pytest.raises(WorkerError, match="are published by 'learner'"):
            s.step("second", 0)


def test_a_store_of_its_own_for_trying_a_worker_out() -> None:
    weights = Weights("mine")
    assert weights.pull() == (0, None) and weights.publish("a") == 1 and weights.pull(1) == (1, "a")
    with pytest.raises(WorkflowError, match="nobody else publishes"):
        weights.pull(2)
    assert repr(weights) == "Weights('mine', version 1)"
