"""From a setting to the plans worth looking at. They are the best of every way to compose the flow, followed
micro-batch by micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from rlinf_lab.planning.forecast.stream_estimate import Streamed, follow
from rlinf_lab.planning.placement.colocation import Search, branched, counted
from rlinf_lab.planning.placement.free_memory import Forms
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Arrangement, Setting
from rlinf_lab.planning.search.effort import is_exact
from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, Tree, compositions, evaluate
from rlinf_lab.planning.search.problem import FEW_LEAVES, Cuts, Orders, Problem
from rlinf_lab.planning.search.solver import BOTH, Found, Only, guess

EVERY_CUT = 4  # of so many stages every last composition is looked at, of more only the best and the pure ones
CLOSE = 1.04  # plans of the search that are followed: the search's two numbers for a stream are good to a few percent
RECENT = 2  # sets of stages that stay that are looked at again
FEW = 32  # branches of a quick search that found nothing
PROMISING = 2  # sets of stages that may stay, where many stages are not searched exactly: those that are best for turns
SAME = 1.001


@dataclass(frozen=True)
class Candidate:
    """A plan that fits, with its seconds. Some the search gave it, others come out when its micro-batches are followed.
    """

    placement: Placement
    searched: float
    streamed: Streamed = field(compare=False)

    @classmethod
    def of(cls, setting: Setting, arrangement: Arrangement, tree: Tree, searched: float | None = None) -> Candidate:
        """A tree, followed. ``searched``: the search's seconds, where they are known."""
        placement = Placement(setting, arrangement, tree)
        return cls(
            placement, evaluate(tree, setting.problem(arrangement)) if searched is None else searched, follow(placement)
        )

    @property
    def seconds(self) -> float:
        return self.streamed.seconds


@dataclass(frozen=True)
class Known:
    """What a search found before, the best plans first. For each plan it has the compositions
    (`plan_tree.compositions`) and the stages that stay (a mask).

    ``alone``: nothing else is looked at, as long as there is a plan of one of these shapes. Not where it was found for
    other devices, or other memory. A slider's answers for six workers are 6 % slower without what is known (median;
    22 % at the 95th percentile), those for up to four as fast.
    """

    shapes: tuple[tuple[frozenset[tuple[str, int, int]], int], ...] = ()
    alone: bool = True

    @classmethod
    def of(cls, found: Sequence[Candidate]) -> Known:
        return cls(tuple((compositions(c.placement.tree), c.placement.arrangement.staying) for c in found))

    @cached_property
    def among(self) -> frozenset[tuple[str, int, int]]:
        """Of all plans together."""
        return frozenset().union(*(made for made, _ in self.shapes))

    @property
    def staying(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(mask for _, mask in self.shapes))


NOTHING = Known()


def candidates(
    setting: Setting,
    modes: tuple[str, ...] = BOTH,
    quick: bool = False,
    known: Known = NOTHING,
    ceiling: float = np.inf,
    several: int = 1,
) -> list[Candidate]:
    """The fastest plan of each shape that was found, fastest first. Empty when no plan is possible.

    ``several``: so many of each shape, of other numbers of devices or micro-batches, all about as fast as the best of
    the shape by the search, which is one of them; also those that only differ in their names.

    ``quick``: good plans of turns, of streams and of both, over few device counts and then nearer ones. Of the sets of
    stages that may stay, plans of both are looked for with the one that is best for turns; with ``known``, such as that
    of the plan before, only among its shapes (see `Known`). Only plans about as fast as ``ceiling`` (seconds, as the
    search counts them), or faster.
    """
    found: dict[str, list[Candidate]] = {}
    by_form: dict[Forms, list[Arrangement]] = {}
    for arrangement in setting.arrangements():
        by_form.setdefault(arrangement.forms, []).append(arrangement)
    for arrangements in by_form.values():
        for candidate in (
            _quick(setting, arrangements, modes, known, ceiling) if quick else _exact(setting, arrangements, modes)
        ):
            found.setdefault(candidate.placement.shape, []).append(candidate)
    if not found:  # perhaps one in which not all that time-share share all their devices; the fewer stay, the more fits
        found = {
            c.placement.shape: [c]
            for arrangements in by_form.values()
            for c in _any(setting, arrangements[-1:], Only(modes), ceiling, FEW)
        }
    firsts = [min(some, key=lambda c: c.seconds) for some in found.values()]
    if several > 1 and not quick:
        return sorted([*firsts, *(c for some in found.values() for c in _others(some, several))], key=_by_seconds)
    return _distinct(sorted(firsts, key=_by_seconds))


def _by_seconds(candidate: Candidate) -> tuple[float, str]:
    return candidate.seconds, candidate.placement.shape


def _others(some: list[Candidate], most: int) -> list[Candidate]:
    """Plans of one shape that the search finds about as fast as its best. The best one of what is followed is among
    them.
    """
    least = min(c.searched for c in some)
    near = sorted((c for c in some if c.searched <= CLOSE * least), key=lambda c: c.searched)
    kept: list[Candidate] = []
    # where nobody shares devices it does not matter who may stay
    for c in near[:1] + sorted(near[1:], key=_by_seconds):
        if len(kept) < most and not any(
            (c.placement.tree, c.searched, c.seconds) == (k.placement.tree, k.searched, k.seconds) for k in kept
        ):
            kept.append(c)
    return kept


def _distinct(found: list[Candidate]) -> list[Candidate]:
    """Candidates without those that seat everybody as a faster, similar one does. They take about as long, and differ
    in name only, or in micro-batches that change nothing.
    """
    kept: list[Candidate] = []
    for c in found:
        if not any(c.seconds <= SAME * k.seconds and alike(c.placement, k.placement) for k in kept):
            kept.append(c)
    return kept


def alike(a: Placement, b: Placement) -> bool:
    """Whether two placements of one mode seat everybody on the same devices and ranks. Micro-batches may differ."""
    return a.mode == b.mode and all(
        replace(seat, micro_batches=1) == replace(b.seats[name], micro_batches=1) for name, seat in a.seats.items()
    )


def _exact(setting: Setting, arrangements: list[Arrangement], modes: tuple[str, ...]) -> Iterator[Candidate]:
    # Of so many stages that they are cut in groups, good plans over few device counts and then nearer ones, about as
    # fast as turns or streams alone.
    problem, best = setting.problem(arrangements[0]), np.inf
    grouped, promising = Orders.of(problem).is_grouped, arrangements
    if len(setting.stages) > FEW_LEAVES and len(arrangements) > PROMISING and not is_exact(problem):
        promising = sorted(arrangements, key=lambda a: _seconds_time_shared(setting, a))[:PROMISING]
    for only in (
        sorted(_structures(setting, modes), key=lambda only: len(only.kinds))
        if grouped
        else _structures(setting, modes)
    ):
        # On devices of their own all stay.
        some = arrangements[:1] if only.kinds == (SPATIAL,) else promising
        for candidate in _best(
            setting, some, only, guess if grouped else None, best if len(only.kinds) > 1 else np.inf
        ):
            best = min(best, candidate.searched) if grouped else best
            yield candidate


def _quick(
    setting: Setting,
    arrangements: list[Arrangement],
    modes: tuple[str, ...],
    known: Known,
    ceiling: float,
) -> list[Candidate]:
    before = _recosted(setting, arrangements, modes, known, ceiling) if known.shapes else []
    if before and known.alone:
        return before
    time_shared = sorted(arrangements, key=lambda a: _seconds_time_shared(setting, a))
    found = (
        _best(setting, time_shared[:2], Only((TEMPORAL,)), _as_it_runs(setting), ceiling) if TEMPORAL in modes else []
    )
    if SPATIAL in modes and len(setting.stages) > 1:
        found += _best(setting, arrangements[:1], Only((SPATIAL,)), _as_it_runs(setting), ceiling)
        if TEMPORAL in modes:
            found += _best(
                setting,
                time_shared[:1],
                Only(modes),
                _as_it_runs(setting),
                min([ceiling, *(c.searched for c in before + found)]),
            )
    # on devices of their own it does not matter who stays
    return before + found or _any(setting, time_shared if TEMPORAL in modes else time_shared[:1], Only(modes), ceiling)


def _recosted(
    setting: Setting, arrangements: list[Arrangement], modes: tuple[str, ...], known: Known, ceiling: float
) -> list[Candidate]:
    """The best plans among known shapes. Where nothing fits with those who stayed in them, others may stay: those who
    may where these shapes are turns.
    """
    some = [a for a in arrangements if a.staying in known.staying[:RECENT]]
    found = _best(setting, some, Only(modes, among=known.among), _as_it_runs(setting), ceiling)
    if found or TEMPORAL not in modes:
        return found
    time_shared = sorted(arrangements, key=lambda a: _seconds_time_shared(setting, a))
    found = _any(setting, time_shared, Only((TEMPORAL,), among=known.among), ceiling)
    if not found or SPATIAL not in modes:
        return found
    used = [a for a in arrangements if a.staying == found[0].placement.arrangement.staying]
    return found + _best(
        setting, used, Only(modes, among=known.among), _as_it_runs(setting), min(ceiling, found[0].searched)
    )


def _any(
    setting: Setting, arrangements: list[Arrangement], only: Only, ceiling: float, branches: int = 0
) -> list[Candidate]:
    """A plan of another arrangement, where those that promise most have none."""
    return next(
        (found for a in arrangements if (found := _best(setting, [a], only, _as_it_runs(setting), ceiling, branches))),
        [],
    )


def _as_it_runs(setting: Setting) -> Search:
    """`guess`, where whoever never waits time-shares as a whole only. Of turns in micro-batches the search promises
    what no run keeps, up to two fifths less: of the few plans of a quick answer none would be left that is as good as
    it says."""

    def search(problem: Problem, ceiling: float, only: Only) -> list[Found]:
        return guess(replace(problem, whole=setting.unceasing), ceiling, only)

    return search


def _seconds_time_shared(setting: Setting, arrangement: Arrangement) -> float:
    """Seconds of everybody one after another, each on the devices that suit it best. The switches of those who leave
    are in them: this tells roughly which set may stay.
    """
    total = 0.0
    for i, stage in enumerate(setting.stages):
        total += float(setting.tables.of(i, arrangement.staying & ~(1 << i), arrangement.forms)[0].min())
        if not arrangement.staying >> i & 1:
            total += sum(setting.switch_seconds(stage))
    return total


def _structures(setting: Setting, modes: tuple[str, ...]) -> Iterator[Only]:
    """Everything; turns only; streams only; and each last composition by itself."""
    yield Only(modes)
    if len(setting.stages) == 1 or len(modes) == 1:
        return
    yield Only((TEMPORAL,))
    yield Only((SPATIAL,))
    if len(setting.stages) <= EVERY_CUT:
        problem = setting.problem(setting.arrangements()[0])
        for cut in Cuts.shared(problem).of(problem.everyone):
            for kind in BOTH:
                yield Only(BOTH, (kind, cut.before))


def _best(
    setting: Setting,
    arrangements: list[Arrangement],
    only: Only,
    search: Search | None = None,
    best: float = np.inf,
    branches: int | None = None,
) -> list[Candidate]:
    """The best plans of one structure over all arrangements. Those that the search cannot tell apart are followed.
    ``best``: seconds known so far.
    """
    searched = []
    for arrangement in arrangements:
        for used, plan in counted(setting, arrangement, best * CLOSE, only, search):
            best = min(best, plan.searched)
            searched.append((used, plan))
    if search is None or branches:
        for arrangement in arrangements:
            for used, plan in branched(setting, arrangement, best, only, search, branches):
                best = min(best, plan.searched)
                searched.append((used, plan))
    return [
        Candidate.of(setting, used, plan.tree, plan.searched)
        for used, plan in searched
        if plan.searched <= best * CLOSE
    ]
