"""Random profiles: branching flows of batch workers, sometimes a generator, a cell, a worker on the host; memory that sometimes is short."""

from __future__ import annotations

import itertools
import random
from typing import Any

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


def random_profile(seed: int, generators: bool = True, cells: bool = True, memory: bool = True, chain: bool = False) -> Profile:
    rng = random.Random(seed)
    names = list("abcd"[: rng.randint(2, 4)])
    workers = {n: _worker(rng, memory) for n in names}
    links = [(p, c) for p, c in itertools.combinations(names, 2) if (names.index(c) == names.index(p) + 1 if chain else rng.random() < 0.6)]
    edges = [EdgeProfile(p, c, whole=not chain and rng.random() < 0.15) for p, c in links]
    found: list[Cell] = []
    if generators and rng.random() < 0.5:
        work = workers["a"].samples
        lengths = Lengths(4096.0, mean_tokens=rng.choice([500.0, 1500.0]), group_correlation=rng.random())
        workers["a"] = WorkerProfile(work, "generation", lengths=lengths, exponent=0.6, memory=Memory(10, 0.2) if memory else Memory(), onload_s=2, offload_s=1)
        edges = [EdgeProfile(e.producer, e.consumer, rng.choice([1, 8]), e.whole) for e in edges]
    elif cells and rng.random() < 0.5:
        workers["env"] = WorkerProfile((Sample(1, 16.0, 0.3), Sample(1, 512.0, 0.9)), "simulator", 20, memory=Memory(2, 0.02) if memory else Memory())
        workers["pol"] = WorkerProfile((Sample(1, 16.0, 0.1), Sample(1, 512.0, 1.6)), calls=20, memory=Memory(6) if memory else Memory(), onload_s=1)
        edges += [EdgeProfile("env", "pol"), EdgeProfile("pol", "env"), EdgeProfile("env", names[0], whole=rng.random() < 0.5)]
        found = [Cell(("env", "pol"))]
    if not chain and rng.random() < 0.3:
        workers[names[-1]] = WorkerProfile((Sample(0, 256.0, rng.uniform(1, 10)),), resource="host")
    return Profile(256, workers, tuple(edges), f"random {seed}", cells=tuple(found), device_memory_gib=rng.choice([60.0, 100.0]) if memory else None,
                   weights=rng.choice(["equal", "tokens"]))  # fmt: skip


def chain(device_memory_gib: float | None = None, whole: bool = False, **workers: WorkerProfile) -> Profile:
    """Not at random: each feeds the next one."""
    edges = tuple(EdgeProfile(p, c, whole=whole) for p, c in itertools.pairwise(workers))
    return Profile(64, workers, edges, "chain", device_memory_gib=device_memory_gib)


def branching(seed: int) -> tuple[Profile, int, dict[str, Any]]:
    """Three to five workers, several samples each, some that must leave, some whose ranks are few."""
    rng = random.Random(seed)
    names = [f"w{i}" for i in range(rng.choice([3, 4, 5]))]
    workers: dict[str, Any] = {}
    for name in names:
        work, exponent = rng.uniform(5, 200), rng.choice([0.5, 0.7, 0.9, 1.0])
        workers[name] = {
            "samples": [{"devices": d, "items": 60, "seconds": round(work / d**exponent, 3)} for d in (1, 4, 8)],
            "onload_s": rng.choice([0, 0.5, 4]), "offload_s": rng.choice([0, 0.5, 3]),
            "memory": {"resident_gib": rng.choice([0, 5, 20, 30]), "per_item_gib": rng.choice([0, 0.2])},
        }  # fmt: skip
        if rng.random() < 0.3:
            workers[name]["ranks"] = {"divides": rng.choice([12, 20, 60])}
    edges = [{"producer": p, "consumer": c, "whole": rng.random() < 0.2} for i, p in enumerate(names) for c in names[i + 1 :] if rng.random() < 0.5]
    profile = Profile.from_dict({"items": 60, "workers": workers, "edges": edges, "device_memory_gib": rng.choice([None, 48, 80])})
    return profile, rng.choice([4, 5, 6, 7, 8, 12]), {"micro_batches": rng.choice([4, 8])}


def any_flow(seed: int) -> tuple[Profile, int, dict[str, Any]]:
    """(a profile, how many devices, fields of `plan`): one of the two kinds, in few micro-batches or many, sometimes with iterations that overlap."""
    rng = random.Random(1000 + seed)
    if seed % 3 == 2:
        profile, devices, more = branching(seed)
        return profile, devices, {**more, "staleness": rng.choice([0, 0, 0, 1, 2])}
    return random_profile(seed), rng.choice([2, 4, 5, 6, 8, 12]), {"micro_batches": rng.choice([1, 2, 4, 8, 64]), "staleness": rng.choice([0, 0, 0, 1, 2])}


def _worker(rng: random.Random, memory: bool) -> WorkerProfile:
    ranks = rng.choice([RankRule(), RankRule(), RankRule(2), RankRule(divides=16)])
    held = Memory(rng.choice([5, 20, 45, 160]), rng.choice([0.0, 0.05]), False) if memory else Memory()
    if held.resident_gib == 160:
        held = Memory(160, 0.0, True)
    sample = Sample(8, 256.0, rng.uniform(5, 60))
    return WorkerProfile(
        (sample,), exponent=rng.choice([0.6, 0.8, 1.0]), ranks=ranks, memory=held, onload_s=rng.choice([0, 2.0]), offload_s=rng.choice([0, 1.0]),
        offloadable=rng.random() > 0.15,
    )  # fmt: skip
