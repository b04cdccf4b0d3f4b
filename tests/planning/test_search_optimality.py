"""The search against every value that any plan attains (`brute_force`), and against itself without pruning."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from brute_force import best, random_problem
from random_profiles import random_profile
from sweeps import sweep

from rlinf_lab import Profile, plan
from rlinf_lab.errors import PlanError
from rlinf_lab.planning.forecast.forecast import graph_of
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.profile.profile import Memory
from rlinf_lab.planning.search.bounds import Bounds
from rlinf_lab.planning.search.effort import FEW_COUNTS, SMOOTH, is_exact, search_of
from rlinf_lab.planning.search.pareto import ParetoFront, lower, pareto, spread, within
from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, evaluate, nodes
from rlinf_lab.planning.search.problem import FEW_LEAVES, GROUPS, LONG, Cuts, Orders, Problem, members, subsets
from rlinf_lab.planning.search.solver import Only, _Solver, guess, near, solve


def seconds(problem: Problem, ceiling: float = np.inf) -> float:
    found = solve(problem, ceiling)
    for one in found:  # a tree is what its number says
        assert evaluate(one.tree, problem) == pytest.approx(one.seconds) and one.seconds <= ceiling
        assert all(sum(n.devices) <= sum(problem.devices) for n in nodes(one.tree))
    return found[0].seconds if found else float("inf")


@dataclasses.dataclass(frozen=True)
class Family:
    """Random problems, from a seed on; what of the solver is made small, for they are; what the optimum is compared with, of which it differs now and then."""

    first: int
    fields: dict[str, Any]
    patches: dict[str, int] = dataclasses.field(default_factory=dict)
    changed: Callable[[Problem], Problem] = lambda problem: problem
    other: Callable[[Problem], Problem] | None = None


SMALL = {"leaves": (1, 4), "devices": (2, 9)}
FAMILIES = {
    "any": Family(0, SMALL),
    "some take turns as a whole": Family(
        200, {**SMALL, "plain": True}, changed=lambda p: dataclasses.replace(p, whole=p.everyone), other=lambda p: dataclasses.replace(p, whole=0)
    ),
    # Who comes for somebody who holds the same weights moves less, and the enumeration counts that by itself.
    "weights are shared": Family(500, {**SMALL, "shared": True}, other=lambda p: dataclasses.replace(p, common={})),
    "some work on the host": Family(600, {**SMALL, "host": True}),
    # A filter for large fronts, here on small ones too.
    "points are compared with fewer devices": Family(300, SMALL, {"pareto.WORTH": 0}),
    # Of large fronts; here of small ones too, in blocks of a few pairs.
    "where more devices help only the largest pairs are looked at": Family(400, SMALL, {"solver.ALL": 0, "solver.BLOCK": 50}),
    # Of four leaves some stay in their part only if points on fewer devices of either kind are compared.
    "two kinds of devices": Family(0, {"leaves": (2, 4), "devices": (1, 3), "kinds": 2}),
}


@pytest.mark.parametrize("name", FAMILIES)
@sweep(20, 80)
def test_no_plan_is_better(name: str, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    family, differ = FAMILIES[name], 0
    for what, value in family.patches.items():
        monkeypatch.setattr(f"rlinf_lab.planning.search.{what}", value)
    for seed in seeds:
        problem = family.changed(random_problem(family.first + seed, **family.fields))
        truth = best(problem)
        assert seconds(problem) == truth, f"seed {seed}"
        assert seconds(problem, ceiling=truth) == truth, f"seed {seed}, pruned as tightly as can be"
        assert seed % 4 or best(problem, most=truth) == best(problem, dominance=True, most=truth) == truth <= best(problem, most=truth - 0.5)
        differ += family.other is not None and truth != best(family.other(problem))
    assert differ or family.other is None


@sweep(20, 100)
def test_pruning_changes_nothing(seeds: range) -> None:
    """Nor where all is streamed, of which more is known (everybody else has devices beside a part), or in turns; nor on larger graphs."""
    for seed in seeds:
        leaves, devices, kinds = (((2, 6), (1, 4), 2), ((4, 6), (20, 40), 1), ((2, 6), (2, 16), 1), ((2, 6), (2, 16), 1))[seed % 4]
        problem = random_problem(seed, leaves=leaves, devices=devices, ticks=100, kinds=kinds)
        for only in (Only((SPATIAL,)), Only((TEMPORAL,)), *([Only()] if seed % 4 == 1 else [])):
            unpruned = min((f.seconds for f in _Solver(problem, np.inf, only).plans()), default=np.inf)
            for ceiling in (np.inf, unpruned):
                assert min((f.seconds for f in solve(problem, ceiling, only)), default=np.inf) == unpruned, f"seed {seed}, {only.kinds}"


def test_no_plan_of_a_large_graph_is_faster() -> None:
    """As `benchmarks/planner_optimality.py` asks of a hundred: the enumeration leaves out what is slower than the plan that was found, and finds the same."""
    for seed in (4, 14):
        problem = random_problem(seed, leaves=(5, 8), devices=(17, 64), ticks=1000)
        found = seconds(problem)
        assert best(problem, dominance=True, most=found) == found, f"seed {seed}"


def least_beside(problem: Problem, leaf: int, g: int, left: int) -> tuple[float, float]:
    """In micro-batches of this granularity or finer ones, on at most so many devices: the shortest fill, and with the last of 2^g behind it; by hand."""
    some = [(2**k, min(f, p), f) for at in zip(*problem.numbers(leaf, 0), strict=True) for k, row in enumerate(zip(*at, strict=True)) if k >= g
            for c, (f, p) in enumerate(zip(*row, strict=True)) if f < np.inf and all(a <= b for a, b in zip(problem.counts(c), problem.counts(left), strict=True))]  # fmt: skip
    shortest = min((f + (n / 2**g - 1) * m for n, m, f in some), default=np.inf)
    return shortest, shortest + (2**g - 1) * min((n / 2**g * m for n, m, _ in some), default=np.inf) if g else shortest


def is_useful(problem: Problem, ceiling: float, kinds: tuple[str, ...], leaves: int, code: int, fill: float, period: float) -> bool:
    """What `Bounds` says of one point, by hand."""
    g, own, there, least = code // problem.codes, code % problem.codes, problem.totals[-1], min(fill, period)
    others, held = [v for v in range(len(problem.names)) if not leaves >> v & 1], problem.totals[own]
    needs = [needed(problem, v, ceiling) for v in others]
    left = there - (min if TEMPORAL in kinds else sum)([n for _, n in needs] or [0])
    if 2**g * least * (held if held <= left else there) + sum(a for a, _ in needs) > there * ceiling or (held > left and TEMPORAL not in kinds):
        return False
    ways = np.linalg.matrix_power([[a == b or (a, b) in problem.edges for b in range(len(problem.names))] for a in range(len(problem.names))], 8)
    found = [max(2**g * least, (fill + (2**g - 1) * least) / (1 + problem.staleness))]
    for v in (v for v in others if any(ways[v, w] or ways[w, v] for w in members(leaves))):
        some = [fill + (2**g - 1) * least + least_beside(problem, v, 0, problem.most)[0]] if TEMPORAL in kinds else []
        too = sum(n for w, (_, n) in zip(others, needs, strict=True) if w != v) if TEMPORAL not in kinds and len(problem.devices) == 1 else 0
        for h, (first, last) in ((h, least_beside(problem, v, h, max(0, problem.most - own - int(too)))) for h in range(g + 1)):
            some.append(fill + (2 ** (g - h) - 1) * least + max(first + (2**h - 1) * 2 ** (g - h) * least, last))
        found.append(min(some) / (1 + problem.staleness))
    return max(found) <= ceiling


def needed(problem: Problem, leaf: int, ceiling: float) -> tuple[float, float]:
    """Fewest device seconds and devices within the ceiling."""
    busy = np.minimum(*problem.numbers(leaf, 0)).min(axis=0)
    some = [(2**g * s * problem.totals[c], problem.totals[c]) for (g, c), s in np.ndenumerate(busy) if s < np.inf and 2**g * s <= ceiling]
    return min((a for a, _ in some), default=np.inf), min((n for _, n in some), default=np.inf)


@sweep(14, 60)
def test_bounds_are_those_by_hand(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    told: Counter[bool] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        monkeypatch.setattr("rlinf_lab.planning.search.bounds.AT_ONCE", (8_000, 40)[seed % 2])
        problem = random_problem(seed, (3, 5), (2, 7) if seed % 3 else (1, 3), kinds=1 if seed % 3 else 2, host=seed % 4 == 1)
        ceiling, kinds = best(problem) * rng.choice([0.5, 1, 1, 1.5]), rng.choice([(SPATIAL, TEMPORAL), (SPATIAL,)])
        bounds, needs = Bounds(problem, ceiling, kinds, problem.numbers), [needed(problem, v, ceiling)[0] for v in range(len(problem.names))]
        assert bounds.exclude_all() == (max(needs) == np.inf or sum(needs) > problem.totals[-1] * ceiling), seed
        for leaves in range(1, problem.everyone) if ceiling < np.inf and not bounds.exclude_all() else ():
            some = [ceiling, ceiling / 2, *map(float, range(1, int(ceiling) * (1 + problem.staleness)))]
            points = [(rng.randrange(problem.codes * problem.granularities), rng.choice(some), rng.choice(some)) for _ in range(8)]
            kept = bounds.useful(leaves, *(np.array(c, d) for c, d in zip(zip(*points, strict=True), (int, float, float), strict=True))).tolist()
            by_hand = [is_useful(problem, ceiling, kinds, leaves, *point) for point in points]
            assert [i in kept for i in range(len(points))] == by_hand, (seed, leaves)
            told.update(by_hand)
    assert min(told.values()) > len(seeds), told


@pytest.mark.parametrize("shape", [(7,), (3, 4)])
def test_tables_and_fronts_are_what_comparing_all_with_all_gives(shape: tuple[int, ...]) -> None:
    """Of one kind of device and of two, whose numbers are ordered in part only."""
    rng, codes = np.random.default_rng(0), math.prod(shape)
    counts = list(np.ndindex(shape))
    fewer = [[k for k, b in enumerate(counts) if all(x <= y for x, y in zip(b, a, strict=True))] for a in counts]
    for size in (*range(1, 30), 3000):
        table = rng.choice([*range(9), np.inf], (2, codes)).astype(float)
        least = [[min(row[k] for k in some) for some in fewer] for row in table]
        assert within(table, shape).tolist() == least
        less = [[min((row[k] for k in fewer[i] if k != i), default=np.inf) for i in range(codes)] for row in table]
        assert lower(table, shape).tolist() == (table < less).tolist()
        code, fill, period = (rng.integers(0, k, size) for k in (2 * codes, size, size))
        period = period if size < 30 else 2 * size - fill + period // 8  # otherwise few points survive
        points = sorted(set(zip(code.tolist(), fill.tolist(), period.tolist(), strict=True)))
        front = pareto(ParetoFront.of(code, fill.astype(float), period.astype(float), 0, 0, 0), shape)
        kept = list(zip(front.code.tolist(), front.fill.tolist(), front.period.tolist(), strict=True))

        def beaten(point: tuple[int, int, int], those: list[tuple[int, int, int]], alike: bool = False) -> bool:
            g, own, there = point[0] // codes, point[0] % codes, [p for p in those if p != point]
            on = [own] if alike else fewer[own]
            return any(c // codes == g and c % codes in on and f <= point[1] and p <= point[2] for c, f, p in there)

        assert kept == sorted(kept) and set(kept) <= set(points) and not any(beaten(p, kept, alike=True) for p in kept)
        assert all(p in kept or beaten(p, kept) for p in points[::10])
        fills, falls = front.least_fill(2, shape), front.falling(2, codes)
        for g in (0, 1) if len(shape) == 1 else ():
            pairs = itertools.combinations([p for p in kept if p[0] // codes == g], 2)
            assert falls[g] == all(a < b and f >= h and p >= q for (a, f, p), (b, h, q) in pairs)
        for g, at in itertools.product(range(2), range(codes)):
            there = [f for c, f, _ in kept if c // codes == g and c % codes in fewer[at]]
            assert fills[g, at] == min(there, default=np.inf)
            assert not there or front.fill[front.best_at(g, at, shape)] == min(there)


def test_a_spread_of_a_front_is_even_and_has_both_ends_of_each_code() -> None:
    rng = random.Random(0)
    for most in (1, 2, 5, 64):
        sizes = [1, 2, most, most + 1, most + 2, *(rng.randint(1, 400) for _ in range(20))]
        codes, found = np.repeat(np.arange(len(sizes)), sizes), list[int]()
        for start, size in zip(itertools.accumulate([0, *sizes]), sizes, strict=False):
            found += [start + k for k in sorted({0, size - 1, *(min(size - 1, math.ceil(i * size / most)) for i in range(most))})]
        assert spread(codes, most).tolist() == found


def test_near_is_nearly_the_best_where_seconds_fall_smoothly() -> None:
    rng = np.random.default_rng(0)
    for _ in range(6):
        devices, count = int(rng.integers(200, 400)), int(rng.integers(2, 5))
        n = np.arange(devices + 1, dtype=float)
        with np.errstate(divide="ignore"):
            tables = [
                np.array([w * (64 / n) ** p / 2**g + o for g in range(4)])
                for w, p, o in zip(rng.uniform(20, 600, count), rng.uniform(0.5, 1.0, count), rng.uniform(0, 2, count), strict=True)
            ]
        edges = {(a, b): 3 for a in range(count) for b in range(a + 1, count) if b == a + 1 or rng.random() < 0.3}
        switch = tuple(rng.uniform(0, 5, count))
        problem = Problem(tuple("abcd"[:count]), edges, (devices,), 4, lambda leaf, _, tables=tables: tables[leaf], switch, switch)
        found = near(problem)[0]
        best_of_all = solve(problem)[0].seconds
        assert best_of_all <= found.seconds <= 1.005 * best_of_all
        assert evaluate(found.tree, problem) == pytest.approx(found.seconds)


# --- many workers ---------------------------------------------------------------------------------------------------
def problem_of(edges: Iterable[tuple[int, int]], count: int) -> Problem:
    names, nothing = tuple(f"w{i}" for i in range(count)), (0.0,) * count
    return Problem(names, dict.fromkeys(edges, 1), (1,), 2, lambda leaf, context: pytest.fail("no seconds are asked for"), nothing, nothing)


def profile_of(edges: Iterable[tuple[int, int]], count: int) -> Profile:
    workers = {f"w{i}": {"samples": [{"devices": 1, "items": 8, "seconds": 1.0 + i % 3}]} for i in range(count)}
    return Profile.from_dict({"items": 8, "workers": workers, "edges": [{"producer": f"w{p}", "consumer": f"w{c}"} for p, c in edges]})


@pytest.mark.parametrize("seed", range(10))
def test_cuts_are_all_subsets_that_nobody_else_feeds(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(2, 8)
    names = rng.sample(range(count), count)  # their numbers say nothing of their order
    edges = [(names[i], names[j]) for i in range(count) for j in range(i + 1, count) if rng.random() < 0.3]
    cuts = Cuts.shared(problem_of(edges, count))
    for leaves in [2**count - 1, *(rng.randrange(1, 2**count) for _ in range(20))]:
        free = [s for s in subsets(leaves) if not any(s >> c & 1 and (leaves & ~s) >> p & 1 for p, c in edges)]
        assert [c.before for c in cuts.of(leaves)] == sorted(free, key=lambda s: (s.bit_count(), s))
        assert all(c.after == leaves & ~c.before for c in cuts.of(leaves))


def test_a_chain_has_one_order_however_long() -> None:
    chain = problem_of([(i, i + 1) for i in range(LONG - 1)], LONG)
    assert Orders.of(chain).all and len(Cuts.shared(chain).of(chain.everyone)) == LONG - 1  # among a million subsets


@pytest.mark.parametrize("count", [LONG + 1, 300])
@pytest.mark.parametrize("linked", [True, False])
def test_longer_ones_are_cut_between_groups_of_neighbours_and_each_group_in_one_way(count: int, linked: bool) -> None:
    cuts = Cuts.shared(problem_of([(i, i + 1) for i in range(count - 1)] if linked else [], count))
    seen, open_ = set[int](), [(1 << count) - 1]
    while open_:
        if (leaves := open_.pop()) not in seen and leaves & (leaves - 1):
            seen.add(leaves)
            found = cuts.of(leaves)
            assert found and all(c.before | c.after == leaves and not c.before & c.after for c in found)
            open_ += [part for c in found for part in (c.before, c.after)]
    assert len(cuts.of((1 << count) - 1)) == GROUPS - 1
    assert len(seen) <= GROUPS * GROUPS // 2 + count  # all of a chain: half its square


def test_a_generator_far_above_is_found_in_a_ladder_of_diamonds() -> None:
    """Every path through it would be two to the number of its steps."""
    steps, edges = 18, []
    for i in range(steps):
        edges += [(3 * i, 3 * i + 1), (3 * i, 3 * i + 2), (3 * i + 1, 3 * i + 3), (3 * i + 2, 3 * i + 3)]
    graph = graph_of(profile_of(edges, 3 * steps + 1))
    assert len(graph.nodes) == 3 * steps + 1


@pytest.mark.parametrize("edges", [[], [e for i in range(1, 11) for e in ((0, i), (i, 11))]], ids=["unlinked", "fan"])
def test_of_many_workers_one_order_is_searched_and_plans_say_so(edges: list[tuple[int, int]]) -> None:
    plans = plan(profile_of(edges, 12), 2, micro_batches=2)
    assert any("12 workers can be composed in more ways than can be searched" in note for note in plans.notes)
    assert plans.best.seconds >= plans.bound.seconds
    chain = plan(profile_of([(i, i + 1) for i in range(11)], 12), 2, micro_batches=2)
    assert not any("more ways" in note for note in chain.notes), "of a chain there is one order"
    orders = Orders.of(problem_of(edges, 12))
    assert all(len(orders.upstream(2**n - 1)) == n - 1 for n in range(2, 13))


def many(devices: int, count: int = 9) -> Profile:
    """A chain in which every number of devices up to so many is faster than any fewer."""
    made = profile_of([(i, i + 1) for i in range(count - 1)], count)
    samples = ({"devices": devices, "items": 4096, "seconds": 1.0 + i % 3} for i in range(count))
    return Profile.from_dict({**made.to_dict(), "items": 4096, "workers": {n: {"samples": [s]} for n, s in zip(made.workers, samples, strict=True)}})


@pytest.mark.long
@pytest.mark.parametrize("memory", [None, 10.0])
def test_many_workers_on_many_devices_are_looked_for_over_few_counts_and_plans_say_so(memory: float | None) -> None:
    profile = many(256)
    if memory:
        held = {n: dataclasses.replace(w, memory=Memory(6.0), onload_s=0.001) for n, w in profile.workers.items()}
        profile = profile.replace(workers=held, device_memory_gib=memory)
        assert len(Setting.of(profile, 256, 8).arrangements()) > 10, "of which two are looked at"
    plans = plan(profile, 256, micro_batches=8, simulate=False)
    note = next(note for note in plans.notes if "9 workers on 256 devices are more than an exact search can look at" in note)
    assert "the lower bound holds for all" in note and "Next: fewer devices" in note
    assert plans.bound.seconds <= plans.best.seconds <= 1.3 * plans.bound.seconds
    for made in plans:
        placement = made.candidate.placement
        assert not placement.misfit() and placement.used <= 256


@pytest.mark.parametrize(
    ("count", "devices", "exact"),
    [(FEW_LEAVES, FEW_COUNTS, True), (SMOOTH, 400, True), (5, FEW_COUNTS, True), (FEW_LEAVES + 1, 8, False), (5, FEW_COUNTS + 1, False), (2, 501, False)],
)
def test_few_leaves_or_few_counts_are_searched_exactly(count: int, devices: int, exact: bool) -> None:
    table = np.array([[np.inf, *(1 / np.arange(1.0, devices + 1) / 2**g)] for g in range(2)])
    problem = dataclasses.replace(problem_of([(i, i + 1) for i in range(count - 1)], count), devices=(devices,), table=lambda leaf, _: table)
    assert is_exact(problem) == exact and search_of(problem, Only((TEMPORAL,))) is solve
    assert search_of(problem, Only()) is (solve if exact else near if count <= SMOOTH else guess)


@pytest.mark.long
def test_a_search_over_few_counts_is_close_to_an_exact_one() -> None:
    ratios = []
    for seed in range(20):
        problem = random_problem(seed, leaves=(3, 6), devices=(20, 40), ticks=100)
        exact, found = solve(problem), guess(problem)
        assert bool(found) == bool(exact), seed
        if exact:
            assert evaluate(found[0].tree, problem) == pytest.approx(found[0].seconds) and found[0].seconds >= exact[0].seconds * (1 - 1e-9), seed
            assert sum(found[0].tree.devices) <= sum(problem.devices)
            ratios.append(found[0].seconds / exact[0].seconds)
    assert np.mean(ratios) < 1.03 and max(ratios) < 1.2, ratios


@sweep(10, 60)
def test_company_that_changes_nothing_is_not_looked_at_again(seeds: range) -> None:
    """The same plans as with a front for every set of those who stay."""
    fewer = 0
    for seed in seeds:
        profile = random_profile(seed)
        try:
            setting = Setting.of(profile, 4, micro_batches=4)
        except PlanError:
            continue
        for arrangement in setting.arrangements()[:3]:
            problem = setting.problem(arrangement)
            fewer += any(mask != arrangement.staying & ~(1 << v) for v, mask in enumerate(problem.minded or ()))
            each = [[(f.seconds, f.tree) for f in solve(p)] for p in (problem, dataclasses.replace(problem, minded=None))]
            assert each[0] == each[1], seed
    assert fewer > len(seeds) // 4
