"""GiB on one device. A worker needs some while it works, and keeps some there while others do."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from rlinf_lab.planning.profile.profile import RankRule, WorkerProfile

ROUNDING = 1e-9  # GiB and items


def advised(gib: float) -> int | float:
    """What to advise where so many GiB are needed. It is no less, at most one percent more, and short: three figures,
    whole numbers from 100 on.
    """
    step = advised_step(gib)
    return _plain(math.ceil(gib / step - ROUNDING) * step)


def advised_step(gib: float) -> float:
    """How far numbers that are advised are apart, about so many GiB and below."""
    return float(10.0 ** min(0, math.ceil(math.log10(gib) - ROUNDING) - 3)) if gib > 0 else 1.0


def less_than_advised(gib: float) -> int | float:
    """The next smaller one."""
    step = advised_step(gib)
    return _plain(max(0, round(gib / step) - 1) * step)


def _plain(gib: float) -> int | float:
    rounded = round(gib, 12)
    return int(rounded) if rounded == int(rounded) else rounded


def valid(rule: RankRule, devices: np.ndarray) -> np.ndarray:
    """`RankRule.allows` for many device counts."""
    ranks, rest = np.divmod(devices, rule.devices_per_rank)
    good = (rest == 0) & (ranks >= 1)
    if rule.divides:
        good &= rule.divides % np.maximum(ranks, 1) == 0
    if rule.counts:
        good &= np.isin(ranks, rule.counts)
    return good & (ranks <= rule.most) if rule.most else good


def resident(worker: WorkerProfile, devices: np.ndarray) -> np.ndarray:
    """GiB of weights, optimiser or scene on each of so many devices. What it shares with others is included."""
    whole, shared = worker.memory.resident_gib, worker.memory.shared_gib
    return (
        whole / np.maximum(devices, 1) + shared
        if worker.memory.sharded
        else np.full(np.shape(devices), whole + shared, float)
    )


def shares(worker: WorkerProfile) -> bool:
    """Whether others hold some of its weights, too."""
    return bool(worker.memory.shared_as) and worker.resource != "host"


def counted_twice(workers: Iterable[WorkerProfile]) -> float:
    """GiB that adding up what these keep on a device counts too often. Weights that several of them hold are there
    once.
    """
    seen, twice = set[str](), 0.0
    for worker in workers:
        if shares(worker):
            twice += worker.memory.shared_gib if worker.memory.shared_as in seen else 0.0
            seen.add(worker.memory.shared_as)
    return twice


def shared_part(worker: WorkerProfile) -> float:
    """Of what a switch of it moves, the part that others hold, too. Where its own is sharded, on the fewest devices
    that it can have: the least.
    """
    whole = float(resident(worker, np.array([max(worker.ranks.fewest, 1)]))[0])
    return worker.memory.shared_gib / whole if shares(worker) and whole else 0.0


def needed(worker: WorkerProfile, devices: np.ndarray, items: float | np.ndarray, group_size: int = 1) -> np.ndarray:
    """GiB on each device while a call of so many items runs. A generator runs fewer at once when memory is short, but
    one it must hold.
    ``group_size``: items come in groups of so many.

    Where peaks were measured it is never less than they say; what a generator with ``per_item_gib`` peaked at is what
    it was given.
    """
    if worker.kind == "generation" and worker.memory.per_item_gib:
        return resident(worker, devices) + worker.memory.per_item_gib / worker.ranks.devices_per_rank
    held = _held(worker, devices, items, group_size)
    return resident(worker, devices) + np.maximum(
        worker.memory.per_item_gib * held, _transient(worker, held, group_size)
    )


def _transient(worker: WorkerProfile, held: np.ndarray, group_size: int) -> np.ndarray:
    """GiB above the resident ones while a device holds so many items, from measured peaks.

    Interpolated between them; below the smallest as much as there, for what is fixed of it is not known; above the
    largest in proportion or as steeply as between the last two, whichever is more.
    """
    points: dict[float, float] = {}
    for sample in worker.samples:
        if sample.peak_gib is not None and sample.devices and not sample.beside:
            on = np.array([sample.devices])
            load = float(_held(worker, on, sample.items, group_size)[0])
            points[load] = max(points.get(load, 0.0), sample.peak_gib - float(resident(worker, on)[0]))
    if not points:
        return np.zeros(np.shape(held))
    at = np.array(sorted(points))
    gib = np.array([max(points[b] for b in points if b <= a) for a in at])
    slope = gib[-1] / at[-1] if len(at) == 1 else max(gib[-1] / at[-1], (gib[-1] - gib[-2]) / (at[-1] - at[-2]))
    return np.asarray(np.interp(held, at, gib) + slope * np.maximum(held - at[-1], 0.0))


def limits(worker: WorkerProfile) -> bool:
    """Whether anything is known of what it needs."""
    return bool(
        worker.memory.resident_gib
        or worker.memory.shared_gib
        or worker.memory.per_item_gib
        or any(s.peak_gib for s in worker.samples)
    )


def _held(worker: WorkerProfile, devices: np.ndarray, items: float | np.ndarray, group_size: int = 1) -> np.ndarray:
    """Items on each device. A rank holds whole ones, in whole groups, spread over its devices."""
    ranks = np.maximum(devices // worker.ranks.devices_per_rank, 1)
    return group_size * np.ceil(items / group_size / ranks - ROUNDING) / worker.ranks.devices_per_rank


def kept(worker: WorkerProfile, devices: np.ndarray, items: float | np.ndarray) -> np.ndarray:
    """GiB on each device while others work there. Environments keep their scenes; batches and caches are gone between
    calls.
    """
    scenes = worker.memory.per_item_gib * _held(worker, devices, items) if worker.kind == "simulator" else 0.0
    return resident(worker, devices) + scenes


def slots(worker: WorkerProfile, devices: np.ndarray, free_gib: np.ndarray) -> np.ndarray | None:
    """Sequences that a rank of a generator can run at once beside its weights. None: memory is no limit."""
    if not worker.memory.per_item_gib or not np.isfinite(free_gib).any():
        return None
    with np.errstate(over="ignore"):  # of next to nothing there is room for any number
        return np.floor(
            (free_gib - resident(worker, devices)) * worker.ranks.devices_per_rank / worker.memory.per_item_gib
            + ROUNDING
        )
