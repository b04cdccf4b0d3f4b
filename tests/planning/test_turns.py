"""What is on a device while somebody works there, accounted for again from the predicted spans: never more than the device has."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from sweeps import sweep

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine.engine import Do, Engine, Event
from rlinf_lab.planning.forecast.forecast import forecast, graph_of
from rlinf_lab.planning.placement.memory_units import Turns
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.placement.to_execution_plan import execution_plan
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.planner.planner import Planned, plan
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.profile import Cell, EdgeProfile, Memory, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.planning.search.plan_tree import TEMPORAL, Composed, Leaf
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

HOST = WorkerProfile((Sample(0, 4.0, 1.0),), resource="host", calls=3)


def worker(gib: float, per_item: float = 0.0, stays: bool = False, onload: float = 0.5, calls: float = 3.0, **more: object) -> WorkerProfile:
    held = Memory(gib, per_item)
    return WorkerProfile((Sample(1, 4.0, 2.0),), calls=calls, memory=held, offloadable=not stays, onload_s=onload, offload_s=onload, **more)


def ring(one: str, other: str) -> tuple[EdgeProfile, EdgeProfile]:
    return EdgeProfile(one, other), EdgeProfile(other, one)


def most_gib(planned: Planned, timeline: Timeline) -> float:
    """Of all devices, at any moment of work."""
    placement, found = planned.candidate.placement, 0.0
    workers, seats, turns = placement.setting.profile.workers, placement.seats, Turns.of(placement)
    leave = {n for n in seats if turns.memory.get(n) and planned.execution.device_memory}
    there = {(n, d): _stays(timeline, n, d) if n in leave else [(-math.inf, math.inf)] for n, s in seats.items() for d in s.devices}
    kept = {n: float(memory.kept(workers[n], np.array([max(1, len(s.devices))]), placement.setting.profile.items)[0]) for n, s in seats.items()}
    for name, seat in seats.items():
        needs = _needs(placement, name)
        for device in seat.devices:
            for start, end in _moments(timeline, name, SpanKind.RUN, device):
                beside = [n for n in seats if n != name and device in seats[n].devices and any(a < end and start < b for a, b in there[n, device])]
                found = max(found, needs + sum(kept[n] for n in beside))
    return found


def _needs(placement: Placement, name: str) -> float:
    seat, profile = placement.seats[name], placement.setting.profile
    at_once = profile.items / seat.micro_batches / seat.sub_batches
    return float(memory.needed(profile.workers[name], np.array([max(1, len(seat.devices))]), at_once)[0])


def _moments(timeline: Timeline, name: str, kind: SpanKind, device: int | None = None) -> list[tuple[float, float]]:
    """``device``: of the rank there only."""
    tracks = [i for i, t in enumerate(timeline.tracks) if t.worker == name and (device is None or timeline.devices[device] in t.devices)]
    spans = timeline.spans
    mine = spans[np.isin(spans["track"], tracks) & (spans["kind"] == kind)]
    return sorted(zip(mine["start"].tolist(), mine["end"].tolist(), strict=True))


def _stays(timeline: Timeline, name: str, device: int) -> list[tuple[float, float]]:
    """From coming to having left, perhaps at once."""
    comes, leaves = ([at for at, _ in _moments(timeline, name, SpanKind.ONLOAD, device)], [at for _, at in _moments(timeline, name, SpanKind.OFFLOAD, device)])
    return list(itertools.zip_longest(comes, leaves, fillvalue=math.inf))


def two_rings(seed: int) -> Profile:
    """Policies and environments, some of these on the host, some of them staying, and perhaps a learner; all leave in some time."""
    rng = random.Random(seed)

    def made() -> WorkerProfile:
        return worker(
            rng.choice([10, 30, 45, 60]),
            rng.choice([0, 0, 5, 10]),
            rng.random() < 0.2,
            rng.choice([0.25, 0.5]),
            ranks=rng.choice([RankRule(), RankRule(most=1)]),
        )

    workers = {"s1": HOST if rng.random() < 0.3 else made(), "t1": made(), "s2": HOST if rng.random() < 0.3 else made(), "t2": made()}
    edges = [*ring("s1", "t1"), *ring("s2", "t2")] + [EdgeProfile("s1", "s2", whole=rng.random() < 0.5)] * (rng.random() < 0.7)
    if rng.random() < 0.4:
        workers["a"] = made()
        edges.append(EdgeProfile("s1", "a", whole=rng.random() < 0.5))
    return Profile(4, workers, tuple(edges), cells=(Cell(("s1", "t1"), (1, 2)), Cell(("s2", "t2"), (1, 2))), device_memory_gib=80.0)


@sweep(12, 24)
def test_two_cells_fit_as_simulated(seeds: range) -> None:
    checked = 0
    for seed in seeds:
        profile = two_rings(seed)
        try:
            plans = plan(profile, 1 + seed % 3, micro_batches=1 + seed % 2, simulate=False, quick=True)
        except PlanError:
            continue
        for planned in plans:
            checked += 1
            assert most_gib(planned, planned.simulate(2)) <= 80 + 1e-6, (seed, planned)
    assert checked > 10


@pytest.mark.parametrize(("per_item", "alone"), [(10.0, True), (1.0, False)])
def test_who_stays_has_those_leave_beside_whom_it_cannot_work(per_item: float, alone: bool) -> None:
    """b keeps 10 GiB while a has its 60, and needs up to 50 while it works."""
    workers = {"a": worker(60, calls=1), "b": worker(10, per_item, stays=True, calls=1), "c": worker(60, calls=1)}
    profile = Profile(4, workers, (EdgeProfile("a", "b", whole=True), EdgeProfile("b", "c", whole=True)), device_memory_gib=80.0)
    planned = plan(profile, 1, micro_batches=1)["temporal"]
    assert bool(planned.execution.working) == alone and "b" not in planned.execution.memory
    timeline = planned.simulate(3)
    assert most_gib(planned, timeline) <= 80
    comes = timeline.to_pandas().query("kind == 'onload' and worker == 'b' and iteration > 0")
    assert not len(comes), "it never left"


def orders(engine: Engine, processes: list[int]) -> list[tuple[str, int]]:
    """Who is moved when these have the device one after the other."""
    found = []
    for process in processes:
        todo = engine.settle([(process, Event.START, 0, 1)])
        while todo:
            do, who, _, _ = todo.pop(0)
            if do in (Do.OFFLOAD, Do.ONLOAD):
                found.append((Do(do).name, who))
                todo += engine.settle([(who, Event.OFFLOADED if do == Do.OFFLOAD else Event.ONLOADED, -1, 0)])
        engine.settle([(process, Event.DONE, -1, 0)])
    return found


def test_who_stays_is_not_switched_out_and_a_cell_makes_room_for_all_of_it() -> None:
    """Who stays takes no turn, so it is in nobody's way."""
    engine = Engine(1, memory=1)
    stays, first, second = (engine.add_process([0], size=size) for size in (0, 1, 1))
    assert orders(engine, [stays, first, stays, second, stays, first]) == [
        ("ONLOAD", stays), ("ONLOAD", first), ("OFFLOAD", first), ("ONLOAD", second), ("OFFLOAD", second), ("ONLOAD", first),
    ]  # fmt: skip
    engine = Engine(1, memory=2)
    a, b, c, d = (engine.add_process([0], size=1, cell=cell) for cell in (0, 0, 1, 1))
    assert orders(engine, [a, b, c, d]) == [
        *(("ONLOAD", a), ("ONLOAD", b), ("OFFLOAD", a), ("OFFLOAD", b), ("ONLOAD", c), ("ONLOAD", d)),
    ]
    larger = Engine(1, memory=3)
    a, b = (larger.add_process([0], size=2, cell=0) for _ in range(2))
    assert orders(larger, [a, b, a]) == [("ONLOAD", a), ("OFFLOAD", a), ("ONLOAD", b), ("OFFLOAD", b), ("ONLOAD", a)], "no room for both: as without a cell"


@pytest.mark.parametrize("order", ["abc", "bac"])
def test_those_that_nothing_links_go_in_the_order_of_the_plan(order: str) -> None:
    """a and b have no edge; c takes the batches of both."""
    workers = {n: worker(10, calls=1, onload=0.0) for n in "abc"}
    setting = Setting.of(Profile(4, workers, tuple(EdgeProfile(n, "c", whole=True) for n in "ab")), 1, micro_batches=1)
    first, second, last = (Leaf(setting.home[n], (1,), 0) for n in order)
    placement = Placement(setting, setting.arrangements()[0], Composed(TEMPORAL, Composed(TEMPORAL, first, second, (1,), 0), last, (1,), 0))
    assert placement.shape == " > ".join(order)
    begins = {n: _moments(forecast(placement, 1), n, SpanKind.RUN)[0][0] for n in order}
    assert sorted(begins, key=begins.__getitem__) == list(order)
    graph = graph_of(setting.profile)
    executed = execution_plan(placement, graph, ["cpu:0"], "by hand")
    assert executed.priorities == {n: i for i, n in enumerate(order)}
    assert [p.priority for p in engine_of(Layout(graph, executed)).processes[1:]] == [order.index(n) for n in "abc"]


def test_places_are_said_only_where_the_graph_does_not() -> None:
    workers = {n: worker(10, calls=1) for n in "abc"}
    chain = Profile(4, workers, (EdgeProfile("a", "b"), EdgeProfile("b", "c")), device_memory_gib=80.0)
    assert all(p.execution.priorities == {} for p in plan(chain, 3, micro_batches=1, simulate=False))


def engine_of(layout: Layout) -> Engine:
    engine = layout.new_engine()
    layout.fill(engine)
    return engine
