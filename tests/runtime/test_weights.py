"""Versioned weights: which version is had when, what misuse is told. That a bound on staleness holds: `test_versions_of_calls`."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlinf_lab import ExecutionPlan, Weights, Worker, Workflow
from rlinf_lab.errors import WorkerError, WorkflowError
from rlinf_lab.runtime.host.weights.stores import Store
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.runtime.run.run import session


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
            with pytest.raises(WorkerError, match="(?s)[Vv]ersion 4 of the weights 'actor'.*cannot pickle '_thread.lock'"):
                s.step(2)
        assert s.step(0, ["good"]) == [5] and s.step(2) == (5, "good")


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
