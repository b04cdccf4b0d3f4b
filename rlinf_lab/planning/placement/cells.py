"""The best way to give the members of a cell devices of their own. It says how many each has, and in how many
sub-batches they work.

The members' seconds add up and the slowest one counts as often as there are sub-batches: two numbers, so a front, as in
the plan search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_lab.planning.costs import CellModel
from rlinf_lab.planning.search.pareto import ParetoFront, lower, pareto
from rlinf_lab.planning.search.problem import Counts

MAX_COUNTS = 160  # device counts of a member that are looked at; more are thinned evenly


@dataclass(frozen=True)
class Apart:
    """``seconds`` of an iteration for each code of devices, and how they are reached. That is by ``sub_batches`` and
    each member's ``codes`` (members, codes).
    """

    seconds: np.ndarray
    sub_batches: np.ndarray
    codes: np.ndarray


def apart(seconds: Mapping[int, Sequence[np.ndarray]], members: int, shape: Counts, model: CellModel) -> Apart:
    """Find the best way to sit apart. ``seconds``: for each number of sub-batches, each member's seconds of one
    sub-batch (all its calls), by code, inf where impossible.

    ``model``: how they make an iteration. Empty where a micro-batch has fewer items than any number of sub-batches:
    then no code has finite seconds.
    """
    size = int(np.prod(shape))
    best = Apart(np.full(size, np.inf), np.zeros(size, int), np.zeros((members, size), int))
    for k, rows in seconds.items():
        front, chosen = _fronts(rows, shape)
        value = model.apart(front.period, front.fill, k)
        for at in np.argsort(-value, kind="stable"):  # the smallest last
            code = front.code[at]
            if value[at] < best.seconds[code]:
                best.seconds[code], best.sub_batches[code], best.codes[:, code] = value[at], k, chosen[:, at]
    return best


def _fronts(rows: Sequence[np.ndarray], shape: Counts) -> tuple[ParetoFront, np.ndarray]:
    """ParetoFront of (sum, slowest) over all members, and each member's code at each point."""
    front, chosen = _member(rows[0], shape)
    chosen = chosen[None]
    for row in rows[1:]:
        other, codes = _member(row, shape)
        i, j = _pairs(front.code, other.code, shape)
        joined = ParetoFront.of(
            front.code[i] + other.code[j],
            front.fill[i] + other.fill[j],
            np.maximum(front.period[i], other.period[j]),
            0,
            i,
            j,
        )
        if not len(joined):
            return joined, np.zeros((len(rows), 0), int)
        front = pareto(joined, shape)
        chosen = np.vstack([chosen[:, front.left], codes[front.right]])
    return front, chosen


def _member(row: np.ndarray, shape: Counts) -> tuple[ParetoFront, np.ndarray]:
    codes = np.flatnonzero(lower(row, shape))
    if len(codes) > MAX_COUNTS:
        codes = codes[np.unique(np.linspace(0, len(codes) - 1, MAX_COUNTS).astype(int))]
    return ParetoFront.of(codes, row[codes], row[codes], 0, 0, 0), codes


def _pairs(a: np.ndarray, b: np.ndarray, shape: Counts) -> tuple[np.ndarray, np.ndarray]:
    left, right = np.array(np.unravel_index(a, shape)), np.array(np.unravel_index(b, shape))
    most = np.array(shape)[:, None, None] - 1
    return np.nonzero(np.all(left[:, :, None] + right[:, None, :] <= most, axis=0))  # type: ignore[return-value]
