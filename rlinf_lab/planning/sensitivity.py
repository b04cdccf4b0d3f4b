"""Over which range of error in the profile a choice stands: a worker's seconds, or its memory, multiplied by a factor.

A choice is a shape (who shares devices, who streams: its numbers of devices may follow the profile) or one plan with its numbers. It stands as
long as the search, given the changed profile, finds nothing else that is faster (within ``tolerance``), and it still fits.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_lab.errors import PlanError, UnknownNameError, shown
from rlinf_lab.planning.memory import limits
from rlinf_lab.planning.placement import Placement
from rlinf_lab.planning.profile import Profile
from rlinf_lab.planning.reading import known
from rlinf_lab.planning.search.outline import Outline
from rlinf_lab.planning.search.solver import Only
from rlinf_lab.planning.search.trees import evaluate
from rlinf_lab.planning.setting import Arrangement, Setting
from rlinf_lab.planning.sharing import fitting

if TYPE_CHECKING:
    from rlinf_lab.planning.planner import Plans

WIDEST = 4.0  # times as much, or as little, is looked at
FARTHEST = 1.2  # times as slow as the choice: of slower plans it is not asked how slow they are
FINE = 1e-3  # relative: how near an end is found
GUESSES = 2
FAINT = 5e-3  # relative: what is faster by less may be overlooked between two factors that are searched
FAINTEST = 4e-2  # so much where another plan takes as long as the choice whatever the factor
TIES, MORE = 16, 4  # of them on the way to one end before twice as much may be overlooked, and twice again after so many more
LEAP = 0.01  # relative: how near each other factors of memory are looked at where seconds leap
ENTRIES = ("seconds", "memory")
KINDS = ("shape", "plan")


@dataclass(frozen=True)
class Range:
    """The choice stands from ``low`` to ``high`` times the profile's value. ``instead``: shapes that win beyond each end, "" at `WIDEST`.

    Searched again with factors near enough to each other that none between them makes another plan faster by more than ``faint`` (half a percent; up to 4 %
    far from the profile's value where another plan takes as long as the choice all the way; of memory, whose effect can be sudden: within 1 %).
    """

    worker: str
    entry: str
    low: float
    high: float
    instead: tuple[str, str]
    faint: float = FAINT


@dataclass(frozen=True)
class Sensitivity:
    """Ranges of one choice, the narrowest first."""

    choice: str
    ranges: tuple[Range, ...]

    def __repr__(self) -> str:
        lines = [f"The choice {self.choice} stands while"]
        for r in self.ranges:
            ends = [f"{_percent(r.low)} ({r.instead[0] or 'not looked further'})", f"{_percent(r.high)} ({r.instead[1] or 'not looked further'})"]
            close = f"; another plan takes as long: up to {100 * r.faint:.0f} % faster ones may be overlooked" * (r.faint > FAINT)
            lines.append(f"  {r.worker} {r.entry:<8} is off by {ends[0]} to {ends[1]}{close}")
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """One row for each entry: worker, entry, low, high, and what wins beyond."""
        import pandas as pd

        rows = [(r.worker, r.entry, r.low, r.high, *r.instead) for r in self.ranges]
        return pd.DataFrame(rows, columns=["worker", "entry", "low", "high", "below", "above"])

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(r.worker)} {r.entry}</td><td>{_bar(r)}</td><td>{_percent(r.low)}</td><td>{_percent(r.high)}</td>"
            f"<td style='text-align:left'>{escape(r.instead[0] or '–')}</td><td style='text-align:left'>{escape(r.instead[1] or '–')}</td></tr>"
            for r in self.ranges
        )
        head = "".join(f"<th>{h}</th>" for h in ("", "stands from a quarter to four times", "from", "to", "below", "above"))
        return f"<div>The choice <b>{escape(self.choice)}</b> stands while<table><tr>{head}</tr>{rows}</table></div>"


def sensitivity(
    plans: Plans, entries: Collection[str] = ("seconds",), of: str = "shape", tolerance: float = 0.0, workers: Collection[str] | None = None
) -> Sensitivity:
    """Ranges for the best of ``plans``. ``entries``: ``"seconds"``, ``"memory"`` or both. ``of``: its ``"shape"`` or the very ``"plan"``.
    ``tolerance``: so much slower still counts as standing (0.02: two percent). ``workers``: only these.

    Decided by the search's model alone. Where the best plan was chosen over the search's own favourite (it was followed, or simulated, and found
    faster), the lead that the favourite has today is granted to it.
    """
    if not hasattr(plans, "best"):
        raise PlanError(f"sensitivity({shown(plans)}): the Plans that lab.plan gives. Next: sensitivity(lab.plan(profile, 8)).")
    if isinstance(entries, str) or not isinstance(entries, Collection):
        raise PlanError(f"sensitivity(entries={shown(entries)}): names of entries. Next: entries=('seconds',).")
    if isinstance(tolerance, bool) or not isinstance(tolerance, numbers.Real):
        raise PlanError(f"sensitivity(tolerance={shown(tolerance)}): a number, at least 0. Next: tolerance=0.0.")
    for entry in entries:
        if entry not in ENTRIES:
            raise UnknownNameError.of("entry", entry, ENTRIES)
    if of not in KINDS:
        raise UnknownNameError.of("kind of choice", of, KINDS)
    if not 0 <= tolerance < float("inf"):
        raise PlanError(f"sensitivity(tolerance={tolerance}): at least 0. Next: tolerance=0.0.")
    if isinstance(workers, str) or not (workers is None or isinstance(workers, Collection)):
        raise PlanError(f"sensitivity(workers={shown(workers)}): names of workers. Next: workers={list(plans.profile.workers)[:2]}.")
    for worker in workers or ():
        known("worker", worker, plans.profile.workers, "workers")
    asked = _Asked(plans, of, tolerance)
    found = [asked.range(worker, entry) for entry in entries for worker in workers or plans.profile.workers if asked.matters(worker, entry)]
    return Sensitivity(plans.best.shape, tuple(sorted(found, key=lambda r: min(r.high, 1 / r.low))))


class _Asked:
    """One choice. ``lead``: what the search's favourite of today is granted. ``same``, ``others``: plans of its shape and of others, found so far."""

    def __init__(self, plans: Plans, of: str, tolerance: float) -> None:
        self.placement, self.setting = plans.best.candidate.placement, plans.best.candidate.placement.setting
        self.any_numbers, self.lead = of == "shape", 1.0
        self.forms, self.outline = self.placement.arrangement.forms.of, Outline.of(self.placement.tree, self.setting.edges)
        self.same, self.others = [self.placement], list[Placement]()
        for planned in plans:
            self._remember(planned.candidate.placement)
        today = self.look(self.setting)
        self.lead = max(1.0, today.own / min(today.rival, today.same) if today.rival else 1.0) * (1 + tolerance)

    def matters(self, worker: str, entry: str) -> bool:
        known = limits(self.setting.profile.workers[worker])
        return entry == "seconds" or (known and np.isfinite(max(map(self.setting.cap, self.setting.kinds))))

    def range(self, worker: str, entry: str) -> Range:
        scan = _Scan(self, worker, entry)
        low, below = scan.towards(1 / WIDEST)
        high, above = scan.towards(WIDEST)
        return Range(worker, entry, low, high, (below, above), scan.faintest)

    def verdict(self, look: _Look) -> str:
        return look.shape if look.rival < look.same and look.rival * self.lead < look.own * (1 - 1e-9) else ""

    def changed(self, worker: str, entry: str, factor: float) -> Setting:
        """With one entry of the profile multiplied. Not checked: perhaps nothing fits."""
        made = replace(self.setting, profile=_changed(self.setting.profile, worker, entry, factor))
        if entry == "seconds":
            made.__dict__["tables"] = self.setting.tables.without(made, self.setting.home[worker])  # where `cached_property` looks
        return made

    def look(self, setting: Setting) -> _Look:
        """Searched in a setting. No plan at all: nothing beats the choice, but it does not stand."""
        try:
            setting.check()
        except PlanError:
            return _NOTHING
        own, same = _seconds(self.placement, setting), self._known_same(setting)
        rival, shape = self._rival(setting, min(min(own, same) * FARTHEST, self._known_others(setting)))
        wins = rival < same and rival * self.lead < own
        if self.any_numbers and (wins or np.isinf(rival)):  # perhaps with other numbers it is still the best, or fits
            for placement, _ in self._searched(setting, Only(), rival * (1 + 1e-9)):
                self._remember(placement)
            same = self._known_same(setting)
        return _NOTHING if np.isinf(min(own, same, rival)) else _Look(own, same, rival, shape)

    def known(self, setting: Setting) -> tuple[float, float]:
        """Seconds of the choice, granted its lead, and of the best other plan, among those found so far."""
        return min(_seconds(self.placement, setting) / self.lead, self._known_same(setting)), self._known_others(setting)

    def _known_same(self, setting: Setting) -> float:
        return min(_seconds(p, setting) for p in self.same)

    def _known_others(self, setting: Setting) -> float:
        return min((_seconds(p, setting) for p in self.others), default=np.inf)

    def _rival(self, setting: Setting, ceiling: float) -> tuple[float, str]:
        """The fastest plan that is another choice, and its shape; the ceiling where none is faster than it."""
        found, shape = ceiling, ""
        for alike in (True, False):  # with the choice's forms of cells, or with others
            some = [a for a in setting.arrangements() if (a.forms.of == self.forms) == alike]
            for placement, seconds in self._searched(setting, Only(unlike=self.outline if alike and self.any_numbers else None), found, some):
                self._remember(placement)
                found, shape = seconds, placement.shape
        if not shape:
            shape = next((p.shape for p in self.others if _seconds(p, setting) <= found), "")
        return found, shape

    def _searched(self, setting: Setting, only: Only, ceiling: float, some: Sequence[Arrangement] | None = None) -> Iterator[tuple[Placement, float]]:
        """Faster and faster plans that fit."""
        for arrangement in setting.arrangements() if some is None else some:
            for used, found in fitting(setting, arrangement, ceiling, only):
                if found.searched < ceiling:
                    ceiling = found.searched
                    yield Placement(setting, used, found.tree), ceiling

    def _remember(self, placement: Placement) -> None:
        mine = self.same if self._is_same(placement) else self.others
        if not any(p.tree == placement.tree and p.arrangement == placement.arrangement for p in mine):
            mine.append(placement)

    def _is_same(self, placement: Placement) -> bool:
        if placement.arrangement.forms.of != self.forms:
            return False
        if not self.any_numbers:
            return placement.tree == self.placement.tree and placement.arrangement.staying == self.placement.arrangement.staying
        return Outline.of(placement.tree, self.setting.edges) == self.outline


@dataclass(frozen=True)
class _Look:
    """Seconds of the choice, of the best plan known that counts as the choice, and of the best other one, and the shape of that. ``rival`` may be a bound:
    then none is faster."""

    own: float
    same: float
    rival: float
    shape: str


_NOTHING = _Look(np.inf, np.inf, 0.0, "no plan")


class _Scan:
    """One entry of the profile, looked at with several factors."""

    def __init__(self, asked: _Asked, worker: str, entry: str) -> None:
        self.asked, self.worker, self.entry = asked, worker, entry
        self._looks: dict[float, _Look] = {}
        self._settings: dict[float, Setting] = {}
        self._ties = 0  # on the way to this end
        self.faintest = FAINT

    @property
    def faint(self) -> float:
        """What may be overlooked now: the searches go on from the profile's value outwards."""
        more = max(0, self._ties - TIES + MORE) // MORE
        return min(FAINT * 2.0**more, FAINTEST)

    def towards(self, there: float) -> tuple[float, str]:
        """As `until`, from the profile's value."""
        self._ties = 0
        return self.until(1.0, there)

    def until(self, here: float, there: float, guesses: int = GUESSES) -> tuple[float, str]:
        """How far the choice stands from one factor, where it does, towards another, and what wins beyond ("": nothing up to there).

        ``guesses``: how often plans that are known say where to look.
        """
        winner = self.asked.verdict(self._look(there))
        if not winner and self._nothing_between(min(here, there), max(here, there)):
            return there, ""
        if abs(math.log(there / here)) <= FINE:
            return (here, winner) if winner else (there, "")
        middle = self._crossing(here, there) if winner and guesses else (here * there) ** 0.5
        left = max(guesses - 1, 0) if winner else GUESSES
        reached, between = self.until(here, middle, left)
        return (reached, between) if between else self.until(middle, there, left)

    def _crossing(self, here: float, there: float) -> float:
        """Where a known plan begins to win: a factor just before, or just behind if ``here`` is one just before."""
        good, bad = here, there
        while abs(math.log(bad / good)) > FINE / 2:
            middle = (good * bad) ** 0.5
            chosen, other = self.asked.known(self._changed(middle))
            good, bad = (middle, bad) if chosen * (1 - 1e-9) <= other else (good, middle)
        return good if good != here else bad

    def _nothing_between(self, low: float, high: float) -> bool:
        """Whether no plan, known or not, can be faster than the choice by more than `faint` at any factor between two at which it stands.

        Seconds of any plan only grow with a worker's, at most in proportion. So no other takes less than the best other one at ``low``, nor less than a
        proportionate part of the best one at ``high``. Up to the factor at which these two meet the first one counts, where the choice takes no more than
        there; from there on the second one, and the choice grows no faster than it. So it is enough to look at that factor.
        """
        first, last = self._look(low).rival, self._look(high).rival
        # With memory, seconds may leap: then only that they grow is known.
        at = min(max(high * first / last, low), high) if self.entry == "seconds" and last else high
        faint = self.faint
        if self.asked.known(self._changed(at))[0] > first * (1 + faint):
            return self.entry != "seconds" and high / low - 1 <= LEAP
        chosen, other = self.asked.known(self._changed((low * high) ** 0.5))
        stands = bool(chosen * (1 - 1e-9) <= other)
        if stands:
            self.faintest = max(self.faintest, faint)
        return stands

    def _look(self, factor: float) -> _Look:
        if factor not in self._looks:
            look = self._looks[factor] = self.asked.look(self._changed(factor))
            self._ties += math.isclose(look.rival, look.own, rel_tol=1e-9)
        return self._looks[factor]

    def _changed(self, factor: float) -> Setting:
        if factor not in self._settings:
            self._settings[factor] = self.asked.changed(self.worker, self.entry, factor)
        return self._settings[factor]


def _seconds(placement: Placement, setting: Setting) -> float:
    """Of a plan under a changed setting; inf where it does not fit any more."""
    if Placement(setting, placement.arrangement, placement.tree).misfit():
        return np.inf
    return evaluate(placement.tree, setting.problem(placement.arrangement))


def _changed(profile: Profile, worker: str, entry: str, factor: float) -> Profile:
    if entry == "seconds":
        return profile.scaled(worker, factor)
    memory, samples = profile.workers[worker].memory, profile.workers[worker].samples
    return profile.with_worker(
        worker, memory=replace(memory, resident_gib=memory.resident_gib * factor, per_item_gib=memory.per_item_gib * factor),
        samples=tuple(s if s.peak_gib is None else replace(s, peak_gib=s.peak_gib * factor) for s in samples),
    )  # fmt: skip


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def _bar(r: Range) -> str:
    """Log scale from a quarter to four times, 160 pixels; the line is the profile's value."""
    left, right = (80 + 80 * float(np.log(f)) / float(np.log(WIDEST)) for f in (r.low, r.high))
    return (
        f"<svg width='160' height='12' role='img' aria-label='{r.low:.2f} to {r.high:.2f}'><rect x='{left:.1f}' y='2' width='{right - left:.1f}' height='8' "
        f"fill='#1e69b4'/><line x1='80' y1='0' x2='80' y2='12' stroke='currentColor'/></svg>"
    )
