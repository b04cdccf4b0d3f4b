"""How a search over many device counts is done in a few seconds: over all of them, or over evenly spaced ones first and
then those near the best plan.

Measured on chains of 4 to 20 leaves and 16 to 256 devices: an exact search takes about 5e-8 s for each of cuts^1.5 *
counts^2.5. Each front has points for all counts, pairs of points are composed, and what comes of them is compared.
Parts are searched anew for every set of those who stay beside them, where it matters.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from rlinf_lab.planning.search.plan_tree import SPATIAL
from rlinf_lab.planning.search.problem import FEW_LEAVES, Orders, Problem
from rlinf_lab.planning.search.solver import Found, Only, near, solve, stepwise, useful_counts

Search = Callable[[Problem, float, Only], list[Found]]

# of device counts of two leaves; of more, some are looked at: at 4,096 devices seconds instead of minutes
PAIRS = 250_000
FEW_COUNTS = 64  # of so many, and `FEW_LEAVES`, all are looked at in any case
SMOOTH = 4  # leaves up to which only `PAIRS` counts: exact, or nearly, however many devices
WORK = 1.2e8  # cuts^1.5 * counts^2.5: about six seconds
STEPS = 1.5e6  # cuts * spaced counts^2: two to four seconds
FEWEST, MOST = 8, 64  # spaced counts


def search_of(problem: Problem, only: Only, searches: int = 1) -> Search:
    """``searches``: how many such problems are searched, of different sets of those who stay. Time-shared alone all
    counts are looked at: numbers of devices do not add up there."""
    if SPATIAL not in only.kinds:
        return solve
    if (units := spaced(problem, searches)) is not None:
        return functools.partial(stepwise, units=units)
    return near if _is_dense(_counts(problem)) else solve


def is_exact(problem: Problem, searches: int = 1) -> bool:
    """Whether all device counts are looked at."""
    return spaced(problem, searches) is None and not _is_dense(_counts(problem))


def spaced(problem: Problem, searches: int = 1) -> int | None:
    """On how many evenly spaced numbers of devices plans are looked for, before those near the best; None: the search
    is no such long one.
    """
    counts = _counts(problem)
    if len(counts) <= SMOOTH or (len(counts) <= FEW_LEAVES and counts[-2] <= FEW_COUNTS):
        return None
    cuts, again = Orders.of(problem).cuts, 1.0
    if len(counts) > FEW_LEAVES:
        minded = 0 if problem.minded is None else max(mask.bit_count() for mask in problem.minded)
        again = max(1.0, minded**2 / 8) * math.sqrt(searches)
    if again * cuts**1.5 * counts[-2] ** 2.5 <= WORK:
        return None
    units = math.sqrt(STEPS / (again * cuts))
    return int(2 ** math.floor(math.log2(min(max(units, FEWEST), MOST))))


def _counts(problem: Problem) -> list[int]:
    """How many device counts matter to each leaf, in rising order; of several kinds of devices all are always looked
    at.
    """
    return (
        sorted(len(useful_counts(problem, v)) for v in range(len(problem.names))) if len(problem.devices) == 1 else []
    )


def _is_dense(counts: list[int]) -> bool:
    """Whether seconds fall smoothly with so many devices that near the best is nearly the best."""
    return len(counts) > 1 and counts[-1] * counts[-2] > PAIRS
