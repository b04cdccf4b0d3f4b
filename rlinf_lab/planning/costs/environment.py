"""A simulator: flat in the number of environments on one device, then linear. Inside the measured range interpolated,
beyond it a hinge.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlinf_lab.planning.costs.base import (
    BETWEEN,
    BEYOND,
    EXTRAPOLATED,
    INTERPOLATED,
    NOBODY,
    CostEstimate,
    Misfit,
    at_samples,
    of_a_rank,
)
from rlinf_lab.planning.profile.profile import Sample


@dataclass(frozen=True)
class SimulatorModel:
    """Seconds of one step. What counts is environments on one device, of the rank that has most."""

    samples: tuple[Sample, ...]
    devices_per_rank: int = 1
    group_size: int = 1

    def seconds(self, devices: np.ndarray, items: float | np.ndarray, beside: frozenset[str] = NOBODY) -> np.ndarray:
        n, t = self.points
        each = self._each(devices, items)
        _, slope, knee = self.hinge
        beyond = t[-1] + slope * (each - np.maximum(n[-1], knee))
        return np.where(each <= n[-1], np.interp(each, n, t), np.maximum(beyond, t[-1]))

    def estimate(self, devices: int, items: float, beside: frozenset[str] = NOBODY) -> CostEstimate:
        n, _ = self.points
        each = float(self._each(np.array([devices]), items)[0])
        value = float(self.seconds(np.array([devices]), items)[0])
        here = [s.seconds for s in self.samples if np.isclose(self._each(np.array([s.devices]), s.items)[0], each)]
        if here:
            return at_samples(value, here)
        if n[0] < each < n[-1]:
            return self.misfit.around(value, INTERPOLATED, BETWEEN)
        far = abs(float(np.log2(each / (n[-1] if each > n[-1] else n[0]))))
        return self.misfit.around(
            value,
            EXTRAPOLATED,
            BEYOND * (1 + far),
            f"{each:g} environments on a device, measured at {n[0]:g} to {n[-1]:g}",
        )

    def reach(self) -> float:
        """The measured range. Beyond it a simulator may run out of memory or turn steep, so no plan relies on it."""
        return float(self.points[0][-1])

    @cached_property
    def points(self) -> tuple[np.ndarray, np.ndarray]:
        """(environments on a device, seconds), means of equal ones, in order."""
        each = self.measured
        t = np.array([s.seconds for s in self.samples])
        n = np.unique(each)
        return n, np.array([t[each == k].mean() for k in n])

    def _each(self, devices: np.ndarray, items: float | np.ndarray) -> np.ndarray:
        n = np.maximum(np.asarray(devices, float), 1.0)
        ranks = np.maximum(n / self.devices_per_rank, 1.0)
        return np.asarray(of_a_rank(items, ranks, self.group_size) * ranks / n)

    @cached_property
    def measured(self) -> np.ndarray:
        """Environments on a device in each sample."""
        return self._each(np.array([s.devices for s in self.samples]), np.array([s.items for s in self.samples]))

    @cached_property
    def misfit(self) -> Misfit:
        return Misfit.of(np.array([s.seconds for s in self.samples]), np.interp(self.measured, *self.points))

    @cached_property
    def hinge(self) -> tuple[float, float, float]:
        """Least squares' (flat, slope, knee). Seconds are flat up to the knee, then grow by ``slope`` for each further
        environment.
        """
        n, t = self.points
        best = (float("inf"), float(t.mean()), 0.0, float(n[-1]))
        for knee in (0.0, *n[:-1]):
            rise = np.maximum(n - knee, 0.0)
            design = np.stack([np.ones_like(n), rise], axis=1)
            (flat, slope), *_ = np.linalg.lstsq(design, t, rcond=None)
            error = float(np.sum((flat + slope * rise - t) ** 2))
            if slope >= 0 and flat >= 0 and error < best[0] - 1e-15:
                best = (error, float(flat), float(slope), float(knee))
        return best[1], best[2], best[3]
