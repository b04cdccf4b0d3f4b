"""From profiles to problems and back to devices: units, granularities, memory, who stays, seats, and what is refused."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from driving import executed
from random_flows import MS, Actor, Scenario, scenario
from random_profiles import chain
from sweeps import sweep

from rlinf_lab.errors import ConfigError, PlanError
from rlinf_lab.planning.placement.free_memory import APART, SINGLE, TOGETHER, Forms
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.placement.to_execution_plan import micro_batch_between
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import (
    Cell,
    DeviceKind,
    EdgeProfile,
    Memory,
    Profile,
    RankRule,
    Sample,
    WorkerProfile,
)
from rlinf_lab.planning.search.plan_tree import Leaf
from rlinf_lab.planning.search.solver import solve
from rlinf_lab.planning.simulator.simulator import Simulator
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Worker

BATCH = WorkerProfile((Sample(8, 64.0, 8.0),), exponent=1.0)


def embodied(**learner) -> Profile:
    workers = {
        "learner": WorkerProfile((Sample(16, 256.0, 190.0), Sample(16, 256.0, 470.0, ("policy", "simulator"))), **learner),
        "simulator": WorkerProfile((Sample(1, 10.0, 0.8), Sample(1, 40.0, 0.9)), "simulator", 80, ranks=RankRule(divides=256), offloadable=False),
        "policy": WorkerProfile((Sample(1, 10.0, 0.4), Sample(1, 40.0, 1.2)), calls=80, ranks=RankRule(divides=256), offloadable=False),
    }
    edges = (EdgeProfile("simulator", "policy"), EdgeProfile("policy", "simulator"), EdgeProfile("simulator", "learner", whole=True))
    return Profile(256, workers, edges, cells=(Cell(("simulator", "policy")),))


def test_cycles_become_units_and_producers_come_first() -> None:
    setting = Setting.of(embodied(), 16)
    assert [u.members for u in setting.stages] == [("simulator", "policy"), ("learner",)]
    assert setting.edges == {(0, 1): 0}  # the whole batch first
    grouped = chain(a=BATCH, b=BATCH).replace(edges=(EdgeProfile("a", "b", group=16),))
    assert Setting.of(grouped, 4).edges == {(0, 1): 2} and Setting.of(grouped, 4).granularities == 7
    assert Setting.of(grouped, 4, micro_batches=2).edges == {(0, 1): 1}


@pytest.mark.parametrize(
    ("worker", "devices", "memory", "says"),
    [
        (dataclasses.replace(BATCH, ranks=RankRule(8)), 4, None, "'a' needs at least 8 devices .* there are 4 devices. Next: devices=8"),
        (dataclasses.replace(BATCH, ranks=RankRule(counts=(3, 5)), memory=Memory(640, sharded=True)), 4, 64.0, "needs 213 GiB on each of 3 devices"),
        (WorkerProfile((Sample(1, 0.2, 1.0),), "simulator"), 4, None, r"0\.25 items on a device, and was measured up to 0\.2\. Next: devices=5"),
    ],
)  # fmt: skip
def test_what_fits_nowhere_is_refused_with_what_would_work(worker: WorkerProfile, devices: int, memory: float | None, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan(chain(memory, a=worker, b=BATCH), devices, simulate=False)


def test_who_was_measured_on_the_second_kind_only_is_as_much_faster_on_the_first() -> None:
    kinds = chain(a=BATCH).replace(kinds=(DeviceKind("h100"), DeviceKind("a100", 0.5), DeviceKind("b200", 2.0)))
    measured = kinds.with_worker("a", samples=(Sample(1, 64.0, 6.0, kind="a100", outputs=((3.0, 0.5), (6.0, 1.0))),))
    for kind, seconds in (("h100", 3.0), ("a100", 6.0), ("b200", 1.5)):
        model = Setting.of(measured, {kind: 4}).models["a", kind]
        assert model.seconds(np.array([1]), 64.0) == pytest.approx(seconds)
        notes = " ".join(plan(measured, {kind: 1}, simulate=False).notes)
        assert notes == ("" if kind == "a100" else "a: assumed, good to 29 % (measured on a100, seconds by the relative speed of the two kinds)")
    with pytest.raises(ConfigError, match=r"kinds\[0\]\.speed is 2; speeds are relative to this first kind\. Next: 1"):
        kinds.replace(kinds=(DeviceKind("h100", 2.0),))


def test_who_may_stay() -> None:
    switching = dataclasses.replace(BATCH, onload_s=1.0, memory=Memory(40))
    assert [a.staying for a in Setting.of(chain(None, a=switching, b=switching), 4).arrangements()] == [0b11]  # everything fits: nobody leaves
    tight = Setting.of(chain(60.0, a=switching, b=switching), 4).arrangements()
    # Two cannot stay together; each set is tried, the largest first, and a set inside one that costs nothing is not.
    assert [a.staying for a in tight] == [0b11, 0b01, 0b10, 0b00]
    roomy = Setting.of(chain(80.0, a=switching, b=switching), 4).arrangements()
    assert [a.staying for a in roomy] == [0b11]
    assert [a.staying for a in Setting.of(chain(60.0, a=BATCH, b=BATCH), 4).arrangements()] == [0]  # leaving costs nothing
    bound = dataclasses.replace(BATCH, offloadable=False)
    assert [a.staying for a in Setting.of(chain(60.0, a=bound, b=BATCH), 4).arrangements()] == [1]


def test_cells_sit_together_or_apart() -> None:
    setting = Setting.of(embodied(), 16)
    forms = [a.forms for a in setting.arrangements()]
    assert [f.of for f in forms] == [(TOGETHER, SINGLE), (APART, SINGLE)]
    together, apart = (setting.tables.of(0, 0, f) for f in forms)
    n, m = 16, 16  # environments on a device
    assert together[0, n] == pytest.approx(80 * (0.8 + 0.1 * (m - 10) / 30 + 0.4 + 0.8 * (m - 10) / 30))
    split = setting.tables.split(0, 0, 0, forms[1])
    assert split.codes[:, 16].tolist() == [8, 8] and split.sub_batches[16] == 2
    assert apart[0, 16] == pytest.approx(80 * max(2 * (0.8 + 0.1 * 6 / 30), 0.8 + 0.1 * 6 / 30 + 0.4 + 0.8 * 6 / 30))
    # Whose devices the learner shares: both of them, or one of the two on each device.
    assert setting.tables.of(1, 1, forms[0])[0, 16] == 470
    assert setting.tables.of(1, 1, forms[1])[0, 16] == 470, "of one of them nothing was measured: the smallest larger company"
    one_beside = (Sample(16, 256.0, 200.0, ("policy",)), Sample(16, 256.0, 210.0, ("simulator",)))
    alone = embodied().with_worker("learner", samples=(*embodied().workers["learner"].samples, *one_beside))
    assert Setting.of(alone, 16).tables.of(1, 1, forms[1])[0, 16] == pytest.approx(210)


@pytest.mark.parametrize(("grain", "taken"), enumerate((12, 6, 3, 1)))
def test_all_tokens_of_a_part_are_taken_at_once_or_where_parts_are_uneven_one_by_one(grain: int, taken: int) -> None:
    one = WorkerProfile((Sample(1, 12.0, 1.0),), calls=4, ranks=RankRule(most=1))
    edges = (EdgeProfile("s", "p"), EdgeProfile("p", "s"))
    profile = Profile(12, {"s": dataclasses.replace(one, kind="simulator"), "p": one}, edges, cells=(Cell(("s", "p"), (1,), tokens=12),))
    setting = Setting.of(profile, 1, 8)
    placement = Placement(setting, setting.arrangements()[0], Leaf(0, (1,), grain))
    assert [micro_batch_between(placement, edge) for edge in edges] == [taken] * 2


def test_kinds_of_devices() -> None:
    fast_a = WorkerProfile((Sample(1, 64.0, 8.0), Sample(1, 64.0, 80.0, kind="cpu")), exponent=1.0)
    mixed = Profile(64, {"a": fast_a, "b": BATCH}, (EdgeProfile("a", "b"),), kinds=(DeviceKind("gpu", memory_gib=10), DeviceKind("cpu", 0.5, 500)))
    setting = Setting.of(mixed, {"gpu": 4, "cpu": 8})
    row = setting.tables.of(0, 0, Forms((SINGLE, SINGLE)))[0].reshape(5, 9)
    assert row[1, 0] == 8 and row[0, 1] == 80 and row[0, 8] == 10
    assert setting.tables.of(1, 0, Forms((SINGLE, SINGLE)))[0].reshape(5, 9)[0, 8] == pytest.approx(16)
    arrangement = setting.arrangements()[0]
    best = Placement(setting, arrangement, solve(setting.problem(arrangement))[0].tree)
    assert best.seats["a"].devices == range(0, 4) and best.seats["b"].devices == range(4, 12)
    assert (best.cap(3), best.cap(4)) == (10, 500)


@pytest.mark.parametrize(("items", "devices", "per_item", "fits"), [(64, 48, 10.0, 2), (64, 64, 10.0, 1), (10, 4, 10.0, 3), (3, 8, 10.0, 1)])
def test_whole_items_decide_what_fits(items: int, devices: int, per_item: float, fits: int) -> None:
    """64 items on 48 devices: some hold two."""
    held = dataclasses.replace(BATCH, memory=Memory(0.0, per_item), devices=devices)
    one = Profile(items, {"a": held}, device_memory_gib=fits * per_item)
    setting = Setting.of(one, devices, micro_batches=1)
    placement = Placement(setting, arrangement := setting.arrangements()[0], solve(setting.problem(arrangement))[0].tree)
    assert placement.gib(0) == fits * per_item and placement.misfit() == ""
    with pytest.raises(PlanError, match="'a' needs"):
        Setting.of(one.replace(device_memory_gib=fits * per_item - 1), devices, micro_batches=1)


def test_who_works_on_the_host_is_not_switched() -> None:
    """Neither in the search nor in what follows from it, alone or in a cell."""
    host = WorkerProfile((Sample(0, 64.0, 4.0),), resource="host", onload_s=3.0, offload_s=2.0)
    three = chain(80.0, a=host, b=dataclasses.replace(BATCH, memory=Memory(50), onload_s=1.0), c=dataclasses.replace(BATCH, memory=Memory(50), offload_s=0.5))
    setting = Setting.of(three, 4)
    assert [setting.switch_seconds(u) for u in setting.stages] == [(0.0, 0.0), (1.0, 0.0), (0.0, 0.5)] and setting._hosts == 0b001
    ring = three.replace(edges=(EdgeProfile("a", "b"), EdgeProfile("b", "a"), EdgeProfile("b", "c")))
    assert [Setting.of(ring, 4).switch_seconds(u) for u in Setting.of(ring, 4).stages] == [(1.0, 0.0), (0.0, 0.5)] and not Setting.of(ring, 4)._hosts
    free = three.with_worker("a", onload_s=0.0, offload_s=0.0)
    assert plan(three, 4, simulate=False).best.seconds == plan(free, 4, simulate=False).best.seconds


# --- weights that several workers hold ------------------------------------------------------------------------------
SWITCHES = (SpanKind.ONLOAD, SpanKind.OFFLOAD)


def holder(own: float, shared: float = 0.0, name: str = "model", seconds: float = 8.0, switch: float = 1.0, **more: object) -> WorkerProfile:
    memory = Memory(own, shared_gib=shared, shared_as=name if shared else "")
    return WorkerProfile((Sample(1, 64.0, seconds),), memory=memory, onload_s=switch, offload_s=switch, **more)


def test_what_two_hold_is_on_a_device_once() -> None:
    both = plan(chain(40, whole=True, policy=holder(0, 15), learner=holder(25, 15)), 1, micro_batches=1)
    assert both.best.seconds == 16 and all(at["stays"] for at in both.best.placement.values())
    apart = plan(chain(40, whole=True, policy=holder(15), learner=holder(40)), 1, micro_batches=1).best
    assert apart.seconds == 16 + 4, "without the word they leave for each other"


def test_a_plan_that_runs_is_not_said_not_to_fit() -> None:
    """Both never leave; 15 GiB are counted once."""
    def both(own: float) -> Profile:
        return chain(40, whole=True, policy=holder(5, 15, offloadable=False), learner=holder(own, 15, offloadable=False))

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
