"""Ranges of sensitivity against `lab.plan` of the changed profile, and against a search of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.adapt.perturb import Entry, of_kind
from rlinf_lab.planning.adapt.sensitivity import FINE, TOLERANCE, WIDEST, Range
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.candidates import Candidate, alike
from rlinf_lab.planning.planner.planner import Plans, plan
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.search.plan_tree import compositions
from rlinf_lab.planning.search.solver import Only, solve

BEYOND, INSIDE = 1 + 3 * FINE, 1 + FINE / 2  # not the factors at which the ends were looked at
Turns = Collection[frozenset[str]]


def entry(plans: Plans, kind: str, owner: str) -> Entry:
    return next(e for e in of_kind(plans.best.candidate.placement.setting, kind) if e.owner == owner)


def first(plans: Plans, profile: Profile, tolerance: float = 0.0) -> set[str]:
    """The shapes that `plan` ranks first: more than one where they tie, and the choice's where the best plan of its shape that is ranked, or the choice kept as
    it is, takes at most ``tolerance`` longer. Of plans that seat everybody alike one is named: it goes by the choice's name here, if it is that."""
    like = plans.best.candidate.placement.setting
    again: dict[str, Any] = {"micro_batches": like.micro_batches, "rule": like.rule, "staleness": like.staleness, "quick": plans.quick}
    try:
        found = plan(profile, like.devices, simulate=plans.best.simulated is not None, **again)
    except PlanError:
        return {"no plan"}
    named = [(plans.best.shape if alike(p.candidate.placement, plans.best.candidate.placement) else p.shape, p.seconds) for p in found]
    shapes = {shape for shape, seconds in named if seconds <= found.best.seconds * (1 + 1e-6)}
    own = min([kept(plans, profile), *(seconds for shape, seconds in named if shape == plans.best.shape)])
    stands = own <= found.best.seconds * (1 + tolerance) * (1 + 1e-6)
    return shapes | {plans.best.shape} if stands else shapes - {plans.best.shape}


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


def winners(plans: Plans, profile: Profile, tolerance: float = 0.0) -> set[str]:
    """The shapes that a search of everything finds fastest: more than one where they tie, and the choice's where it takes at most ``tolerance`` longer."""
    like = plans.best.candidate.placement.setting
    setting = Setting.of(profile, like.devices, like.micro_batches, like.rule)
    everything, its_shape = Only(), Only(among=compositions(plans.best.candidate.placement.tree))
    found = [
        (f.seconds, Placement(setting, a, f.tree)) for a in setting.arrangements() for only in (everything, its_shape)
        for f in solve(setting.problem(a), math.inf, only) if not Placement(setting, a, f.tree).misfit()
    ]  # fmt: skip
    best = min(seconds for seconds, _ in found)
    most = {plans.best.shape: best * (1 + tolerance)}
    return {placement.shape for seconds, placement in found if seconds <= most.get(placement.shape, best) * (1 + 1e-9)}


def at_both_ends(plans: Plans, r: Range, tolerance: float = TOLERANCE) -> int:
    """Planned again: whether the choice takes at most ``tolerance`` longer than the best plan at both ends, takes longer just beyond, and what is said to win
    there does. How many ends there are."""
    times, links = entry(plans, r.entry, r.owner).times, [frozenset({e.producer, e.consumer}) for e in plans.profile.edges]
    assert r.low <= 1 <= r.high, r
    ends = 0
    for end, inwards, beyond, shape in ((r.low, INSIDE, 1 / BEYOND, r.instead[0]), (r.high, 1 / INSIDE, BEYOND, r.instead[1])):
        inside = end * inwards if (end < 1) == (end * inwards < 1) else 1.0
        assert plans.best.shape in first(plans, times(plans.profile, inside), tolerance), (r, inside)
        if 1 / WIDEST < end < WIDEST:
            there = first(plans, times(plans.profile, end * beyond), tolerance)
            assert plans.best.shape not in there, (r, there)
            if same(shape, links) not in {same(t, links) for t in there}:  # it ties, or the same seats have another name a little nearer to the end
                nearer = set().union(*(first(plans, times(plans.profile, end * beyond ** (k / 12))) for k in range(1, 12)))
                assert shape in nearer or (not r.step and shape in winners(plans, times(plans.profile, end * beyond))), (r, there, nearer)
            ends += 1
        else:
            assert not shape and end in (1 / WIDEST, WIDEST), r
    return ends


def searched_at_both_ends(plans: Plans, r: Range, tolerance: float = TOLERANCE) -> None:
    """As a search by itself has it, which knows nothing of what sensitivity asks."""
    times = entry(plans, r.entry, r.owner).times
    assert plans.best.shape in winners(plans, plans.profile)
    for end, inwards, shape in ((r.low, 1.002, r.instead[0]), (r.high, 1 / 1.002, r.instead[1])):
        assert plans.best.shape in winners(plans, times(plans.profile, end * inwards), tolerance), r
        if 1 / WIDEST < end < WIDEST:
            beyond = winners(plans, times(plans.profile, end / inwards), tolerance)
            assert shape in beyond and plans.best.shape not in beyond, (r, beyond)


def same(shape: str, links: Turns) -> str:
    """A shape in the one way to write it: who runs at the same time by name, and who time-shares, too, where no edge says who is first."""
    tokens = re.findall(r"[()|>]|[^()|> ]+", shape)
    found, rest = _read(tokens, links)
    assert not rest, shape
    return found


def _read(tokens: list[str], links: Turns) -> tuple[str, list[str]]:
    parts, sign = list[str](), ""
    while tokens and tokens[0] != ")":
        token, *tokens = tokens
        if token in "|>":
            sign = token
        elif token == "(":
            inner, tokens = _read(tokens, links)
            parts.append(f"({inner})")
            tokens = tokens[1:]
        else:
            parts.append(token)
    if sign == "|":
        parts.sort()
    elif sign == ">":
        parts = _turns(parts, links)
    return f" {sign} ".join(parts), tokens


def _turns(parts: list[str], links: Turns) -> list[str]:
    """Again and again the first by name of those that need not wait for anybody left."""
    left, found = list(parts), list[str]()
    while left:
        ready = [p for i, p in enumerate(left) if not any(_linked(q, p, links) for q in left[:i])]
        found.append(min(ready))
        left.remove(min(ready))
    return found


def _linked(a: str, b: str, links: Turns) -> bool:
    names, others = (set(re.findall(r"[^()|>+ ]+", part)) for part in (a, b))
    return any(len(link & names) and len(link & others) for link in links)
