"""What the chosen plan costs against the best of all plans, when both are simulated: the search and its shortcuts against exhaustive simulation.

A flow has two to four workers (batch workers, generators with a long tail, cells, workers on the host; memory that is sometimes short; onload and offload;
staleness). All plans: every composition of the workers in time and space, on every number of devices, in every number of micro-batches, with every set of
workers that stay. Plans that an executor could not tell apart are simulated once, and none of which a device alone works longer than the fastest takes.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from harness import Case

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.forecast.forecast import device_names, graph_of
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.placement.colocation import settled as with_those_there
from rlinf_lab.planning.placement.device_ranges import seatings
from rlinf_lab.planning.placement.free_memory import APART
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Arrangement, Setting
from rlinf_lab.planning.placement.to_execution_plan import execution_plan
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import (
    Cell,
    EdgeProfile,
    Lengths,
    Memory,
    Profile,
    RankRule,
    Sample,
    WorkerProfile,
)
from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, Composed, Leaf, Tree
from rlinf_lab.planning.search.problem import Cuts, Problem

FLOWS, STALE = 200, 40
SIZES = {1: ((8, 8),), 2: ((8, 8), (6, 4)), 3: ((3, 2), (4, 2)), 4: ((3, 1), (2, 2))}  # by stages: (devices, micro-batches) at most
SLACK = 0.97  # a device's work is added up from the cost tables; whole items may make the simulated one this much less


# --- flows ------------------------------------------------------------------------------------------------------
def random_flow(seed: int) -> tuple[Profile, int, int]:
    """(profile, devices, micro-batches)."""
    rng = random.Random(seed)
    count = rng.choice([2, 3, 3, 4])
    names = list("abcd"[:count])
    memory = rng.random() < 0.5
    workers = {name: _worker(rng, memory) for name in names}
    links = [(p, c) for p, c in itertools.combinations(names, 2) if names.index(c) == names.index(p) + 1 or rng.random() < 0.3]
    if count > 2 and rng.random() < 0.5:  # two branches
        links.remove(rng.choice([(p, c) for p, c in links if p != names[0] or sum(a == p for a, _ in links) > 1] or links))
    edges, cells = [EdgeProfile(p, c, whole=rng.random() < 0.2) for p, c in links], list[Cell]()
    kind = rng.random()
    if kind < 0.25:
        lengths = Lengths(4096.0, mean_tokens=rng.choice([500.0, 1500.0]), group_correlation=rng.random())
        held = Memory(10, 0.2) if memory else Memory()
        workers["a"] = WorkerProfile(workers["a"].samples, "generation", lengths=lengths, exponent=0.6, memory=held, onload_s=2, offload_s=1)
    elif kind < 0.45 and count < 4:
        seconds = rng.uniform(0.1, 0.6)
        held = Memory(6) if memory else Memory()
        env = WorkerProfile((Sample(1, 4.0, seconds), Sample(1, 64.0, 2 * seconds)), "simulator", 10, memory=Memory(2, 0.02) if memory else Memory())
        policy = WorkerProfile((Sample(1, 4.0, 0.1), Sample(1, 64.0, rng.uniform(0.3, 1.5))), calls=10, memory=held, onload_s=1)
        workers |= {"env": env, "policy": policy}
        edges += [EdgeProfile("env", "policy"), EdgeProfile("policy", "env"), EdgeProfile("env", "a", whole=rng.random() < 0.5)]
        cells.append(Cell(("env", "policy")))
        if count == 3:  # four workers in all
            del workers["c"]
            edges = [e for e in edges if "c" not in (e.producer, e.consumer)]
    if rng.random() < 0.2 and kind >= 0.45:
        workers[names[-1]] = WorkerProfile((Sample(0, 64.0, rng.uniform(1, 10)),), resource="host")
    profile = Profile(64, workers, tuple(edges), f"random {seed}", cells=tuple(cells), device_memory_gib=rng.choice([60.0, 100.0]) if memory else None)
    devices, micro_batches = rng.choice(SIZES[len(workers) - len(cells)])
    if kind < 0.25:  # responses make ten times as many plans worth simulating
        return profile, min(devices, 3), min(micro_batches, 2 if len(workers) < 3 else 1)
    return profile, devices, 1 if memory and count == 4 else micro_batches


def _worker(rng: random.Random, memory: bool) -> WorkerProfile:
    held = Memory(rng.choice([5, 20, 45]), rng.choice([0.0, 0.2])) if memory else Memory()
    work, exponent, fixed = rng.uniform(5, 60), rng.choice([0.6, 0.8, 1.0]), rng.choice([0.0, 0.3, 1.0])
    samples = tuple(Sample(n, items, fixed + work * items / 64 / n**exponent) for n in (1, 4) for items in (8.0, 64.0))
    ranks = rng.choice([RankRule(), RankRule(), RankRule(2), RankRule(divides=16)])
    switch = {"onload_s": rng.choice([0, 0.5, 2.0]), "offload_s": rng.choice([0, 0.5, 1.0])}
    return WorkerProfile(samples, ranks=ranks, memory=held, offloadable=rng.random() > 0.15, **switch)


# --- every plan -------------------------------------------------------------------------------------------------
def trees(problem: Problem, leaves: int, beside: int, grain: int) -> Iterator[Tree]:
    """Every plan of a set of leaves within a part of 2^grain micro-batches. ``beside``: staying leaves on the same devices."""
    cuts = Cuts.shared(problem)

    @functools.cache
    def of(leaves: int, beside: int, grain: int) -> tuple[Tree, ...]:
        found: list[Tree] = []
        if leaves.bit_count() == 1:
            worker = leaves.bit_length() - 1
            _, rows = problem.numbers(worker, beside)
            for option, g, code in zip(*np.nonzero(np.isfinite(rows)), strict=True):
                if g >= grain and not option:
                    found.append(Leaf(worker, (int(code),), int(g)))
            return tuple(found)
        for g, cut in itertools.product(range(grain, problem.granularities), cuts.of(leaves)):
            if g > cut.finest:
                continue
            if g == 0 or not leaves & (problem.once | problem.whole):
                parts = (of(x, beside | y & problem.staying, g) for x, y in ((cut.before, cut.after), (cut.after, cut.before)))
                for a, b in itertools.product(*parts):
                    found.append(Composed(TEMPORAL, a, b, (max(a.devices[0], b.devices[0]),), g))
            for a, b in itertools.product(of(cut.before, beside, g), of(cut.after, beside, g)):
                if (used := a.devices[0] + b.devices[0]) <= problem.devices[0]:
                    found.append(Composed(SPATIAL, a, b, (used,), g))
        return tuple(found)

    yield from of(leaves, beside, grain)


def placements(setting: Setting) -> Iterator[Placement]:
    """Every plan that fits, on the first of the ways to seat it that has the memory."""
    for arrangement in setting.arrangements():
        free = replace(arrangement, forms=replace(arrangement.forms, meeting=frozenset()))
        problem = setting.problem(free)
        sizes = {i: len(s.members) for i, s in enumerate(setting.stages) if free.forms[i] == APART}
        for tree in trees(problem, problem.everyone, 0, 0):
            yield from itertools.islice(_fitting(setting, free, tree, sizes), 1)


def _fitting(setting: Setting, free: Arrangement, tree: Tree, sizes: dict[int, int]) -> Iterator[Placement]:
    for seating in seatings(tree, sizes):
        made = Placement(setting, replace(free, seating=seating), tree)
        if not made.clash():
            yield with_those_there(made)


def least_seconds(placement: Placement) -> float:
    """Below what any run of the plan takes: a device works for all who sit on it, and items pass from worker to worker, one micro-batch of each at least."""
    setting, leaves = placement.setting, {leaf.worker: leaf for leaf in _leaves(placement.tree)}
    problem = setting.problem(placement.arrangement)
    busy, calls, totals = np.zeros(sum(setting.counts)), list[float](), list[float]()
    for i, stage in enumerate(setting.stages):
        leaf, members = leaves[i], [placement.seats[name] for name in stage.members]
        rows = problem.numbers(i, placement.beside[i])[1][:, leaf.grain]
        calls.append(float(rows[:, leaf.devices[0]].min()) if not problem.once >> i & 1 else 0.0)  # of a generator some ranks end early
        totals.append(2**leaf.grain * calls[-1])
        for name, seat in zip(stage.members, members, strict=True):
            alone = totals[-1] if len(members) == 1 else placement.member_seconds(name) * seat.micro_batches * seat.sub_batches
            busy[seat.devices] += alone
    starts, ends = [0.0] * len(totals), list(totals)
    for v in range(len(totals)):  # producers have lower numbers
        for p, c in problem.edges:
            if c == v:
                starts[v] = max(starts[v], ends[p] if problem.edges[p, c] == 0 else starts[p] + calls[p])
                ends[v] = max(ends[v], starts[v] + totals[v], ends[p] + calls[v])
    return max(float(busy.max()), max(ends) / (1 + problem.staleness))


def _leaves(tree: Tree) -> Iterator[Leaf]:
    if isinstance(tree, Leaf):
        yield tree
    for part in tree.parts():
        yield from _leaves(part)


def seconds_of(placement: Placement) -> float:
    return settled(steady(placement), placement.setting.staleness)[1]


def best_of_all(setting: Setting) -> tuple[float, int, int]:
    """(seconds of the fastest plan, how many plans there are, how many were simulated)."""
    graph, seen, waiting = graph_of(setting.profile), set[str](), list[tuple[float, int, Placement]]()
    for number, made in enumerate(placements(setting)):
        heapq.heappush(waiting, (least_seconds(made), number, made))
    least, simulated, count = np.inf, 0, len(waiting)
    while waiting and waiting[0][0] * SLACK < least:
        made = heapq.heappop(waiting)[2]
        key = execution_plan(made, graph, device_names(made), "plan").to_json()
        if key not in seen:
            seen.add(key)
            simulated += 1
            least = min(least, seconds_of(made))
    return least, count, simulated


@functools.cache
def regret(seed: int, staleness: int) -> float | None:
    """Relative; None where there is no plan at all."""
    profile, devices, micro_batches = random_flow(seed)
    try:
        chosen = plan(profile, devices, micro_batches=micro_batches, staleness=staleness).best
    except PlanError:
        return None
    least, _, _ = best_of_all(chosen.candidate.placement.setting)
    return max(0.0, chosen.seconds / least - 1) if least else 0.0


def regrets(flows: int, staleness: int = 0) -> list[float]:
    found = (r for seed in itertools.count() if (r := regret(seed, staleness)) is not None)
    return list(itertools.islice(found, flows))


def cases(smoke: bool) -> list[Case]:
    flows, stale = (3, 1) if smoke else (FLOWS, STALE)
    note = "chosen plan against the fastest of all plans, both simulated; {} random flows of two to four workers on up to eight devices{}"
    curve = (0.5, 0.8, 0.9, 0.95, 0.99, 1.0)
    return [
        Case("planner_regret, 95th percentile", "relative", lambda: float(np.quantile(regrets(flows), 0.95)), target="<= 0.05", target_of="value", runs=1,
             curve=lambda: [[q, float(np.quantile(regrets(flows), q))] for q in curve], note=note.format(FLOWS, "") + "; curve: quantile, relative"),
        Case("planner_regret, worst", "relative", lambda: max(regrets(flows)), target="<= 0.12", target_of="value", runs=1, note=note.format(FLOWS, "")),
        Case("planner_regret, staleness of one iteration, 95th percentile", "relative", lambda: float(np.quantile(regrets(stale, 1), 0.95)), runs=1,
             curve=lambda: [[q, float(np.quantile(regrets(stale, 1), q))] for q in curve],
             note=note.format(STALE, ", iterations overlap") + ": what works beside the next iteration's work on other devices the search does not count as gained"),
    ]  # fmt: skip
