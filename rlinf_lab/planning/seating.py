"""Where the parts of a plan sit within the devices of the whole: which of two comes first, and at which ends those that take turns.

Seconds do not depend on it; memory does, where somebody stays on a device while others work there. A *seating* is a number for each node of the tree, in
the order of `search.trees.nodes`; 0, also for those that are missing, is first come, first seated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from rlinf_lab.planning.search.problem import Counts
from rlinf_lab.planning.search.trees import TEMPORAL, Composed, Leaf, Tree, nodes

MOST = 64  # seatings of a plan that are looked at


def seatings(tree: Tree, members: dict[int, int]) -> Iterator[tuple[int, ...]]:
    """The default one first. ``members``: how many workers a leaf has that sit apart (others: 1)."""
    choices = [_choices(node, members) for node in nodes(tree)]
    return itertools.islice(itertools.product(*choices), MOST)


def starts(tree: Composed, choice: int) -> tuple[Counts, Counts]:
    """The first device of each part of a composition, of each kind, counted from the first one of the whole."""
    return _starts(tree)[choice]


def _starts(tree: Composed) -> list[tuple[Counts, Counts]]:
    """Every choice. Of two that take turns both are at one end, or the smaller one is at the other end, or they have as little as possible in common."""
    before, after = tree.before.devices, tree.after.devices
    none = (0,) * len(before)
    if tree.kind != TEMPORAL:
        return [(none, before), (after, none)]
    most = tuple(map(max, before, after))
    far = tuple(min(n, a + b - 1) if a and b else m for n, a, b, m in zip(tree.devices, before, after, most, strict=True))
    return [(none, none), (_less(most, before), _less(most, after)), (none, _less(far, after))]


def _less(a: Counts, b: Counts) -> Counts:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def order_of(members: int, choice: int) -> tuple[int, ...]:
    """The order in which members that sit apart are seated."""
    return next(itertools.islice(itertools.permutations(range(members)), choice, None))


def ways(node: Tree, members: int) -> int:
    """How many choices there are, those that are the same counted, too. ``members``: workers of a leaf that sit apart."""
    return math.factorial(members) if isinstance(node, Leaf) else len(_starts(node))


def _choices(node: Tree, members: dict[int, int]) -> list[int]:
    """Those that are not all the same."""
    if isinstance(node, Leaf):
        return list(range(min(MOST, math.factorial(members.get(node.worker, 1)))))
    ways = _starts(node)
    return [i for i, way in enumerate(ways) if way not in ways[:i]]
