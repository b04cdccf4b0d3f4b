"""Memory as a hard constraint: measured peaks, who must leave, what stays depends on how many devices it has, and what would help."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import re

import numpy as np
import pytest
from random_profiles import random_profile
from sweeps import sweep

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.candidates import candidates
from rlinf_lab.planning.planner.planner import Planned, plan
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.fingerprint import Fingerprint
from rlinf_lab.planning.profile.profile import DeviceKind, EdgeProfile, Memory, Profile, RankRule, Sample, WorkerProfile

NO_MEMORY, ANY_RANKS = Memory(), RankRule()


def two(a: WorkerProfile, b: WorkerProfile, gib: float | None) -> Profile:
    return Profile(64, {"a": a, "b": b}, (EdgeProfile("a", "b"),), device_memory_gib=gib)


def worker(memory: Memory = NO_MEMORY, ranks: RankRule = ANY_RANKS) -> WorkerProfile:
    return WorkerProfile((Sample(8, 64.0, 8.0),), exponent=1.0, memory=memory, ranks=ranks)


@pytest.mark.parametrize(("gib", "leaves"), [(64.0, True), (99.0, True), (100.0, False), (None, False)])
def test_who_does_not_fit_beside_the_others_leaves_however_little_that_costs(gib: float | None, leaves: bool) -> None:
    execution = plan(two(worker(memory=Memory(50)), worker(memory=Memory(50)), gib), 8)["temporal"].execution
    assert (execution.device_memory is not None) is leaves and bool(execution.memory) is leaves
    if leaves:
        assert sum(execution.memory.values()) > execution.device_memory  # not both at a time


def test_a_measured_peak_is_needed() -> None:
    peaked = dataclasses.replace(worker(), samples=(Sample(8, 64.0, 8.0, peak_gib=70.0),))
    with pytest.raises(PlanError, match="'a' needs 70 GiB .* a device has 40 GiB"):
        plan(two(peaked, worker(), 40.0), 8)
    assert plan(two(peaked, worker(), 70.0), 8).best.seconds > 0
    stays = dataclasses.replace(worker(memory=Memory(20)), offloadable=False)
    assert plan(two(peaked, stays, 89.0), 8).best.placement["a"]["devices"] < 8, "beside what stays there are 69 GiB"


def test_peaks_between_and_beyond_those_that_were_measured() -> None:
    samples = (Sample(1, 16.0, 1.0, peak_gib=12.0), Sample(1, 64.0, 4.0, peak_gib=36.0), Sample(2, 64.0, 2.0))
    one = WorkerProfile(samples, memory=Memory(4))
    need = {items: float(memory.needed(one, np.array([1]), items)[0]) for items in (1, 16, 40, 64, 128)}
    assert need == {1: 12.0, 16: 12.0, 40: 24.0, 64: 36.0, 128: pytest.approx(36 + 64 * 0.5)}
    assert float(memory.needed(one, np.array([4]), 64)[0]) == 12.0, "four devices hold 16 items each"
    said = dataclasses.replace(one, memory=Memory(4, 2.0))
    assert float(memory.needed(said, np.array([1]), 64)[0]) == 4 + 128, "what is said of an item counts where it is more"


def test_a_peak_beside_others_is_not_its_own() -> None:
    samples = (Sample(1, 64.0, 4.0, peak_gib=36.0), Sample(1, 64.0, 5.0, ("b",), peak_gib=70.0))
    assert float(memory.needed(WorkerProfile(samples, memory=Memory(4)), np.array([1]), 64)[0]) == 36.0
    only = WorkerProfile(samples[1:], memory=Memory(4))
    assert float(memory.needed(only, np.array([1]), 64)[0]) == 4.0


def test_a_profile_of_another_gpu_is_stale() -> None:
    profile = two(worker(), worker(), None)
    one, many = Fingerprint.here(["NVIDIA H100"]), Fingerprint.here(["NVIDIA H100"] * 8)
    for gpus, said in ((["NVIDIA A100"], "are NVIDIA A100"), ([], "are none")):
        assert profile.replace(fingerprint=one).stale(Fingerprint.here(gpus)) == (f"devices were NVIDIA H100, {said}",)
    assert profile.replace(fingerprint=one).stale(many) == ()
    assert profile.replace(fingerprint=Fingerprint.here([])).stale(many) == (), "measured on the cores"
    assert "8 × NVIDIA H100" in str(many)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n >= 12)) for n in range(25)])
def test_whatever_is_advised_works(seed: int) -> None:
    """Random profiles on few devices with little memory: each way that a refusal names leads to a plan."""
    rng = random.Random(seed)
    made = random_profile(seed).replace(device_memory_gib=float(rng.choice([3, 8, 20])))
    devices = rng.randint(1, 4)
    try:
        plan(made, devices, simulate=False, quick=True)
    except PlanError as refused:
        gib, count = re.search(r"Next: .*memory_gib=(\d+(?:\.\d+)?)", str(refused)), re.search(r"Next: .*\bdevices=(\d+)", str(refused))
        assert gib or count or " and " in str(refused), refused
        if " and devices=" in str(refused):
            assert plan(made, int(count[1]), memory_gib=float(gib[1]), simulate=False, quick=True)
            return
        if gib:
            assert plan(made, devices, memory_gib=float(gib[1]), simulate=False, quick=True)
            with pytest.raises(PlanError):
                plan(made, devices, memory_gib=0.989 * float(gib[1]), simulate=False, quick=True)
        if count:
            assert plan(made, int(count[1]), simulate=False, quick=True)


def test_members_of_a_cell_that_cannot_sit_together_or_apart_are_named() -> None:
    s, p = (dataclasses.replace(worker(), devices=n) for n in (2, 3))
    ring = Profile(64, {"s": s, "p": p}, (EdgeProfile("s", "p"), EdgeProfile("p", "s")))
    with pytest.raises(PlanError, match=r"'s', 'p' of a cell have no .* apart they need 2 s \+ 3 p = 5 devices; .* Next: devices=5\.$"):
        plan(ring, 4)
    assert plan(ring, 5)


def test_a_worker_that_fits_on_no_kind_says_why_of_each() -> None:
    kinds = (DeviceKind("A", 1.0, 40.0), DeviceKind("B", 1.0, 60.0))
    one = Profile(12, {"c": worker(memory=Memory(50), ranks=RankRule(devices_per_rank=2))}, (), kinds=kinds)
    with pytest.raises(PlanError, match=r"a A has 40 GiB, it needs 50; of B there are 1, it needs 2\. Next: memory_gib=50 for every kind"):
        plan(one, {"A": 2, "B": 1})
    assert plan(one, {"A": 2, "B": 1}, memory_gib=50) and plan(one, {"A": 2, "B": 2})


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n >= 12)) for n in range(40)])
def test_no_pin_finds_a_faster_plan_of_turns(seed: int) -> None:
    """Where memory depends on how many devices a worker has, the search is as good as trying every number for everybody by itself."""
    rng = np.random.default_rng(seed)

    def some(name: str) -> WorkerProfile:
        counts = tuple(int(c) for c in sorted(rng.choice([1, 2, 3, 4], size=2, replace=False)))
        samples = tuple(Sample(c, 64.0, float(rng.integers(4, 20))) for c in counts)
        held = Memory(float(rng.integers(10, 80)), float(rng.integers(0, 3)) / 8, sharded=bool(rng.random() < 0.7))
        return WorkerProfile(samples, ranks=RankRule(counts=counts), memory=held, offloadable=bool(rng.random() < 0.3), onload_s=float(rng.integers(0, 3)))

    names = "abc"[: 2 + seed % 2]
    profile = Profile(64, {n: some(n) for n in names}, tuple(EdgeProfile(p, c) for p, c in itertools.pairwise(names)), device_memory_gib=60.0)

    def best(one: Profile) -> float:
        try:
            return min((c.searched for c in candidates(Setting.of(one, 4, micro_batches=2))), default=math.inf)
        except PlanError:
            return math.inf

    pinned = []
    for counts in itertools.product(*(profile.workers[n].ranks.counts for n in names)):
        one = profile
        for name, count in zip(names, counts, strict=True):
            one = one.with_worker(name, devices=count)
        pinned.append(best(one))
    assert best(profile) == pytest.approx(min(pinned))


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.long)])
@sweep(8, 40)
def test_random_plans_fit_as_executed(shared: bool, seeds: range) -> None:
    """Accounted for again from the execution plan: who may be on a device at the same time, and what they hold; shared weights once, whoever is there."""
    checked = once = 0
    for seed in seeds:
        profile = sharing(seed) if shared else random_profile(seed)
        try:
            plans = plan(profile, 4, micro_batches=4, simulate=False, quick=seed % 3 > 0)
        except PlanError:
            continue
        gib = profile.device_memory_gib or math.inf
        for planned in plans:
            checked += 1
            assert _most_at_once(profile, planned) <= gib + 1e-6, (seed, planned)
            once += _most_at_once(profile, planned, once=False) > gib
    assert checked > len(seeds) and (once > 1) == shared, (checked, once)


def sharing(seed: int) -> Profile:
    """Some of whose workers hold the same weights."""
    made, rng = random_profile(seed), random.Random(seed)
    names, workers = [n for n, w in made.workers.items() if w.resource == "device"], dict(made.workers)
    for name in rng.sample(names, rng.randint(2, len(names))) if len(names) > 1 else ():
        own = dataclasses.replace(workers[name].memory, resident_gib=workers[name].memory.resident_gib / rng.choice([1, 3]), shared_gib=25.0, shared_as="m")
        workers[name] = dataclasses.replace(workers[name], memory=own)
    return made.replace(workers=workers)


def _most_at_once(profile: Profile, planned: Planned, once: bool = True) -> float:
    execution, seats = planned.execution, planned.candidate.placement.seats
    most = 0.0
    for device in range(len(execution.devices)):
        here = [w for w, ranks in execution.placements.items() if any(device in r for r in ranks)]
        turns = execution.device_memory is not None
        for working in here:
            on = np.array([len(seats[working].devices)])
            items = profile.items / seats[working].micro_batches / (1 if profile.workers[working].kind == "simulator" else seats[working].sub_batches)
            own = profile.workers[working].memory
            held = float(memory.needed(profile.workers[working], on, items)[0]) - own.shared_gib
            weights = [(own.shared_as, own.shared_gib)]
            leaving = [(0.0, ("", 0.0))]  # of whom one is there where it is not in the way
            for other in here:
                if other == working:
                    continue
                mates, stays = _mates(profile, other, working), not turns or not execution.memory.get(other)
                whole = profile.items / (seats[other].micro_batches if mates else 1)
                theirs = profile.workers[other].memory
                gib = float(memory.kept(profile.workers[other], np.array([len(seats[other].devices)]), whole)[0]) - theirs.shared_gib
                if mates or stays:
                    held += gib
                    weights.append((theirs.shared_as, theirs.shared_gib))
                elif not (execution.memory.get(working) or execution.working.get(working)):
                    leaving.append((gib, (theirs.shared_as, theirs.shared_gib)))
            for gib, more in leaving:
                there = [*weights, more]
                most = max(most, held + gib + sum(size for _, size in (set(there) if once else there)))
    return most


def _mates(profile: Profile, one: str, other: str) -> bool:
    edges = {(e.producer, e.consumer) for e in profile.edges}
    return (one, other) in edges and (other, one) in edges


def test_advised_numbers_are_enough_short_and_at_most_one_percent_more() -> None:
    rng = random.Random(5)
    for needs in [0.9999, 1, 9.999, 40, 99.95, 100, 244.2, *(10 ** rng.uniform(-4, 7) for _ in range(2000))]:
        said = memory.advised(needs)
        assert needs * (1 - 1e-8) <= said <= 1.0101 * needs and memory.advised(said) == said
        assert said == (float(f"{said:.3g}") if said < 100 else int(said)), "three figures, or whole"
        assert memory.less_than_advised(said) < needs * (1 + 1e-8) and memory.less_than_advised(said) >= 0.99 * said - 1e-12
    assert [memory.advised(x) for x in (1.2301, 12.301, 123.01)] == [1.24, 12.4, 124]
