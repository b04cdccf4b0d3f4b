"""What stays counts where it sits: on which kind of device, beside which member of a cell, at which end of the devices of whom it takes turns with."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.placement import Placement
from rlinf_lab.planning.planner import Plans, plan
from rlinf_lab.planning.profile import DeviceKind, EdgeProfile, Memory, Profile, RankRule, Sample, WorkerProfile


def worker(gib: float, seconds: float = 2.0, devices: int = 1, stays: bool = True, **more: object) -> WorkerProfile:
    return WorkerProfile((Sample(devices, 8.0, seconds),), memory=Memory(gib), offloadable=not stays, **more)


def devices_of(plans: Plans) -> dict[str, list[int]]:
    return {name: list(seat.devices) for name, seat in plans.best.candidate.placement.seats.items()}


@pytest.mark.parametrize("order", ["sta", "tsa"])
def test_a_learner_shares_the_devices_of_the_policy_and_not_those_of_the_simulator(order: str) -> None:
    workers = {"s": worker(45), "t": worker(10), "a": worker(20)}
    edges = (EdgeProfile("s", "t"), EdgeProfile("t", "s"), EdgeProfile("s", "a"))
    found = devices_of(plan(Profile(8, {n: workers[n] for n in order}, edges, device_memory_gib=50.0), 2, chunks=1))
    assert found["a"] == found["t"] != found["s"]


def test_who_stays_on_another_kind_of_device_takes_no_memory() -> None:
    a, b, c = worker(60, 5, 2, stays=False, ranks=RankRule(2)), worker(60, 11), worker(20, 11, 2, stays=False, ranks=RankRule(2))
    edges = (EdgeProfile("a", "b"), EdgeProfile("b", "c"))
    profile = Profile(8, {"a": a, "b": b, "c": c}, edges, kinds=(DeviceKind("A"), DeviceKind("B")), device_memory_gib=70.0)
    plans = plan(profile, {"A": 2, "B": 1}, simulate=False)
    assert devices_of(plans) == {"a": [0, 1], "b": [2], "c": [0, 1]}
    assert plans["temporal"].seconds == pytest.approx(27)


def test_of_two_that_stream_the_one_with_room_is_first() -> None:
    """b and c work at the same time; a, before them, has a device in common with c only."""
    a, b, c = (worker(g, ranks=RankRule(most=1)) for g in (60, 60, 10))
    profile = Profile(8, {"a": a, "b": b, "c": c}, (EdgeProfile("a", "b", whole=True), EdgeProfile("b", "c")), device_memory_gib=80.0)
    found = devices_of(plan(profile, 2, simulate=False))
    assert found["a"] != found["b"]


def random_cell(seed: int) -> tuple[Profile, int]:
    """A simulator and a policy that answer each other, and a learner; who stays and how much it keeps at random."""
    rng = random.Random(seed)

    def made() -> WorkerProfile:
        memory = Memory(rng.choice([0, 20, 45, 60]), rng.choice([0, 1, 3]), rng.random() < 0.3)
        rule = rng.choice([RankRule(), RankRule(most=1), RankRule(counts=(1, 3)), RankRule(counts=(2,))])
        return WorkerProfile((Sample(1, 12.0, rng.choice([3, 5, 11])),), exponent=1.0, memory=memory, ranks=rule, offloadable=rng.random() < 0.4)

    edges = (EdgeProfile("s", "t"), EdgeProfile("t", "s"), EdgeProfile("s", "a", whole=True))
    return Profile(12, {n: made() for n in "sta"}, edges, device_memory_gib=rng.choice([70.0, 80.0])), rng.choice([2, 3, 4])


def best_by_hand(profile: Profile, devices: int) -> float:
    """Seconds of the best way to seat the learner anywhere after or beside the cell, its members on devices of their own or on the same ones, each in one
    call and the cell in one or two sub-batches. Switches cost nothing here: who may leave does."""
    workers, cap, best = profile.workers, profile.device_memory_gib, math.inf
    assert cap is not None
    spans = [(start, n) for n in range(1, devices + 1) for start in range(devices - n + 1)]
    for seats in itertools.product(spans, repeat=3):
        at = {name: set(range(start, start + n)) for name, (start, n) in zip("sta", seats, strict=True)}
        together = at["s"] == at["t"]
        if not all(workers[n].ranks.allows(len(at[n])) for n in at) or not (together or at["s"].isdisjoint(at["t"])):
            continue
        for parts in (1,) if together else (1, 2):
            took = {n: workers[n].samples[0].seconds * math.ceil(12 / (parts if n != "a" else 1) / len(at[n])) / 12 for n in at}
            cell = took["s"] + took["t"] if together else max(parts * max(took["s"], took["t"]), took["s"] + took["t"])
            if cell + took["a"] < best and all(_gib(workers, at, d, n, parts) <= cap for n in at for d in at[n]):
                best = cell + took["a"]
    return best


def _gib(workers: dict[str, WorkerProfile], at: dict[str, set[int]], device: int, name: str, parts: int) -> float:
    """While ``name`` works there."""
    keeps = {n: w.memory.resident_gib / (len(at[n]) if w.memory.sharded else 1) for n, w in workers.items()}
    items = math.ceil(12 / (parts if name != "a" else 1) / len(at[name]))
    stays = {n: not all(workers[m].offloadable for m in ("st" if n in "st" else "a")) for n in at}  # a cell stays or leaves as one
    others = [n for n in at if n != name and device in at[n] and (stays[n] or {n, name} == {"s", "t"})]
    return keeps[name] + workers[name].memory.per_item_gib * items + sum(keeps[n] for n in others)


@pytest.mark.parametrize("seed", range(100))
def test_nothing_beside_a_cell_is_overlooked(seed: int) -> None:
    """One call each: so no seats but those that are tried by hand."""
    profile, devices = random_cell(seed)
    truth = best_by_hand(profile, devices)
    try:
        plans = plan(profile, devices, chunks=1, simulate=False)
    except PlanError:
        assert math.isinf(truth)
    else:
        assert plans.best.seconds == pytest.approx(truth)
        assert not any(p.candidate.placement.misfit() for p in plans)


def test_a_quick_search_finds_what_fits() -> None:
    for seed in range(12):
        profile, devices = random_cell(seed)
        if math.isfinite(best_by_hand(profile, devices)):
            placement = plan(profile, devices, chunks=1, simulate=False, quick=True).best.candidate.placement
            assert isinstance(placement, Placement) and not placement.misfit()
