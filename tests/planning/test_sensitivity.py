"""How far a profile may be off: what `lab.plan` says of the changed profile, factor by factor."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_profiles import random_profile
from sweeps import sweep
from tqdm.auto import tqdm

from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.adapt.perturb import Entry, of_kind
from rlinf_lab.planning.adapt.sensitivity import (
    FACTORS,
    NO_PLAN,
    TOLERANCE,
    WIDEST,
    Asked,
    Look,
    Range,
    changed,
    sensitivity,
)
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.candidates import Candidate, alike
from rlinf_lab.planning.planner.planner import Plans, plan
from rlinf_lab.planning.profile.profile import (
    EdgeProfile,
    Link,
    Memory,
    Profile,
    Sample,
    WorkerProfile,
)

DOCS = Path(__file__).parents[2] / "docs"
FLAT = WorkerProfile((Sample(1, 64.0, 8.0), Sample(8, 64.0, 6.0)))
STEEP = WorkerProfile((Sample(8, 64.0, 8.0),), exponent=1.0)


def chain(**workers: WorkerProfile) -> Profile:
    names = list(workers)
    return Profile(64, workers, tuple(EdgeProfile(p, c) for p, c in itertools.pairwise(names)), "chain")


def two(**fields: object) -> Profile:
    """Streams, or time-shares at a price."""
    a = WorkerProfile((Sample(1, 64.0, 8.0), Sample(8, 64.0, 3.0)), onload_s=0.5, offload_s=0.5)
    return dataclasses.replace(Profile(64, {"a": a, "b": a}, (EdgeProfile("a", "b", item_mib=16.0),), "two"), **fields)  # type: ignore[arg-type]


def entry(plans: Plans, kind: str, owner: str) -> Entry:
    return next(e for e in of_kind(plans.best.candidate.placement.setting, kind) if e.owner == owner)


# --- against a plan of the changed profile ----------------------------------------------------------------------------
def stands(plans: Plans, profile: Profile, tolerance: float) -> bool:
    """Whether the best plan of the choice's shape that `plan` ranks, or the choice kept as it is, takes at most ``tolerance`` longer than the best one."""
    best = plans.best.candidate.placement
    like, simulates = best.setting, plans.best.simulated is not None
    try:
        found = plan(
            profile, like.devices, simulate=simulates, micro_batches=like.micro_batches, rule=like.rule, staleness=like.staleness
        )
    except PlanError:
        return False
    mine = [p.seconds for p in found if p.shape == plans.best.shape or alike(p.candidate.placement, best)]
    own = min([kept(plans, profile), *mine])
    return own <= found.best.seconds * (1 + tolerance) * (1 + 1e-6)


def kept(plans: Plans, profile: Profile) -> float:
    """Seconds of the choice as it is, which a search of the changed profile need not have found."""
    best = plans.best.candidate.placement
    setting = Setting.of(profile, best.setting.devices, best.setting.micro_batches, best.setting.rule, best.setting.staleness)
    placement = Placement(setting, best.arrangement, best.tree)
    if placement.misfit():
        return math.inf
    if plans.best.simulated is None:
        return Candidate.of(setting, best.arrangement, best.tree).seconds
    return settled(steady(placement, plans.best.devices), setting.staleness)[1]


def any_graph(seed: int) -> Plans | None:
    """With generators, cells, hosts, memory that is short; every other one simulated."""
    with contextlib.suppress(PlanError):
        return plan(random_profile(seed), 4, simulate=bool(seed % 2), micro_batches=4)
    return None


@sweep(2, 38, first=2)
def test_each_look_is_what_a_plan_of_the_changed_profile_says(seeds: Sequence[int]) -> None:
    ends = looked = 0
    for seed, plans in ((s, p) for s in seeds if (p := any_graph(s)) is not None):
        entries = Asked(plans).entries()
        e = entries[seed % len(entries)]
        r = Asked(plans).range(e)
        for look in r.looks:
            assert look.stands == stands(plans, e.times(plans.profile, look.factor), TOLERANCE), (seed, r.owner, look)
            looked += 1
        assert all(look.stands for look in r.looks if r.low <= look.factor <= r.high)
        ends += sum(map(bool, r.instead))
    assert looked >= 2 * len(FACTORS) and ends


def test_case_1_where_nothing_may_be_faster_and_within_one_percent() -> None:
    """Underestimating the rollout by half, or training by a quarter too much, would have led to another plan."""
    plans = plan(Profile.load(DOCS / "profiles" / "grpo_1.5b_case1.json"), 128, rule="rlinf", simulate=False)
    exact, within = ({r.owner: r for r in sensitivity(plans, tolerance=t).ranges} for t in (0.0, TOLERANCE))
    together, apart = "(rollout | inference) > training", "rollout | (inference > training)"
    assert (exact["rollout"].low, exact["rollout"].high, exact["rollout"].instead) == (0.9, 1.25, (together, apart))
    assert (exact["training"].low, exact["training"].high, exact["training"].instead) == (0.8, 1.1, (apart, together))
    assert (exact["inference"].low, exact["inference"].high) == (1 / WIDEST, WIDEST)
    assert all(within[w].low <= exact[w].low and exact[w].high <= within[w].high for w in exact)
    assert within["rollout"].instead == (together, ""), "the other plan is never faster by a percent"


@pytest.mark.parametrize(
    ("standing", "low", "high", "instead"),
    [
        ({1.0}, 1.0, 1.0, ("0.9", "1.1")),
        (set(FACTORS), 0.25, 4.0, ("", "")),
        ({0.25, 0.8, 0.9, 1.0, 1.1, 2.0}, 0.8, 1.1, ("0.5", "1.25")),  # what stands again farther away does not count
        ({0.25, 0.5, 0.8, 0.9, 1.0}, 0.25, 1.0, ("", "1.1")),
    ],
)
def test_a_range_ends_before_the_first_factor_at_which_another_plan_wins(standing: set[float], low: float, high: float, instead: tuple[str, str]) -> None:
    looks = [Look(f, f"{f:g}", 1.0, 1.0, f in standing) for f in FACTORS]
    r = Range.of(Entry("seconds", "a", frozenset("a"), lambda profile, factor: profile), looks)
    assert (r.low, r.high, r.instead) == (low, high, instead)


def test_how_it_is_shown() -> None:
    found = sensitivity(plan(chain(a=FLAT, b=STEEP), 8, simulate=False), ("seconds", "memory"), tolerance=0.0)
    html = found._repr_html_()
    b = next(r for r in found.ranges if r.owner == "b")
    assert [look.factor for look in b.looks] == list(FACTORS) and b.looks[-1].winner == "a > b" != found.choice
    assert repr(found).startswith(f"The choice {found.choice} stands while") and html.count("<svg") == html.count("<img") == 2
    assert list(found.to_pandas().columns) == ["owner", "entry", "low", "high", "below", "above"]
    assert "planned again at 0.25, 0.5" in repr(found) and not sensitivity(plan(chain(a=FLAT), 2), ("memory",)).ranges


# --- what is one choice -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("times", "is_standing"), [(1.0, True), (0.999, False)])
def test_a_plan_that_takes_as_long_is_not_before_the_choice(monkeypatch: pytest.MonkeyPatch, times: float, is_standing: bool) -> None:
    """A twin is ranked, and the choice is not."""
    plans = plan(chain(a=FLAT, b=FLAT), 12)
    twin = next(p for p in plans if p.shape != plans.best.shape)
    monkeypatch.setattr(Asked, "_planned", lambda self, setting: [(twin.candidate, times * plans.best.seconds)])
    monkeypatch.setattr(Asked, "_as_it_is", lambda self, setting: plans.best.seconds)
    look = Asked(plans, 0.0).look(entry(plans, "seconds", "a"), 2.0)
    assert look.stands == is_standing and look.winner == (plans.best.shape if is_standing else twin.shape)


def test_where_nothing_fits_there_is_no_plan() -> None:
    stuck = dataclasses.replace(STEEP, memory=Memory(30), offloadable=False)
    plans = plan(chain(a=stuck, b=stuck).replace(device_memory_gib=80.0), 1, micro_batches=1, simulate=False)
    for r in sensitivity(plans, ("memory",), tolerance=0.0).ranges:
        assert r.high == 1.25 and r.instead == ("", NO_PLAN) and r.looks[-1].seconds == math.inf


# --- entries ------------------------------------------------------------------------------------------------------------
@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_seconds_that_are_known_of_others_stay_true(seed: int) -> None:
    """Tables of a setting in which one worker's seconds are others are those made anew."""
    plans = plan(random_profile(seed + 20), 6, simulate=False, micro_batches=4)
    for worker in plans.profile.workers:
        shared = changed(plans.best.candidate.placement.setting, entry(plans, "seconds", worker), 1.7)
        anew = Setting.of(shared.profile, shared.devices, shared.micro_batches, shared.rule, shared.staleness)
        for a in anew.arrangements():
            for unit in range(len(anew.stages)):
                beside = a.staying & ~(1 << unit)
                assert np.array_equal(shared.tables.of(unit, beside, a.forms), anew.tables.of(unit, beside, a.forms))
                if anew.problem(a).once >> unit & 1:
                    assert np.array_equal(shared.tables.streams(unit, beside, a.forms), anew.tables.streams(unit, beside, a.forms))


def test_what_is_asked_for() -> None:
    plans = plan(two(link=Link(0.5, 0.001), device_memory_gib=80.0), 2, micro_batches=4)
    everything = sensitivity(plans, "all")
    assert {r.entry for r in everything.ranges} == {"seconds", "switching", "transfer", "link"}
    assert "all edges link" in repr(everything) and "all edges link" in everything._repr_html_()
    assert set(everything.to_pandas()["owner"]) == {"a", "b", "a --> b", "all edges"}
    nothing = two().with_worker("a", onload_s=0.0, offload_s=0.0, samples=(Sample(1, 64.0, 0.0),))
    assert not {r.entry for r in sensitivity(plan(nothing, 8, simulate=False), "all").ranges if r.owner == "a"}, "nothing times four is nothing"


def test_what_cannot_be_asked() -> None:
    plans = plan(chain(a=FLAT), 2, simulate=False)
    for error, said, asked in (
        (UnknownNameError, "Did you mean 'seconds'", {"entries": ("second",)}), (PlanError, r"names of entries, or 'all'\. Next", {"entries": "switching"}),
        (PlanError, "tolerance is -1", {"tolerance": -1}),
    ):  # fmt: skip
        given: dict[str, Any] = asked  # type: ignore[assignment]
        with pytest.raises(error, match=said):
            sensitivity(plans, **given)


# --- time -----------------------------------------------------------------------------------------------------------------
def test_what_takes_long_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plans = plan(chain(a=FLAT, b=STEEP), 8, simulate=False)
    monkeypatch.setattr("rlinf_lab.planning.adapt.sensitivity.BAR_SECONDS", 600.0)
    sensitivity(plans)
    assert "sensitivity" not in capsys.readouterr().err, "no bar for what is there sooner"
    monkeypatch.setattr("rlinf_lab.planning.adapt.sensitivity.BAR_SECONDS", 0.0)
    monkeypatch.setattr("rlinf_lab.planning.adapt.sensitivity.tqdm", functools.partial(tqdm, mininterval=0))  # else a quick one shows nothing
    sensitivity(plans)
    said = capsys.readouterr().err
    assert "/2" in said
