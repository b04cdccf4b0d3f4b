"""What plans of random flows say they take: no less than what none can take, and the same once more, saved and loaded."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator

import pytest
from random_profiles import any_flow

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.lower_bound import lower_bound
from rlinf_lab.planning.planner.planner import Planned, Plans, plan, planned
from rlinf_lab.planning.planner.ranking import TIED
from rlinf_lab.planning.profile.profile import EdgeProfile, Lengths, Profile, Sample, WorkerProfile

FLOWS = [
    range(3), pytest.param(range(3, 8), marks=pytest.mark.long), *(pytest.param(range(first, first + 16), marks=pytest.mark.slow) for first in range(8, 232, 16))
]  # fmt: skip


def found_for(seeds: range) -> Iterator[tuple[int, Profile, Plans]]:
    for seed in seeds:
        profile, devices, more = any_flow(seed)
        try:
            yield seed, profile, plan(profile, devices, **more)
        except PlanError:
            continue  # nothing fits


def read_again(profile: Profile, made: Planned) -> Planned:
    """Both as files have them."""
    return planned(Profile.from_dict(json.loads(profile.to_json())), ExecutionPlan.from_json(made.execution.to_json()))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seeds", FLOWS, ids=str)
def test_no_plan_is_below_the_bound_and_a_saved_one_takes_what_it_took(seeds: range) -> None:
    """By another name perhaps; where a profile does not say in which parts a source hands over, a few take others."""
    flows = simulated = others = 0
    for seed, profile, plans in found_for(seeds):
        flows += 1
        assert all(b.seconds >= a.seconds * (1 - TIED) for a, b in itertools.pairwise(plans)), f"{seed}: what is shown is the ranking"
        for made in plans:
            assert min(made.seconds, made.candidate.searched) >= plans.bound.seconds * (1 - 1e-9), (seed, made.name, made.shape, made.seconds, plans.bound)
            if made.simulated is not None:
                simulated += 1
                again = read_again(profile, made)
                assert {n: p["devices"] for n, p in again.placement.items()} == {n: p["devices"] for n, p in made.placement.items()}
                others += again.seconds != pytest.approx(made.seconds, rel=1e-3)
    assert others <= simulated // 10
    assert flows > len(seeds) // 2 and simulated > 2 * flows


def test_ranks_that_end_early_free_their_devices_for_those_who_take_the_first_responses() -> None:
    """Long responses on some ranks, and a learner that begins with the first ones on the devices of the others."""
    rollout = WorkerProfile((Sample(8, 256.0, 40.0),), "generation", lengths=Lengths(4096.0, mean_tokens=500.0), exponent=0.6)
    learner = WorkerProfile((Sample(8, 256.0, 40.0),), exponent=1.0)
    streamed = Profile(256, {"rollout": rollout, "learner": learner}, (EdgeProfile("rollout", "learner"),))
    whole = dataclasses.replace(streamed, edges=(EdgeProfile("rollout", "learner", whole=True),))
    between = {**streamed.workers, "between": learner}
    waits = Profile(256, between, (EdgeProfile("rollout", "between", whole=True), EdgeProfile("between", "learner")))
    bounds = [lower_bound(Setting.of(profile, 8)).seconds for profile in (streamed, whole)]
    assert bounds[0] < bounds[1], "the devices of ranks that end early are not lost where a part of the responses is enough to begin"
    work = lower_bound(Setting.of(waits, 8))
    assert work.seconds >= bounds[1], "whoever is fed by somebody that waits for everything begins later still"


def of_one_size(*sizes: int) -> Profile:
    """b was measured at all items, a at some sizes of its batches."""
    samples = [{"devices": 1, "items": n, "seconds": 1 + n / 16} for n in sizes]
    workers = {"a": {"samples": samples}, "b": {"samples": [{"devices": 1, "items": 64, "seconds": 2.0}]}}
    return Profile.from_dict({"items": 64, "workers": workers, "edges": [{"producer": "a", "consumer": "b"}]})


def test_a_bound_is_said_only_where_costs_were_measured() -> None:
    """Batches of one size, extrapolated eight-fold, make a bound of 14 s; measured at all items, too, it is 7 s."""
    guessed, known = (plan(of_one_size(*sizes), 1) for sizes in ((8,), (8, 64)))
    assert guessed.bound.unsure == ("a",) and guessed.bound.seconds == 14
    head = repr(guessed).splitlines()[0]
    assert "estimate: none takes less than about 14 s" in head and "a was not measured there. Next: lab.profile(flow) measures a second size" in head
    assert "can take less" not in repr(guessed) + guessed._repr_html_() and "above the estimated lower bound" in guessed.best.reason
    assert known.bound.unsure == () and "none can take less than 7 s" in repr(known) and guessed.to_dict()["lower_bound_is"] == "estimated"
    assert known.to_dict()["lower_bound_is"] == "measured" and known.best.seconds >= known.bound.seconds * (1 - 1e-9)
