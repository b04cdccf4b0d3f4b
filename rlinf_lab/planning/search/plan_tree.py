"""A plan as a tree. It says who shares devices in time, who streams to whom on devices of their own, and in which
micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rlinf_lab.planning.search.problem import Counts, Cuts, Problem


@dataclass(frozen=True)
class Leaf:
    """One leaf on ``devices`` of each kind. ``grain`` g: called with a 2^g-th of the items at once; ``option``: which
    bound of its stream counts.
    """

    worker: int
    devices: Counts
    grain: int
    option: int = 0

    @property
    def leaves(self) -> int:
        return 1 << self.worker

    def parts(self) -> tuple[Tree, ...]:
        return ()


@dataclass(frozen=True)
class Composed:
    """Two parts. ``kind`` temporal: one after the other on the same devices; spatial: at the same time on devices of
    their own, in 2^grain micro-batches.
    """

    kind: str
    before: Tree
    after: Tree
    devices: Counts
    grain: int

    @property
    def leaves(self) -> int:
        return self.before.leaves | self.after.leaves

    def parts(self) -> tuple[Tree, ...]:
        return self.before, self.after


Tree = Leaf | Composed
TEMPORAL, SPATIAL = "temporal", "spatial"


def nodes(tree: Tree) -> Iterator[Tree]:
    yield tree
    for part in tree.parts():
        yield from nodes(part)


def compositions(tree: Tree) -> frozenset[tuple[str, int, int]]:
    """(kind, leaves before, leaves after) of all of them: a plan's structure without its numbers."""
    return frozenset((n.kind, n.before.leaves, n.after.leaves) for n in nodes(tree) if isinstance(n, Composed))


def leaf_of(tree: Tree, worker: int) -> Leaf:
    return next(n for n in nodes(tree) if isinstance(n, Leaf) and n.worker == worker)


def meeting(tree: Tree, a: int, b: int) -> Composed:
    """The composition that cuts two leaves apart."""
    assert isinstance(tree, Composed)
    for part in tree.parts():
        if part.leaves >> a & 1 and part.leaves >> b & 1:
            return meeting(part, a, b)
    return tree


def mode(tree: Tree) -> str:
    """``temporal``, ``spatial``, ``hybrid``, or ``alone`` for a single leaf."""
    kinds = {n.kind for n in nodes(tree) if isinstance(n, Composed)}
    return "hybrid" if len(kinds) > 1 else next(iter(kinds), "alone")


def shape(tree: Tree, names: Sequence[str]) -> str:
    """Who shares and who streams, without numbers. An example is ``(rollout | reward) > learner``; `>` is one after
    another, `|` at the same time.
    """
    if isinstance(tree, Leaf):
        return names[tree.worker]
    parts = [p for part in tree.parts() for p in _flat(part, tree.kind)]
    if tree.kind == SPATIAL:  # at the same time: no order but that of the leaves
        parts.sort(key=lambda p: p.leaves & -p.leaves)
    sign = " > " if tree.kind == TEMPORAL else " | "
    return sign.join(f"({shape(p, names)})" if isinstance(p, Composed) else shape(p, names) for p in parts)


def _flat(tree: Tree, kind: str) -> list[Tree]:
    if isinstance(tree, Composed) and tree.kind == kind:
        return [p for part in tree.parts() for p in _flat(part, kind)]
    return [tree]


def colocated(tree: Tree, staying: int, beside: int = 0) -> dict[int, int]:
    """For each leaf, the staying leaves with which it shares devices (a mask). They are on the other side of a temporal
    node above it.
    """
    if isinstance(tree, Leaf):
        return {tree.worker: beside}
    others = (tree.after.leaves & staying, tree.before.leaves & staying) if tree.kind == TEMPORAL else (0, 0)
    return colocated(tree.before, staying, beside | others[0]) | colocated(tree.after, staying, beside | others[1])


@dataclass(frozen=True)
class Numbers:
    """Fill and period of a part at one granularity. And the devices of each kind that it uses."""

    fill: float
    period: float
    devices: Counts


def evaluate(tree: Tree, problem: Problem) -> float:
    """Seconds between iterations of a plan, computed from the tree alone. The search must find the same."""
    found = numbers(tree, problem)
    return float(problem.iteration(found.fill, found.period))


def numbers(tree: Tree, problem: Problem) -> Numbers:
    """Fill and period of a whole iteration."""
    return _lifted(tree, problem, Cuts.shared(problem), colocated(tree, problem.staying), 0)


def _lifted(tree: Tree, problem: Problem, cuts: Cuts, beside: dict[int, int], grain: int) -> Numbers:
    """At granularity ``grain``: 2^(tree.grain - grain) of the tree's own micro-batches make one."""
    own = _own(tree, problem, cuts, beside)
    if not math.isfinite(own.fill + own.period):
        return replace(own, fill=math.inf, period=math.inf)  # no micro-batch of inf seconds times zero
    micro_batches = 2.0 ** (tree.grain - grain)
    return Numbers(own.fill + (micro_batches - 1) * own.period, micro_batches * own.period, own.devices)


def _own(tree: Tree, problem: Problem, cuts: Cuts, beside: dict[int, int]) -> Numbers:
    if isinstance(tree, Leaf):
        code = sum(n * s for n, s in zip(tree.devices, _strides(problem), strict=True))
        fill, period = (
            float(rows[tree.option, tree.grain, code]) for rows in problem.numbers(tree.worker, beside[tree.worker])
        )
        return Numbers(fill, period, tree.devices)
    a, b = (_lifted(part, problem, cuts, beside, tree.grain) for part in tree.parts())
    before, after = tree.before.leaves, tree.after.leaves
    if tree.kind == TEMPORAL:
        used = tuple(max(x, y) for x, y in zip(a.devices, b.devices, strict=True))
        fill = a.fill + b.fill + problem.switch(before, after, cuts)
        return Numbers(fill, fill + problem.switch(after, before, cuts), used)
    linked = any(before >> p & 1 and after >> c & 1 for p, c in problem.edges)
    fill = a.fill + b.fill if linked else max(a.fill, b.fill)
    return Numbers(fill, max(a.period, b.period), tuple(x + y for x, y in zip(a.devices, b.devices, strict=True)))


def _strides(problem: Problem) -> Counts:
    found = [1]
    for n in reversed(problem.shape[1:]):
        found.append(found[-1] * n)
    return tuple(reversed(found))
