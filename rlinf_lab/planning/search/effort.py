"""How a search is done in a few seconds. Where there are few leaves or few counts it is over all device counts. Else it
is over some counts first and then over those near the best plan: evenly spaced ones of few leaves (`solver.near`,
within half a percent of the best; `solver.guess` up to 4 % on 200 to 400 devices), few ones of many (`solver.guess`).
"""

from __future__ import annotations

from collections.abc import Callable

from rlinf_lab.planning.search.plan_tree import SPATIAL
from rlinf_lab.planning.search.problem import FEW_LEAVES, Problem
from rlinf_lab.planning.search.solver import Found, Only, guess, near, solve, useful_counts

Search = Callable[[Problem, float, Only], list[Found]]

# of device counts of two leaves, up to `FEW_LEAVES`: of more, some are looked at
PAIRS = 250_000
FEW_COUNTS = 64  # of so many, and `FEW_LEAVES`, all are looked at in any case
SMOOTH = 4  # leaves up to which only `PAIRS` counts


def search_of(problem: Problem, only: Only) -> Search:
    """Time-shared alone all counts are looked at: numbers of devices do not add up there."""
    if SPATIAL not in only.kinds or is_exact(problem):
        return solve
    return near if len(problem.names) <= SMOOTH else guess


def is_exact(problem: Problem) -> bool:
    """Whether all device counts are looked at; of several kinds of devices they always are."""
    if len(problem.devices) > 1 or len(problem.names) == 1:
        return True
    *_, most, largest = sorted(len(useful_counts(problem, v)) for v in range(len(problem.names)))
    if len(problem.names) > SMOOTH and most > FEW_COUNTS:
        return False
    return len(problem.names) <= FEW_LEAVES and most * largest <= PAIRS
