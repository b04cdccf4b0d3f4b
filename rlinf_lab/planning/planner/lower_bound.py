"""Seconds between iterations that no plan can beat: a lower bound. It holds under the profile's cost models, whatever a
plan shares and streams.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlinf_lab.planning.costs import GenerationModel
from rlinf_lab.planning.costs.base import INTERPOLATED, MEASURED
from rlinf_lab.planning.placement.cell_order import is_ring, order, rounds
from rlinf_lab.planning.placement.free_memory import APART, SINGLE, TOGETHER, Colocated, Forms
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.profile.handovers import tail
from rlinf_lab.planning.profile.profile import EdgeProfile

ROUNDING_FACTOR = 1 + 1e-6
ATOMS, GRID_COUNTS = 512, 24  # of a generator's stream, and of device counts for which it is looked at


@dataclass(frozen=True)
class Bound:
    """``seconds`` and what they come from, for people. An estimate where costs that it rests on were not measured:
    then ``unsure`` names their workers.
    """

    seconds: float
    why: str
    unsure: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """In a sentence."""
        if not self.unsure:
            return f"none can take less than {self.seconds:.4g} s ({self.why})"
        return (
            f"estimate: none takes less than about {self.seconds:.4g} s ({self.why}); "
            f"{' and '.join(self.unsure)} {'was' if len(self.unsure) == 1 else 'were'} not measured there. "
            "Next: lab.profile(flow) measures a second size"
        )


def lower_bound(setting: Setting, known: float = np.inf) -> Bound:
    """The largest of three bounds. ``known``: seconds of a plan; only device counts that could beat it
    count as work.
    """
    busy = [busy_seconds(setting, stage) for stage in range(len(setting.stages))]
    work = sum(_device_seconds(setting, stage, known) for stage in range(len(setting.stages)))
    steady = [float(np.minimum(rows, _of_ranks(setting, stage)).min()) for stage, rows in enumerate(busy)]
    slowest = max(range(len(busy)), key=steady.__getitem__)
    found = [
        Bound(work / setting.totals[-1], f"all workers together need {work:.4g} device seconds"),
        Bound(steady[slowest], f"{setting.stages[slowest].name} alone takes as long on the devices that suit it best"),
        _chain(setting, busy),
    ]
    at, best = max(enumerate(found), key=lambda b: b[1].seconds)
    handing = 0.0 if setting.overlap else tail(setting.profile)
    if handing:
        best = replace(best, seconds=best.seconds + handing, why=f"{best.why}, and handing over {handing:.4g} s")
    concerned = [slowest] if at == 1 else range(len(setting.stages))
    names = [n for stage in concerned for n in setting.stages[stage].members]
    return replace(best, unsure=tuple(n for n in names if not _is_measured(setting, n, known, at == 0)))


def _is_measured(setting: Setting, name: str, known: float, is_work: bool) -> bool:
    """Whether costs are known on the devices that give a bound, all items at once. No smaller calls are cheaper."""
    if setting.profile.workers[name].resource == "host":
        return True
    busy = _least(setting, setting.home[name], name)
    quick = np.isfinite(busy) & (busy <= max(known * ROUNDING_FACTOR, busy.min()))
    seconds = np.full(busy.shape, np.inf)
    seconds[quick] = busy[quick] * (setting.totals[quick] if is_work else 1)
    counts = np.unravel_index(int(np.argmin(seconds)), setting.shape)
    axis = int(np.argmax(counts))
    kind = setting.kinds[axis]
    found = setting.models[name, kind].estimate(int(counts[axis]), setting.profile.items)
    return setting.measured_on(name, kind) == kind and found.basis in (MEASURED, INTERPOLATED)


def _device_seconds(setting: Setting, stage: int, known: float) -> float:
    """Fewest device seconds of an iteration. Members of a cell compute each on devices that could beat ``known``."""
    names = setting.stages[stage].members
    calibration = setting.cell(stage).calibration if len(names) > 1 else 1.0
    return calibration * sum(_of_worker(setting, stage, name, known / calibration) for name in names)


def _of_worker(setting: Setting, stage: int, name: str, known: float) -> float:
    busy, occupied = (
        np.minimum(_least(setting, stage, name), _of_ranks(setting, stage, at_once=False)),
        _occupied(setting, stage, name),
    )
    # A plan of ``known`` seconds may be a little above what the search says of it, or below by the nanoseconds to which
    # a simulation rounds.
    quick = np.isfinite(busy) & (busy <= max(known * ROUNDING_FACTOR, busy.min()))
    return float((np.minimum(busy, occupied)[quick] * setting.totals[quick]).min())


def _least(setting: Setting, stage: int, name: str) -> np.ndarray:
    """Least seconds that a worker computes in an iteration, for each number of devices. Any micro-batches and
    sub-batches count.
    """
    colocated, cell = (
        Colocated(0, Forms((SINGLE,) * len(setting.stages)), (name,)),
        len(setting.stages[stage].members) > 1,
    )
    ways, micro_batches = (
        sorted({1, *setting.cell(stage).sub_batches} if cell else {1}),
        2.0 ** np.arange(setting.granularities)[:, None],
    )
    return np.asarray(
        np.min([k * micro_batches * setting.tables.member_rows(name, k, colocated) for k in ways], axis=(0, 1))
    )


def _of_ranks(setting: Setting, stage: int, at_once: bool = True) -> np.ndarray:
    """Seconds of an iteration for each number of devices where ranks need not share evenly. Where iterations overlap
    they need not have as many items in each: five items of two ranks are two and a half. inf: no rank can have another
    share.

    For the work (not ``at_once``) that is so in every iteration: a rank that has fewer ends sooner, and others have its
    device. Where iterations overlap, and with m calls of an iteration, of any size, R ranks take m / R of them each,
    and the largest call lies within the 1 + staleness iterations that are under way (which matters to who waits for
    them). Between whole items a model is a line.
    """
    found, names = np.full(setting.shape, np.inf), setting.stages[stage].members
    worker = setting.profile.workers[names[0]]
    if len(names) > 1 or (at_once and not setting.overlap) or worker.kind == "generation" or worker.resource == "host":
        return found.ravel()
    group, items, under_way = setting.profile.group_size(names[0]), setting.profile.items, 1 + setting.overlap
    for axis, kind in enumerate(setting.kinds):
        devices = np.arange(1, setting.counts[axis] + 1)
        ranks, model = np.maximum(devices // worker.ranks.devices_per_rank, 1), setting.models[names[0], kind]
        ways = []
        if at_once:
            some = [np.maximum(ranks // under_way, 1), -(-ranks // under_way), ranks]
        else:  # who is alone in an iteration takes as long as on one rank
            some = [np.ones_like(ranks), ranks] if setting.overlap else [ranks]
        for calls in some:
            of_all = items * ranks / calls
            whole = group * ranks * np.maximum(np.floor(of_all / group / ranks), 1)
            low, high = model.seconds(devices, whole), model.seconds(devices, whole + group * ranks)
            seconds = np.maximum(low + (of_all - whole) / (group * ranks) * (high - low), 0.0)
            ways.append(seconds * np.maximum(calls / ranks, 1 / under_way if at_once else 0.0))
        only = tuple(slice(1, None) if a == axis else 0 for a in range(len(setting.shape)))
        found[only] = worker.calls * np.min(ways, axis=0)
    return np.where(np.isfinite(busy_seconds(setting, stage)), found.ravel(), np.inf)


def _occupied(setting: Setting, stage: int, name: str) -> np.ndarray:
    """Seconds for which a worker keeps others off its devices, for each number of them. Inf: as long as it is busy.

    A generator's ranks end one by one. Where the next iteration begins meanwhile, or somebody who needs none of its
    responses or can begin with the first ones, they are not lost. The mean rank ends no earlier than the mean response,
    which takes no longer with more devices.
    """
    found = np.full(setting.shape, np.inf)
    if setting.overlap or not _is_alone(setting, stage):
        worker = setting.profile.workers[name]
        for axis, kind in enumerate(setting.kinds):
            model, counts = (
                setting.models[name, kind],
                np.unique(np.geomspace(1, setting.counts[axis], GRID_COUNTS).astype(int)),
            )
            if isinstance(model, GenerationModel):
                slots = setting.tables.free_memory.running(
                    name, kind, counts, setting.profile.items, Colocated(0, Forms(()), (name,))
                )
                means = [
                    _mean_response(setting, model, int(n), None if slots is None else float(slots[i]))
                    for i, n in enumerate(counts)
                ]
                only = tuple(slice(1, None) if a == axis else 0 for a in range(len(setting.shape)))
                found[only] = (
                    worker.calls * np.array(means)[np.searchsorted(counts, np.arange(1, setting.counts[axis] + 1))]
                )
    return found.ravel()


def _mean_response(setting: Setting, model: GenerationModel, devices: int, slots: float | None) -> float:
    if slots is not None and slots < 1:
        return np.inf
    times = model.stream(devices, setting.profile.items, ATOMS, cap=slots).times
    return float(times[:-1].sum() / ATOMS)


def _is_alone(setting: Setting, stage: int) -> bool:
    """Whether every other stage ends before this one begins, or begins after its end. It is so where somebody on the
    way waits for everything.
    """
    pairs = {(setting.home[e.producer], setting.home[e.consumer], setting.whole(e)) for e in setting.profile.edges}
    after: dict[bool, set[int]] = {False: {stage}, True: set()}  # fed by it, and those of them that wait for everything
    before: dict[bool, set[int]] = {False: {stage}, True: set()}
    for _ in setting.stages:
        for p, c, whole in pairs:
            if p in after[False] and p != c:
                after[False].add(c)
                after[True] |= {c} if whole or p in after[True] else set()
            if c in before[False] and p != c:
                before[False].add(p)
                before[True] |= {p} if whole or c in before[True] else set()
    return len({stage} | after[True] | before[True]) == len(setting.stages)


def busy_seconds(setting: Setting, stage: int) -> np.ndarray:
    """Least seconds of an iteration on each number of devices. With the best micro-batches, and alone there."""
    members = setting.stages[stage].members
    # not all members wait for each other in every step; apart, each has a number of devices of its own
    if not is_ring(setting.profile, members):
        return np.asarray(np.max([_on_at_most(setting, _least(setting, stage, m)) for m in members], axis=0))
    forms = [TOGETHER, APART] if len(members) > 1 else [SINGLE]
    rows = [
        setting.tables.of(stage, 0, Forms(tuple(f if i == stage else SINGLE for i in range(len(setting.stages)))))
        for f in forms
    ]
    micro_batches = 2.0 ** np.arange(setting.granularities)[:, None]
    return np.asarray(np.min([np.min(r * micro_batches, axis=0) for r in rows], axis=0))


def _outside(setting: Setting, stage: int, member: str, entering: bool) -> float:
    """The part of a cell's seconds in which others may work outside a member's. That is before its first inputs
    (``entering``), or after its last outputs: in a ring those before it, or after it, work in one step; without one
    those who are some steps ahead or behind.
    """
    profile, members = setting.profile, setting.stages[stage].members
    if len(members) == 1:
        return 0.0
    in_order, ring = order(profile, members), is_ring(profile, members)
    if member == in_order[0] and (entering or ring):  # it begins each step, and waits for the last answers
        return 0.0
    if member == in_order[-1] and ring and not entering:
        return 0.0
    return min(1.0, (1 if ring else len(members) - 1) / rounds(profile, members))


def _still(setting: Setting, edge: EdgeProfile) -> float:
    """The part of a consumer's seconds that comes after an input, at least. It is all, unless it takes others before
    it.
    """
    in_turn = setting.profile.workers[edge.consumer].in_turn
    at = next((i for i, (producer, _) in enumerate(in_turn) if producer == edge.producer), 0)
    return sum(part for _, part in in_turn[at:]) if in_turn else 1.0


def _on_at_most(setting: Setting, seconds: np.ndarray) -> np.ndarray:
    """The least on so many devices of each kind or fewer."""
    found = seconds.reshape(setting.shape)
    for axis in range(found.ndim):
        found = np.minimum.accumulate(found, axis=axis)
    return found.ravel()


def _chain(setting: Setting, busy: list[np.ndarray]) -> Bound:
    """A bound by workers that each wait for the whole batch of another. They come one after another, even if each had
    all devices.
    """
    ends: list[float] = []
    paths: list[tuple[int, ...]] = []
    for stage in range(len(setting.stages)):
        own = float(busy[stage].min())
        found: list[tuple[float, tuple[int, ...]]] = [(own, (stage,))]
        for edge in setting.profile.edges:
            before = setting.home[edge.producer]
            if setting.home[edge.consumer] == stage and before != stage and setting.finest(edge) == 0:
                left = ends[before] - float(busy[before].min()) * _outside(
                    setting, before, edge.producer, entering=False
                )
                after = own * (1 - _outside(setting, stage, edge.consumer, entering=True)) * _still(setting, edge)
                found.append((left + after, (*paths[before], stage)))
        best = max(found, key=lambda f: f[0])
        ends.append(best[0])
        paths.append(best[1])
    end = max(range(len(ends)), key=ends.__getitem__)
    path = " then ".join(setting.stages[u].name for u in paths[end])
    return Bound(ends[end] / (1 + setting.overlap), f"{path}, each waiting for the whole batch")
