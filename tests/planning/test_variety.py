"""Every form of a plan that is about as fast as the best one is found, also where others beat its parts in every number; and from it one starts to climb."""

from __future__ import annotations

import pytest
from brute_force import random_problem
from random_profiles import any_flow, branching, random_profile
from test_search_optimality import Skeleton, skeletons

from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner import candidates
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.search import variety
from rlinf_lab.planning.search.plan_tree import evaluate
from rlinf_lab.planning.search.problem import Cuts, Problem
from rlinf_lab.planning.search.solver import solve
from rlinf_lab.planning.search.structure import Outline
from rlinf_lab.planning.search.variety import varied


def each(problem: Problem) -> dict[Outline, float]:
    """Seconds of the best plan of each form, every skeleton of compositions searched by itself."""
    found: dict[Outline, float] = {}
    for skeleton in skeletons(Cuts.shared(problem), problem.everyone):
        for made in Skeleton(problem, skeleton).plans():
            outline = Outline.of(made.tree, problem.edges)
            found[outline] = min(found.get(outline, made.seconds), made.seconds)
    return found


def test_every_form_is_found_with_its_best_seconds() -> None:
    several = 0
    for seed in range(12):
        problem = random_problem(seed, leaves=(2, 4), devices=(3, 8))
        truth = each(problem)
        for near in (1.0, 1.12, 1.5) if truth else ():
            ceiling = near * solve(problem)[0].seconds
            found = varied(problem, ceiling)
            made = {Outline.of(f.tree, problem.edges): f.seconds for f in found}
            assert len(made) == len(found) and [f.seconds for f in found] == sorted(made.values()), f"seed {seed}"
            assert all(evaluate(f.tree, problem) == pytest.approx(f.seconds) for f in found), f"seed {seed}"
            assert made == {outline: seconds for outline, seconds in truth.items() if seconds <= ceiling}, f"seed {seed}"
            several += len(made) > 2
    assert several > 5


def test_of_more_workers_what_is_found_is_as_good_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the forms, the best one among them."""
    monkeypatch.setattr(variety, "EVERY_FORM", 0)
    for seed in range(40):
        problem = random_problem(seed, leaves=(2, 4), devices=(3, 8))
        for best in solve(problem)[:1]:
            found = varied(problem, 1.12 * best.seconds)
            assert found[0].seconds == best.seconds and all(evaluate(f.tree, problem) == pytest.approx(f.seconds) for f in found), f"seed {seed}"


def test_a_form_that_only_the_simulation_prefers_is_found() -> None:
    """Of a, b and c on the same devices others have the shorter fill on any number of devices: by the search it is 3 % slower, simulated 11 % faster."""
    best = plan(random_profile(42).scaled("a", 0.8), 5).best
    assert best.shape == "(a | b | c) > d" and best.simulated is not None and best.seconds < 88


def test_of_many_forms_that_take_as_long_a_few_are_looked_at() -> None:
    """Two dozen wait for the same worker, and took the places of others; iterations overlap, so one that the search finds 7 % slower is 5 % faster."""
    profile, devices, more = any_flow(5)
    found = candidates.candidates(Setting.of(profile, {"": devices}, more["micro_batches"], staleness=more["staleness"]), several=3)
    forms = {c.placement.shape: c.searched for c in found}
    assert sum(seconds == pytest.approx(97.303) for seconds in forms.values()) <= candidates.ALIKE
    assert forms["(((w0 > w4) | w1) > w3) | w2"] == pytest.approx(101.667, rel=1e-5)


def test_whoever_promises_more_than_the_best_is_climbed_from() -> None:
    """By the search it takes 8 % less than the best one looked at, simulated a quarter more: in finer micro-batches it keeps what it promises."""
    best = plan(random_profile(24).scaled("d", 0.95), 12).best
    assert best.shape == "(a | b) > (c | d)" and best.seconds < 112


def test_some_more_shapes_are_listed_not_all_of_them() -> None:
    """Each once, whatever the order of its turns."""
    profile, devices, more = branching(13)
    setting = Setting.of(profile, {"": devices}, more["micro_batches"])
    alone, found = candidates.candidates(setting), candidates.candidates(setting, several=3)
    outlines = [{c.outline for c in some} for some in (alone, found)]
    assert 0 < len(outlines[1] - outlines[0]) <= candidates.MORE
