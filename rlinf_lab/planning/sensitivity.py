"""Over which range of error in the profile a choice stands: one of its entries (`planning.entries`) multiplied by a factor.

A choice is a shape (who shares devices, who streams: its numbers of devices may follow the profile) or one plan with its numbers. It stands as
long as the search, given the changed profile, finds nothing else that is faster (within ``tolerance``), and it still fits. Of handovers, links and messages
the search knows nothing: there it stands as long as `lab.plan`, which follows and simulates what was found, ranks nothing else before it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from rlinf_lab.errors import PlanError, UnknownNameError, shown
from rlinf_lab.planning.candidates import Candidate, alike
from rlinf_lab.planning.entries import AFTERWARDS, KINDS, Entry, of_kind
from rlinf_lab.planning.placement import Placement
from rlinf_lab.planning.planner import Plans, ranking
from rlinf_lab.planning.reading import known
from rlinf_lab.planning.search.outline import Outline
from rlinf_lab.planning.search.solver import Only
from rlinf_lab.planning.search.trees import evaluate
from rlinf_lab.planning.setting import Arrangement, Setting
from rlinf_lab.planning.sharing import fitting

WIDEST = 4.0  # times as much, or as little, is looked at
FARTHEST = 1.2  # times as slow as the choice: of slower plans it is not asked how slow they are
FINE = 1e-3  # relative: how near an end is found
GUESSES = 2
FAINT = 5e-3  # relative: what is faster by less may be overlooked between two factors that are searched
FAINTEST = 4e-2  # so much where another plan takes as long as the choice whatever the factor
TIES, MORE = 16, 4  # of them on the way to one end before twice as much may be overlooked, and twice again after so many more
LEAP = 0.01  # relative: how near each other factors of memory are looked at where seconds leap
STEP = 0.1  # the same of what only a simulation knows, whose seconds may fall where it grows
ALL = "all"  # entries
OF = ("shape", "plan")


@dataclass(frozen=True)
class Range:
    """The choice stands from ``low`` to ``high`` times the profile's value of an ``entry`` of ``owner``: a worker, or what else `planning.entries` names.
    ``instead``: shapes that win beyond each end, "" at `WIDEST`.

    Searched again with factors near enough to each other that none between them makes another plan faster by more than ``faint`` (half a percent; up to 4 %
    far from the profile's value where another plan takes as long as the choice all the way; of memory, whose effect can be sudden: within 1 %; of links and
    messages, which may bring another order: each tenth is looked at, and what wins for less than that may be overlooked).
    """

    owner: str
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
        if not self.ranges:
            return f"The choice {self.choice}: none of the entries that were asked for can matter to it"
        lines = [f"The choice {self.choice} stands while"]
        for r in self.ranges:
            ends = [f"{_percent(r.low)} ({r.instead[0] or 'not looked further'})", f"{_percent(r.high)} ({r.instead[1] or 'not looked further'})"]
            close = f"; another plan takes as long: up to {100 * r.faint:.0f} % faster ones may be overlooked" * (r.faint > FAINT)
            lines.append(f"  {r.owner} {r.entry:<8} is off by {ends[0]} to {ends[1]}{close}")
        return "\n".join(lines)

    def to_pandas(self) -> Any:
        """One row for each entry: owner, entry, low, high, and what wins beyond."""
        import pandas as pd

        rows = [(r.owner, r.entry, r.low, r.high, *r.instead) for r in self.ranges]
        return pd.DataFrame(rows, columns=["owner", "entry", "low", "high", "below", "above"])

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(r.owner)} {r.entry}</td><td>{_bar(r)}</td><td>{_percent(r.low)}</td><td>{_percent(r.high)}</td>"
            f"<td style='text-align:left'>{escape(r.instead[0] or '–')}</td><td style='text-align:left'>{escape(r.instead[1] or '–')}</td></tr>"
            for r in self.ranges
        )
        head = "".join(f"<th>{h}</th>" for h in ("", "stands from a quarter to four times", "from", "to", "below", "above"))
        return f"<div>The choice <b>{escape(self.choice)}</b> stands while<table><tr>{head}</tr>{rows}</table></div>"


def sensitivity(
    plans: Plans, entries: Collection[str] | str = ("seconds",), of: str = "shape", tolerance: float = 0.0, workers: Collection[str] | None = None
) -> Sensitivity:
    """Ranges for the best of ``plans``. ``entries``: some of those that `planning.entries` names, or ``"all"``. ``of``: its ``"shape"`` or the very ``"plan"``.
    ``tolerance``: so much slower still counts as standing (0.02: two percent). ``workers``: only what concerns one of these.

    Entries that the search knows are decided by its model alone. Where the best plan was chosen over the search's own favourite (it was followed, or simulated,
    and found faster), the lead that the favourite has today is granted to it. The others (handover, transfer, link, message) are decided as `lab.plan` ranks
    the plans that it found; link and messages are known to simulated plans only, so with ``simulate=False`` they have no range.
    """
    kinds = _checked(plans, entries, of, tolerance, workers)
    asked = _Question(plans, of, tolerance)
    wanted = [e for kind in kinds for e in of_kind(plans.best.candidate.placement.setting, kind) if workers is None or e.workers & set(workers)]
    found = [r for e in wanted if (r := asked.range(e)) is not None]
    return Sensitivity(plans.best.shape, tuple(sorted(found, key=lambda r: min(r.high, 1 / r.low))))


def _checked(plans: Any, entries: Any, of: Any, tolerance: Any, workers: Any) -> Sequence[str]:
    """The kinds of entries that are asked for."""
    if not hasattr(plans, "best"):
        raise PlanError(f"sensitivity({shown(plans)}): the Plans that lab.plan gives. Next: sensitivity(lab.plan(profile, 8)).")
    if isinstance(entries, str) and entries == ALL:
        entries = KINDS
    if isinstance(entries, str) or not isinstance(entries, Collection):
        raise PlanError(f"sensitivity(entries={shown(entries)}): names of entries, or 'all'. Next: entries=('seconds',).")
    if isinstance(tolerance, bool) or not isinstance(tolerance, numbers.Real):
        raise PlanError(f"sensitivity(tolerance={shown(tolerance)}): a number, at least 0. Next: tolerance=0.0.")
    for entry in entries:
        if entry not in KINDS:
            raise UnknownNameError.of("entry", entry, KINDS)
    if of not in OF:
        raise UnknownNameError.of("kind of choice", of, OF)
    if not 0 <= float(tolerance) < float("inf"):
        raise PlanError(f"sensitivity(tolerance={tolerance}): at least 0. Next: tolerance=0.0.")
    if isinstance(workers, str) or not (workers is None or isinstance(workers, Collection)):
        raise PlanError(f"sensitivity(workers={shown(workers)}): names of workers. Next: workers={list(plans.profile.workers)[:2]}.")
    for worker in workers or ():
        known("worker", worker, plans.profile.workers, "workers")
    return tuple(dict.fromkeys(entries))


@dataclass(frozen=True)
class _Question:
    """Whom to ask for an entry: the search, or the ranking of what it has found."""

    plans: Plans
    of: str
    tolerance: float

    def range(self, entry: Entry) -> Range | None:
        """None where an entry cannot change the ranking: plans were not simulated, and only a simulation knows it; or there is one plan."""
        if entry.kind not in AFTERWARDS:
            return self._search.range(entry)
        known_ = entry.kind == "handover" or self.plans.best.simulated is not None
        return self._ranking.range(entry) if known_ else None

    @cached_property
    def _search(self) -> _Asked:
        return _Asked(self.plans, self.of, self.tolerance)

    @cached_property
    def _ranking(self) -> _Ranked:
        return _Ranked(self.plans, self.of, self.tolerance)


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

    def range(self, entry: Entry) -> Range:
        return _range_of(self, entry)

    def verdict(self, look: _Look) -> str:
        return look.shape if look.rival < look.same and look.rival * self.lead < look.own * (1 - 1e-9) else ""

    def changed(self, entry: Entry, factor: float) -> Setting:
        """With one entry of the profile multiplied. Not checked: perhaps nothing fits."""
        return _changed(self.setting, entry, factor)

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
        for as_chosen in (True, False):  # with the choice's forms of cells, or with others
            some = [a for a in setting.arrangements() if (a.forms.of == self.forms) == as_chosen]
            for placement, seconds in self._searched(setting, Only(unlike=self.outline if as_chosen and self.any_numbers else None), found, some):
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


class _Ranked:
    """One choice among the plans that were found, ranked as `lab.plan` ranks them: what the search knows nothing of is asked here."""

    def __init__(self, plans: Plans, of: str, tolerance: float) -> None:
        self.plans, self.lead, self.setting = plans, 1 + tolerance, plans.best.candidate.placement.setting
        self.simulate = plans.best.simulated is not None
        best = plans.best.candidate.placement
        self.chosen = [alike(p.candidate.placement, best) or (of == "shape" and p.shape == plans.best.shape) for p in plans]  # by another name, too
        self._looks: dict[int, tuple[Setting, _Look]] = {}  # with the setting, which keeps its number from being given to another one

    def range(self, entry: Entry) -> Range:
        return Range(entry.owner, entry.kind, 1 / WIDEST, WIDEST, ("", "")) if all(self.chosen) else _range_of(self, entry)

    def verdict(self, look: _Look) -> str:
        return look.shape if look.rival * self.lead < look.own * (1 - 1e-9) else ""

    def changed(self, entry: Entry, factor: float) -> Setting:
        return _changed(self.setting, entry, factor)

    def look(self, setting: Setting) -> _Look:
        if id(setting) not in self._looks:
            self._looks[id(setting)] = setting, self._ranked(setting)
        return self._looks[id(setting)][1]

    def known(self, setting: Setting) -> tuple[float, float]:
        """Seconds of the choice, granted its lead, and of the best other plan."""
        look = self.look(setting)
        return look.own / self.lead, look.rival

    def _ranked(self, setting: Setting) -> _Look:
        before = [p.candidate for p in self.plans]
        found = [Candidate.of(setting, c.placement.arrangement, c.placement.tree, c.searched) for c in before]
        _, simulated, _ = ranking(found, self.plans.best.devices, self.simulate)
        seconds = [simulated.get(i, c.seconds) for i, c in enumerate(found)]
        own = min(s for s, chosen in zip(seconds, self.chosen, strict=True) if chosen)
        rival, shape = min((s, p.shape) for s, p, chosen in zip(seconds, self.plans, self.chosen, strict=True) if not chosen)
        return _Look(own, own, rival, shape)


class _Judge(Protocol):
    """Whom a scan asks."""

    def verdict(self, look: _Look) -> str: ...
    def changed(self, entry: Entry, factor: float) -> Setting: ...
    def look(self, setting: Setting) -> _Look: ...
    def known(self, setting: Setting) -> tuple[float, float]: ...


def _range_of(asked: _Judge, entry: Entry) -> Range:
    scan = _Scan(asked, entry)
    low, below = scan.towards(1 / WIDEST)
    high, above = scan.towards(WIDEST)
    return Range(entry.owner, entry.kind, low, high, (below, above), scan.faintest)


class _Scan:
    """One entry of the profile, looked at with several factors."""

    def __init__(self, asked: _Judge, entry: Entry) -> None:
        self.asked, self.entry = asked, entry
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

        Seconds of any plan only grow with an entry, at most with some power of it (mostly in proportion). So no other takes less than the best other one at
        ``low``, nor less than that power of the factor says of the best one at ``high``. Up to the factor at which these two meet the first one counts, where
        the choice takes no more than there; from there on the second one, and the choice grows no faster than it. So it is enough to look at that factor.
        Where a simulation's seconds may fall, too, nothing is known of factors between two.
        """
        if self.entry.unsettles:
            return high / low - 1 <= STEP
        first, last, growth = self._look(low).rival, self._look(high).rival, self.entry.growth
        # With memory, seconds may leap: then only that they grow is known.
        at = min(max(high * (first / last) ** (1 / growth), low), high) if growth and last and np.isfinite(last) else high
        faint = self.faint
        if self.asked.known(self._changed(at))[0] > first * (1 + faint):
            return growth is None and high / low - 1 <= LEAP
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
            self._settings[factor] = self.asked.changed(self.entry, factor)
        return self._settings[factor]


def _seconds(placement: Placement, setting: Setting) -> float:
    """Of a plan under a changed setting; inf where it does not fit any more."""
    if Placement(setting, placement.arrangement, placement.tree).misfit():
        return np.inf
    return evaluate(placement.tree, setting.problem(placement.arrangement))


def _changed(setting: Setting, entry: Entry, factor: float) -> Setting:
    """With one entry of the profile multiplied. What it does not change is known already."""
    made = replace(setting, profile=entry.times(setting.profile, factor))
    made.__dict__["tables"] = setting.tables.without(made, {setting.home[name] for name in entry.slower})  # where `cached_property` looks
    if not entry.slower:
        made.__dict__["models"] = setting.models
    return made


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.0f} %"


def _bar(r: Range) -> str:
    """Log scale from a quarter to four times, 160 pixels; the line is the profile's value."""
    left, right = (80 + 80 * float(np.log(f)) / float(np.log(WIDEST)) for f in (r.low, r.high))
    return (
        f"<svg width='160' height='12' role='img' aria-label='{r.low:.2f} to {r.high:.2f}'><rect x='{left:.1f}' y='2' width='{right - left:.1f}' height='8' "
        f"fill='#1e69b4'/><line x1='80' y1='0' x2='80' y2='12' stroke='currentColor'/></svg>"
    )
