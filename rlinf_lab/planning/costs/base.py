"""What every cost model answers, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from rlinf_lab.planning.profile import Sample

MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED = "measured", "interpolated", "extrapolated", "assumed"
# Relative uncertainty. Rules of thumb, not statistics: a profile seldom has repetitions. Repeated samples that differ more count instead.
REPEAT, BETWEEN, BEYOND, GUESSED = 0.03, 0.05, 0.10, 0.25
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

    def __repr__(self) -> str:
        return f"{self.seconds:.4g} s ({self.basis}, {self.low:.4g} to {self.high:.4g})" + f": {self.note}" * bool(self.note)


class CostModel(Protocol):
    """Seconds of one call, for many device counts at once."""

    def seconds(self, devices: np.ndarray, items: float, beside: frozenset[str] = NOBODY) -> np.ndarray:
        """``devices``: whole numbers; ``items``: of the call, over all its devices; ``beside``: who occupies the same devices."""
        ...

    def estimate(self, devices: int, items: float, beside: frozenset[str] = NOBODY) -> CostEstimate:
        """One number with its uncertainty."""
        ...

    def reach(self) -> float:
        """Most items of one device and call that the model will speak about (infinite when it extrapolates)."""
        ...


def basis_of(samples: Sequence[Sample], devices: int, items: float, guessed: str = "") -> tuple[str, float, str]:
    """(basis, relative uncertainty, note) of a point from where it lies among the samples."""
    if any(s.devices == devices and math.isclose(s.items, items) for s in samples):
        return MEASURED, REPEAT, ""
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
    return far, f"{value:g} {what}, measured at {span}"


def nearest_company(groups: Mapping[frozenset[str], T], beside: Collection[str]) -> T:
    """The measurement made in the most similar company: the same, else the smallest larger one (pessimistic), else the largest smaller."""
    wanted = frozenset(beside)
    if wanted in groups:
        return groups[wanted]
    larger = sorted((len(g), sorted(g)) for g in groups if g > wanted)
    if larger:
        return groups[frozenset(larger[0][1])]
    return groups[frozenset(max((len(g & wanted), -len(g), sorted(g)) for g in groups)[2])]
