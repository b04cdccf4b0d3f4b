"""`lab.profile` of workers that fail, put nothing or do not work with several ranks: errors name the worker, and profiles allow what was seen to work."""

from __future__ import annotations

from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import PlanError, WorkerError
from rlinf_lab.planning.profile.profile import RankRule

DEVICES = ["cpu:0", "cpu:1"]


class Source(lab.Worker):
    def __init__(self, fails: str = "", items: int = 8, most: int = 4) -> None:
        self.fails, self.items, self.most = fails, items, most

    def can_leave(self) -> bool:
        self.fail("can_leave")
        return True

    def offload(self) -> None:
        self.fail("offload")

    def onload(self) -> None:
        self.fail("onload")

    def fail(self, where: str) -> None:
        if where == self.fails:
            raise OSError(f"not in {where}")

    def generate(self, out: lab.Outbox) -> None:
        if self.ranks > self.most:
            raise RuntimeError(f"no more than {self.most}")
        for i in range(self.rank, self.items, self.ranks):
            self.compute(1e-4)
            out.put(i)


class Learner(lab.Worker):
    def train(self, inbox: lab.Inbox) -> None:
        for batch in inbox:
            self.compute(1e-4 * len(batch))


def flow_of(**source: Any) -> lab.Workflow:
    flow = lab.Workflow("two stages")
    items = flow.channel("items", may_be_empty=True)
    first, second = flow.worker(Source, name="source", **source), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration() -> None:
        first.generate(items)
        second.train(items)

    return flow


def profile_of(flow: lab.Workflow, **asked: Any) -> lab.Profile:
    return lab.profile(flow, DEVICES, iterations=1, progress=False, **asked)


@pytest.mark.parametrize("method", ["can_leave", "offload", "onload"])
def test_who_fails_by_itself_is_named(method: str) -> None:
    with pytest.raises(WorkerError, match=rf"Worker 'source' rank 0 failed in {method}\(\): OSError: not in {method}") as caught:
        profile_of(flow_of(fails=method))
    assert (caught.value.worker, caught.value.method) == ("source", method) and isinstance(caught.value.__cause__, OSError)


def test_plans_give_nobody_more_ranks_than_it_worked_with() -> None:
    profile = profile_of(flow_of(most=1), ranks={"source": [1, 2], "learner": [1, 2]})
    assert any(note.startswith("2 ranks: not measured, Worker 'source' rank") for note in profile.notes)
    for name, worker in profile.workers.items():
        assert worker.ranks.most == 1
        assert f"{name}: plans give it at most 1 rank, for the run with 2 failed." in profile.notes
    for plan in lab.plan(profile, 2):
        assert all(seat.ranks == 1 for seat in plan.candidate.placement.seats.values())


def test_ranks_that_this_machine_has_no_cores_for_are_not_forbidden() -> None:
    many = [f"cpu:{i}" for i in range(1024)]
    profile = lab.profile(flow_of(), many, iterations=1, progress=False, ranks={"source": [1, 1024]})
    assert any(note.startswith("1024 ranks: not measured, Plan '1024 ranks' uses") for note in profile.notes)
    assert profile.workers["source"].ranks == RankRule()


def test_a_channel_that_nothing_passed_is_told() -> None:
    told = "Nothing passed channel 'items' in the iterations that were measured: what items of it cost is not known."
    assert told in profile_of(flow_of(items=0)).notes
    assert told not in profile_of(flow_of()).notes


def run_of(flow: lab.Workflow) -> tuple[lab.ExecutionPlan, lab.Timeline]:
    plan = lab.ExecutionPlan.temporal(flow, DEVICES[:1])
    run = lab.run(flow, plan, 3, dashboard=False)
    run.wait()
    return plan, run.timeline


def test_a_run_can_be_asked_about_other_ranks_than_it_had() -> None:
    flow = flow_of()
    plan, timeline = run_of(flow)
    as_it_was = lab.planning.profile_from_run(flow, plan, timeline)
    assert [w.ranks.counts for w in as_it_was.workers.values()] == [(1,), (1,)]
    other = lab.planning.profile_from_run(flow, plan, timeline, ranks={"learner": [4, 1, 2, 2]})
    assert [w.ranks.counts for w in other.workers.values()] == [(1,), (1, 2, 4)]
    assert "or those that were asked for: learner (source 1, learner 1 or 2 or 4). Next: ranks=" in other.notes[0]
    assert max(p.candidate.placement.seats["learner"].ranks for p in lab.plan(flow, DEVICES, other)) == 2


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ({"learnr": [1]}, "Unknown worker 'learnr'. Did you mean 'learner'"),
        ({"learner": 2}, r"ranks\['learner'\] is 2; the numbers that it may have. Next: ranks=\{'learner': \[1, 2\]\}"),
        ({"learner": []}, r"ranks\['learner'\] is \[\]"),
        ({"learner": [1, 0]}, r"ranks\['learner'\] is 0; give a whole number, at least 1. Next: 1"),
        ({"learner": [True]}, r"ranks\['learner'\] is True"),
        ([1, 2], r"ranks is \[1, 2\]; for each worker"),
    ],
)
def test_ranks_that_cannot_be(ranks: Any, said: str) -> None:
    flow = flow_of()
    with pytest.raises((PlanError, LookupError), match=said):
        lab.planning.profile_from_run(flow, lab.ExecutionPlan.temporal(flow, DEVICES[:1]), lab.Timeline(), ranks=ranks)
