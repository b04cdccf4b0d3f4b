"""How far off an entry of the profile (`planning.adapt.perturb`) may be before another plan wins.

Each entry is multiplied by a few factors, and it is planned again with each. A choice is a shape: its numbers of
devices may follow the profile. It stands where it fits and takes at most ``tolerance`` longer than the best plan that
is found then: two plans a thousandth apart are no two choices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from rlinf_lab.errors import PlanError, UnknownNameError, shown
from rlinf_lab.planning.adapt.perturb import KINDS, SEARCHED, Entry, of_kind
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.candidates import Candidate, alike
from rlinf_lab.planning.planner.feasible import MODES, of_modes
from rlinf_lab.planning.planner.planner import Plans
from rlinf_lab.planning.planner.ranking import SEVERAL, ranking
from rlinf_lab.planning.schema.arguments import number
from rlinf_lab.planning.search.plan_tree import evaluate
from rlinf_lab.timeline.draw.svg import anywhere

TOLERANCE = 0.01  # relative: so much slower than the best plan that is found, a choice still stands
FACTORS = (0.25, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 4.0)  # by which an entry is multiplied
WIDEST = FACTORS[-1]
TIE = 1e-7  # relative: a simulation counts in nanoseconds
NO_PLAN = "no plan"
ALL = "all"  # entries
BAR_SECONDS = 2.0  # until there is a bar


@dataclass(frozen=True)
class Look:
    """What was found with an entry at ``factor`` times the profile's value: the shape that wins, its seconds, and those
    of the choice (inf: it does not fit any more)."""

    factor: float
    winner: str
    seconds: float
    own: float
    stands: bool


@dataclass(frozen=True)
class Range:
    """The choice stands with an ``entry`` at ``low`` to ``high`` times the profile's value. At each of the `FACTORS`
    between; its ``owner`` is a worker, or what else `planning.adapt.perturb` names. ``instead``: shapes that win at the
    next factor below and above, "" where there is none."""

    owner: str
    entry: str
    low: float
    high: float
    instead: tuple[str, str]
    looks: tuple[Look, ...] = ()

    @classmethod
    def of(cls, entry: Entry, looks: Sequence[Look]) -> Range:
        """``looks``: by rising factor, the profile's value among them."""
        here = next(i for i, look in enumerate(looks) if look.factor == 1.0)
        below = list(itertools.takewhile(lambda look: look.stands, looks[here - 1 :: -1] if here else ()))
        above = list(itertools.takewhile(lambda look: look.stands, looks[here + 1 :]))
        first, last = here - len(below), here + len(above)
        instead = looks[first - 1].winner if first else "", looks[last + 1].winner if last + 1 < len(looks) else ""
        return cls(entry.owner, entry.kind, looks[first].factor, looks[last].factor, instead, tuple(looks))


@dataclass(frozen=True)
class Sensitivity:
    """Ranges of one choice, the narrowest first. ``tolerance``: how much slower than the best plan the choice may be,
    and stands."""

    choice: str
    ranges: tuple[Range, ...]
    tolerance: float = 0.0

    def __repr__(self) -> str:
        if not self.ranges:
            return f"The choice {self.choice}: none of the entries that were asked for can matter to it"
        lines = [f"The choice {self.choice} stands while"]
        for r in self.ranges:
            low, high = (
                f"{_percent(end)} ({other or 'not looked further'})"
                for end, other in zip((r.low, r.high), r.instead, strict=True)
            )
            lines.append(f"  {r.owner} {r.entry:<8} is off by {low} to {high}")
        return "\n".join([*lines, f"  {self._note()}"])

    def _note(self) -> str:
        """On how it was found."""
        times = ", ".join(f"{f:g}" for f in FACTORS if f != 1)
        return (
            f"planned again at {times} times the profile's value; it stands where it takes at most "
            f"{100 * self.tolerance:.3g} % longer than the best plan"
        )

    def to_pandas(self) -> Any:
        """One row for each entry: owner, entry, low, high, what wins below and above."""
        import pandas as pd

        rows = [(r.owner, r.entry, r.low, r.high, *r.instead) for r in self.ranges]
        return pd.DataFrame(rows, columns=["owner", "entry", "low", "high", "below", "above"])

    def _repr_html_(self) -> str:
        from html import escape

        left = "<td style='text-align:left'>"
        rows = "".join(
            f"<tr>{left}{escape(r.owner)} {r.entry}</td><td>{_bar(r)}</td>"
            f"<td>{_percent(r.low)}</td><td>{_percent(r.high)}</td>"
            f"{left}{escape(r.instead[0] or '–')}</td>{left}{escape(r.instead[1] or '–')}</td></tr>"
            for r in self.ranges
        )
        head = "".join(
            f"<th>{h}</th>" for h in ("", "stands from a quarter to four times", "from", "to", "below", "above")
        )
        return (
            f"<div>The choice <b>{escape(self.choice)}</b> stands "
            f"while<table><tr>{head}</tr>{rows}</table><small>{escape(self._note())}</small></div>"
        )


def sensitivity(
    plans: Plans, entries: Collection[str] | str = ("seconds",), tolerance: float = TOLERANCE
) -> Sensitivity:
    """How far entries of the profile may be off before another plan is best.

    ``entries``: some of those that `planning.adapt.perturb` names, or ``"all"``. ``tolerance``: so much slower than the
    best plan that is found still counts as standing (0: nothing may be faster).

    Each entry is multiplied by each of `FACTORS`, and it is planned again as ``plans`` was: an entry takes as long as
    planning eight times. Link, transfer and messages are known to simulated plans only, so with ``simulate=False`` they
    have no range.
    """
    kinds = _checked(plans, entries, tolerance)
    asked = Asked(plans, tolerance)
    matter = asked.entries(kinds)
    # an entry takes as long as it takes: no time to go
    form = "{l_bar}{bar}| {n_fmt}/{total_fmt} entries [{elapsed}]"
    found = [asked.range(e) for e in tqdm(matter, "sensitivity", leave=False, bar_format=form, delay=BAR_SECONDS)]
    return Sensitivity(plans.best.shape, tuple(sorted(found, key=lambda r: min(r.high, 1 / r.low))), tolerance)


def _checked(plans: Any, entries: Any, tolerance: Any) -> Sequence[str]:
    """The kinds of entries that are asked for."""
    if not hasattr(plans, "best"):
        raise PlanError(
            f"sensitivity({shown(plans)}): the Plans that lab.plan gives. Next: sensitivity(lab.plan(profile, 8))."
        )
    if isinstance(entries, str) and entries == ALL:
        entries = KINDS
    if isinstance(entries, str) or not isinstance(entries, Collection):
        raise PlanError(
            f"sensitivity(entries={shown(entries)}): names of entries, or 'all'. Next: entries=('seconds',)."
        )
    for entry in entries:
        if entry not in KINDS:
            raise UnknownNameError.of("entry", entry, KINDS)
    number("sensitivity: tolerance", tolerance, 0)
    return tuple(dict.fromkeys(entries))


# told of each factor of an entry that was looked at, and which part of its range is decided
Looked = Callable[[Entry, float, float], None]


@dataclass(frozen=True)
class Asked:
    """Over which ranges the best of ``plans`` stands, entry by entry. ``tolerance``: of `sensitivity`."""

    plans: Plans
    tolerance: float = TOLERANCE
    looked: Looked | None = None

    def entries(self, kinds: Collection[str] = KINDS) -> list[Entry]:
        """Those that can matter, of these kinds."""
        found = (entry for kind in kinds for entry in of_kind(self._placement.setting, kind))
        return list(filter(self._matters, found))

    def range(self, entry: Entry) -> Range:
        """Planned again with each factor."""
        looks = []
        for i, factor in enumerate(FACTORS):
            looks.append(self.look(entry, factor))
            if self.looked is not None:
                self.looked(entry, factor, (i + 1) / len(FACTORS))
        return Range.of(entry, looks)

    def look(self, entry: Entry, factor: float) -> Look:
        """As `lab.plan` ranks plans of the changed profile: searched, followed, simulated where ``plans`` were."""
        if factor == 1.0:
            ranked = [(p.candidate, p.seconds) for p in self.plans]
        else:
            ranked = self._planned(changed(self._placement.setting, entry, factor))
        if not ranked:
            return Look(factor, NO_PLAN, math.inf, math.inf, False)
        own = min((seconds for c, seconds in ranked if self._is_chosen(c.placement)), default=math.inf)
        others = [(seconds, c.placement.shape) for c, seconds in ranked if not self._is_chosen(c.placement)]
        rival, shape = min(others, default=(math.inf, ""))
        if rival < own:  # of each shape one plan was ranked, perhaps none of this one; but it may take as long, or less
            own = min(own, self._as_it_is(ranked[0][0].placement.setting))
        stands = rival * (1 + self.tolerance) >= own * (1 - TIE) and own < math.inf
        winner = shape if rival < own * (1 - TIE) else self.plans.best.shape
        return Look(factor, winner, min(own, rival), own, stands)

    @property
    def _placement(self) -> Placement:
        return self.plans.best.candidate.placement

    @property
    def _simulates(self) -> bool:
        return self.plans.best.simulated is not None

    def _matters(self, entry: Entry) -> bool:
        """Not where only a simulation knows of it, and plans were not simulated."""
        return entry.kind in SEARCHED or entry.kind == "handover" or self._simulates

    def _planned(self, setting: Setting) -> list[tuple[Candidate, float]]:
        """(plan, seconds), none where nothing fits."""
        there = {p.mode for p in self.plans} | set(self.plans.refused)
        modes = MODES if "alone" in there else tuple(m for m in MODES if m in there)
        several = 1 if self.plans.quick or not self._simulates else SEVERAL
        try:
            setting.check()
            found = of_modes(setting, modes, self.plans.quick, several=several)
        except PlanError:
            return []
        if not found:
            return []
        return [(s.candidate, s.seconds) for s in ranking(found, self.plans.best.devices, self._simulates)]

    def _is_chosen(self, placement: Placement) -> bool:
        """By another name, too."""
        return placement.shape == self._placement.shape or alike(placement, self._placement)

    def _as_it_is(self, setting: Setting) -> float:
        """Seconds of the choice under a changed setting, as plans are ranked. Inf where it does not fit any more."""
        placement = replace(self._placement, setting=setting)
        if placement.misfit() or not np.isfinite(evaluate(placement.tree, setting.problem(placement.arrangement))):
            return math.inf
        if self._simulates:
            return settled(steady(placement, self.plans.best.devices), setting.staleness)[1]
        return Candidate.of(setting, placement.arrangement, placement.tree).seconds


def changed(setting: Setting, entry: Entry, factor: float) -> Setting:
    """With one entry of the profile multiplied. What it does not change is known already."""
    made = replace(setting, profile=entry.times(setting.profile, factor))
    # where `cached_property` looks
    made.__dict__["tables"] = setting.tables.without(made, {setting.home[name] for name in entry.slower})
    if not entry.slower:
        made.__dict__["models"] = setting.models
    return made


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def _bar(r: Range) -> str:
    """Log scale from a quarter to four times, 160 pixels. The line is the profile's value."""
    left, right = (80 + 80 * float(np.log(f)) / float(np.log(WIDEST)) for f in (r.low, r.high))
    said = f"{r.low:.2f} to {r.high:.2f}"
    drawn = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='160' height='12' role='img' aria-label='{said}'>"
        f"<rect x='{left:.1f}' y='2' width='{right - left:.1f}' height='8' "
        f"fill='#1e69b4'/><line x1='80' y1='0' x2='80' y2='12' stroke='currentColor'/></svg>"
    )
    return anywhere(drawn, drawn, said)
