"""Workers that cost exactly what their profile says do not drift, however a run cuts their batches and whichever rank takes them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from sweeps import sweep
from timed_flows import Timed

import rlinf_lab as lab
from rlinf_lab.planning.planner.planner import Planned
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.planning.simulator.scripts import SimCall, Turn, get, put
from rlinf_lab.planning.simulator.scripts import run as compute
from rlinf_lab.planning.simulator.simulator import ALL, Simulator
from rlinf_lab.timeline.timeline import Timeline


@dataclass
class Costs:
    """Seconds of a batch, and of each item; ``asks``: items of each get where it does not leave that to the plan."""

    fixed: float
    each: float
    asks: int | None = None

    def ns(self, items: int) -> int:
        return round((self.fixed + self.each * items) * 1e9)


@dataclass
class Case:
    flow: lab.Workflow
    profile: Profile
    calls: list[SimCall]


def case(seed: int, asking: bool = True) -> Case:
    """source > stage > .. > sink, or source > two stages > join; ranks, groups, bounds and whole batches by chance."""
    rng = random.Random(seed)
    group = rng.choice([1, 1, 1, 2, 5, 16])
    items = group * rng.randint(2, 30)
    fork = rng.random() < 0.3
    names = ["source", "left", "right", "join"] if fork else ["source", *(f"m{i}" for i in range(rng.randint(0, 2))), "sink"]
    asks = [None, None, None, 1, 3, ALL] if asking else [None]
    of = {n: Costs(rng.choice([0.0, 0.01, 0.1, 1.0]), rng.choice([0.01, 0.05, 0.2]), rng.choice(asks)) for n in names}
    of["source"].fixed, group = 0.0, 1 if fork else group
    ends = [("source", "left"), ("source", "right"), ("left", "join"), ("right", "join")] if fork else list(itertools.pairwise(names))
    whole = {e: not fork and rng.random() < 0.15 for e in ends}
    flow, calls = lab.Workflow(f"random {seed}"), []
    channels = {e: flow.channel(f"{e[0]}_{e[1]}", capacity=rng.choice([None, None, 2, 7]), whole=whole[e], group=group) for e in ends}
    workers = {n: flow.worker(Timed, items, of[n].fixed, of[n].each, group, name=n) for n in names}
    for n in names:
        reads, writes = [channels[e].name for e in ends if e[1] == n], [channels[e].name for e in ends if e[0] == n]
        calls.append(SimCall(n, ("make", "work", "join")[len(reads)], script(of[n], reads, writes, items, group), tuple(reads), tuple(writes), (), not reads))

    @flow.iteration
    def iteration() -> None:
        for c in calls:
            getattr(workers[c.worker], c.method)(*(next(ch for ch in channels.values() if ch.name == name) for name in (*c.reads, *c.writes)))

    one = {n: 1 if n in ("source", "join") else rng.choice([1, 2, 3, 8]) for n in names}
    believed = {
        n: WorkerProfile(tuple(Sample(1, float(k), c.fixed + c.each * k) for k in (group, items)), ranks=RankRule(most=one[n])) for n, c in of.items()
    }  # fmt: skip
    return Case(flow, Profile(items, believed, tuple(EdgeProfile(*e, group, whole[e]) for e in ends)), calls)


def script(costs: Costs, reads: list[str], writes: list[str], items: int, group: int) -> Callable[[Turn], Any]:
    def source(turn: Turn) -> Any:
        for _ in range(items // group):
            yield compute(costs.ns(group))
            for channel in writes:
                yield put(channel)

    def go(turn: Turn) -> Any:
        while n := (yield get(reads[0], costs.asks)):
            for channel in reads[1:]:
                yield get(channel, n)
            yield compute(costs.ns(n * group))
            for channel in writes:
                yield put(channel, n)

    return go if reads else source


def ran(made: Case, planned: Planned, iterations: int = 5) -> Timeline:
    return Simulator(made.flow, planned.execution).simulate(made.calls, iterations)


@sweep(20, 120)
def test_nobody_drifts_who_costs_what_was_said(seeds: range) -> None:
    for seed in seeds:
        made = case(seed)
        for planned in lab.plan(made.flow, 1 + seed % 8, made.profile, micro_batches=(4, 16)[seed % 2], simulate=False, quick=True):
            found = lab.replan(ran(made, planned), planned)
            assert not any(d.sustained for d in found.drifts) and found.proposal is None, (seed, found, planned)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_who_is_really_slower_or_faster_drifts(factor: float) -> None:
    """The run costs what is true; the plan was made for workers of which the first after the source takes a part of that."""
    for seed in range(8):
        made = case(seed, asking=False)
        name = made.calls[1].worker
        planned = lab.plan(made.flow, 1 + seed % 8, made.profile.scaled(name, 1 / factor), simulate=False, quick=True).best
        drifts = {d.worker: d for d in lab.replan(ran(made, planned), planned).drifts}
        assert drifts[name].factor == pytest.approx(factor, rel=1e-3) and [w for w, d in drifts.items() if d.sustained] == [name], seed
