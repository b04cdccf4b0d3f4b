"""Random plan-search problems, and every value that any plan of them attains: no dominance, no bounds, sets of plain numbers.

Written apart from the solver on purpose: it follows the rules of composition one device count at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from functools import cache

import numpy as np

from rlinf_lab.planning.search.problem import Problem


def random_problem(
    seed: int, leaves: tuple[int, int] = (2, 5), devices: tuple[int, int] = (2, 16), plain: bool = False, ticks: int = 1, kinds: int = 1,
    shared: bool = False, host: bool = False,
) -> Problem:
    """A branching graph with random rank rules, memory, switches, and kinds of devices of different speed.

    ``plain``: without stays, streams, whole batches, leaves that are handed everything at once and staleness; ``ticks``: of a second.
    ``shared``: some leaves hold weights together, and what of a switch is left of them where one comes for the other is anything.
    ``host``: some leaves work on no device.
    """
    rng = random.Random(seed)
    count, grains = rng.randint(*leaves), rng.choice([2, 3, 3, 4])
    there = tuple(rng.randint(*devices) for _ in range(kinds))
    speeds = [1.0, *(rng.choice([0.5, 0.7, 1.5]) for _ in there[1:])]
    density = rng.random()
    edges = {
        (p, c): 0 if not plain and rng.random() < 0.15 else rng.randint(1, grains - 1) if rng.random() < 0.3 else grains - 1
        for p, c in itertools.combinations(range(count), 2)
        if rng.random() < density
    }
    staying = 0 if plain else sum(1 << v for v in range(count) if rng.random() < 0.3)
    once = 0 if plain else sum(1 << v for v in range(count) if rng.random() < 0.2)
    cap = rng.choice([1e9, rng.randint(20, 60)])
    facts = [_leaf(rng, max(there)) for _ in range(count)]
    for v in [v for v in range(count) if rng.random() < 0.4] if host else ():
        facts[v], staying = (*facts[v][:3], {0}, *facts[v][4:]), staying & ~(1 << v)

    @cache
    def table(leaf: int, context: int) -> np.ndarray:
        work, exponent, fixed, valid, resident, activations, _ = facts[leaf]
        beside = sum(facts[v][6] for v in range(count) if context >> v & 1)
        rows = np.full((grains, *(n + 1 for n in there)), np.inf)
        for g, kind in itertools.product(range(1 if handed >> leaf & 1 else grains), range(kinds)):
            for n in range(there[kind] + 1):
                if n in valid and resident / max(1, n) + activations / 2**g + beside <= cap:
                    # Whole seconds, divisible as often as micro-batches are halved: sums are exact.
                    part = ticks * work * max(1, n) ** -exponent / speeds[kind]
                    at = tuple(n if k == kind else 0 for k in range(kinds))
                    rows[(g, *at)] = 2 ** (grains - 1 - g) * max(1, round(part)) + ticks * (fixed + 3 * bool(beside))
        return rows.reshape(grains, -1)

    def seconds() -> tuple[float, ...]:
        return tuple(ticks * float(rng.choice([0, 0, 2, 5])) for _ in range(count))

    def streams(leaf: int, context: int) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of an uneven stream: one with a longer fill, one with a longer period."""
        rows, more = table(leaf, context), ticks * 2.0 ** np.arange(grains - 1, -1, -1)[:, None]
        return np.array([rows + 2 * more, rows + more]), np.array([rows, rows + more])

    staleness = 0 if plain else rng.choice([0, 0, 1, 2])
    handed = 0 if plain else sum(1 << v for v in range(count) if rng.random() < 0.15)
    made = Problem(tuple("abcdefgh"[:count]), edges, there, grains, table, seconds(), seconds(), staying, once, staleness, streams)
    return dataclasses.replace(made, common=_common(rng, made)) if shared else made


def _common(rng: random.Random, problem: Problem) -> dict[tuple[int, int], tuple[float, float]]:
    """Each leaf holds one of two weights, or none; of whole seconds it needs any number where another holder comes or goes."""
    count = len(problem.names)
    held = [rng.choice([0, 1, 1, 2]) for _ in range(count)]
    left = [tuple(float(rng.randint(0, int(s))) for s in (problem.onload[v], problem.offload[v])) for v in range(count)]
    return {(v, u): left[v] for v, u in itertools.permutations(range(count), 2) if held[v] and held[v] == held[u]}


def _leaf(rng: random.Random, most: int) -> tuple:
    kind = rng.random()
    valid = set(range(1, most + 1))
    if kind < 0.35:
        step = rng.randint(1, 3)
        valid = {n for n in valid if n % step == 0}
    elif kind < 0.6:
        valid = {n for n in valid if n & (n - 1) == 0}
    elif kind < 0.7:
        valid = {rng.randint(1, most)}
    return rng.randint(1, 24), rng.choice([0.0, 0.5, 0.8, 1.0, 1.3]), rng.randint(0, 2), valid, rng.randint(0, 60), rng.randint(0, 40), rng.randint(1, 10)


def cuts(problem: Problem, leaves: int):
    """(before, after, finest granularity across, linked)."""
    part = (leaves - 1) & leaves
    while part:
        rest = leaves & ~part
        if not any(rest >> p & 1 and part >> c & 1 for p, c in problem.edges):
            across = [f for (p, c), f in problem.edges.items() if part >> p & 1 and rest >> c & 1]
            yield part, rest, min([problem.granularities - 1, *across]), bool(across)
        part = (part - 1) & leaves


def _ends(problem: Problem, leaves: int, side: int) -> set[int]:
    """The leaves that have nobody before (1) or after (0) them in the set."""
    inner = {e[side] for e in problem.edges if leaves >> e[0] & 1 and leaves >> e[1] & 1}
    return {v for v in range(len(problem.names)) if leaves >> v & 1 and v not in inner}


def switch(problem: Problem, leaving: int, coming: int) -> float:
    """The slowest of those who leave, then of those who come; of weights that both of a pair hold only the rest moves."""
    total = 0.0
    for leaves, others, seconds, side in ((leaving, coming, problem.offload, 0), (coming, leaving, problem.onload, 1)):
        stay = {u for u in range(len(problem.names)) if (others & problem.staying) >> u & 1}
        mates = _ends(problem, others, 1 - side) | stay
        took = [0.0]
        for v in _ends(problem, leaves, side):
            if not problem.staying >> v & 1:
                known = [problem.common[v, u][1 - side] for u in mates if (v, u) in problem.common]
                took.append(min(known) if known else seconds[v])
        total += max(took)
    return total


def every_value(problem: Problem, dominance: bool = False, most: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """(fills, periods) of the whole iteration as one micro-batch on at most all devices: every pair that some plan attains.

    ``dominance``: without pairs that another one on the same devices is as good as in both, for graphs that are too large otherwise.
    ``most``: without pairs that are part of slower plans only. A part that 2^g micro-batches pass through makes an iteration take 2^g times the smaller of its
    two numbers, and no iteration ends before one of its micro-batches has.
    """

    @cache
    def values(leaves: int, context: int, g: int, counts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        found = [(np.empty(0), np.empty(0))]
        up_to = tuple(slice(0, n + 1) for n in counts)
        if leaves.bit_count() == 1:
            options = problem.numbers(leaves.bit_length() - 1, context)
            for fill, period in zip(options[0][:, g], options[1][:, g], strict=True):
                fill, period = (r.reshape(problem.shape)[up_to] for r in (fill, period))
                found.append((fill[np.isfinite(period)], period[np.isfinite(period)]))
        if g + 1 < problem.granularities:
            fill, period = values(leaves, context, g + 1, counts)
            found.append((fill + period, 2 * period))
        for a, b, finest, linked in cuts(problem, leaves):
            if g > finest:
                continue
            if g == 0 or not (a | b) & (problem.once | problem.whole):
                there, back = switch(problem, a, b), switch(problem, b, a)
                fills = [np.unique(values(x, context | y & problem.staying, g, counts)[0]) for x, y in ((a, b), (b, a))]
                fills = [f[:1] for f in fills] if dominance else fills  # of equal devices the shortest fill is the best of both
                both = np.add.outer(*fills).ravel() + there
                found.append((both, both + back))
            for part in itertools.product(*(range(n + 1) for n in counts)):
                rest = tuple(n - k for n, k in zip(counts, part, strict=True))
                parts = values(a, context, g, part), values(b, context, g, rest)
                if len(parts[0][0]) and len(parts[1][0]):
                    found.append(_streamed(*parts, linked))
        fill, period = np.concatenate([f for f, _ in found]), np.concatenate([p for _, p in found])
        in_time = (2.0**g * np.minimum(fill, period) <= most) & (fill <= most * (1 + problem.staleness))
        distinct = _distinct(fill[in_time], period[in_time])
        return _undominated(*distinct) if dominance else distinct

    return values(problem.everyone, 0, 0, problem.devices)


def _streamed(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], linked: bool) -> tuple[np.ndarray, np.ndarray]:
    fills = np.add.outer(a[0], b[0]) if linked else np.maximum.outer(a[0], b[0])
    return _distinct(fills.ravel(), np.maximum.outer(a[1], b[1]).ravel())


def _distinct(fill: np.ndarray, period: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Seconds are whole numbers below 2^30: a pair is one integer."""
    both = np.unique((fill.astype(np.int64) << 30) + period.astype(np.int64))
    return (both >> 30).astype(float), (both & (1 << 30) - 1).astype(float)


def _undominated(fill: np.ndarray, period: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In order of fill: only those with a shorter period than all before."""
    least = np.minimum.accumulate(period)
    kept = np.r_[True, period[1:] < least[:-1]][: len(fill)]
    return fill[kept], period[kept]


def best(problem: Problem, dominance: bool = False, most: float = np.inf) -> float:
    """Seconds between iterations of the best plan; inf when there is none. Right where it is at most ``most``; of slower plans only some are looked at."""
    fill, period = every_value(problem, dominance, most)
    return float(np.min(np.maximum(period, fill / (1 + problem.staleness)), initial=np.inf))
