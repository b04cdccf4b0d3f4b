"""From a setting to the plans worth looking at: the best of every way to compose the flow, followed chunk by chunk, improved a little."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from rlinf_lab.planning.placement import Placement
from rlinf_lab.planning.search.effort import is_exact
from rlinf_lab.planning.search.problem import FEW_LEAVES, Cuts, Orders, Problem
from rlinf_lab.planning.search.solver import BOTH, Only, guess
from rlinf_lab.planning.search.trees import SPATIAL, TEMPORAL, Composed, Leaf, Tree, evaluate, nodes
from rlinf_lab.planning.setting import Arrangement, Setting
from rlinf_lab.planning.sharing import Search, branched, counted, settled
from rlinf_lab.planning.streams import Streamed, follow
from rlinf_lab.planning.tables import Forms

EVERY_CUT = 4  # of so many units every last composition is looked at, of more only the best and the pure ones
CLOSE = 1.04  # plans of the search that are followed: the search's two numbers for a stream are good to a few percent
ROUNDS = 12  # of improvement
QUICK_NEIGHBOURS = 12  # followed for a quick answer
FEW = 32  # branches of a quick search that found nothing
PROMISING = 2  # sets of units that may stay, where many units are not searched exactly: those that are best for turns
SAME = 1.001


@dataclass(frozen=True)
class Candidate:
    """A plan that fits: the seconds that the search gave it and those that come out when its chunks are followed."""

    placement: Placement
    searched: float
    streamed: Streamed = field(compare=False)

    @classmethod
    def of(cls, setting: Setting, arrangement: Arrangement, tree: Tree, searched: float | None = None) -> Candidate:
        """A tree, followed. ``searched``: the search's seconds, where they are known."""
        placement = Placement(setting, arrangement, tree)
        return cls(placement, evaluate(tree, setting.problem(arrangement)) if searched is None else searched, follow(placement))

    @property
    def seconds(self) -> float:
        return self.streamed.seconds


def candidates(setting: Setting, modes: tuple[str, ...] = BOTH, quick: bool = False, staying: int = 0, ceiling: float = np.inf) -> list[Candidate]:
    """The fastest plan of each shape that was found, fastest first. Empty when no plan is possible.

    ``quick``: good plans of turns, of streams and of both, over few device counts and then nearer ones. Of the sets of units that may stay, plans of both
    are looked for with the one that is best for turns, and with ``staying`` (a mask), such as that of the plan before; and only plans about as fast as
    ``ceiling`` (seconds, as the search counts them), or faster.
    """
    found: dict[str, Candidate] = {}
    by_form: dict[Forms, list[Arrangement]] = {}
    for arrangement in setting.arrangements():
        by_form.setdefault(arrangement.forms, []).append(arrangement)
    for arrangements in by_form.values():
        for candidate in _quick(setting, arrangements, modes, staying, ceiling) if quick else _exact(setting, arrangements, modes):
            shape = candidate.placement.shape
            if shape not in found or candidate.seconds < found[shape].seconds:
                found[shape] = candidate
    if not found:  # perhaps one in which not all that take turns share all their devices; the fewer stay, the more fits
        found = {c.placement.shape: c for arrangements in by_form.values() for c in _any(setting, arrangements[-1:], modes, ceiling, FEW)}
    best = min((c.seconds for c in found.values()), default=0.0)
    better = [improved(c, QUICK_NEIGHBOURS if quick else None) if not quick or c.seconds == best else c for c in found.values()]
    return _distinct(sorted(better, key=lambda c: (c.seconds, c.placement.shape)))


def _distinct(found: list[Candidate]) -> list[Candidate]:
    """Without those that seat everybody as a faster one does and take about as long: they differ in name only, or in chunks that change nothing."""
    kept: list[Candidate] = []
    for c in found:
        if not any(c.seconds <= SAME * k.seconds and alike(c.placement, k.placement) for k in kept):
            kept.append(c)
    return kept


def alike(a: Placement, b: Placement) -> bool:
    """Whether everybody sits on the same devices, in the same ranks: of one mode, whatever the chunks."""
    return a.mode == b.mode and all(replace(seat, chunks=1) == replace(b.seats[name], chunks=1) for name, seat in a.seats.items())


def _exact(setting: Setting, arrangements: list[Arrangement], modes: tuple[str, ...]) -> Iterator[Candidate]:
    # Of so many units that they are cut in groups, good plans over few device counts and then nearer ones, about as fast as turns or streams alone.
    problem, best = setting.problem(arrangements[0]), np.inf
    grouped, promising = Orders.of(problem).is_grouped, arrangements
    if len(setting.units) > FEW_LEAVES and len(arrangements) > PROMISING and not is_exact(problem, len(arrangements)):
        promising = sorted(arrangements, key=lambda a: _seconds_in_turns(setting, a))[:PROMISING]
    for only in sorted(_structures(setting, modes), key=lambda only: len(only.kinds)) if grouped else _structures(setting, modes):
        # On devices of their own all stay.
        some = arrangements[:1] if only.kinds == (SPATIAL,) else promising
        for candidate in _best(setting, some, only, guess if grouped else None, best if len(only.kinds) > 1 else np.inf):
            best = min(best, candidate.searched) if grouped else best
            yield candidate


def _quick(setting: Setting, arrangements: list[Arrangement], modes: tuple[str, ...], staying: int, ceiling: float) -> list[Candidate]:
    in_turns = sorted(arrangements, key=lambda a: _seconds_in_turns(setting, a))
    some = [a for a in arrangements if a is in_turns[0] or a.staying == staying]
    found = _best(setting, [*some, *(a for a in in_turns[1:2] if a not in some)], Only((TEMPORAL,)), guess, ceiling) if TEMPORAL in modes else []
    if SPATIAL in modes and len(setting.units) > 1:
        found += _best(setting, arrangements[:1], Only((SPATIAL,)), guess, ceiling)
        if TEMPORAL in modes:
            found += _best(setting, some, Only(modes), guess, min([ceiling, *(c.searched for c in found)]))
    return found or _any(setting, in_turns, modes, ceiling)


def _any(setting: Setting, arrangements: list[Arrangement], modes: tuple[str, ...], ceiling: float, branches: int = 0) -> list[Candidate]:
    """A plan of another arrangement, where those that promise most have none."""
    return next((found for a in arrangements if (found := _best(setting, [a], Only(modes), guess, ceiling, branches))), [])


def _seconds_in_turns(setting: Setting, arrangement: Arrangement) -> float:
    """Of everybody one after another, each on the devices that suit it best, and of the switches of those who leave: roughly, which set may stay."""
    total = 0.0
    for i, unit in enumerate(setting.units):
        total += float(setting.tables.of(i, arrangement.staying & ~(1 << i), arrangement.forms)[0].min())
        if not arrangement.staying >> i & 1:
            total += sum(setting.switch_seconds(unit))
    return total


def _structures(setting: Setting, modes: tuple[str, ...]) -> Iterator[Only]:
    """Everything; turns only; streams only; and each last composition by itself."""
    yield Only(modes)
    if len(setting.units) == 1 or len(modes) == 1:
        return
    yield Only((TEMPORAL,))
    yield Only((SPATIAL,))
    if len(setting.units) <= EVERY_CUT:
        problem = setting.problem(setting.arrangements()[0])
        for cut in Cuts(problem).of(problem.everyone):
            for kind in BOTH:
                yield Only(BOTH, (kind, cut.before))


def _best(
    setting: Setting, arrangements: list[Arrangement], only: Only, search: Search | None = None, best: float = np.inf, branches: int | None = None
) -> list[Candidate]:
    """The best plans of one structure over all arrangements: those that the search cannot tell apart are followed. ``best``: seconds known so far."""
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
    return [Candidate.of(setting, used, plan.tree, plan.searched) for used, plan in searched if plan.searched <= best * CLOSE]


# --- improvement ------------------------------------------------------------------------------------------------
def improved(candidate: Candidate, most: int | None = None) -> Candidate:
    """Moves devices between parts while the followed seconds fall: the search's model of a stream is not exact. ``most``: neighbours that are looked at."""
    setting, best = candidate.placement.setting, candidate
    problem = setting.problem(candidate.placement.arrangement)
    if not problem.once:
        return candidate  # nothing that the search approximates
    looked = itertools.count()
    for _ in range(ROUNDS):
        better = best
        for tree in _neighbours(best.placement.tree, problem, best.placement.beside):
            if most is not None and next(looked) >= most:
                return better
            placement = settled(Placement(setting, best.placement.arrangement, tree))
            if not np.isfinite(evaluate(tree, setting.problem(placement.arrangement))):
                continue  # somebody does not fit beside those who are really there
            streamed = follow(placement)
            if streamed.seconds < better.seconds * (1 - 1e-9) and not placement.misfit():
                better = Candidate(placement, evaluate(tree, setting.problem(placement.arrangement)), streamed)
        if better is best:
            return best
        best = better
    return best


def _neighbours(tree: Tree, problem: Problem, beside: dict[int, int]) -> Iterator[Tree]:
    """Plans in which one leaf has the next larger or smaller useful number of devices, and perhaps another one makes room or takes what is left."""
    leaves = [n for n in nodes(tree) if isinstance(n, Leaf)]
    if len(problem.devices) > 1:
        return
    useful = {n.worker: np.flatnonzero(np.isfinite(problem.table(n.worker, beside[n.worker])[n.grain])) for n in leaves}
    for leaf in leaves:
        for step in _steps(leaf, useful[leaf.worker]):
            changes: list[dict[int, int]] = [{leaf.worker: step}]
            for other in leaves:
                left = useful[other.worker][useful[other.worker] <= other.devices[0] - (step - leaf.devices[0])]
                if other.worker != leaf.worker and len(left):
                    changes.append({leaf.worker: step, other.worker: int(left[-1])})
            for change in changes:
                changed = _resized(tree, change)
                if changed.devices[0] <= problem.devices[0]:
                    yield changed


def _steps(leaf: Leaf, useful: np.ndarray) -> list[int]:
    at = int(np.searchsorted(useful, leaf.devices[0]))
    return [int(useful[i]) for i in (at - 1, at + 1) if 0 <= i < len(useful)]


def _resized(tree: Tree, counts: dict[int, int]) -> Tree:
    if isinstance(tree, Leaf):
        return replace(tree, devices=(counts.get(tree.worker, tree.devices[0]),))
    before, after = (_resized(part, counts) for part in tree.parts())
    n = max(before.devices[0], after.devices[0]) if tree.kind == TEMPORAL else before.devices[0] + after.devices[0]
    return Composed(tree.kind, before, after, (n,), tree.grain)
