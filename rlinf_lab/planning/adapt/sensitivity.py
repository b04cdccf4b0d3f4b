"""Over which range of error in the profile a choice stands: one of its entries (`planning.adapt.perturb`) multiplied by
a factor.

A choice is a shape (who shares devices, who streams: its numbers of devices may follow the profile) or one plan with
its numbers: everybody on the same devices, in the same ranks, staying or leaving (`candidates.alike`), in whatever
micro-batches. It stands as long as it still fits and takes at most ``tolerance`` longer (`TOLERANCE`: one percent) than
the best plan that `lab.plan` finds for the changed profile. "It" is the best plan of that shape that is ranked, or the
very plan that was chosen, kept as it is: a search of the changed profile need not find it again. Two plans a thousandth
apart are no two choices: models are good to a few percent, and a simulation moves by some thousandths where
micro-batches go in another order.

Two judges say whether it does. Where the search's seconds are those that plans are ranked by, the search is asked for
the best plan that is unlike the choice (`_Searched`): between two factors only what is faster by less than
`Range.faint` may be overlooked then. Anywhere else (streams of responses, cells, what moves between devices: what is
followed or simulated differs from what is searched) it is planned again (`_Planned`), at factors near each other.
"""

from __future__ import annotations

import itertools
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from rlinf_lab.errors import PlanError, UnknownNameError, shown
from rlinf_lab.planning.adapt.perturb import KINDS, SEARCHED, Entry, of_kind
from rlinf_lab.planning.cancellation import Abandoned, as_long_as, check, wanted_now
from rlinf_lab.planning.costs import GenerationModel
from rlinf_lab.planning.forecast.forecast import BUNDLES
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.placement.colocation import fitting
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Arrangement, Setting
from rlinf_lab.planning.planner.candidates import Candidate, alike
from rlinf_lab.planning.planner.feasible import MODES, of_modes
from rlinf_lab.planning.planner.planner import Plans
from rlinf_lab.planning.planner.ranking import DETAIL as LESS
from rlinf_lab.planning.planner.ranking import SEVERAL, ranking
from rlinf_lab.planning.schema.arguments import number
from rlinf_lab.planning.schema.json_schema import known
from rlinf_lab.planning.search.effort import is_exact
from rlinf_lab.planning.search.plan_tree import compositions, evaluate
from rlinf_lab.planning.search.problem import Orders
from rlinf_lab.planning.search.solver import Only
from rlinf_lab.planning.search.structure import Outline
from rlinf_lab.timeline.draw.svg import anywhere

TOLERANCE = 0.01  # relative: so much slower than the best plan that is found, a choice still stands
WIDEST = 4.0  # times as much, or as little, is looked at
FARTHEST = 1.2  # times as slow as the choice: of slower plans it is not asked how slow they are
FINE = 1e-3  # relative: how near an end is found
GUESSES = 2
FAINT = 5e-3  # relative: what is faster by less may be overlooked between two factors that are searched
FAINTEST = 4e-2  # so much where another plan takes as long as the choice whatever the factor
# of them on the way to one end before twice as much may be overlooked, and twice again after so many more
TIES, MORE = 16, 4
LEAP = 0.01  # relative: how near each other factors of memory are looked at where seconds leap
STEP = 0.1  # relative: how near each other factors are looked at
AGAIN = 2**0.5  # times: between two factors that are not farther apart it need not be planned again
BESIDE = 3  # other plans of each of these that are looked at between them
# relative: between two factors that are farther apart nobody is looked for where what was found says that all take
# longer by so much
APART = 0.02
SAME = 1e-6  # relative: seconds of the search and those that are shown, where they are the same ones
TIE = 1e-7  # relative: a simulation counts in nanoseconds
ALL = "all"  # entries
BAR_SECONDS = 2.0  # until there is a bar
OF = ("shape", "plan")


@dataclass(frozen=True)
class Range:
    """The choice stands from ``low`` to ``high`` times the profile's value of an ``entry`` of ``owner``: a worker, or
    what else `planning.adapt.perturb` names.
    ``instead``: shapes that win beyond each end, "" at `WIDEST`.

    ``step``: looked at with factors so far from each other (a tenth; of handovers, and of plans that were not
    simulated, farther where every other plan that was found takes longer by 2 % all the way: simulated seconds may fall
    where an entry grows, for micro-batches go in another order). It is planned again at both ends, and on the way at
    each of these factors, or, where the plans found so take 1 % longer than would win, at each third or fourth, with
    the plans found there run at those between; what wins between two of them for less than that may be overlooked. 0:
    searched again with factors near enough to each other that none between them makes another plan faster by more than
    ``faint`` (half a percent; up to 4 % far from the profile's value where another plan takes as long as the choice all
    the way; of memory, whose effect can be sudden: within 1 %).
    """

    owner: str
    entry: str
    low: float
    high: float
    instead: tuple[str, str]
    faint: float = FAINT
    step: float = 0.0


@dataclass(frozen=True)
class Sensitivity:
    """Ranges of one choice, the narrowest first. ``left``: (owner, entry) of those for which the time that was given
    did not do. ``tolerance``: how much slower than the best plan the choice may be, and stands."""

    choice: str
    ranges: tuple[Range, ...]
    left: tuple[tuple[str, str], ...] = ()
    tolerance: float = 0.0

    def __repr__(self) -> str:
        if not self.ranges:
            none = "the entries that were asked for" if not self.left else "those that were looked at"
            return "\n".join([f"The choice {self.choice}: none of {none} can matter to it", *self._notes()])
        lines = [f"The choice {self.choice} stands while"]
        for r in self.ranges:
            ends = [
                f"{_percent(r.low)} ({r.instead[0] or 'not looked further'})",
                f"{_percent(r.high)} ({r.instead[1] or 'not looked further'})",
            ]
            close = f"; another plan takes as long: up to {100 * r.faint:.0f} % faster ones may be overlooked" * (
                r.faint > FAINT
            )
            lines.append(f"  {r.owner} {r.entry:<8} is off by {'~' * bool(r.step)}{ends[0]} to {ends[1]}{close}")
        return "\n".join([*lines, *(f"  {note}" for note in self._notes())])

    def _notes(self) -> list[str]:
        """On how it was found."""
        found = []
        if self.ranges and self.tolerance:
            found.append(f"it stands where it takes at most {100 * self.tolerance:.3g} % longer than the best plan")
        if any(r.step for r in self.ranges):
            found.append(
                f"~ looked at each {100 * STEP:.0f} % and planned again at both ends: what wins for less than that in "
                "between may be overlooked"
            )
        if self.left:
            found.append(
                "not looked at, there was no time left: "
                f"{', '.join(f'{owner} {entry}' for owner, entry in self.left)}. Next: more seconds="
            )
        return found

    def to_pandas(self) -> Any:
        """One row for each entry: owner, entry, low, high, what wins beyond, and the step (see `Range`)."""
        import pandas as pd

        rows = [(r.owner, r.entry, r.low, r.high, *r.instead, r.step) for r in self.ranges]
        return pd.DataFrame(rows, columns=["owner", "entry", "low", "high", "below", "above", "step"])

    def _repr_html_(self) -> str:
        from html import escape

        left = "<td style='text-align:left'>"
        rows = "".join(
            f"<tr>{left}{escape(r.owner)} {r.entry}{' ~' * bool(r.step)}</td><td>{_bar(r)}</td>"
            f"<td>{_percent(r.low)}</td><td>{_percent(r.high)}</td>"
            f"{left}{escape(r.instead[0] or '–')}</td>{left}{escape(r.instead[1] or '–')}</td></tr>"
            for r in self.ranges
        )
        head = "".join(
            f"<th>{h}</th>" for h in ("", "stands from a quarter to four times", "from", "to", "below", "above")
        )
        notes = "<br>".join(f"<small>{escape(note)}</small>" for note in self._notes())
        return (
            f"<div>The choice <b>{escape(self.choice)}</b> stands "
            f"while<table><tr>{head}</tr>{rows}</table>{notes}</div>"
        )


def sensitivity(
    plans: Plans,
    entries: Collection[str] | str = ("seconds",),
    of: str = "shape",
    tolerance: float = TOLERANCE,
    workers: Collection[str] | None = None,
    seconds: float | None = None,
    progress: bool = True,
) -> Sensitivity:
    """Ranges for the best of ``plans``. ``entries``: some of those that `planning.adapt.perturb` names, or ``"all"``.
    ``of``: its ``"shape"`` or the very ``"plan"``
    (the same devices and ranks for everybody, in whatever micro-batches).
    ``tolerance``: so much slower than the best plan that is found still counts as standing (0: nothing may be faster).
    ``workers``: only what concerns one of these. ``seconds``: to spend on it (None: as long as it takes; each entry
    about as long as planning twenty times); entries for which they do not do are named, without a range. ``progress``:
    a bar that says how many entries are done, which is looked at now and how often it was planned again, once that has
    taken some seconds.

    The choice stands where the best plan of its shape, or the very plan, that `lab.plan` of the changed profile, asked
    as ``plans`` was, ranks, or the plan that was chosen, kept as it is, takes at most ``tolerance`` longer than what is
    ranked first. Link, transfer and messages are known to simulated plans only, so with ``simulate=False`` they have no
    range.
    """
    kinds = _checked(plans, entries, of, tolerance, workers, seconds, progress)
    asked = Asked(plans, of, tolerance)
    found, left = list[Range](), list[tuple[str, str]]()
    outer, until = wanted_now(), math.inf if seconds is None else monotonic() + seconds
    looks = itertools.count(1)
    matter = asked.entries(kinds, workers)
    # an entry takes as long as it takes: no time to go
    form = "{l_bar}{bar}| {n_fmt}/{total_fmt} entries [{elapsed}{postfix}]"
    with tqdm(
        total=len(matter),
        desc="sensitivity",
        bar_format=form,
        delay=BAR_SECONDS,
        miniters=0,
        leave=False,
        disable=not progress,
    ) as bar:
        asked = replace(
            asked,
            looked=lambda entry, factor, _: _say(bar, f"{entry.owner} {entry.kind} × {factor:.2g}, look {next(looks)}"),
        )
        for entry in matter:
            try:
                with as_long_as(lambda: monotonic() < until and (outer is None or outer())):
                    check()
                    found.append(asked.range(entry))
            except Abandoned:
                check()  # nobody wants the others either
                left.append((entry.owner, entry.kind))
            bar.update()
    return Sensitivity(
        plans.best.shape, tuple(sorted(found, key=lambda r: min(r.high, 1 / r.low))), tuple(left), tolerance
    )


def _say(bar: tqdm, what: str) -> None:
    bar.set_postfix_str(what, refresh=False)
    bar.update(0)


def _checked(
    plans: Any, entries: Any, of: Any, tolerance: Any, workers: Any, seconds: Any, progress: Any
) -> Sequence[str]:
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
        raise PlanError(
            f"sensitivity(workers={shown(workers)}): names of workers. Next: workers={list(plans.profile.workers)[:2]}."
        )
    for worker in workers or ():
        known("worker", worker, plans.profile.workers, "workers")
    if seconds is not None:
        number("sensitivity: seconds", seconds, 0)
    if not isinstance(progress, bool):
        raise PlanError(f"sensitivity(progress={shown(progress)}): whether there is a bar. Next: progress=False.")
    return tuple(dict.fromkeys(entries))


@dataclass(frozen=True)
class Asked:
    """Over which ranges the best of ``plans`` stands, entry by entry: the search is asked, or `lab.plan`. ``of``,
    ``tolerance``: of `sensitivity`.
    """

    plans: Plans
    of: str = "shape"
    tolerance: float = TOLERANCE
    looked: Looked | None = None

    def entries(self, kinds: Collection[str] = KINDS, workers: Collection[str] | None = None) -> list[Entry]:
        """Those that can matter, of these kinds, and of some ``workers`` alone."""
        found = (entry for kind in kinds for entry in of_kind(self.plans.best.candidate.placement.setting, kind))
        return [entry for entry in found if (workers is None or entry.workers & set(workers)) and self._matters(entry)]

    def _matters(self, entry: Entry) -> bool:
        """Not where only a simulation knows of it, and plans were not simulated."""
        return entry.kind in SEARCHED or entry.kind == "handover" or self.plans.best.simulated is not None

    def range(self, entry: Entry) -> Range:
        if entry.kind in SEARCHED and self._is_searched:
            found = _range_of(_Scan(self._search, entry, self.looked))
            if self._is_planned_again(found, entry):
                return found
        return _range_of(_Steps(self._planning, entry, self.looked))

    @cached_property
    def _search(self) -> _Searched:
        return _Searched(self.plans, self.of, self.tolerance)

    @cached_property
    def _planning(self) -> _Planned:
        return _Planned(self.plans, self.of, self.tolerance)

    @cached_property
    def _is_searched(self) -> bool:
        """Whether the plans were ranked by seconds that the search finds, too, as those without streams of responses
        mostly are, and it finds the choice.
        """
        planning, setting = self._planning, self._planning.setting
        problem = setting.problem(setting.arrangements()[0])
        if (
            not planning.today.exact
            or not planning.is_free
            or any(isinstance(m, GenerationModel) for m in setting.models.values())
        ):
            return False
        if Orders.of(problem).is_grouped or not is_exact(problem, setting.ways_to_stay):
            return False
        return not self._search.verdict(self._search.today)

    def _is_planned_again(self, found: Range, entry: Entry) -> bool:
        """Whether planning again at both ends, and just beyond them, says the same."""
        for end, beyond in ((found.low, 1 - 2 * FINE), (found.high, 1 + 2 * FINE)):
            for factor, stands in ((end, True), (end * beyond, False)) if 1 / WIDEST < end < WIDEST else ((end, True),):
                look = self._planning.look(self._planning.changed(entry, factor))
                if not look.exact or (self._planning.verdict(look) == "") != stands:
                    return False
        return True


# told of each factor of an entry that was looked at, and which part of its range is decided
Looked = Callable[[Entry, float, float], None]


class _Judge(ABC):
    """Whether one choice stands under a changed profile. ``today``: as it is."""

    def __init__(self, plans: Plans, of: str, tolerance: float) -> None:
        self.placement, self.setting = plans.best.candidate.placement, plans.best.candidate.placement.setting
        self.any_numbers, self.lead = of == "shape", 1 + tolerance

    @cached_property
    def today(self) -> _Look:
        return self.look(self.setting)

    def verdict(self, look: _Look) -> str:
        """What wins; "" where the choice stands."""
        return look.shape if look.rival * self.lead < min(look.own, look.same) * (1 - look.tie) else ""

    def changed(self, entry: Entry, factor: float) -> Setting:
        """With one entry of the profile multiplied. Not checked: perhaps nothing fits."""
        return _changed(self.setting, entry, factor)

    @abstractmethod
    def look(self, setting: Setting) -> _Look:
        """No plan at all: nothing beats the choice, but it does not stand."""


class _Searched(_Judge):
    """By the search's seconds. ``same``, ``others``: plans of the choice's shape and of others, found so far."""

    def __init__(self, plans: Plans, of: str, tolerance: float) -> None:
        super().__init__(plans, of, tolerance)
        self.forms, self.outline = (
            self.placement.arrangement.forms.of,
            Outline.of(self.placement.tree, self.setting.edges),
        )
        self.same, self.others = [self.placement], list[Placement]()
        for planned in plans:
            self._remember(planned.candidate.placement)

    def look(self, setting: Setting) -> _Look:
        try:
            setting.check()
        except PlanError:
            return _NOTHING
        own, same = _seconds(self.placement, setting), self._known_same(setting)
        rival, shape = self._rival(setting, min(min(own, same) * FARTHEST, self._known_others(setting)))
        wins = rival * self.lead < min(own, same)
        # perhaps with other numbers it is still the best, or nearly, or fits
        if self.any_numbers and (wins or np.isinf(rival)):
            for only, most in ((Only(), rival), (Only(among=compositions(self.placement.tree)), rival * self.lead))[
                : 1 + (self.lead > 1)
            ]:
                for placement, _ in self._searched(setting, only, most * (1 + 1e-9)):
                    self._remember(placement)
        # with what was found just now: another name, or other micro-batches, of the same plan
        same = self._known_same(setting)
        return _NOTHING if np.isinf(min(own, same, rival)) else _Look(own, same, rival, shape)

    def known(self, setting: Setting) -> tuple[float, float]:
        """Seconds of the choice, granted its lead, and of the best other plan, among those found so far."""
        return min(_seconds(self.placement, setting), self._known_same(setting)) / self.lead, self._known_others(
            setting
        )

    def _known_same(self, setting: Setting) -> float:
        return min(_seconds(p, setting) for p in self.same)

    def _known_others(self, setting: Setting) -> float:
        return min((_seconds(p, setting) for p in self.others), default=np.inf)

    def _rival(self, setting: Setting, ceiling: float) -> tuple[float, str]:
        """The fastest plan that is another choice, and its shape; the ceiling where none is faster than it."""
        found, shape = ceiling, ""
        for as_chosen in (True, False):  # with the choice's forms of cells, or with others
            some = [a for a in setting.arrangements() if (a.forms.of == self.forms) == as_chosen]
            for placement, seconds in self._searched(
                setting, Only(unlike=self.outline if as_chosen and self.any_numbers else None), found, some
            ):
                self._remember(placement)
                found, shape = seconds, placement.shape
        if not shape:
            shape = next((p.shape for p in self.others if _seconds(p, setting) <= found), "")
        return found, shape

    def _searched(
        self, setting: Setting, only: Only, ceiling: float, some: Sequence[Arrangement] | None = None
    ) -> Iterator[tuple[Placement, float]]:
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
        if not self.any_numbers:
            return alike(placement, self.placement)
        return (
            placement.arrangement.forms.of == self.forms
            and Outline.of(placement.tree, self.setting.edges) == self.outline
        )


@dataclass(frozen=True)
class _Look:
    """Seconds of the choice, of the best plan known that counts as the choice, and of the best other one, and the shape
    of that. ``rival`` may be a bound: then none is faster. ``exact``: whether they are those of the search, of all
    plans that were ranked. ``others``: the best of these, if they are known."""

    own: float
    same: float
    rival: float
    shape: str
    exact: bool = True
    tie: float = 1e-9
    others: tuple[Placement, ...] = ()


_NOTHING = _Look(np.inf, np.inf, 0.0, "no plan")


class _Planned(_Judge):
    """As `lab.plan` ranks plans: searched, followed, simulated where ``plans`` were."""

    def __init__(self, plans: Plans, of: str, tolerance: float) -> None:
        super().__init__(plans, of, tolerance)
        self.plans, self.simulate = plans, plans.best.simulated is not None
        there = {p.mode for p in plans} | set(plans.refused)
        self.modes = MODES if "alone" in there else tuple(m for m in MODES if m in there)
        self.is_free = self.modes == MODES and not plans.quick
        self.today = self._seen([(p.candidate, p.seconds) for p in plans])

    def look(self, setting: Setting) -> _Look:
        try:
            setting.check()
            several = 1 if self.plans.quick or not self.simulate else SEVERAL
            found = of_modes(setting, self.modes, self.plans.quick, several=several)
        except PlanError:
            return _NOTHING
        if not found:
            return _NOTHING
        return self._seen([(s.candidate, s.seconds) for s in ranking(found, self.plans.best.devices, self.simulate)])

    def _seen(self, shown_: Sequence[tuple[Candidate, float]]) -> _Look:
        own = min((seconds for c, seconds in shown_ if self._is_chosen(c.placement)), default=np.inf)
        others = sorted(
            ((seconds, c.placement) for c, seconds in shown_ if not self._is_chosen(c.placement)), key=lambda o: o[0]
        )
        rival, shape = (others[0][0], others[0][1].shape) if others else (np.inf, "")
        if rival < own:  # of each shape one plan was ranked, perhaps none of this one; but it may take as long, or less
            own = min(own, self._seconds(self.placement, shown_[0][0].placement.setting, BUNDLES))
        return _Look(
            own,
            own,
            rival,
            shape,
            all(abs(s - c.searched) <= SAME * s for c, s in shown_),
            TIE,
            tuple(p for _, p in others[:BESIDE]),
        )

    def of_found(self, setting: Setting, others: Iterable[Placement]) -> tuple[float, float]:
        """Seconds of the choice as it is, granted its lead, and of the best of some others, in less detail."""
        own, *rivals = (self._seconds(p, setting, LESS) for p in (self.placement, *others))
        return own / self.lead, min(rivals, default=np.inf)

    def _is_chosen(self, placement: Placement) -> bool:
        """By another name, too."""
        return (self.any_numbers and placement.shape == self.placement.shape) or alike(placement, self.placement)

    def _seconds(self, like: Placement, setting: Setting, detail: int) -> float:
        """Of a plan under a changed setting, as it is ranked; inf where it does not fit any more."""
        placement = replace(like, setting=setting)
        if placement.misfit() or not np.isfinite(_seconds(placement, setting)):
            return np.inf
        if self.simulate:
            return settled(steady(placement, self.plans.best.devices, detail), setting.staleness)[1]
        return Candidate.of(setting, placement.arrangement, placement.tree).seconds


def _range_of(scan: _Factors) -> Range:
    low, below = scan.towards(1 / WIDEST)
    high, above = scan.towards(WIDEST)
    return Range(scan.entry.owner, scan.entry.kind, low, high, (below, above), scan.faintest, scan.step)


class _Factors(ABC):
    """One entry of the profile, looked at with several factors. ``step``: of `Range`. ``guesses``: how often on the way
    what is known says where to look.
    """

    step, guesses, faintest = 0.0, GUESSES, FAINT

    def __init__(self, asked: _Judge, entry: Entry, looked: Looked | None = None) -> None:
        self.judge, self.entry, self._looked = asked, entry, looked
        self._looks: dict[float, _Look] = {}
        self._settings: dict[float, Setting] = {}
        # that were found; how far the choice stands for certain on the way to the next one
        self._ends, self._stood = 0, 1.0

    def towards(self, there: float) -> tuple[float, str]:
        """As `until`, from the profile's value."""
        found = self.until(1.0, there, self.guesses)
        self._ends, self._stood = self._ends + 1, 1.0
        return found

    @property
    def decided(self) -> float:
        """Which part of all factors, 0 to 1: only grows."""
        return (self._ends + abs(math.log(self._stood)) / math.log(WIDEST)) / 2

    def until(self, here: float, there: float, guesses: int) -> tuple[float, str]:
        """How far the choice stands from one factor, where it does, towards another, and what wins beyond ("": nothing
        up to there).
        """
        winner = self.judge.verdict(self._look(there))
        if not winner and self._nothing_between(min(here, there), max(here, there)):
            self._stood = there
            return there, ""
        if abs(math.log(there / here)) <= FINE:
            return (here, winner) if winner else (there, "")
        middle = self._crossing(here, there) if winner and guesses else (here * there) ** 0.5
        left = max(guesses - 1, 0) if winner else self.guesses
        reached, between = self.until(here, middle, left)
        return (reached, between) if between else self.until(middle, there, left)

    @abstractmethod
    def _nothing_between(self, low: float, high: float) -> bool:
        """Whether nothing need be looked at between two factors at which the choice stands."""

    @abstractmethod
    def _crossing(self, here: float, there: float) -> float:
        """Where another plan begins to win: a factor just before, or just behind if ``here`` is one just before."""

    def _look(self, factor: float) -> _Look:
        if factor not in self._looks:
            self._looks[factor] = self.judge.look(self._changed(factor))
            if self._looked is not None:
                self._looked(self.entry, factor, self.decided)
        return self._looks[factor]

    def _changed(self, factor: float) -> Setting:
        if factor not in self._settings:
            self._settings[factor] = self.judge.changed(self.entry, factor)
        return self._settings[factor]


class _Scan(_Factors):
    """By the search's seconds, which only grow with an entry: nothing between two factors is left open."""

    def __init__(self, asked: _Searched, entry: Entry, looked: Looked | None = None) -> None:
        super().__init__(asked, entry, looked)
        self.asked = asked
        self._ties = 0  # on the way to this end

    @property
    def faint(self) -> float:
        """What may be overlooked now: the searches go on from the profile's value outwards."""
        more = max(0, self._ties - TIES + MORE) // MORE
        return min(FAINT * 2.0**more, FAINTEST)

    def towards(self, there: float) -> tuple[float, str]:
        self._ties = 0
        return super().towards(there)

    def _crossing(self, here: float, there: float) -> float:
        good, bad = here, there
        while abs(math.log(bad / good)) > FINE / 2:
            middle = (good * bad) ** 0.5
            chosen, other = self.asked.known(self._changed(middle))
            good, bad = (middle, bad) if chosen * (1 - 1e-9) <= other else (good, middle)
        return good if good != here else bad

    def _nothing_between(self, low: float, high: float) -> bool:
        """Whether no plan, known or not, can be faster than the choice by more than `faint` at any factor between.

        Seconds of any plan only grow with an entry, at most with some power of it (mostly in proportion). So no other
        takes less than the best other one at ``low``, nor less than that power of the factor says of the best one at
        ``high``. Up to the factor at which these two meet the first one counts, where the choice takes no more than
        there; from there on the second one, and the choice grows no faster than it. So it is enough to look at that
        factor.
        """
        first, last, growth = self._look(low).rival, self._look(high).rival, self.entry.growth
        at = _meeting(low, high, first, last, growth)
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
            look = super()._look(factor)
            self._ties += math.isclose(look.rival, look.own, rel_tol=1e-9)
        return self._looks[factor]


class _Steps(_Factors):
    """Planned again, at factors not far from each other. What is found there is looked at between them, too."""

    step, guesses = STEP, 4

    def __init__(self, asked: _Planned, entry: Entry, looked: Looked | None = None) -> None:
        super().__init__(asked, entry, looked)
        self.asked = asked
        self.only_grow = not (entry.unsettles or (asked.simulate and entry.kind in SEARCHED))

    def _look(self, factor: float) -> _Look:
        return self.judge.today if factor == 1.0 else super()._look(factor)

    def _crossing(self, here: float, there: float) -> float:
        """As if seconds were powers of the factor between the two."""
        ahead, behind = self._ahead(here), -self._ahead(there)
        width = abs(math.log(there / here))
        part = ahead / (ahead + behind) if ahead >= 0 and behind > 0 and math.isfinite(ahead + behind) else 0.5
        nearest = 0.9 * FINE / width
        part = min(max(part - FINE / 2 / width, nearest), max(1 - nearest, 0.5))
        return float(here * (there / here) ** part)

    def _ahead(self, factor: float) -> float:
        """Of the best other plan, as the logarithm of seconds."""
        look = self._look(factor)
        if not (0 < look.own < np.inf and 0 < look.rival < np.inf):
            return math.inf
        return math.log(self.judge.lead * look.rival / look.own)

    def _nothing_between(self, low: float, high: float) -> bool:
        """Whether they are near each other, or the choice is that far ahead of all that was found. Seconds that are
        followed grow as `_Scan` has it; simulated ones may fall, too, where micro-batches go in another order: then
        nothing is known of factors between two."""
        if high / low - 1 <= STEP:
            return True
        if self._stands_between(low, high):
            return True
        if not self.only_grow:
            return False
        first, last, growth = self._look(low), self._look(high), self.entry.growth
        at = _meeting(low, high, first.rival, last.rival, growth)
        own = min(first.own * (at / low) ** growth, last.own) if growth else last.own
        return bool(own * (1 + APART) <= first.rival * self.judge.lead)

    def _stands_between(self, low: float, high: float) -> bool:
        """Whether the choice is that far ahead of what was found at both factors, if they are not far from each other,
        at each step between them.
        """
        if self.entry.unsettles or high / low > AGAIN * (1 + FINE):
            return False
        others = {(p.tree, p.arrangement): p for f in (low, high) for p in self._look(f).others}
        steps = math.ceil(math.log(high / low) / math.log(1 + STEP))
        between = (
            self.asked.of_found(self._changed(float(f)), others.values())
            for f in np.geomspace(low, high, steps + 1)[1:-1]
        )
        return all(own * (1 + APART) <= rival for own, rival in between)


def _meeting(low: float, high: float, first: float, last: float, growth: float | None) -> float:
    """The factor at which the best other plan at ``high``, made shorter as its seconds grow at most, takes as long as
    the one at ``low``. With memory, seconds may leap: then only that they grow is known."""
    return (
        float(min(max(high * (first / last) ** (1 / growth), low), high))
        if growth and last and np.isfinite(last)
        else high
    )


def _seconds(placement: Placement, setting: Setting) -> float:
    """Of a plan under a changed setting; inf where it does not fit any more."""
    if Placement(setting, placement.arrangement, placement.tree).misfit():
        return np.inf
    return evaluate(placement.tree, setting.problem(placement.arrangement))


def _changed(setting: Setting, entry: Entry, factor: float) -> Setting:
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
    """Log scale from a quarter to four times, 160 pixels; the line is the profile's value."""
    left, right = (80 + 80 * float(np.log(f)) / float(np.log(WIDEST)) for f in (r.low, r.high))
    said = f"{r.low:.2f} to {r.high:.2f}"
    drawn = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='160' height='12' role='img' aria-label='{said}'>"
        f"<rect x='{left:.1f}' y='2' width='{right - left:.1f}' height='8' "
        f"fill='#1e69b4'/><line x1='80' y1='0' x2='80' y2='12' stroke='currentColor'/></svg>"
    )
    return anywhere(drawn, drawn, said)
