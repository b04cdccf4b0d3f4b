"""Over which range of error in the profile a choice stands: a worker's seconds, or its memory, multiplied by a factor.

A choice is a shape (who shares devices, who streams: its numbers of devices may follow the profile) or one plan with its numbers. It stands as
long as the search, given the changed profile, finds nothing else that is faster (within ``tolerance``), and it still fits.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlinf_lab.errors import PlanError, UnknownNameError, shown
from rlinf_lab.planning.memory import limits
from rlinf_lab.planning.placement import Placement
from rlinf_lab.planning.profile import Profile
from rlinf_lab.planning.reading import known
from rlinf_lab.planning.search.solver import solve
from rlinf_lab.planning.search.trees import evaluate
from rlinf_lab.planning.setting import Setting

if TYPE_CHECKING:
    from rlinf_lab.planning.planner import Plans

WIDEST = 4.0  # times as much, or as little, is looked at
STEP = 1.1  # of the scan outwards; between two steps the end is found by halving
FINE = 1e-3  # relative
ENTRIES = ("seconds", "memory")
KINDS = ("shape", "plan")


@dataclass(frozen=True)
class Range:
    """The choice stands from ``low`` to ``high`` times the profile's value. ``instead``: shapes that win beyond each end, "" at `WIDEST`.

    Searched again at every 10 % on the way out, and closer at the ends: what wins only within one such step is not seen.
    """

    worker: str
    entry: str
    low: float
    high: float
    instead: tuple[str, str]


@dataclass(frozen=True)
class Sensitivity:
    """Ranges of one choice, the narrowest first."""

    choice: str
    ranges: tuple[Range, ...]

    def __repr__(self) -> str:
        lines = [f"The choice {self.choice} stands while"]
        for r in self.ranges:
            ends = [f"{_percent(r.low)} ({r.instead[0] or 'not looked further'})", f"{_percent(r.high)} ({r.instead[1] or 'not looked further'})"]
            lines.append(f"  {r.worker} {r.entry:<8} is off by {ends[0]} to {ends[1]}")
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
        raise PlanError(f"sensitivity({shown(plans)}): the Plans that lab.plan gives.")
    if isinstance(entries, str) or not isinstance(entries, Collection):
        raise PlanError(f"sensitivity(entries={shown(entries)}): names of entries. Next: entries=('seconds',).")
    if isinstance(tolerance, bool) or not isinstance(tolerance, numbers.Real):
        raise PlanError(f"sensitivity(tolerance={shown(tolerance)}): a number, at least 0.")
    for entry in entries:
        if entry not in ENTRIES:
            raise UnknownNameError.of("entry", entry, ENTRIES)
    if of not in KINDS:
        raise UnknownNameError.of("kind of choice", of, KINDS)
    if not 0 <= tolerance < float("inf"):
        raise PlanError(f"sensitivity(tolerance={tolerance}): at least 0.")
    if isinstance(workers, str) or not (workers is None or isinstance(workers, Collection)):
        raise PlanError(f"sensitivity(workers={shown(workers)}): names of workers. Next: workers={list(plans.profile.workers)[:2]}.")
    for worker in workers or ():
        known("worker", worker, plans.profile.workers, "workers")
    asked = _Asked(plans, of, tolerance)
    found = [asked.range(worker, entry) for entry in entries for worker in workers or plans.profile.workers if asked.matters(worker, entry)]
    return Sensitivity(plans.best.shape, tuple(sorted(found, key=lambda r: min(r.high, 1 / r.low))))


class _Asked:
    def __init__(self, plans: Plans, of: str, tolerance: float) -> None:
        self.placement, self.setting = plans.best.candidate.placement, plans.best.candidate.placement.setting
        self.any_numbers, self.lead = of == "shape", 1.0
        own, best, _ = self._compared(self.setting.profile)
        self.lead = max(1.0, own / best) * (1 + tolerance)

    def matters(self, worker: str, entry: str) -> bool:
        known = limits(self.setting.profile.workers[worker])
        return entry == "seconds" or (known and np.isfinite(max(map(self.setting.cap, self.setting.kinds))))

    def range(self, worker: str, entry: str) -> Range:
        low, below = self._end(lambda f: _changed(self.setting.profile, worker, entry, 1 / f))
        high, above = self._end(lambda f: _changed(self.setting.profile, worker, entry, f))
        return Range(worker, entry, 1 / low, high, (below, above))

    def _end(self, changed: Callable[[float], Profile]) -> tuple[float, str]:
        """The largest factor up to which the choice stands, and what wins beyond it."""
        good, bad, winner = 1.0, 1.0, ""
        while bad < WIDEST:
            bad = min(WIDEST, bad * STEP)
            winner = self.winner(changed(bad))
            if winner:
                break
            good = bad
        if not winner:
            return WIDEST, ""
        while bad / good - 1 > FINE:
            middle = (good * bad) ** 0.5
            wins = self.winner(changed(middle))
            good, bad, winner = (good, middle, wins) if wins else (middle, bad, winner)
        return good, winner

    def winner(self, profile: Profile) -> str:
        """The shape of a plan that beats the choice under a profile; "" when it stands."""
        own, best, shape = self._compared(profile)
        same = self.any_numbers and shape == self.placement.shape
        return shape if not same and best * self.lead < own * (1 - 1e-9) else ""

    def _compared(self, profile: Profile) -> tuple[float, float, str]:
        """(seconds of the choice, of the best plan, its shape) under a profile. No plan at all: nothing beats the choice, but it does not stand."""
        try:
            setting = Setting.of(profile, self.setting.devices, self.setting.chunks, self.setting.rule, self.setting.staleness)
        except PlanError:
            return float("inf"), 0.0, "no plan"
        placement = Placement(setting, self.placement.arrangement, self.placement.tree)
        own = evaluate(self.placement.tree, setting.problem(self.placement.arrangement))
        if placement.misfit():
            own = float("inf")
        best, shape = own, ""
        for arrangement in setting.arrangements():
            for found in solve(setting.problem(arrangement), best)[:1]:
                better = Placement(setting, arrangement, found.tree)
                if found.seconds < best and not better.misfit():
                    best, shape = found.seconds, better.shape
        return own, best, shape or placement.shape


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
