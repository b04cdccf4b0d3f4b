"""What every cost model answers, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np

from rlinf_lab.planning.profile.profile import Sample

MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED = "measured", "interpolated", "extrapolated", "assumed"
# Relative uncertainty. Rules of thumb, not statistics: a profile seldom has repetitions. Where repeated samples differ
# more, or the model misses its samples by more, that counts instead: no sample lies outside the range that is stated at
# its point.
REPEAT, BETWEEN, BEYOND, GUESSED = 0.03, 0.05, 0.10, 0.25
ROUNDING = 1e-9  # items
TICK_S = 1e-12  # seconds; what is shorter counts as much
T = TypeVar("T")
NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CostEstimate:
    """Seconds with a range, and what they rest on: measured, interpolated, extrapolated or assumed."""

    seconds: float
    low: float
    high: float
    basis: str
    note: str = ""

    @classmethod
    def around(cls, seconds: float, basis: str, relative: float, note: str = "") -> CostEstimate:
        return cls(seconds, seconds / (1 + relative), seconds * (1 + relative), basis, note)

    def times(self, calls: float) -> CostEstimate:
        """Of so many calls: they are as sure as one."""
        return replace(self, seconds=calls * self.seconds, low=calls * self.low, high=calls * self.high)

    def by_speed(self, kind: str) -> CostEstimate:
        """The same of another kind of device than the one that was measured. It is as sure as a guess, whatever the
        samples say there.
        """
        note = "; ".join(
            filter(None, (self.note, f"measured on {kind}, seconds by the relative speed of the two kinds"))
        )
        return CostEstimate(self.seconds, self.low / (1 + GUESSED), self.high * (1 + GUESSED), ASSUMED, note)

    @property
    def relative(self) -> float:
        """How much longer or shorter it may take, whichever is more, relative to ``seconds``."""
        if not self.seconds:
            return math.inf if self.high else 0.0
        return max(self.high / self.seconds - 1, 1 - self.low / self.seconds)

    def __repr__(self) -> str:
        return f"{self.seconds:.4g} s ({self.basis}, {self.low:.4g} to {self.high:.4g})" + f": {self.note}" * bool(
            self.note
        )


class CostModel(Protocol):
    """Seconds of one call, for many device counts at once."""

    def seconds(self, devices: np.ndarray, items: float | np.ndarray, beside: frozenset[str] = NOBODY) -> np.ndarray:
        """Seconds of a call. ``devices``: whole numbers; ``items``: of the call, over all its devices; ``beside``: who
        occupies the same devices.
        """
        ...

    def estimate(self, devices: int, items: float, beside: frozenset[str] = NOBODY) -> CostEstimate:
        """One number with its uncertainty."""
        ...

    def reach(self) -> float:
        """Most items of one device and call that the model speaks about. Infinite when it extrapolates."""
        ...


@dataclass(frozen=True)
class Misfit:
    """The smallest and the largest of measured seconds over the model's. Of all samples that it was fitted to; 1 where
    it meets them."""

    low: float = 1.0
    high: float = 1.0

    @classmethod
    def of(cls, measured: np.ndarray, fitted: np.ndarray) -> Misfit:
        some = fitted > 0  # where the model says 0 s there is no ratio; `at_samples` speaks of such a point
        ratio = np.asarray(measured, float)[some] / np.asarray(fitted, float)[some]
        return cls(float(min(1.0, ratio.min(initial=1.0))), float(max(1.0, ratio.max(initial=1.0))))

    def around(self, seconds: float, basis: str, relative: float, note: str = "") -> CostEstimate:
        """An estimate away from the samples: no surer than the model is of them."""
        return CostEstimate(
            seconds, seconds * min(1 / (1 + relative), self.low), seconds * max(1 + relative, self.high), basis, note
        )


def at_samples(seconds: float, measured: Sequence[float]) -> CostEstimate:
    """An estimate at a point with samples. It is ``measured`` where the model meets their mean as well as they meet
    each other.
    """
    mean, low, high = float(np.mean(measured)), min(measured), max(measured)
    apart = max([REPEAT, *(high / mean - 1, mean / low - 1)]) if low > 0 else math.inf if high > 0 else REPEAT
    met = mean / (1 + apart) <= seconds <= mean * (1 + apart) and (low > 0 or seconds == mean)
    note = "" if met else f"the model misses {mean:.4g} s, measured there"
    return CostEstimate(
        seconds,
        min(seconds / (1 + REPEAT), low),
        max(seconds * (1 + REPEAT), high),
        MEASURED if met else INTERPOLATED,
        note,
    )


def estimated(
    seconds: float,
    samples: Sequence[Sample],
    misfit: Misfit,
    devices: int,
    items: float,
    guessed: str = "",
    note: str = "",
) -> CostEstimate:
    """What a model's seconds rest on, from where the point lies among its samples. ``guessed``: what was assumed;
    ``note``: where there is no other.
    """
    here = [s.seconds for s in samples if s.devices == devices and math.isclose(s.items, items)]
    if here:
        found = at_samples(seconds, here)
        return found if found.note else replace(found, note=note)
    basis, relative, why = basis_of(samples, devices, items, guessed)
    return misfit.around(seconds, basis, relative, why or note)


def of_a_rank(items: float | np.ndarray, ranks: np.ndarray, group_size: int = 1) -> np.ndarray:
    """Items of the rank that has most. They are whole, and so are the groups of ``group_size`` in which they come. A
    number that is not whole gives the mean of micro-batches that differ by one.
    """
    bundles = np.asarray(items, float) / group_size
    low = np.floor(bundles + ROUNDING)
    part = np.maximum(bundles - low, 0.0)
    return np.asarray(
        group_size * ((1 - part) * np.ceil(low / ranks - ROUNDING) + part * np.ceil((low + 1) / ranks - ROUNDING))
    )


def by_relative_error(seconds: np.ndarray) -> np.ndarray:
    """Weights for least squares of relative errors. A sample of 0 s has none: it weighs as much as the shortest other
    one.
    """
    seconds = np.asarray(seconds, float)
    least = seconds[seconds > 0].min(initial=np.inf)
    return np.asarray(1.0 / np.maximum(seconds, max(least, TICK_S) if np.isfinite(least) else 1.0))


def basis_of(samples: Sequence[Sample], devices: int, items: float, guessed: str = "") -> tuple[str, float, str]:
    """(basis, relative uncertainty, note) of a point that is none of the samples."""
    outside = [
        _beyond(devices, [s.devices for s in samples], "devices"),
        _beyond(items, [s.items for s in samples], "items"),
    ]
    far = sum(o[0] for o in outside)
    if far == 0:
        return INTERPOLATED, BETWEEN, ""
    note = "; ".join(o[1] for o in outside if o[1])
    if guessed:
        return ASSUMED, GUESSED * far, f"{note}; {guessed}"
    return EXTRAPOLATED, BEYOND * (1 + far), note


def _beyond(value: float, seen: Sequence[float], what: str) -> tuple[float, str]:
    """Doublings between a value and the nearest end of the measured range, and a sentence."""
    low, high = min(seen), max(seen)
    if value <= 0 or low <= 0 or low <= value <= high:
        return 0.0, ""
    far = abs(math.log2(value / (high if value > high else low)))
    span = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return far, f"{value:g} {what if value != 1 else what[:-1]}, measured at {span}"


def nearest_colocation(groups: Mapping[frozenset[str], T], beside: Collection[str]) -> T:
    """The measurement made in the most similar co-location. That is the same one, else the smallest larger one
    (pessimistic), else the largest smaller.
    """
    wanted = frozenset(beside)
    if wanted in groups:
        return groups[wanted]
    larger = sorted((len(g), sorted(g)) for g in groups if g > wanted)
    if larger:
        return groups[frozenset(larger[0][1])]
    return groups[frozenset(max((len(g & wanted), -len(g), sorted(g)) for g in groups)[2])]
