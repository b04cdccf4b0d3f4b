"""Ranges of sensitivity against `lab.plan` of the changed profile."""

from __future__ import annotations

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.candidates import alike
from rlinf_lab.planning.entries import Entry, of_kind
from rlinf_lab.planning.planner import Plans, plan
from rlinf_lab.planning.profile import Profile
from rlinf_lab.planning.sensitivity import FINE, WIDEST, Range

BEYOND = 1 + 2 * FINE


def entry(plans: Plans, kind: str, owner: str) -> Entry:
    return next(e for e in of_kind(plans.best.candidate.placement.setting, kind) if e.owner == owner)


def first(plans: Plans, profile: Profile) -> set[str]:
    """The shapes that `plan` ranks first: more than one where they tie. Of plans that seat everybody alike one is named: it goes by the choice's name here, if
    it is that."""
    like = plans.best.candidate.placement.setting
    try:
        found = plan(profile, like.devices, chunks=like.chunks, rule=like.rule, staleness=like.staleness, simulate=plans.best.simulated is not None)
    except PlanError:
        return {"no plan"}
    best = [p for p in found if p.seconds <= found.best.seconds * (1 + 1e-6)]
    return {plans.best.shape if alike(p.candidate.placement, plans.best.candidate.placement) else p.shape for p in best}


def at_both_ends(plans: Plans, r: Range) -> int:
    """Whether the choice wins at both ends, and what is said to win beyond does. How many ends there are."""
    times = entry(plans, r.entry, r.owner).times
    assert r.low <= 1 <= r.high, r
    for end, beyond, shape in ((r.low, 1 / BEYOND, r.instead[0]), (r.high, BEYOND, r.instead[1])):
        assert plans.best.shape in first(plans, times(plans.profile, end)), r
        if 1 / WIDEST < end < WIDEST:
            there = first(plans, times(plans.profile, end * beyond))
            assert plans.best.shape not in there, (r, there)
            assert sorted(shape) in map(sorted, there) or len(there) > 1, (r, there)  # of those without a link either may come first
    return (r.low > 1 / WIDEST) + (r.high < WIDEST)
