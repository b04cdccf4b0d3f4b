"""Plans near a plan: other numbers of devices, other micro-batches, another order of turns. The search's and the
scheduler's seconds differ by a little, so the best plan of the one is near the best one of the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rlinf_lab.planning.placement.colocation import settled
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, Composed, Leaf, Tree, evaluate, nodes
from rlinf_lab.planning.search.problem import Problem


def fitting(placement: Placement, tree: Tree) -> tuple[Placement, float] | None:
    """Another tree in place of a placement's, and the search's seconds of it; None where somebody does not fit."""
    made = settled(replace(placement, tree=tree))
    searched = evaluate(tree, made.setting.problem(made.arrangement))
    return None if not np.isfinite(searched) or made.misfit() else (made, searched)


def neighbours(placement: Placement) -> Iterator[Tree]:
    """Trees that differ in the order of two parts, in the micro-batches of one part, or in the devices of one or two
    leaves.
    """
    problem = placement.setting.problem(placement.arrangement)
    yield from reordered(placement.tree, problem)
    yield from in_other_micro_batches(placement.tree, problem)
    yield from resized(placement.tree, problem, placement.beside)


def resized(tree: Tree, problem: Problem, beside: dict[int, int]) -> Iterator[Tree]:
    """One leaf has the next larger or smaller useful number of devices, and perhaps another one makes room or takes
    what is left.
    """
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
                changed = _with_counts(tree, change)
                if changed.devices[0] <= problem.devices[0]:
                    yield changed


def in_other_micro_batches(tree: Tree, problem: Problem) -> Iterator[Tree]:
    """One part that streams, with those within it that have the same micro-batches, has twice as many or half as many,
    or as many as there may be. Not where somebody time-shares: in which micro-batches, the search knows, and a
    simulation lets ranks that have ended theirs begin with another turn."""
    for node in nodes(tree):
        if not _streams(tree, node):
            continue
        above = _grain_above(tree, node)
        most = _finest(node, problem)
        for grain in dict.fromkeys((node.grain + 1, node.grain - 1, most)):
            if above <= grain <= most and grain != node.grain:
                yield _replaced(tree, node, _with_grain(node, grain))


def reordered(tree: Tree, problem: Problem) -> Iterator[Tree]:
    """Two neighbours in a row of turns, of which neither feeds the other, the other way round."""
    for node in nodes(tree):
        if not isinstance(node, Composed) or node.kind != TEMPORAL:
            continue
        if not _linked(problem, node.before, node.after):
            yield _replaced(tree, node, replace(node, before=node.after, after=node.before))
        later = node.after
        if (
            isinstance(later, Composed)
            and later.kind == TEMPORAL
            and later.grain == node.grain
            and not _linked(problem, node.before, later.before)
        ):
            rest = replace(later, before=node.before, devices=_most(node.before, later.after))
            yield _replaced(tree, node, replace(node, before=later.before, after=rest))
        first = node.before
        if (
            isinstance(first, Composed)
            and first.kind == TEMPORAL
            and first.grain == node.grain
            and not _linked(problem, first.after, node.after)
        ):
            start = replace(first, after=node.after, devices=_most(first.before, node.after))
            yield _replaced(tree, node, replace(node, before=start, after=first.after))


def _streams(tree: Tree, node: Tree) -> bool:
    """Whether a part works at the same time as another one, all of it, or is made of such parts."""
    beside = any(node in n.parts() and isinstance(n, Composed) and n.kind == SPATIAL for n in nodes(tree))
    inside = [n.kind for n in nodes(node) if isinstance(n, Composed)]
    return TEMPORAL not in inside and (beside or SPATIAL in inside)


def _linked(problem: Problem, a: Tree, b: Tree) -> bool:
    return any(
        (a.leaves >> p & 1 and b.leaves >> c & 1) or (b.leaves >> p & 1 and a.leaves >> c & 1) for p, c in problem.edges
    )


def _most(a: Tree, b: Tree) -> tuple[int, ...]:
    return tuple(map(max, a.devices, b.devices))


def _grain_above(tree: Tree, node: Tree) -> int:
    """Of the part that holds it: micro-batches within are no larger."""
    return max((n.grain for n in nodes(tree) if node in n.parts()), default=0)


def _finest(node: Tree, problem: Problem) -> int:
    """Micro-batches that all edges within allow, all of a leaf; the whole where somebody is called once and
    time-shares.
    """
    if isinstance(node, Leaf):
        return problem.granularities - 1
    crossing = [g for (p, c), g in problem.edges.items() if node.before.leaves >> p & 1 and node.after.leaves >> c & 1]
    own = 0 if node.kind == TEMPORAL and node.leaves & problem.once else min([problem.granularities - 1, *crossing])
    return min(own, *(_finest(part, problem) for part in node.parts()))


def _with_grain(node: Tree, grain: int) -> Tree:
    """Finer: whoever is coarser within becomes as fine; coarser: whoever has the same micro-batches does, too."""
    if isinstance(node, Leaf):
        return replace(node, grain=grain)
    before, after = (
        _with_grain(part, grain) if part.grain < grain or part.grain == node.grain else part for part in node.parts()
    )
    return replace(node, before=before, after=after, grain=grain)


def _replaced(tree: Tree, node: Tree, by: Tree) -> Tree:
    if tree is node:
        return by
    if isinstance(tree, Leaf) or not tree.leaves & node.leaves:
        return tree
    return replace(tree, before=_replaced(tree.before, node, by), after=_replaced(tree.after, node, by))


def _steps(leaf: Leaf, useful: np.ndarray) -> list[int]:
    at = int(np.searchsorted(useful, leaf.devices[0]))
    return [int(useful[i]) for i in (at - 1, at + 1) if 0 <= i < len(useful)]


def _with_counts(tree: Tree, counts: dict[int, int]) -> Tree:
    if isinstance(tree, Leaf):
        return replace(tree, devices=(counts.get(tree.worker, tree.devices[0]),))
    before, after = (_with_counts(part, counts) for part in tree.parts())
    n = max(before.devices[0], after.devices[0]) if tree.kind == TEMPORAL else before.devices[0] + after.devices[0]
    return Composed(tree.kind, before, after, (n,), tree.grain)
