"""Profiles and estimates of a worker that takes more while what it took before is in the making (`Inbox.get_nowait`)."""

from __future__ import annotations

import pytest
from driving import executed
from timed_flows import Timed

import rlinf_lab as lab
from rlinf_lab.planning.fit.fit import profile_from_run
from rlinf_lab.planning.fit.habits import Moments
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

ITEMS, SLOTS, STEP_S = 24, 4, 0.004


class Source(Worker):
    def make(self, asked: Outbox) -> None:
        asked.put_all([12 if i % 5 == 0 else 5 for i in range(ITEMS)])


class Refills(Worker):
    """Answers of 5 or 12 steps; a slot that becomes free is filled again at once."""

    def generate(self, asked: Inbox, done: Outbox) -> None:
        wanted, running = asked.get(SLOTS), []
        while wanted or running:
            running += wanted
            self.compute(STEP_S)
            running = [n - 1 for n in running]
            for _ in range(running.count(0)):
                done.put(1)
            running = [n for n in running if n]
            free = SLOTS - len(running)
            wanted = (asked.get_nowait(free) if running else asked.get(free)) if free else []


def ran(ranks: int) -> tuple[Workflow, ExecutionPlan, Timeline]:
    flow = Workflow("refilled")
    asked, done = flow.channel("asked", capacity=None), flow.channel("done", capacity=None)
    source, generator = flow.worker(Source, name="source"), flow.worker(Refills, name="generator")
    learner = flow.worker(Timed, 0, 0.0, 0.002, 1, name="learner")

    @flow.iteration
    def iteration() -> None:
        source.make(asked)
        generator.generate(asked, done)
        learner.work(done)

    devices = tuple(f"cpu:{i}" for i in range(ranks + 1))
    places = {"source": ((0,),), "generator": tuple((1 + r,) for r in range(ranks)), "learner": ((0,),)}
    plan = ExecutionPlan(f"{ranks} ranks", devices, places, micro_batches={"done": 1})
    return flow, plan, executed(flow, plan)


@pytest.fixture(scope="module")
def one() -> tuple[Workflow, ExecutionPlan, Timeline]:
    return ran(1)


def busy_s(timeline: Timeline, worker: str) -> float:
    """Of an iteration."""
    table = timeline.to_pandas().query("kind == 'run' and worker == @worker")
    return float((table["end_ns"] - table["start_ns"]).sum()) / 3e9


def test_all_that_it_takes_is_one_batch_of_the_profile(one: tuple[Workflow, ExecutionPlan, Timeline]) -> None:
    profile = profile_from_run(*one)
    (sample,) = profile.workers["generator"].samples
    assert (sample.items, sample.seconds) == (ITEMS, pytest.approx(busy_s(one[2], "generator")))
    assert sample.outputs[-1] == (pytest.approx(sample.seconds), 1.0)  # and when its answers came
    assert [(s.items, s.seconds) for s in profile.workers["learner"].samples] == [(1, pytest.approx(0.002))]
    assert any("'generator' takes more while" in note for note in profile.notes)


def test_an_estimate_of_two_ranks_is_what_two_ranks_take(one: tuple[Workflow, ExecutionPlan, Timeline]) -> None:
    estimate = lab.estimate(*one)
    _, plan, timeline = ran(2)
    assert estimate.iteration_seconds(one[1]) == pytest.approx(one[2].elapsed_ns / 3e9)
    assert estimate.iteration_seconds(plan) == pytest.approx(timeline.elapsed_ns / 3e9, rel=0.15)  # their tails differ


def told(*did: str | int) -> bool:
    """"run", items that came (above 0), items that went (below 0)."""
    moments = Moments()
    for one in did:
        if isinstance(one, str):
            moments.computed(1.0)
        elif one > 0:
            moments.got("in", one)
        else:
            moments.gave("out", -one)
    return moments.refills()


def test_others_are_not_taken_for_it() -> None:
    assert told(4, "run", -2, 2, "run", -4)
    assert not told(4, "run", -4, 2, "run", -2)  # batch by batch
    assert not told(2, 2, "run", -2, -2, 2, "run", -2)  # two batches before it works
    assert not told(2, "run", 2, "run", -4)  # gives at its end
    assert not told(2, "run", -1, 2, "run", -1, 2, "run", -1)  # leaves some out: what it has in hand is not known
    assert not told(2, "run", -4, 2, "run", -4)  # makes two of one
