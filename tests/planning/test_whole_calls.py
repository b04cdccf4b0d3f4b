"""Numbers of items or groups that are no power of two: plans count the calls that a run makes of whole ones."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from mock_runs import run, seconds

import rlinf_lab as lab
from rlinf_lab.planning.placement.calls import Calls
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.timeline.record.span import SpanKind

REWARDS = {"a": (0.0, 0.05), "b": (0.5, 0.01), "c": (0.2, 0.05)}
ALIKE = {"a": (0.0, 0.05), "b": (0.3, 0.03), "c": (0.3, 0.03)}


class Stage(lab.Worker):
    """``fixed`` seconds of a call, ``each`` of an item; what it puts are ``group``s. ``at_once``: asks for so many, whatever its plan says."""

    def __init__(self, fixed: float, each: float, items: int, group: int, at_once: int = 0) -> None:
        self.fixed, self.each, self.items, self.group, self.at_once = fixed, each, items, group, at_once

    def make(self, out: lab.Outbox) -> None:
        for i in range(self.items):
            self.compute(self.each)
            self.hand_on(out, i)

    def go(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        for batch in inbox:
            for item in self.worked(batch):
                self.hand_on(out, item)

    def end(self, inbox: lab.Inbox) -> int:
        if not self.at_once:
            return len([self.worked(batch) for batch in inbox])
        calls = 0
        while batch := inbox.get(self.at_once):
            self.worked(batch)
            calls += 1
        return calls

    def worked(self, batch: list) -> list:
        items = [i for group in batch for i in group] if self.group > 1 else batch
        self.compute(self.fixed + self.each * len(items))
        return items

    def hand_on(self, out: lab.Outbox, item: int) -> None:
        if self.group > 1:
            out.put(item, key=item // self.group)
        else:
            out.put(item)


def chain(
    costs: Mapping[str, tuple[float, float]], items: int, group: int = 1, most: Sequence[int] = (1, 1, 1, 1), at_once: int = 0
) -> tuple[lab.Workflow, Profile]:
    """Workers one behind the other: (seconds of a call, seconds of an item)."""
    names, flow = list(costs), lab.Workflow("chain")
    channels = [flow.channel(f"x{i}", capacity=None, group=group) for i in range(len(names) - 1)]
    workers = [flow.worker(Stage, *cost, items, group, at_once * (n == names[-1]), name=n) for n, cost in costs.items()]

    @flow.iteration
    def iteration() -> int:
        workers[0].make(channels[0])
        for i in range(1, len(workers) - 1):
            workers[i].go(channels[i - 1], channels[i])
        return workers[-1].end(channels[-1])

    measured = {
        n: WorkerProfile(tuple(Sample(1, float(k), f + e * k) for k in (group, items)), ranks=RankRule(most=r))
        for (n, (f, e)), r in zip(costs.items(), most, strict=False)
    }
    return flow, Profile(items, measured, tuple(EdgeProfile(p, c, group) for p, c in itertools.pairwise(names)))


def steady(done: lab.Run) -> float:
    """Seconds between ends of iterations that overlap."""
    spans = done.timeline.spans
    ends = np.sort(spans[spans["kind"] == SpanKind.MARK]["end"]) / 1e9
    return float((ends[-3] - ends[3]) / (len(ends) - 6))


@pytest.mark.parametrize("items, micro_batches, ranks, unit, sizes", [
    (448, 32, 1, 8, [16] * 28), (448, 64, 1, 8, [8] * 56), (504, 32, 1, 8, [16] * 31 + [8]),
    (22, 4, 4, 1, [8, 8, 6]), (24, 1, 32, 8, [24]), (64, 8, 2, 1, [8] * 8),
])  # fmt: skip
def test_calls_are_of_whole_groups_for_each_rank(items: int, micro_batches: int, ranks: int, unit: int, sizes: list[int]) -> None:
    assert Calls.of(items, micro_batches, ranks, unit).parts().tolist() == sizes


@pytest.mark.parametrize("groups, group", [(15, 8), (31, 8), (56, 8), (63, 8), (30, 2), (22, 1)])
@pytest.mark.parametrize("costs", [REWARDS, ALIKE], ids=["rewards", "alike"])
def test_a_run_takes_what_plans_say_where_chunks_do_not_divide_groups(groups: int, group: int, costs: dict[str, tuple[float, float]]) -> None:
    flow, profile = chain(costs, groups * group, group)
    for planned in lab.plan(flow, ["cpu:0", "cpu:1", "cpu:2"], profile):
        done = run(flow, planned, 2)
        assert planned.seconds == pytest.approx(seconds(done), rel=0.02), (planned, planned.execution.micro_batches)
        assert done.wait()[-1] == planned.placement["c"]["micro_batches"], planned


@pytest.mark.parametrize("items, ranks, staleness", [(5, 2, 1), (5, 3, 1), (7, 3, 2)])
@pytest.mark.parametrize("fixed", [0.0, 0.5])
def test_no_plan_that_overlaps_runs_below_the_bound(items: int, ranks: int, staleness: int, fixed: float) -> None:
    flow, profile = chain({"a": (0, 0.01), "b": (fixed, 0.2)}, items, most=(1, ranks))
    devices = [f"cpu:{i}" for i in range(1 + ranks)]
    plans = lab.plan(flow, devices, profile, staleness=staleness)
    for micro_batch in (1, 2, 3, items):
        places = {"a": ((0,),), "b": tuple((1 + i,) for i in range(ranks))}
        plan = lab.ExecutionPlan("by hand", tuple(devices), places, {"x0": micro_batch}, staleness=staleness)
        assert steady(run(flow, plan, 12 * ranks + 6)) >= plans.bound.seconds * (1 - 1e-6), micro_batch
    assert plans.bound.seconds <= plans.best.seconds


def test_ranks_that_alternate_are_a_note_of_the_plan() -> None:
    flow, profile = chain({"a": (0, 0.05), "b": (0, 0.2)}, 5, most=(1, 2))
    plans = lab.plan(flow, ["cpu:0", "cpu:1", "cpu:2"], profile, staleness=1)
    assert plans.bound.seconds == pytest.approx(0.5)
    assert any("5 items of an iteration do not divide by 2 ranks" in note and "17 % less" in note for note in plans["spatial"].notes)
    assert not any("do not divide" in note for note in lab.plan(flow, ["cpu:0", "cpu:1", "cpu:2"], profile)["spatial"].notes)


def test_many_more_batches_than_planned_are_told() -> None:
    costs = {"a": (0, 0.01), "b": (1.0, 0.01)}
    asks, profile = chain(costs, 512, at_once=64)
    planned = lab.plan(asks, ["cpu:0", "cpu:1"], profile)["spatial"]
    assert planned.placement["b"]["micro_batches"] == 2
    found = lab.replan(run(asks, planned, 5), planned, restart_s=0.0)
    assert not any(d.sustained for d in found.drifts)
    assert "b got 8 batches of 'x0' an iteration instead of 2, which takes 6 s more" in found.notes[0] and "Next: more room" in found.notes[0]
    assert "9.68 s with the batches of the plan; with those that came they take up to 15.68 s" in found.notes[1]
    flow, _ = chain(costs, 512)
    planned = lab.plan(flow, ["cpu:0", "cpu:1"], profile)["spatial"]
    assert not lab.replan(run(flow, planned, 5), planned, restart_s=0.0).notes
