"""A profile with what a run showed of a worker: which part of a batch's seconds has changed, the part that it always takes or that of its items.

Batches of several sizes tell the two apart. Where a run has one size only (or seconds that are too uneven) there are two readings: everything grew in
proportion (a slower machine), or the items alone did (longer ones). A plan with other chunks takes other seconds under each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinf_lab.planning.candidates import Candidate
from rlinf_lab.planning.consumed import fit
from rlinf_lab.planning.costs import BatchModel
from rlinf_lab.planning.drift import Drift, Window
from rlinf_lab.planning.profile import Profile, Sample

SIZES = 1.25  # the largest batch over the smallest, from which on sizes tell
SURE = 0.1  # standard error of what a batch always takes, relative to its seconds: with more, sizes do not tell
MATTERS = 0.02  # of a worker's seconds: a fixed part below it makes no difference


@dataclass(frozen=True)
class Readings:
    """The profile ``as_measured``, in proportion where nothing tells; ``items_only``: the other reading of the workers in ``unclear``."""

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


def _of_worker(profile: Profile, candidate: Candidate, window: Window, drift: Drift) -> tuple[Profile, Profile]:
    """As measured, and with the items alone changed where that is as likely."""
    name, placement = drift.worker, candidate.placement
    seat, setting = placement.seats[name], placement.setting
    model, (sizes, spent) = setting.models[name, placement.kind(seat)], window.batches(name)
    alone = len(setting.units[setting.home[name]].members) == 1 and profile.workers[name].calls == 1
    count = len(sizes) / len(window.warm)
    if not alone or not isinstance(model, BatchModel) or not count or count <= 1 < seat.chunks:  # all came at once: its parts are not to be seen
        scaled = profile.scaled(name, drift.factor)
        return scaled, scaled
    always = _always(model, len(seat.devices), seat.ranks)
    expected = drift.expected + (count - seat.chunks) * always  # chunks are whole numbers of items: there may be fewer
    factor = drift.measured / expected
    told = told_by_sizes(sizes, spent)
    if told is not None:
        of_items = _items_factor(drift.measured, expected, count, told, always)
        if of_items is not None:
            made = _changed(profile, name, always, told, of_items)
            return made, made
    scaled = profile.scaled(name, factor)
    of_items = _items_factor(drift.measured, expected, count, always, always)
    if count * always <= MATTERS * expected or of_items is None:
        return scaled, scaled
    return scaled, _changed(profile, name, always, always, of_items)


def told_by_sizes(sizes: np.ndarray, spent: np.ndarray) -> float | None:
    """Seconds that each batch takes besides its items, from items and seconds of some; None where sizes are too alike, or seconds too uneven, to tell."""
    if sizes.max() < SIZES * sizes.min():
        return None
    always, each, odd = fit(sizes, 1e9 * spent)
    off, apart = spent - (always + each * sizes) / 1e9, sizes - sizes.mean()
    error = np.sqrt(off @ off / max(1, len(sizes) - 2) * (1 / len(sizes) + sizes.mean() ** 2 / (apart @ apart)))
    return always / 1e9 if not odd and error <= SURE * spent.mean() else None


def _always(model: BatchModel, devices: int, ranks: int) -> float:
    """Seconds of a batch that do not depend on its items."""
    once, twice = (float(model.seconds(np.array([devices]), float(n * ranks))[0]) for n in (1, 2))
    return max(0.0, 2 * once - twice)


def _items_factor(measured: float, expected: float, batches: float, now: float, before: float) -> float | None:
    """How many times as long the items of an iteration take, if each batch takes ``now`` seconds besides instead of ``before``; None if that cannot be."""
    of_items = expected - batches * before
    found = (measured - batches * now) / of_items if of_items > 0 else -1.0
    return found if found >= 0 else None


def _changed(profile: Profile, worker: str, before: float, now: float, of_items: float) -> Profile:
    def changed(sample: Sample) -> Sample:
        own = min(before, sample.seconds)
        return sample.scaled((now + of_items * (sample.seconds - own)) / sample.seconds) if sample.seconds else sample

    return profile.with_worker(worker, samples=tuple(changed(s) for s in profile.workers[worker].samples))
