"""A plan as a tree: who shares devices in time, who streams to whom on devices of their own, and in which chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlinf_lab.planning.search.problem import Counts, Cuts, Problem, members


@dataclass(frozen=True)
class Leaf:
    """One leaf on ``devices`` of each kind; ``grain`` g: called with a 2^g-th of the items at once."""

    worker: int
    devices: Counts
    grain: int

    @property
    def leaves(self) -> int:
        return 1 << self.worker

    def parts(self) -> tuple[Tree, ...]:
        return ()


@dataclass(frozen=True)
class Composed:
    """Two parts. ``kind`` temporal: one after the other on the same devices; spatial: at the same time on devices of their own, in 2^grain chunks."""

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


def leaf_of(tree: Tree, worker: int) -> Leaf:
    return next(n for n in nodes(tree) if isinstance(n, Leaf) and n.worker == worker)


def mode(tree: Tree) -> str:
    """``temporal``, ``spatial``, ``hybrid``, or ``alone`` for a single leaf."""
    kinds = {n.kind for n in nodes(tree) if isinstance(n, Composed)}
    return "hybrid" if len(kinds) > 1 else next(iter(kinds), "alone")


def shape(tree: Tree, names: tuple[str, ...]) -> str:
    """Who shares and who streams, without numbers: ``(rollout | reward) > learner``; `>` one after another, `|` at the same time."""
    if isinstance(tree, Leaf):
        return names[tree.worker]
    parts = [p for part in tree.parts() for p in _flat(part, tree.kind)]
    sign = " > " if tree.kind == TEMPORAL else " | "
    return sign.join(f"({shape(p, names)})" if isinstance(p, Composed) else shape(p, names) for p in parts)


def _flat(tree: Tree, kind: str) -> list[Tree]:
    if isinstance(tree, Composed) and tree.kind == kind:
        return [p for part in tree.parts() for p in _flat(part, kind)]
    return [tree]


@dataclass(frozen=True)
class Checked:
    """Numbers of a part at one granularity, and the counts of devices that it uses."""

    fill: float
    period: float
    devices: Counts


def evaluate(tree: Tree, problem: Problem) -> float:
    """Seconds between iterations of a plan, computed from the tree alone. The search must find the same."""
    found = _lifted(tree, problem, Cuts(problem), 0, 0)
    return float(problem.iteration(found.fill, found.period))


def _lifted(tree: Tree, problem: Problem, cuts: Cuts, context: int, grain: int) -> Checked:
    """At granularity ``grain``: 2^(tree.grain - grain) of the tree's own chunks make one."""
    own = _own(tree, problem, cuts, context)
    chunks = 2.0 ** (tree.grain - grain)
    if chunks < 1:
        raise ValueError(f"a part of grain {tree.grain} inside one of grain {grain}")
    return Checked(own.fill + (chunks - 1) * own.period, chunks * own.period, own.devices)


def _own(tree: Tree, problem: Problem, cuts: Cuts, context: int) -> Checked:
    if isinstance(tree, Leaf):
        code = sum(n * s for n, s in zip(tree.devices, _strides(problem), strict=True))
        seconds = float(problem.table(tree.worker, context)[tree.grain, code])
        return Checked(seconds, seconds, tree.devices)
    temporal = tree.kind == TEMPORAL
    beside = (tree.after.leaves & problem.staying, tree.before.leaves & problem.staying) if temporal else (0, 0)
    a = _lifted(tree.before, problem, cuts, context | beside[0], tree.grain)
    b = _lifted(tree.after, problem, cuts, context | beside[1], tree.grain)
    if temporal:
        there, back = (problem.switch(x, y, cuts) for x, y in ((tree.before.leaves, tree.after.leaves), (tree.after.leaves, tree.before.leaves)))
        used = tuple(max(x, y) for x, y in zip(a.devices, b.devices, strict=True))
        fill = a.fill + b.fill + there
        return Checked(fill, fill + back, used)
    linked = any(tree.before.leaves >> p & 1 and tree.after.leaves >> c & 1 for p, c in problem.edges)
    fill = a.fill + b.fill if linked else max(a.fill, b.fill)
    return Checked(fill, max(a.period, b.period), tuple(x + y for x, y in zip(a.devices, b.devices, strict=True)))


def _strides(problem: Problem) -> Counts:
    found = [1]
    for n in reversed(problem.shape[1:]):
        found.append(found[-1] * n)
    return tuple(reversed(found))


__all__ = ["SPATIAL", "TEMPORAL", "Composed", "Leaf", "Tree", "evaluate", "leaf_of", "members", "mode", "nodes", "shape"]
