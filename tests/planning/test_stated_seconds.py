"""What plans of random flows say they take: no less than what none can take, and once more, saved and loaded, to the last bit."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from random_profiles import any_flow, random_profile

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.placement.provenance import _is_possible
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.planner.lower_bound import lower_bound
from rlinf_lab.planning.planner.planner import Planned, Plans, plan, planned
from rlinf_lab.planning.planner.ranking import TIED
from rlinf_lab.planning.profile.profile import EdgeProfile, Lengths, Profile, Sample, WorkerProfile
from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, Composed, Leaf

FLOWS = [
    range(3), pytest.param(range(3, 8), marks=pytest.mark.long), *(pytest.param(range(first, first + 16), marks=pytest.mark.slow) for first in range(8, 232, 16))
]  # fmt: skip
DOCS = Path(__file__).parents[2] / "docs" / "profiles"


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
def test_no_plan_is_below_the_bound_and_a_saved_one_takes_exactly_what_it_took(seeds: range) -> None:
    flows = simulated = 0
    for seed, profile, plans in found_for(seeds):
        flows += 1
        assert all(b.seconds >= a.seconds * (1 - TIED) for a, b in itertools.pairwise(plans)), f"{seed}: what is shown is the ranking"
        for made in plans:
            assert min(made.seconds, made.candidate.searched) >= plans.bound.seconds * (1 - 1e-9), (seed, made.name, made.shape, made.seconds, plans.bound)
            if made.simulated is not None:
                simulated += 1
                again = read_again(profile, made)
                assert (again.seconds, again.shape) == (made.seconds, made.shape), (seed, made.name)
                assert again.simulate(3).elapsed_ns == made.simulate(3).elapsed_ns
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


def test_a_plan_that_was_edited_is_read_from_its_fields() -> None:
    """What it says of how it was found is of the plan that it was."""
    plans = plan(Profile.load(DOCS / "grpo_7b_by_hand.json"), 8)
    made = next(p for p in plans if p.simulated is not None and max(p.execution.micro_batches.values()) > 1)
    execution = made.execution
    assert execution.origin and "origin" in execution.to_dict()
    channel, micro_batch = next((c, n) for c, n in execution.micro_batches.items() if n > 1)
    edited = dataclasses.replace(execution, micro_batches={**execution.micro_batches, channel: 2 * micro_batch})
    assert edited.origin == execution.origin
    bare = dataclasses.replace(edited, origin={})
    assert planned(plans.profile, edited).seconds == planned(plans.profile, bare).seconds
    assert edited == bare and edited != execution and "origin" not in bare.to_dict() and "origin" not in execution.diff(bare)
    assert planned(plans.profile, dataclasses.replace(execution, devices=tuple(f"cuda:{i + 3}" for i in range(8)))).seconds == made.seconds


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 15, 18, 20, 21, 30, 32, 35, 36, 39, 46, 49, 54, 57, 59])
def test_from_its_fields_alone_a_plan_takes_what_it_took(seed: int) -> None:
    """Of 206 plans of 60 flows 201 do."""
    profile, devices, more = any_flow(seed)
    for made in (p for p in plan(profile, devices, **more) if p.simulated is not None):
        again = planned(profile, dataclasses.replace(made.execution, origin={}))
        assert again.seconds == pytest.approx(made.seconds, rel=1e-6) and again.execution.placements == made.execution.placements


def nested(parts: int) -> list[object]:
    tree: list[object] = ["a", [1], 0, 0]
    for _ in range(parts):
        tree = ["|", tree, ["b", [1], 0, 0], [2], 0]
    return tree


@pytest.fixture(scope="module")
def plans() -> Plans:
    found = plan(random_profile(3), 6, micro_batches=4)
    assert len(found.best.execution.origin["tree"]) == 5, "somebody time-shares or streams"
    return found


NEVER: list[dict[str, object]] = [
    {"tree": nested(2000)}, {"tree": ["a", [math.inf], 0, 0]}, {"tree": ["a", [1], math.inf, 0]}, {"tree": 3}, {"tree": ["rollout"]},
    {"tree": ["&", ["a", [1], 0, 0], ["b", [1], 0, 0], [1], 0]}, {"windows": {"a": 3}}, {"seating": ["x"]},
]  # fmt: skip
ODD: list[dict[str, object]] = [
    {"seating": [5, 5, 5]}, {"seating": [0, -1]}, {"seating": [0.5]}, {"seating": [-1] * 9}, {"windows": {"nobody": [1, 2, None]}},
    {"windows": {"a": [3, 2, None]}}, {"windows": {"a": [1, "2", None]}}, {"meeting": [["a", "nobody"]]}, {"apart": [["nobody", "a"]]},
    # of another profile: other workers, or fewer devices than its tree has
    *({"tree": tree} for tree in (["nobody", [1], 0, 0], ["a", [600], 0, 0], ["a", [1], 60, 0], ["a", [1, 1], 0, 0], ["a", [1], 0, 99])),
]  # fmt: skip


@pytest.mark.parametrize("change", [*NEVER, *ODD])
def test_an_origin_that_no_search_wrote_is_refused_or_makes_no_other_plan(plans: Plans, change: dict[str, object]) -> None:
    execution = plans.best.execution
    with pytest.raises(PlanError, match="origin is 3; it must be a mapping"):
        dataclasses.replace(execution, origin=3)
    odd = dataclasses.replace(execution, origin={**execution.origin, **change})
    try:
        found = planned(plans.profile, odd)
    except PlanError as error:
        assert "origin is not what a search wrote" in str(error) and "Next: without origin" in str(error)
    else:
        assert change in ODD and found.execution == execution
        assert found.seconds in (plans.best.seconds, planned(plans.profile, dataclasses.replace(odd, origin={})).seconds)


@pytest.mark.parametrize(
    ("kind", "devices", "grain", "possible"),
    [
        (SPATIAL, (4,), 0, True), (SPATIAL, (3,), 0, True), (SPATIAL, (2,), 0, False), (SPATIAL, (5,), 0, False), (SPATIAL, (4, 4), 0, False),
        (TEMPORAL, (2,), 0, True), (TEMPORAL, (1,), 0, False), (TEMPORAL, (4,), 2, True), (TEMPORAL, (4,), 3, False), (TEMPORAL, (4,), -1, False),
    ],
)  # fmt: skip
def test_a_tree_seats_each_stage_once_on_devices_that_there_are(kind: str, devices: tuple[int, ...], grain: int, possible: bool) -> None:
    workers = {name: WorkerProfile((Sample(1, 64.0, 4.0),)) for name in "ab"}
    setting = Setting.of(Profile(64, workers, (EdgeProfile("a", "b"),)), 4, micro_batches=4)
    assert setting.granularities == 3
    a, b = Leaf(0, (2,), 0), Leaf(1, (1,), 0)
    assert _is_possible(Composed(kind, a, b, devices, grain), setting) is possible
    for wrong in (a, Composed(kind, a, a, devices, grain), Composed(kind, a, Leaf(1, (-1,), 0), devices, grain), Composed(kind, a, Leaf(1, (1,), 3), devices, grain)):
        assert not _is_possible(wrong, setting)


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
