"""Entries of a profile beside seconds and memory: switching, lengths, cells, handovers, what moves. Right when searched, or planned, again at both ends."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable

import pytest
from planned_again import at_both_ends
from random_profiles import random_profile

from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.adapt.perturb import AFTERWARDS, SEARCHED, of_kind
from rlinf_lab.planning.adapt.sensitivity import STEP, WIDEST, _changed, _Planned, sensitivity
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.planner import Plans, plan
from rlinf_lab.planning.profile.profile import (
    EdgeProfile,
    Handover,
    Lengths,
    Link,
    Memory,
    Message,
    ModelShape,
    Profile,
    Sample,
    WorkerProfile,
)
from rlinf_lab.planning.search.plan_tree import evaluate

Again = Callable[[Profile, Setting], set[str]]
FACTORS = (0.25, 0.5, 0.9, 1.0, 1.1, 2.0, 4.0)
MODEL = ModelShape(28, 4, 128, 15.2)


def with_everything(seed: int) -> Profile:
    """A random flow of batch workers, a generator or a cell, with all that can be multiplied but memory."""
    rng, profile = random.Random(seed), random_profile(seed, memory=False)
    workers = dict(profile.workers)
    for name, worker in profile.workers.items():
        if worker.lengths is not None and rng.random() < 0.5:
            workers[name] = dataclasses.replace(worker, model=MODEL, lengths=dataclasses.replace(worker.lengths, prompt_tokens=300.0), exponent=None)
    names = list(workers)
    return profile.replace(
        workers=workers, edges=tuple(dataclasses.replace(e, item_mib=rng.choice([0.5, 20.0])) for e in profile.edges),
        cells=tuple(dataclasses.replace(c, calibration=rng.choice([0.8, 1.5])) for c in profile.cells), link=Link(rng.choice([0.2, 2.0]), 0.01),
        messages=(Message("unix", 0.05, 0.02), Message("tcp", 0.2, 0.02)), handovers=(Handover(names[0], "load", rng.uniform(0.5, 4.0), (names[-1],)),),
    )  # fmt: skip


def planned(seed: int, simulate: bool) -> Plans | None:
    with contextlib.suppress(PlanError):
        return plan(with_everything(seed), 6, simulate=simulate, micro_batches=4)
    return None


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.slow)], ids=str)
def test_seconds_of_any_plan_grow_with_every_entry_and_no_faster_than_said(seeds: range) -> None:
    """What makes it enough to look at a few factors."""
    seen = set()
    for plans in filter(None, (planned(seed, simulate=False) for seed in seeds)):
        setting = plans.best.candidate.placement.setting
        for e in itertools.chain.from_iterable(of_kind(setting, kind) for kind in SEARCHED):
            assert e.growth is not None
            settings = [_changed(setting, e, f) for f in FACTORS]
            for p in plans:
                arrangement, tree = p.candidate.placement.arrangement, p.candidate.placement.tree
                seconds = [evaluate(tree, made.problem(arrangement)) for made in settings]
                for (f, a), (g, b) in itertools.pairwise(zip(FACTORS, seconds, strict=True)):
                    assert a * (1 - 1e-9) <= b <= a * (g / f) ** e.growth * (1 + 1e-9), (e, p.shape, f, g)
            seen.add(e.kind)
    assert seen == set(SEARCHED) - {"memory"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(2, 52, 10)], ids=str)
def test_other_entries_of_workers_are_right_when_planned_again(seeds: range) -> None:
    found = [
        at_both_ends(plans, r) for seed in seeds if (plans := planned(seed, simulate=bool(seed % 2))) is not None
        for r in sensitivity(plans, ("switching", "length", "calibration")).ranges
    ]  # fmt: skip
    assert len(found) >= len(seeds) and any(found)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seeds", [range(first, first + 10) for first in range(0, 50, 10)], ids=str)
def test_what_plans_are_simulated_with_is_right_when_planned_again(seeds: range) -> None:
    kinds = ("handover", "link", "message", "transfer")
    found = [
        (r.entry, at_both_ends(plans, r)) for seed in seeds if (plans := planned(seed, simulate=True)) is not None
        for r in sensitivity(plans, (kinds[seed % len(kinds)],)).ranges
    ]  # fmt: skip
    assert {kind for kind, _ in found} == set(kinds) and sum(ends for _, ends in found)


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 12), marks=pytest.mark.slow)], ids=str)
def test_simulated_seconds_grow_with_a_handover_and_where_they_may_fall_each_tenth_is_looked_at(seeds: range) -> None:
    """A slower link may bring another order, in which a plan is faster: nothing is known between two factors."""
    for plans in filter(None, (planned(seed, simulate=False) for seed in seeds)):
        setting = plans.best.candidate.placement.setting
        for e in itertools.chain.from_iterable(of_kind(setting, kind) for kind in AFTERWARDS):
            assert e.unsettles == (e.kind != "handover")
            for p in [] if e.unsettles else list(plans)[:3]:
                placements = [dataclasses.replace(p.candidate.placement, setting=_changed(setting, e, f)) for f in FACTORS]
                seconds = [settled(steady(placement, p.devices), 0)[1] for placement in placements]
                for (f, a), (g, b) in itertools.pairwise(zip(FACTORS, seconds, strict=True)):
                    assert a * (1 - 1e-9) <= b <= a * g / f * (1 + 1e-9), (e, p.shape, f, g)


def test_each_tenth_of_a_link_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    plans, seen = plan(two(link=Link(2.0, 0.001)), 8), list[float]()
    look = _Planned.look
    monkeypatch.setattr(_Planned, "look", lambda self, made: seen.append(2.0 / made.profile.link.gib_per_s) or look(self, made))
    (r,) = sensitivity(plans, ("link",)).ranges
    steps = [b / a for a, b in itertools.pairwise(sorted({1.0, *(f for f in seen if r.low <= f <= r.high)}))]
    assert max(steps) <= 1 + STEP and r.step == STEP


def two(**fields: object) -> Profile:
    """Streams, or time-shares at a price."""
    a = WorkerProfile((Sample(1, 64.0, 8.0), Sample(8, 64.0, 3.0)), onload_s=0.5, offload_s=0.5)
    return dataclasses.replace(Profile(64, {"a": a, "b": a}, (EdgeProfile("a", "b", item_mib=16.0),), "two"), **fields)  # type: ignore[arg-type]


def test_switching_that_costs_more_makes_others_stream() -> None:
    """Both cannot stay, and leaving costs next to nothing."""
    worker = WorkerProfile((Sample(8, 64.0, 3.0),), exponent=1.0, memory=Memory(50.0), onload_s=0.01, offload_s=0.01)
    plans = plan(two(workers={"a": worker, "b": worker}, device_memory_gib=80.0), 8, simulate=False)
    assert plans.best.shape == "a > b"
    found = sensitivity(plans, ("switching",), tolerance=0.0).ranges
    assert {r.owner for r in found} == {"a", "b"}
    for r in found:
        assert r.low == 1 / WIDEST and 1 < r.high < WIDEST and r.instead[1] == "a | b"
        assert at_both_ends(plans, r, 0.0) == 1
    fixed = plan(two().with_worker("a", offloadable=False), 8, simulate=False)
    assert not sensitivity(fixed, ("switching",), workers=["a"]).ranges, "it never leaves"


def test_a_link_that_is_slower_than_measured_makes_others_take_turns() -> None:
    profile = two(link=Link(0.5, 0.001), messages=(Message("unix", 0.001),), handovers=(Handover("a", "load", 1.0, ("b",)),))
    plans = plan(profile, 8)
    assert plans.best.mode == "spatial"
    found = {r.entry: r for r in sensitivity(plans, AFTERWARDS).ranges}
    assert {(r.owner, r.entry) for r in found.values()} == {("a --> b", "transfer"), ("all edges", "link"), ("unix", "message"), ("a.load()", "handover")}
    assert 1 < found["link"].high < WIDEST and found["link"].instead[1] == "a > b"
    assert found["transfer"].high == pytest.approx(found["link"].high, rel=0.05)
    assert at_both_ends(plans, found["link"]) == 1
    followed = plan(profile, 8, simulate=False)
    assert {r.entry for r in sensitivity(followed, AFTERWARDS).ranges} == {"handover"}, "nothing else is known to plans that were not simulated"


def test_longer_responses_are_more_work_for_others_too() -> None:
    rollout = WorkerProfile((Sample(8, 64.0, 20.0),), "generation", lengths=Lengths(4096.0, mean_tokens=900.0), exponent=0.5)
    learner = WorkerProfile((Sample(8, 64.0, 12.0),))
    profile = Profile(64, {"rollout": rollout, "learner": learner}, (EdgeProfile("rollout", "learner"),), weights="tokens")
    (e,) = of_kind(plan(profile, 8, simulate=False).best.candidate.placement.setting, "length")
    assert (e.owner, e.slower) == ("rollout", {"rollout", "learner"})
    twice = e.times(profile, 2.0)
    assert twice.workers["learner"].samples[0].seconds == pytest.approx(24.0) and twice.workers["rollout"].lengths.factor == 2.0  # type: ignore[union-attr]
    equal = profile.replace(weights="equal")
    assert e.times(equal, 2.0).workers["learner"] == learner


def test_what_is_asked_for() -> None:
    plans = plan(two(link=Link(0.5, 0.001), device_memory_gib=80.0), 2, micro_batches=4)
    everything = sensitivity(plans, "all")
    assert {r.entry for r in everything.ranges} == {"seconds", "switching", "transfer", "link"}
    assert "all edges link" in repr(everything) and "all edges link" in everything._repr_html_()
    assert {r.owner for r in sensitivity(plans, ("seconds", "transfer"), workers=["a"]).ranges} == {"a", "a --> b"}
    assert set(everything.to_pandas()["owner"]) == {"a", "b", "a --> b", "all edges"}
    with pytest.raises(UnknownNameError, match="Did you mean 'switching'"):
        sensitivity(plans, ("switch",))
    with pytest.raises(PlanError, match=r"names of entries, or 'all'\. Next"):
        sensitivity(plans, "switching")
    nothing = two().with_worker("a", onload_s=0.0, offload_s=0.0, samples=(Sample(1, 64.0, 0.0),))
    assert not {r.entry for r in sensitivity(plan(nothing, 8, simulate=False), "all").ranges if r.owner == "a"}, "nothing times four is nothing"
