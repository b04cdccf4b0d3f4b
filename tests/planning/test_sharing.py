"""What stays counts where it sits: on which kind of device, beside which member of a cell, at which end of the devices of whom it time-shares with."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping

import pytest

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import DeviceKind, EdgeProfile, Memory, Profile, RankRule, Sample, WorkerProfile


def worker(gib: float, seconds: float = 2.0, devices: int = 1, stays: bool = True, **more: object) -> WorkerProfile:
    return WorkerProfile((Sample(devices, 8.0, seconds),), memory=Memory(gib), offloadable=not stays, **more)


SPEEDS = {"A": 1.0, "B": 2.0}
Place = frozenset[tuple[str, int]]
"""devices, by kind and number"""


def random_cell(seed: int) -> tuple[Profile, dict[str, int]]:
    """A simulator and a policy that answer each other, and a learner, on devices of one kind or two; who stays and how much it keeps at random."""
    rng = random.Random(seed)

    def made() -> WorkerProfile:
        memory = Memory(rng.choice([0, 20, 45, 60]), rng.choice([0, 1, 3]), rng.random() < 0.3)
        rule = rng.choice([RankRule(), RankRule(most=1), RankRule(counts=(1, 3)), RankRule(counts=(2,))])
        return WorkerProfile((Sample(1, 12.0, rng.choice([3, 5, 11])),), exponent=1.0, memory=memory, ranks=rule, offloadable=rng.random() < 0.4)

    edges = (EdgeProfile("s", "t"), EdgeProfile("t", "s"), EdgeProfile("s", "a", whole=True))
    kinds = (DeviceKind("A", SPEEDS["A"], rng.choice([70.0, 80.0])), DeviceKind("B", SPEEDS["B"], rng.choice([50.0, 90.0])))
    counts = {"A": rng.choice([2, 3, 4])} if rng.random() < 0.5 else {"A": rng.choice([1, 2, 3]), "B": rng.choice([1, 2])}
    return Profile(12, {n: made() for n in "sta"}, edges, kinds=kinds), counts


def best_by_hand(profile: Profile, counts: dict[str, int]) -> float:
    """Seconds of the best way to seat the learner anywhere after or beside the cell, its members on devices of their own or on the same ones, each in one
    call and the cell in one or two sub-batches. Switches cost nothing here: who may leave does."""
    workers, best = profile.workers, math.inf
    caps = {k.name: k.memory_gib for k in profile.kinds}
    places = [frozenset((k, i) for i in range(first, first + n)) for k, there in counts.items() for n in range(1, there + 1) for first in range(there - n + 1)]
    for seats in itertools.product(*([p for p in places if workers[n].ranks.allows(len(p))] for n in "sta")):
        at = dict(zip("sta", seats, strict=True))
        together = at["s"] == at["t"]
        for parts in (1,) if together else (1, 2) if at["s"].isdisjoint(at["t"]) else ():
            items = {n: 12 / (parts if n != "a" else 1) for n in at}
            took = {n: workers[n].samples[0].seconds * math.ceil(items[n] / len(at[n])) / 12 / SPEEDS[next(iter(at[n]))[0]] for n in at}
            cell = took["s"] + took["t"] if together else max(parts * max(took["s"], took["t"]), took["s"] + took["t"])
            if cell + took["a"] < best and all(_gib(workers, at, d, n, items[n]) <= caps[d[0]] for n in at for d in at[n]):
                best = cell + took["a"]
    return best


def _gib(workers: Mapping[str, WorkerProfile], at: dict[str, Place], device: tuple[str, int], name: str, items: float) -> float:
    """While ``name`` works there."""
    keeps = {n: w.memory.resident_gib / (len(at[n]) if w.memory.sharded else 1) for n, w in workers.items()}
    stays = {n: not all(workers[m].offloadable for m in ("st" if n in "st" else "a")) for n in at}  # a cell stays or leaves as one
    others = [n for n in at if n != name and device in at[n] and (stays[n] or {n, name} == {"s", "t"})]
    return keeps[name] + workers[name].memory.per_item_gib * math.ceil(items / len(at[name])) + sum(keeps[n] for n in others)


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(n, marks=pytest.mark.slow) for n in range(30, 120))])
def test_nothing_beside_a_cell_is_overlooked(seed: int) -> None:
    """One call each: so no seats but those that are tried by hand."""
    profile, counts = random_cell(seed)
    truth = best_by_hand(profile, counts)
    try:
        plans = plan(profile, counts, micro_batches=1, simulate=False)
    except PlanError:
        assert math.isinf(truth)
    else:
        assert plans.best.seconds == pytest.approx(truth)
        assert not any(p.candidate.placement.misfit() for p in plans)


def test_a_quick_search_finds_what_fits() -> None:
    for seed in range(12):
        profile, counts = random_cell(seed)
        if math.isfinite(best_by_hand(profile, counts)):
            assert not plan(profile, counts, micro_batches=1, simulate=False, quick=True).best.candidate.placement.misfit()


def test_a_refusal_names_each_kind_of_device_with_its_memory() -> None:
    kinds = (DeviceKind("A", 1.0, 80.0), DeviceKind("B", 1.0, 50.0))
    profile = Profile(8, {"t": worker(80), "a": worker(60, stays=False)}, (EdgeProfile("t", "a"),), kinds=kinds)
    with pytest.raises(PlanError) as error:
        plan(profile, {"A": 1, "B": 1})
    assert "'a' fits on no kind of device: on each of 1 A it needs 60 GiB of 80, where 't' keeps 80 GiB (offloadable: false); " in str(error.value)
    assert "on each of 1 B it needs 60 GiB of 50. Next: memory_gib=80 for every kind of device, or devices={'A': 2, 'B': 1}." in str(error.value)


def test_a_refusal_does_not_place_those_who_stay_on_a_kind_that_they_can_do_without() -> None:
    wide = worker(60, devices=2, ranks=RankRule(2))
    profile = Profile(8, {"t": wide, "a": wide}, (EdgeProfile("t", "a"),), kinds=(DeviceKind("A", 1.0, 80.0), DeviceKind("B", 1.0, 50.0)))
    with pytest.raises(PlanError, match=r"fits on no kind of device: on each of 2 A it needs 60 GiB of 80, where .* keeps 60 .*; of B there are 1, too few"):
        plan(profile, {"A": 2, "B": 1})


def test_a_refusal_offers_a_kind_that_was_not_asked_for() -> None:
    kinds = (DeviceKind("H", 1.0, 80.0), DeviceKind("L", 1.0, 40.0))
    profile = Profile(8, {"t": worker(50), "a": worker(10)}, (EdgeProfile("t", "a"),), kinds=kinds)
    for asked, gib in (({"L": 3}, 50), ({"L": 1}, 60)):  # on one device both stay
        offered = {**asked, "H": 1}
        with pytest.raises(PlanError) as error:
            plan(profile, asked)
        assert str(error.value) == f"Worker 't' needs 50 GiB on 1 device, and a device has 40 GiB. Next: memory_gib={gib}, or devices={offered}."
        assert plan(profile, offered, simulate=False).best.seconds > 0
