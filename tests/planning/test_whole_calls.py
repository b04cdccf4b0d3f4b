"""Items and groups are whole: a plan counts the calls that a run makes of them, and the rank that has most."""

from __future__ import annotations

import numpy as np
import pytest
from mock_runs import between_ends, run
from timed_flows import timed

import rlinf_lab as lab
from rlinf_lab.planning.costs import BatchModel
from rlinf_lab.planning.placement.calls import Calls
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, Sample, WorkerProfile


@pytest.mark.parametrize("items, micro_batches, ranks, unit, sizes", [
    (448, 32, 1, 8, [16] * 28), (448, 64, 1, 8, [8] * 56), (504, 32, 1, 8, [16] * 31 + [8]),
    (22, 4, 4, 1, [8, 8, 6]), (24, 1, 32, 8, [24]), (64, 8, 2, 1, [8] * 8), (20, 4, 3, 1, [6, 6, 6, 2]), (7, 1, 4, 1, [7]),
])  # fmt: skip
def test_calls_are_of_whole_groups_for_each_rank(items: int, micro_batches: int, ranks: int, unit: int, sizes: list[int]) -> None:
    assert Calls.of(items, micro_batches, ranks, unit).parts().tolist() == sizes


def test_what_is_left_counts_as_the_rank_that_has_most_of_it() -> None:
    calls = Calls.of(20, 4, 3)
    assert [float(calls.counted(n)) for n in calls.parts()] == [6, 6, 6, 4], "four on three ranks: one has two"
    assert float(Calls.of(7, 1, 4).counted(7)) == 7


def test_the_parts_of_a_share_are_the_share_and_the_least_that_comes_is_a_group() -> None:
    model = BatchModel((Sample(1, 32.0, 32.0),), 1.0, 1, 4)
    assert model.seconds(np.array([5]), 32) == pytest.approx(8.0)  # eight groups: two of four for one of five ranks
    assert model.of_a_part(np.array([5]), 32, 64)[0] * 64 == pytest.approx(8.0)
    workers = {n: WorkerProfile((Sample(1, 32.0, 1.0),)) for n in "abcd"}
    profile = Profile(32, workers, (EdgeProfile("a", "b", 8), EdgeProfile("b", "c"), EdgeProfile("a", "d", 4, whole=True)))
    assert {n: Setting.of(profile, 2).fewest_items(n) for n in "abcd"} == {"a": 1, "b": 8, "c": 1, "d": 32}
    assert profile.group_size("a") == 8


@pytest.mark.parametrize("items, ranks, staleness", [(5, 2, 1), (5, 3, 1), (7, 3, 2)])
@pytest.mark.parametrize("fixed", [0.0, 0.5])
def test_no_plan_that_overlaps_runs_below_the_bound(items: int, ranks: int, staleness: int, fixed: float) -> None:
    flow, profile = timed("ab", items, {"a": (0, 0.01), "b": (fixed, 0.2)}, {"a": 1, "b": ranks})
    devices = [f"cpu:{i}" for i in range(1 + ranks)]
    plans = lab.plan(flow, devices, profile, staleness=staleness)
    for micro_batch in (1, 2, 3, items):
        places = {"a": ((0,),), "b": tuple((1 + i,) for i in range(ranks))}
        plan = lab.ExecutionPlan("by hand", tuple(devices), places, {"ab": micro_batch}, staleness=staleness)
        assert between_ends(run(flow, plan, 12 * ranks + 6)) >= plans.bound.seconds * (1 - 1e-6), micro_batch
    assert plans.bound.seconds <= plans.best.seconds
