"""Versioned weights: which version is had when, what misuse is told. That a bound on staleness holds: `test_versions_of_calls`."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sessions import both, opened

from rlinf_lab.errors import WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.weights.stores import Store
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow


class Actor(Worker):
    def act_late(self, wanted: int, weights: Weights) -> Any:
        return weights.pull(at_least=wanted)


class Learner(Worker):
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


def one_store(*steps: tuple[str, str, tuple]) -> tuple[Workflow, ExecutionPlan]:
    """Each iteration makes the call of its number; actor and learner on devices of their own."""
    flow = Workflow("store")
    weights = flow.weights("actor")
    workers = {"actor": flow.worker(Actor, name="actor"), "learner": flow.worker(Learner, name="learner")}

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
            with pytest.raises(WorkerError, match="(?s)[Vv]ersion 1 of the weights 'actor'.*cannot pickle '_thread.lock'"):
                s.step(2)
        assert s.step(1) == 2
        assert s.step(2) == (2, "good")


@both
def test_a_version_may_be_waited_for_within_an_iteration(kind: str) -> None:
    flow = Workflow("within")
    weights = flow.weights("actor")
    actor, learner = flow.worker(Actor, name="actor"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration() -> Any:
        pulled = actor.act_late(1, weights)
        learner.publish("state", False, weights)
        return pulled

    plan = ExecutionPlan("within", ("cpu:0", "cpu:1"), {"actor": ((0,),), "learner": ((1,),)})
    with opened(kind, flow, plan) as s:
        assert s.step() == (1, "state")


class Trains(Worker):
    def __init__(self, size: int) -> None:
        self.state = np.zeros(size, np.float32)

    def train(self, weights: Weights) -> float:
        self.state = self.state.copy()
        self.state[self.iteration :: 50] += 1
        weights.publish({"w": self.state, "step": self.iteration})
        return float(self.state.sum())


class Follows(Worker):
    def act(self, weights: Weights, every: int = 1) -> Any:
        if self.iteration % every:
            return None
        version, state = weights.pull(at_least=1)
        return version, state["step"], float(state["w"].sum()), state["w"].flags.writeable


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_every_reader_gets_what_was_published(executor: str) -> None:
    flow = Workflow("shipped")
    weights = flow.weights("actor")
    trains, often, seldom = flow.worker(Trains, 20_000, name="trains"), flow.worker(Follows, name="often"), flow.worker(Follows, name="seldom")

    @flow.iteration
    def iteration() -> Any:
        total = trains.train(weights)
        total.wait()
        return total, often.act(weights), seldom.act(weights, 3)

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"trains": [0], "often": [1], "seldom": [2]})
    with session(flow, plan, executor=executor, emulate=True) as s:
        for i in range(7):
            total, each, third = s.step()
            assert each[:3] == (i + 1, i, total), i
            assert third is None if i % 3 else third[:3] == (i + 1, i, total)
            assert each[3], "what is pulled may be written"


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
