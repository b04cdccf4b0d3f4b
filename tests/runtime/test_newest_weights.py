"""Weights in flight: a newer version is seen without waiting, the last one is had after a run, one that cannot come any more is told at once; a pull needs
one look at whether a version is whole, small tensors go together, and nothing is kept of what has come."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
from flows import apart
from sessions import both, exact, opened, step_within

import rlinf_lab as lab
from rlinf_lab.errors import DeadlockError, UnknownNameError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.control.post import Post
from rlinf_lab.runtime.host.driver import waiting
from rlinf_lab.runtime.host.liveness.deadlock_watch import Watch
from rlinf_lab.runtime.host.state.messages import Message
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.runtime.transport.cargo import ALIGNED, LITTLE, Whole
from rlinf_lab.runtime.transport.pickling import LARGE
from rlinf_lab.runtime.transport.unchanged import Unchanged
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow


class Learner(lab.Worker):
    def publish(self, weights: lab.Weights) -> int:
        self.compute(0.1)
        return weights.publish({"w": np.full(3, self.iteration + 1.0)})

    def wait_for(self, version: int, weights: lab.Weights) -> int:
        return weights.pull(at_least=version).version


class Rollout(Learner):
    """Asks at every step of a call whether there is something newer, and takes it."""

    def generate(self, steps: int, weights: lab.Weights) -> list[tuple[int, int]]:
        version, _ = weights.pull()
        seen = []
        for _ in range(steps):
            self.compute(0.03)
            if weights.newest() > version:
                version, state = weights.pull(at_least=weights.newest())
                assert state["w"][0] == version
            seen.append(version)
        return seen


class Busy(lab.Worker):
    """Computes until it is told to stop: nothing is ever quiet meanwhile."""

    def compute_on(self) -> bool:
        return over.wait(90)


over = threading.Event()


def in_flight() -> tuple[lab.Workflow, lab.ExecutionPlan]:
    flow = lab.Workflow("in_flight")
    weights, learner, rollout = flow.weights("policy"), flow.worker(Learner), flow.worker(Rollout)

    flow.iteration(lambda: (rollout.generate(5, weights), learner.publish(weights))[0])
    return flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"rollout": [0], "learner": [1]})


def test_a_newer_version_is_taken_in_the_middle_of_a_call() -> None:
    """The learner publishes after 0.1 s, a decode step takes 0.03 s: the fourth sees it."""
    flow, plan = in_flight()
    run = lab.run(flow, plan, iterations=2, dashboard=False, clock=MockClock())
    assert run.wait(30) == [[0, 0, 0, 1, 1], [1, 1, 1, 2, 2]]


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_the_newest_weights_of_a_run_are_had_while_it_works_and_after_its_end(executor: str) -> None:
    flow, plan = in_flight()
    options = {"emulate": True} if executor == "processes" else {"clock": MockClock()}
    run = lab.run(flow, plan, iterations=3, dashboard=False, executor=executor, **options)
    run.wait(60)
    version, state = run.weights("policy")
    assert version == 3 and state["w"].tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(UnknownNameError, match=r"Unknown weights 'polcy'\. Did you mean 'policy'"):
        run.weights("polcy")
    with lab.session(flow, plan, executor=executor, **options) as session:
        assert session.weights("policy") == (0, None)
        session.step()
        assert session.weights("policy").version == 1
    assert session.weights("policy").state["w"].tolist() == [1.0, 1.0, 1.0]


def test_what_a_dead_process_has_published_is_not_had() -> None:
    with opened("mesh", *in_flight()) as s:
        step_within(s)
        host = s._executor.driver_host
        host.lost(host.place["learner", 0])
        with pytest.raises(lab.errors.ExecutorError, match=r"Version 1 of the weights 'policy' is not here.*learner\[0\].*ended before it was fetched"):
            host.weights.newest("policy", 5)


def stuck(who: str, ranks: int) -> tuple[lab.Workflow, lab.ExecutionPlan]:
    """Rollout, or learner, waits for a version that nobody publishes, while another worker computes on."""
    flow = lab.Workflow("stuck")
    weights = flow.weights("policy")
    learner, rollout, busy = flow.worker(Learner), flow.worker(Rollout), flow.worker(Busy)

    waits = rollout if who == "rollout" else learner
    flow.iteration(lambda: (busy.compute_on(), learner.publish(weights), waits.wait_for(3, weights))[:0])
    return flow, apart(flow, {"rollout": ranks})


@both
@pytest.mark.parametrize(("who", "ranks"), [("rollout", 1), ("rollout", 2), ("learner", 1)])
def test_a_version_that_cannot_come_any_more_is_told_though_others_compute(who: str, ranks: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a look at who is quiet: the worker that computes ends only after that."""
    monkeypatch.setattr(Watch, "news", lambda *_: None)
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.1)  # so long an iteration that failed waits for who computes on
    over.clear()
    with opened(kind, *stuck(who, ranks)) as s:
        one = s.submit()
        try:
            with pytest.raises(DeadlockError) as told:
                one.wait(60)
            assert not over.is_set(), "it was told while somebody computed"
        finally:
            over.set()
    assert f"{who}[" in str(told.value) and "waits for version 3 of the weights 'policy', and no call that goes on can publish it." in str(told.value)
    assert "Next: publish version 3 of the weights 'policy' (1 is the newest)" in str(told.value)


@exact
def test_a_learner_that_is_still_at_work_may_publish_it(kind: str) -> None:
    flow = lab.Workflow("late")
    weights, learner, rollout = flow.weights("policy"), flow.worker(Learner), flow.worker(Rollout)

    flow.iteration(lambda: (rollout.wait_for(2, weights), learner.publish(weights), learner.publish(weights))[0])
    with opened(kind, flow, lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"rollout": [0], "learner": [1]})) as s:
        assert step_within(s) == 2


def test_who_waits_for_a_while_only_may_begin_another_iteration_that_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With staleness 1 the next one may run beside the one that waits. (Were all quiet, the watch would tell.)"""
    monkeypatch.setattr(Watch, "news", lambda *_: None)
    flow = lab.Workflow("beside")
    weights, learner, rollout = flow.weights("policy"), flow.worker(Learner), flow.worker(Rollout)
    flow.iteration(lambda publishes: learner.publish(weights) if publishes else rollout.wait_for(1, weights))
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"rollout": [0], "learner": [1]}, staleness=1)
    with opened("mesh", flow, plan) as s:
        waits = s.submit(False)
        with pytest.raises(TimeoutError):
            waits.wait(0.05)
        assert s.submit(True).wait(60) == 1 and waits.wait(60) == 1


# --- what a pull needs, and no more ---
PUBLISHED: list[weakref.ref] = []


class Learns(Worker):
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def learn(self, weights: Weights) -> int:
        state = [np.full(size, self.iteration, np.float32) for size in self.sizes]
        PUBLISHED.append(weakref.ref(state[0]))
        return weights.publish(state)


class Acts(Worker):
    def act(self, at_least: int, weights: Weights) -> list[float]:
        return [float(each.mean()) for each in weights.pull(at_least).state]


def weights_of(sizes: list[int]) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("costs")
    weights = flow.weights("w")
    learns, acts = flow.worker(Learns, sizes, name="learns"), flow.worker(Acts, name="acts")

    @flow.iteration
    def iteration(pulls: bool) -> object:
        version = learns.learn(weights).wait()
        return acts.act(version, weights) if pulls else None

    return flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"learns": [0], "acts": [1]})


@pytest.mark.parametrize(("sizes", "asks"), [([1000] * 20, 1), ([100_000] * 5, 2)], ids=["little", "much"])
def test_a_version_is_looked_at_once_and_not_under_the_mutex(sizes: list[int], asks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, twice, while the learner's whole host waited; what is little was asked after, too."""
    seen, under_the_mutex = Counter[str](), Counter[str]()
    changed, say = Unchanged.changed, Post.say
    mutexes: list[Any] = []

    def counted(self: Unchanged) -> str:
        seen["looks"] += 1
        under_the_mutex["looks"] += any(mutex._is_owned() for mutex in mutexes)
        return changed(self)

    def told(self: Post, host: str, message: Message, urgent: bool = False) -> None:
        seen[message.kind] += 1
        say(self, host, message, urgent)

    with opened("mesh", *weights_of(sizes)) as s:
        mutexes += [host.state.mutex for host in s._executor.hosts.values()]
        monkeypatch.setattr(Unchanged, "changed", counted)
        monkeypatch.setattr(Post, "say", told)
        assert s.step(True) == [0.0] * len(sizes)
    assert (seen["looks"], seen["pull"], under_the_mutex["looks"]) == (1, asks, 0)


def test_nothing_of_a_version_that_has_come_and_is_superseded_stays() -> None:
    PUBLISHED.clear()
    with opened("mesh", *weights_of([100_000])) as s:
        for pulls in (True, False, False):
            s.step(pulls)
        gc.collect()
        assert [ref() is None for ref in PUBLISHED] == [True, True, False]


def packed(state: list[Any]) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(Whole(1, state, Unchanged(state)), protocol=5, buffer_callback=buffers.append), buffers


def test_small_arrays_travel_together() -> None:
    """Before, each took tens of microseconds on its way: 20 MB in 600 arrays took longer than 100 MB in 300."""
    sizes = [0, 1, 3, 1000, 16_000, LARGE // 4, 100_000] * 60
    state = [np.arange(size, dtype=np.float32) for size in sizes]
    data, buffers = packed(state)
    large = sum(size * 4 >= LARGE for size in sizes)
    small = sum(4 * size for size in sizes if 4 * size < LARGE)
    assert large < len(buffers) <= large + small / LITTLE * 1.1 + 1
    arrived = pickle.loads(data, buffers=[bytearray(buffer) for buffer in buffers])
    assert not arrived.is_sealed
    for got, sent in zip(arrived.open(), state, strict=True):
        assert np.array_equal(got, sent) and got.flags.writeable and (got.size == 0 or got.ctypes.data % 16 == 0)
    assert all(place.start % ALIGNED == 0 for place in arrived.places if place is not None)


def test_of_what_is_little_a_change_while_it_is_packed_is_noticed() -> None:
    class Changes:
        def __reduce__(self) -> tuple:
            part[:] = 1
            return str, ()

    part = np.zeros(100)
    data, buffers = packed([part, Changes()])
    assert not pickle.loads(data, buffers=[bytes(b) for b in buffers]).is_sealed
