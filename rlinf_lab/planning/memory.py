"""GiB on one device: what a worker needs while it works, and what it keeps there while others do."""

from __future__ import annotations

import numpy as np

from rlinf_lab.planning.profile import RankRule, WorkerProfile

ROUNDING = 1e-9  # GiB and items


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
    """GiB of weights, optimiser or scene on each of so many devices."""
    whole = worker.memory.resident_gib
    return whole / np.maximum(devices, 1) if worker.memory.sharded else np.full(np.shape(devices), whole, float)


def needed(worker: WorkerProfile, devices: np.ndarray, items: float) -> np.ndarray:
    """GiB on each device while a call of so many items runs. A generator runs fewer at once when memory is short, but one it must hold."""
    held = 1 / worker.ranks.devices_per_rank if worker.kind == "generation" else _held(worker, devices, items)
    return resident(worker, devices) + worker.memory.per_item_gib * held


def _held(worker: WorkerProfile, devices: np.ndarray, items: float) -> np.ndarray:
    """Items on each device: a rank holds whole ones, spread over its devices."""
    ranks = np.maximum(devices // worker.ranks.devices_per_rank, 1)
    return np.ceil(items / ranks - ROUNDING) / worker.ranks.devices_per_rank


def kept(worker: WorkerProfile, devices: np.ndarray, items: float) -> np.ndarray:
    """GiB on each device while others work there. Environments keep their scenes; batches and caches are gone between calls."""
    scenes = worker.memory.per_item_gib * _held(worker, devices, items) if worker.kind == "simulator" else 0.0
    return resident(worker, devices) + scenes


def slots(worker: WorkerProfile, devices: np.ndarray, free_gib: np.ndarray) -> np.ndarray | None:
    """Sequences that a rank of a generator can run at once beside its weights; None: memory is no limit."""
    if not worker.memory.per_item_gib or not np.isfinite(free_gib).any():
        return None
    return np.floor((free_gib - resident(worker, devices)) * worker.ranks.devices_per_rank / worker.memory.per_item_gib + ROUNDING)
