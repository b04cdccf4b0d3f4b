"""Published comparisons from their inputs (`docs/profiles`): the planner must come to what was measured, without knowing it.

Expected figures: RLinf (arXiv 2509.15965), Figs. 9, 14, 15, 16a. `docs/history.md` says which of its figures cannot be reproduced, and why.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from rlinf_lab.planning.forecast.stream_estimate import follow
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.planner import Plans, plan
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.search.plan_tree import SPATIAL, Composed, Leaf

PROFILES = Path(__file__).parents[2] / "docs" / "profiles"


def profile(name: str, ranks: int = 0) -> Profile:
    """``ranks``: model-parallel size of the rollout, where it is not published."""
    given = Profile.load(PROFILES / f"{name}.json")
    return given.with_worker("rollout", ranks=replace(given.workers["rollout"].ranks, devices_per_rank=ranks)) if ranks else given


@cache
def planned(name: str, devices: int, rule: str = "fitted", micro_batches: int = 64, ranks: int = 0, simulate: bool = True) -> Plans:
    return plan(profile(name, ranks), devices, rule=rule, micro_batches=micro_batches, simulate=simulate)


def devices(plans: Plans, which: str) -> list[int]:
    return [at["devices"] for at in plans[which].placement.values() if at["devices"]]


def test_case_1_with_the_public_tools_own_rule() -> None:
    """By the search, as the tool does it. Simulated, 82/4/32 is 0.9 % faster: its last micro-batch is through sooner."""
    plans = planned("grpo_1.5b_case1", 128, "rlinf", 512, simulate=False)
    assert plans["temporal"].candidate.searched == pytest.approx(335.0)
    assert plans["spatial"].candidate.searched == pytest.approx(289.096, abs=5e-4)
    assert devices(plans, "spatial") == [80, 16, 32] and plans.best.mode == "spatial"


@pytest.mark.parametrize(
    ("name", "count", "micro_batches", "mode", "loser", "times"),
    [
        ("grpo_1.5b_case1", 128, 512, "spatial", "temporal", 1.0),  # measured 280 s and 339 s; the model's own length distribution is not published
        ("libero_openvla_oft", 8, 64, "temporal", "(simulator | generator) > training", 1.1),
    ],
)
def test_the_mode_is_the_published_one(name: str, count: int, micro_batches: int, mode: str, loser: str, times: float) -> None:
    plans = planned(name, count, micro_batches=micro_batches)
    assert plans.best.mode == mode and plans[loser].seconds > times * plans.best.seconds
    assert mode == "temporal" or plans.best.seconds < 335


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_case_4_total(ranks: int) -> None:
    plans = planned("grpo_7b_case4", 64, micro_batches=512, ranks=ranks)
    spatial = plans["spatial"]
    assert spatial.seconds == pytest.approx(309.3, rel=0.05)
    assert plans["temporal"].candidate.seconds == pytest.approx(355.5)
    assert plans.best.mode != "temporal"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("rollout", [40, 42, 44, 46])
def test_case_4_rollout_interval(rollout: int, ranks: int) -> None:
    """At 16 training devices, whatever the rest is split into: the total does not test the generation model, this does."""
    setting = Setting.of(profile("grpo_7b_case4", ranks), 64, micro_batches=512)
    names = [u.name for u in setting.stages]
    counts = {"rollout": rollout, "reward": 0, "logprob": 2, "training": 16}
    leaves = [Leaf(i, (counts[n],), 9) for i, n in enumerate(names)]
    tree = leaves[0]
    for leaf in leaves[1:]:
        tree = Composed(SPATIAL, tree, leaf, (tree.devices[0] + leaf.devices[0],), 9)
    streamed = follow(Placement(setting, setting.arrangements()[0], tree))
    assert streamed.work[names.index("rollout")].ends[-1] == pytest.approx(267.9, rel=0.05)
    assert streamed.work[names.index("training")].ends[-1] == pytest.approx(309.3, rel=0.05)


@pytest.mark.parametrize(("count", "verl"), [(64, 1225.6), (128, 759.6), (256, 542.3)])
def test_the_long_tail_is_not_streamed(count: int, verl: float) -> None:
    """Published: 44 to 69 % slower than verl, over three sizes that are not told apart."""
    plans = planned("grpo_7b_long_tail", count)
    assert plans.best.mode == "temporal"
    loser = plans["spatial"]
    assert loser.seconds > 1.3 * plans.best.seconds and "% slower" in loser.reason and "wait" in loser.reason
    assert 1.0 < loser.seconds / verl < 1.7


def test_the_choice_needs_the_inputs_that_the_flow_has() -> None:
    """What makes streaming bad here is in the profile: without groups, weights and rank rules the gap closes."""
    given = profile("grpo_7b_long_tail")
    bare = given.replace(weights="equal", edges=tuple(type(e)(e.producer, e.consumer) for e in given.edges))
    gaps = [p["spatial"].seconds / p.best.seconds for p in (planned("grpo_7b_long_tail", 256), plan(bare, 256))]
    assert gaps[0] > gaps[1] + 0.2


def test_maniskill_prefers_the_hybrid_mode() -> None:
    plans = planned("maniskill_openvla", 16)
    hybrid, temporal = plans["(simulator | generator) > training"], plans["temporal"]
    spatial = plans["(simulator | generator) | training"]
    assert plans.best is hybrid and hybrid.seconds < temporal.seconds < spatial.seconds
    published = {"hybrid": 459.5, "temporal": 711.7, "spatial": 773.7}
    for one, name in ((hybrid, "hybrid"), (spatial, "spatial")):
        assert one.seconds / temporal.seconds == pytest.approx(published[name] / published["temporal"], rel=0.1)
    assert devices(plans, hybrid.name) == [8, 8, 16]
    assert [at["sub_batches"] for at in hybrid.placement.values()] == [2, 2, 1]
