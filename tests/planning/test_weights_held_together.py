"""Weights that several workers hold: once in memory, no switch for each other, the same in the search, in the simulator and in a run."""

from __future__ import annotations

import dataclasses
import itertools
import random
import threading
from collections import Counter
from collections.abc import Sequence

import pytest
from driving import executed
from random_flows import MS, Actor, Scenario, scenario
from sweeps import sweep

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import EdgeProfile, Memory, Profile, Sample, WorkerProfile
from rlinf_lab.planning.simulator.simulator import Simulator
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Worker

SWITCHES = (SpanKind.ONLOAD, SpanKind.OFFLOAD)


def worker(own: float, shared: float = 0.0, name: str = "model", seconds: float = 8.0, switch: float = 1.0, **more: object) -> WorkerProfile:
    memory = Memory(own, shared_gib=shared, shared_as=name if shared else "")
    return WorkerProfile((Sample(1, 64.0, seconds),), memory=memory, onload_s=switch, offload_s=switch, **more)


def chain(gib: float, **workers: WorkerProfile) -> Profile:
    edges = tuple(EdgeProfile(p, c, whole=True) for p, c in itertools.pairwise(workers))
    return Profile(64, workers, edges, device_memory_gib=gib)


def test_what_two_hold_is_on_a_device_once() -> None:
    both = plan(chain(40, policy=worker(0, 15), learner=worker(25, 15)), 1, micro_batches=1)
    assert both.best.seconds == 16 and all(at["stays"] for at in both.best.placement.values())
    apart = plan(chain(40, policy=worker(15), learner=worker(40)), 1, micro_batches=1).best
    assert apart.seconds == 16 + 4, "without the word they leave for each other"


def test_a_plan_that_runs_is_not_said_not_to_fit() -> None:
    """Both never leave; 15 GiB are counted once."""
    def both(own: float) -> Profile:
        return chain(40, policy=worker(5, 15, offloadable=False), learner=worker(own, 15, offloadable=False))

    assert plan(both(20), 1).best.seconds > 0
    with pytest.raises(PlanError, match=r"'learner' keeps 35.1 GiB there \(offloadable: false, 15 GiB of it the same weights\), .* memory_gib=40.1,"):
        plan(both(20.1), 1)


# --- the simulator and a run ---------------------------------------------------------------------------------
class Held:
    """Where weights are that several workers hold."""

    def __init__(self, part: float) -> None:
        self.part, self.there, self.lock = part, False, threading.Lock()


class Sharer(Actor):
    """Moves what `workers.residence` would move, and takes as long."""

    def _switch(self, order: str, present: Sequence[Worker], absent: Sequence[Worker]) -> bool:
        held = HELD.get(self.name)
        if held is None:
            return super()._switch(order, present, absent)
        with held.lock:
            mates = any(HELD.get(w.name) is held for w in present)
            whole = not held.there if order == "onload" else held.there and not mates
            if whole:
                held.there = order == "onload"
        self.compute(self.switch[order == "offload"] * self.unit * (1.0 if whole else 1 - held.part))
        return whole or held.part < 1

    def _shared(self, other: Worker) -> float:
        mine = HELD.get(self.name)
        return mine.part if mine is not None and HELD.get(other.name) is mine else 0.0


HELD: dict[str, Held] = {}


def sharing(seed: int, monkeypatch: pytest.MonkeyPatch) -> Scenario | None:
    """A random flow in which some workers of one rank each share weights on a device on which they time-share."""
    monkeypatch.setattr("random_flows.Actor", Sharer)
    made, rng = scenario(seed, []), random.Random(seed)
    names = [s.name for s in made.stages if made.plan.ranks(s.name) == 1 and made.plan.placements[s.name][0]]
    if len(names) < 2 or made.plan.fused:
        return None
    some = rng.sample(names, rng.randint(2, min(3, len(names))))
    part = rng.choice((1.0, 1.0, 0.5))
    HELD.clear()
    HELD.update(dict.fromkeys(some, Held(part)))
    for name in some:
        made.switch[name] = (4 * MS, 2 * MS)  # the same for all: who of those who leave at the same time takes the weights is anybody's
    spots = {n: made.plan.placements[some[0]] if n in some else p for n, p in made.plan.placements.items()}
    changed = dataclasses.replace(made.plan, placements=spots, memory={s.name: 1 for s in made.stages}, device_memory=1)
    return dataclasses.replace(made, plan=changed)


def lines(timeline: Timeline, sharers: set[str]) -> Counter:
    """Spans; those in which the shared weights move without saying whose, and without what those wait for meanwhile."""
    waits = (SpanKind.GET, SpanKind.LOCK)
    return Counter(
        (r.kind, r.start_ns, r.end_ns, "somebody" if r.kind in SWITCHES and r.track.worker in sharers else (r.track.worker, r.track.rank), r.name)
        for r in timeline.rows() if r.track.worker not in sharers or r.kind not in waits
    )  # fmt: skip


@sweep(25, 60)
def test_simulated_and_executed_timelines_are_equal_with_shared_weights(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    monkeypatch.setattr(Actor, "onload", lambda self: self.compute(self.switch[0] * self.unit))
    compared, alone = 0, 0
    for seed in seeds:
        if (made := sharing(seed, monkeypatch)) is None:
            continue
        actors = {s.name: made.flow.declaration(s.name) for s in made.stages}
        for name, declared in actors.items():
            stage, _, *rest = declared.args
            declared.args = (stage, tuple(ns // MS for ns in made.switch[name]), *rest)
        parts = {name: held.part for name, held in HELD.items()}
        ran = lines(executed(made.flow, made.plan), set(parts))
        simulated = lines(Simulator(made.flow.graph, made.plan, made.switch, shared=[parts]).simulate(made.sim_calls(), 3), set(parts))
        assert ran == simulated, (seed, made.plan, parts, ran - simulated, simulated - ran)
        compared += 1
        alone += lines(Simulator(made.flow.graph, made.plan, made.switch).simulate(made.sim_calls(), 3), set(parts)) != simulated
    assert compared > len(seeds) // 4 and alone > len(seeds) // 5, (compared, alone)
