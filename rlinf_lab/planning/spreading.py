"""How much of the devices a plan uses: whoever is no slower with those that it leaves unused gets them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlinf_lab.planning.search.problem import Problem
from rlinf_lab.planning.search.trees import TEMPORAL, Composed, Leaf, Tree


def spread(tree: Tree, problem: Problem, beside: dict[int, int]) -> Tree:
    """The same plan with the devices that it leaves unused given to whoever is no slower with them, upstream first."""
    return tree if len(problem.devices) > 1 else _spread(tree, problem, beside, problem.devices[0])


def _spread(tree: Tree, problem: Problem, beside: dict[int, int], room: int) -> Tree:
    if isinstance(tree, Leaf):
        if not tree.devices[0]:
            return tree  # works on the host
        numbers = [rows[tree.option, tree.grain, : room + 1] for rows in problem.numbers(tree.worker, beside[tree.worker])]
        as_good = np.all([row <= row[tree.devices[0]] * (1 + 1e-12) for row in numbers], axis=0)
        return replace(tree, devices=(int(np.flatnonzero(as_good)[-1]),))
    if tree.kind == TEMPORAL:
        parts = [_spread(part, problem, beside, room) for part in tree.parts()]
        return Composed(tree.kind, parts[0], parts[1], (max(p.devices[0] for p in parts),), tree.grain)
    before = _spread(tree.before, problem, beside, room - tree.after.devices[0])
    after = _spread(tree.after, problem, beside, room - before.devices[0])
    return Composed(tree.kind, before, after, (before.devices[0] + after.devices[0],), tree.grain)
