"""Where parts of a plan sit within the devices of the whole. It also tells how much of the devices the plan uses.

Of two parts one comes first; those that time-share sit at one end or the other.
Seconds do not depend on it; memory does, where somebody stays on a device while others work there. A *seating* is a
number for each node of the tree, in the order of `search.trees.nodes`; 0, also for those that are missing, is first
come, first seated.

Whoever is no slower with those that it leaves unused gets them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rlinf_lab.planning.search.plan_tree import TEMPORAL, Composed, Leaf, Tree, nodes
from rlinf_lab.planning.search.problem import Counts, Problem

MAX_SEATINGS = 64  # seatings of a plan that are looked at


def seatings(tree: Tree, members: dict[int, int]) -> Iterator[tuple[int, ...]]:
    """The default one first. ``members``: how many workers a leaf has that sit apart (others: 1)."""
    choices = [_choices(node, members) for node in nodes(tree)]
    return itertools.islice(itertools.product(*choices), MAX_SEATINGS)


def starts(tree: Composed, choice: int) -> tuple[Counts, Counts]:
    """The first device of each part of a composition, of each kind. Counted from the first one of the whole."""
    return _starts(tree)[choice]


def _starts(tree: Composed) -> list[tuple[Counts, Counts]]:
    """Every choice. Of two that time-share both are at one end, or the smaller one is at the other end, or they have as
    little as possible in common.
    """
    before, after = tree.before.devices, tree.after.devices
    none = (0,) * len(before)
    if tree.kind != TEMPORAL:
        return [(none, before), (after, none)]
    most = tuple(map(max, before, after))
    far = tuple(
        min(n, a + b - 1) if a and b else m for n, a, b, m in zip(tree.devices, before, after, most, strict=True)
    )
    return [(none, none), (_less(most, before), _less(most, after)), (none, _less(far, after))]


def _less(a: Counts, b: Counts) -> Counts:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def order_of(members: int, choice: int) -> tuple[int, ...]:
    """The order in which members that sit apart are seated."""
    return next(itertools.islice(itertools.permutations(range(members)), choice, None))


def _choices(node: Tree, members: dict[int, int]) -> list[int]:
    """Those that are not all the same."""
    if isinstance(node, Leaf):
        return list(range(min(MAX_SEATINGS, math.factorial(members.get(node.worker, 1)))))
    ways = _starts(node)
    return [i for i, way in enumerate(ways) if way not in ways[:i]]


def spread(tree: Tree, problem: Problem, beside: dict[int, int]) -> Tree:
    """The same plan, with unused devices given to whoever is no slower then. Upstream first."""
    return tree if len(problem.devices) > 1 else _spread(tree, problem, beside, problem.devices[0])


def _spread(tree: Tree, problem: Problem, beside: dict[int, int], room: int) -> Tree:
    if isinstance(tree, Leaf):
        if not tree.devices[0]:
            return tree  # works on the host
        numbers = [
            rows[tree.option, tree.grain, : room + 1] for rows in problem.numbers(tree.worker, beside[tree.worker])
        ]
        as_good = np.all([row <= row[tree.devices[0]] * (1 + 1e-12) for row in numbers], axis=0)
        return replace(tree, devices=(int(np.flatnonzero(as_good)[-1]),))
    if tree.kind == TEMPORAL:
        parts = [_spread(part, problem, beside, room) for part in tree.parts()]
        return Composed(tree.kind, parts[0], parts[1], (max(p.devices[0] for p in parts),), tree.grain)
    before = _spread(tree.before, problem, beside, room - tree.after.devices[0])
    after = _spread(tree.after, problem, beside, room - before.devices[0])
    return Composed(tree.kind, before, after, (before.devices[0] + after.devices[0],), tree.grain)
