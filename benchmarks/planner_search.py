"""The plan search: how long does it take, alone and within `lab.plan`, as the devices grow. (`planner_optimality`: is it right?)"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import Case

from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.search.problem import Problem
from rlinf_lab.planning.search.solver import solve

CASE_4 = Path(__file__).parents[1] / "docs" / "profiles" / "grpo_7b_case4.json"
WORK, EXPONENTS = (591.3, 102.3, 367.7), (0.66, 0.875, 0.86)  # seconds of 7B GRPO on 64 devices and how they fall with devices: RLinf, Fig. 9
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def chain(devices: int, granularities: int = 7) -> Problem:
    """Three leaves, every device count valid (the worst case), switches of five seconds."""
    n = np.arange(devices + 1, dtype=float)
    with np.errstate(divide="ignore"):
        tables = [np.array([w * (64 / n) ** p / 2**g for g in range(granularities)]) for w, p in zip(WORK, EXPONENTS, strict=True)]
    edges = {(0, 1): granularities - 1, (1, 2): granularities - 1}
    return Problem(("a", "b", "c"), edges, (devices,), granularities, lambda leaf, _: tables[leaf], (5.0,) * 3, (5.0,) * 3)


def with_fixed_costs(devices: int, granularities: int = 7) -> Problem:
    """Three leaves whose calls cost something however small they are, and who switch in different times: micro-batches of many sizes are worth looking at."""
    n = np.arange(devices + 1, dtype=float)
    leaves = ((700, 0.62, 0.05), (90, 0.9, 0.02), (400, 0.83, 0.1))  # seconds on one device, exponent, seconds of a call
    with np.errstate(divide="ignore"):
        tables = [np.array([w * n**-p / 2**g + fixed for g in range(granularities)]) for w, p, fixed in leaves]
    edges = {(0, 1): granularities - 1, (1, 2): granularities - 1}
    return Problem(("a", "b", "c"), edges, (devices,), granularities, lambda leaf, _: tables[leaf], (4.0, 2.0, 6.0), (2.0, 1.0, 5.0))


def milliseconds(devices: int, made: Callable[[int], Problem] = chain) -> float:
    problem = made(devices)
    start = time.process_time()
    solve(problem)
    return 1e3 * (time.process_time() - start)


def whole(devices: int) -> float:
    """CPU seconds of `lab.plan`: every structure searched, followed, six plans or more simulated, explained, bounded."""
    profile = Profile.load(CASE_4)
    start = time.process_time()
    plan(profile, devices)
    return time.process_time() - start


def cases(smoke: bool) -> list[Case]:
    note = "CPU ms of one core; 64 micro-batches at the finest, every device count valid, power-law seconds, switch costs"
    return [
        *[
            Case("planner_search_time" if n == 64 else f"planner_search_time_{n}", "ms", lambda n=n: milliseconds(n), target=f"<= {most}", target_of="value",
                 runs=3 if smoke else 15, curve=(lambda: [[k, milliseconds(k)] for k in SIZES]) if n == 64 and not smoke else None,
                 note=f"chain of three on {n} devices; {note}")
            for n, most in ((64, 10), (1024, 100), (4096, 1000))
        ],
        *[
            Case(f"planner_search_fixed_{n}", "ms", lambda n=n: milliseconds(n, with_fixed_costs), target=f"<= {most}", target_of="value",
                 runs=3 if smoke else 7, note=f"the same with a fixed cost for each call, {n} devices; {note}")
            for n, most in ((1024, 100), (4096, 1000))[: 1 if smoke else 2]
        ],
        *[
            Case("plan_whole_time" if n == 64 else f"plan_whole_time_{n}", "s", lambda n=n: whole(n), target=target, target_of="value", runs=3,
                 note=f"CPU s of one core; lab.plan of docs/profiles/grpo_7b_case4.json on {n} devices: searched, followed, simulated, explained, bounded")
            for n, target in ((64, ""), (1024, ""), (4096, "<= 10"))[: 1 if smoke else 3]
        ],
    ]  # fmt: skip
