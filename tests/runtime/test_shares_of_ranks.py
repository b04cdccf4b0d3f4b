"""What each rank of a consumer gets under a plan of the search, and in which calls: of a batch that is wanted whole, and of groups, which are never split."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "planning"))
from mock_runs import run, seconds
from timed_flows import Timed

import rlinf_lab as lab
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import EdgeProfile, Memory, Profile, RankRule, Sample, WorkerProfile

ITEMS, SECONDS = 32, 0.25


def flow_of(whole: bool = False, group: int = 1, count: int = ITEMS) -> lab.Workflow:
    flow = lab.Workflow("chain")
    items = flow.channel("items", capacity=None, whole=whole, group=group)
    rollout, learner = (flow.worker(Timed, count, 0.0, SECONDS, group, name=name) for name in ("rollout", "learner"))
    flow.iteration(lambda: (rollout.make(items), learner.work(items))[1])
    return flow


def profile(whole: bool = False, group: int = 1, gib: float = 0.0, cap: float = 80.0, count: int = ITEMS) -> Profile:
    """An item keeps ``gib`` of the learner's."""
    rollout = WorkerProfile((Sample(1, count, count * SECONDS),), ranks=RankRule(counts=(1,)))
    learner = WorkerProfile((Sample(1, count, count * SECONDS),), memory=Memory(0.0, gib))
    return Profile(count, {"rollout": rollout, "learner": learner}, (EdgeProfile("rollout", "learner", group, whole),), device_memory_gib=cap)


@pytest.mark.parametrize(
    ("whole", "group", "count", "gib", "cap", "devices"),
    [
        (False, 4, 32, 0.0, 80.0, 3), (False, 16, 32, 0.0, 80.0, 4), (False, 32, 32, 0.0, 80.0, 2), (False, 3, 24, 0.0, 80.0, 3),
        (True, 1, 32, 0.0, 80.0, 1), (True, 1, 32, 0.0, 80.0, 3), (True, 8, 32, 0.0, 80.0, 2), (True, 8, 32, 0.0, 80.0, 4),
        (False, 8, 24, 0.0, 80.0, 2), (False, 8, 24, 0.0, 80.0, 4), (False, 5, 30, 0.0, 80.0, 2), (False, 5, 35, 0.0, 80.0, 3),  # no whole groups
        (False, 8, 32, 8.0, 70.0, 3), (False, 8, 32, 8.0, 70.0, 4), (False, 8, 32, 8.0, 140.0, 2), (False, 5, 30, 8.0, 66.0, 4),  # of half a group a whole one
        (True, 1, 32, 5.0, 80.0, 2),  # at most 16 in one call: who asks for everything at once would get more than a plan in micro-batches says
    ],
)  # fmt: skip
def test_ranks_take_what_a_plan_of_the_search_says(whole: bool, group: int, count: int, gib: float, cap: float, devices: int) -> None:
    """Whole groups, no more of them than fit, in the seconds that it says, or in fewer where it counts micro-batches that are no whole groups."""
    flow, costs = flow_of(whole, group, count), profile(whole, group, gib, cap, count)
    for planned in plan(flow, [f"cpu:{i}" for i in range(devices)], costs, micro_batches=4 if whole else 8):
        done = run(flow, planned, 3)
        sizes = done.wait()[-1] if planned.placement["learner"]["ranks"] > 1 else done.wait()[-1:]
        held = max(n for rank in sizes for n in rank)
        assert all(len(rank) <= 1 for rank in sizes if whole), planned
        assert sum(map(sum, sizes)) == count and all(n % group == 0 for rank in sizes for n in rank), planned
        assert gib * held <= cap and (not gib or gib * held <= max(map(planned.candidate.placement.gib, range(devices)))), planned
        ranks, parts = planned.placement["learner"]["ranks"], count // group
        if not (whole and parts % ranks):  # these go on by themselves: said in its notes
            took, foretold = seconds(done), planned.seconds
            assert took <= foretold * (1 + 1e-6), planned
            assert took == pytest.approx(foretold, rel=1e-6) or gib or parts & (parts - 1), planned


def test_a_plan_by_hand_may_take_a_whole_batch_in_several_calls() -> None:
    flow = flow_of(whole=True)
    done = run(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"], micro_batches={"items": 16}), 1)
    assert done.wait() == [[16, 16]]
    spans = done.timeline.to_pandas().query("kind == 'run'")
    assert spans[spans["worker"] == "learner"]["start_ns"].min() >= spans[spans["worker"] == "rollout"]["end_ns"].max()
