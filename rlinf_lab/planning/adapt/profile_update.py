"""A profile with what a run showed of a worker. It tells which part of a batch's seconds has changed: the part that it
always takes, or that of its items.

Batches of several sizes tell the two apart. Where a run has one size only (or seconds that are too uneven) there are
two readings: everything grew in proportion (a slower machine), or the items alone did (longer ones). A plan with other
micro-batches takes other seconds under each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinf_lab.planning.adapt.drift import Drift, Window
from rlinf_lab.planning.costs import BatchModel
from rlinf_lab.planning.placement.cell_order import head
from rlinf_lab.planning.planner.candidates import Candidate
from rlinf_lab.planning.profile.profile import Profile, Sample
from rlinf_lab.planning.replay.batch_model import fit

SIZES_FACTOR = 1.25  # the largest batch over the smallest, from which on sizes tell
# standard error of what a batch always takes, relative to its seconds: with more, sizes do not tell
SURE_RELATIVE = 0.1
MATTERS_SHARE = 0.02  # of a worker's seconds: a fixed part below it makes no difference


@dataclass(frozen=True)
class Readings:
    """The profile ``as_measured``, in proportion where nothing tells. ``items_only``: the other reading of the workers
    in ``unclear``.
    """

    as_measured: Profile
    items_only: Profile
    unclear: tuple[str, ...]

    def of_both(self) -> tuple[Profile, ...]:
        return (self.as_measured, self.items_only) if self.unclear else (self.as_measured,)

    @classmethod
    def of(cls, profile: Profile, candidate: Candidate, window: Window, drifts: tuple[Drift, ...]) -> Readings:
        """``drifts``: of workers, sustained, with seconds expected."""
        first = second = profile
        unclear = []
        for drift in drifts:
            told, other = _of_worker(profile, candidate, window, drift)
            first = first.replace(workers={**first.workers, drift.worker: told.workers[drift.worker]})
            second = second.replace(workers={**second.workers, drift.worker: other.workers[drift.worker]})
            if other != told:
                unclear.append(drift.worker)
        return cls(first, second, tuple(unclear))


def as_taken(candidate: Candidate, window: Window, worker: str, planned: float) -> float | list[float]:
    """Seconds that a plan leads to expect of a worker's busiest rank. Of each iteration, for the batches that came:
    ``planned`` is for those of the plan.

    Items are whole and ranks take them by themselves, so batches are fewer or smaller than a plan says, and one rank
    may get more of them than another: no worker is slower or faster for that. How many items there are in all is the
    plan's. Where all came at once it may be worked on in one piece or in the plan's micro-batches: both are expected,
    and what lies between.
    """
    found = _Batches.of(candidate, worker)
    if found is None:
        return _in_turn_with_others(candidate, window, worker, planned)
    parts, whole = window.taken(worker), found.seconds(found.planned)
    if not whole or not all(len(p) for p in parts):
        return planned
    expected = [planned * found.seconds(p) / whole for p in parts]
    pairs = zip(expected, parts, window.workers[worker], strict=True)
    return [
        min(max(measured, min(e, planned)), max(e, planned)) if len(p) == 1 < found.count else e
        for e, p, measured in pairs
    ]


def _in_turn_with_others(candidate: Candidate, window: Window, worker: str, planned: float) -> float | list[float]:
    """Of a cell's member with more ranks than there are tokens. A rank has what it took of all, and is idle while
    another one has the token.
    """
    placement = candidate.placement
    stage, ranks = placement.setting.home[worker], placement.seats[worker].ranks
    first = placement.seats[head(placement.setting.profile, placement.setting.stages[stage].members)]
    known = placement.setting.cell(stage)
    tokens = max(known.tokens, first.ranks * max(first.sub_batches, min(known.sub_batches)))
    parts = window.taken(worker) if tokens < ranks and not window.is_simulated else []
    return (
        [planned * float(p.sum()) * tokens / ranks for p in parts] if parts and all(len(p) for p in parts) else planned
    )


@dataclass(frozen=True)
class _Batches:
    """What batches take of a worker outside all cells, in two parts. Its model must tell a batch's seconds from those
    of its items. ``planned``: which parts of all items those of the plan are.
    """

    model: BatchModel
    devices: int
    items: int
    planned: np.ndarray

    @property
    def count(self) -> int:
        return len(self.planned)

    @classmethod
    def of(cls, candidate: Candidate, name: str) -> _Batches | None:
        placement, setting = candidate.placement, candidate.placement.setting
        seat, worker = placement.seats[name], setting.profile.workers[name]
        model = setting.models[name, placement.kind(seat)]
        alone = len(setting.stages[setting.home[name]].members) == 1 and worker.calls == 1 and not worker.in_turn
        if not alone or not isinstance(model, BatchModel):
            return None
        items, whole = setting.profile.items, name in setting.in_whole_calls
        return cls(
            model,
            len(seat.devices),
            items,
            placement.calls(seat).parts() / items if whole else np.full(seat.micro_batches, 1 / seat.micro_batches),
        )

    def seconds(self, parts: np.ndarray) -> float:
        """Of batches of these parts of all items."""
        sizes, count = np.unique(parts, return_counts=True)  # most are of one size
        return sum(
            n * float(self.model.seconds(np.array([self.devices]), float(size * self.items))[0])
            for size, n in zip(sizes, count.tolist(), strict=True)
        )

    def always(self, planned: float) -> float:
        """Seconds of a batch that do not depend on its items. They follow from the seconds ``planned`` that the plan's
        batches take together.
        """
        whole = self.seconds(self.planned)
        return self.model.always(self.devices) * (planned / whole if whole else 1.0)


def _of_worker(profile: Profile, candidate: Candidate, window: Window, drift: Drift) -> tuple[Profile, Profile]:
    """As measured, and with the items alone changed where that is as likely."""
    name, scaled = drift.worker, profile.scaled(drift.worker, drift.factor)
    batches, (sizes, spent) = _Batches.of(candidate, name), window.batches(name)
    count = len(sizes) / len(window.warm)
    if batches is None or not count or count <= 1 < batches.count:  # all came at once: its parts are not to be seen
        return scaled, scaled
    always = batches.always(candidate.streamed.work[candidate.placement.setting.home[name]].busy)
    told = told_by_sizes(sizes, spent)
    if told is not None:
        of_items = _items_factor(drift.measured, drift.expected, count, told, always)
        if of_items is not None:
            made = _changed(profile, name, always, told, of_items)
            return made, made
    of_items = _items_factor(drift.measured, drift.expected, count, always, always)
    if count * always <= MATTERS_SHARE * drift.expected or of_items is None:
        return scaled, scaled
    return scaled, _changed(profile, name, always, always, of_items)


def told_by_sizes(sizes: np.ndarray, spent: np.ndarray) -> float | None:
    """Seconds that each batch takes besides its items, from items and seconds of some. None where sizes are too alike,
    or seconds too uneven, to tell.
    """
    if sizes.max() < SIZES_FACTOR * sizes.min():
        return None
    always, each, odd = fit(sizes, 1e9 * spent)
    off, apart = spent - (always + each * sizes) / 1e9, sizes - sizes.mean()
    error = np.sqrt(off @ off / max(1, len(sizes) - 2) * (1 / len(sizes) + sizes.mean() ** 2 / (apart @ apart)))
    return always / 1e9 if not odd and error <= SURE_RELATIVE * spent.mean() else None


def _items_factor(measured: float, expected: float, batches: float, now: float, before: float) -> float | None:
    """How many times as long the items of an iteration take. Each batch is taken to need ``now`` seconds besides
    instead of ``before``; None if that cannot be.
    """
    of_items = expected - batches * before
    found = (measured - batches * now) / of_items if of_items > 0 else -1.0
    return found if found >= 0 else None


def _changed(profile: Profile, worker: str, before: float, now: float, of_items: float) -> Profile:
    def changed(sample: Sample) -> Sample:
        own = min(before, sample.seconds)
        return sample.scaled((now + of_items * (sample.seconds - own)) / sample.seconds) if sample.seconds else sample

    return profile.with_worker(worker, samples=tuple(changed(s) for s in profile.workers[worker].samples))
