"""The plan search: is it optimal under its cost model?

Optimality is checked against every value that any plan attains (`tests/planning/brute_force.py`, no dominance, no bounds, one device count at a time).
Where those are too many, against the same enumeration without dominated values, and on large graphs also without what is slower than the plan that was
found: it then shows that there is none faster. The solver without its bounds shows that they lose nothing; it is no independent check of the rest.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
from harness import Case

from rlinf_lab.planning.search.problem import Problem
from rlinf_lab.planning.search.solver import Only, _Solver, solve

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "planning"))
from brute_force import best, random_problem

EVERY_VALUE = 200  # of the small graphs: enumerated without dominance, which takes three times as long as all the rest
ENUMERATED = 100  # of the large graphs: five seconds for each


def seconds(problem: Problem) -> float:
    return min((f.seconds for f in solve(problem)), default=float("inf"))


def gap(found: float, truth: float) -> float:
    return 0.0 if found == truth else found / truth - 1


def small(graphs: int) -> float:
    """Largest relative gap over random branching graphs of at most 5 leaves and 16 devices; all values of the first ones, undominated ones of the others."""
    problems = (random_problem(seed, (2, 5), (2, 16)) for seed in range(graphs))
    return max(gap(seconds(p), best(p, dominance=seed >= EVERY_VALUE)) for seed, p in enumerate(problems))


@cache
def large(graphs: int, checked: int) -> tuple[float, list[float]]:
    """(largest relative gap, CPU seconds of each search) over random graphs of 5 to 8 leaves and 17 to 64 devices, a thousandth of a second fine."""
    gaps, took = [0.0], []
    for seed in range(graphs):
        problem = random_problem(seed, (5, 8), (17, 64), ticks=1000)
        start = time.process_time()
        found = seconds(problem)
        took.append(time.process_time() - start)
        gaps.append(gap(found, min((f.seconds for f in _Solver(problem, np.inf, Only()).plans()), default=float("inf"))))
        if seed < checked:
            gaps.append(gap(found, best(problem, dominance=True, most=found)))
    return max(gaps), took


def cases(smoke: bool) -> list[Case]:
    graphs, checked = (2, 0) if smoke else (200, ENUMERATED)
    return [
        Case("planner_optimality_small", "largest relative gap", lambda: small(5 if smoke else 1_000), target="<= 0", target_of="value", runs=1,
             note=f"1,000 random branching graphs, V <= 5, N <= 16, with stays, streams, whole batches, staleness; every value of {EVERY_VALUE} enumerated, "
             "of the others all but dominated ones"),
        Case("planner_optimality_large", "largest relative gap", lambda: large(graphs, checked)[0], target="<= 0", target_of="value", runs=1,
             note=f"200 graphs, V 5-8, N 17-64: {ENUMERATED} against an enumeration written apart from the solver (without dominated values, and without what "
             "is slower than the plan that was found), all 200 against the solver without its bounds"),
        Case("planner_optimality_large_seconds", "s, median", lambda: statistics.median(large(graphs, checked)[1]), target="<= 1", target_of="value", runs=1,
             curve=lambda: [[q, float(np.quantile(large(graphs, checked)[1], q))] for q in (0.5, 0.9, 0.95, 1.0)],
             note="CPU s of one core for the same graphs; curve: quantile, s"),
    ]  # fmt: skip
