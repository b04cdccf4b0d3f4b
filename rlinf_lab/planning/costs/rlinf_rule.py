"""The cost rules of RLinf's public placement tool, for comparison. They use one run of all workers on all devices.

- generation costs the same on fewer devices as long as their engines can hold all requests at once, else seconds grow
  with N/n;
- other work costs ``c · s / (1 + clamp(s / 10, 0.1, 0.9))`` with s = N/n.

Facts from its public repository (toolkits/auto_placement), restated. It knows no memory, no switching and no length
distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlinf_lab.planning.costs.base import EXTRAPOLATED, GUESSED, MEASURED, NOBODY, REPEAT, CostEstimate


@dataclass(frozen=True)
class CapacityCliff:
    """Generation: ``reference_s`` on ``reference_devices`` for ``batch`` requests."""

    reference_s: float
    reference_devices: int
    batch: float
    max_running: int
    devices_per_rank: int = 1

    def seconds(self, devices: np.ndarray, items: float | np.ndarray, beside: frozenset[str] = NOBODY) -> np.ndarray:
        held = math.ceil(0.9 * self.max_running) if self.max_running >= 128 else self.max_running
        s = _shrunk(self.reference_devices, devices)
        fits = self.reference_devices / s / self.devices_per_rank * held >= self.batch
        return self.reference_s * np.where(fits, 1.0, s) * items / self.batch

    def estimate(self, devices: int, items: float, beside: frozenset[str] = NOBODY) -> CostEstimate:
        return _estimate(self, devices, items)

    def reach(self) -> float:
        return float("inf")


@dataclass(frozen=True)
class DampedScaling:
    """Training and the like: ``reference_s`` on ``reference_devices`` for ``batch`` items."""

    reference_s: float
    reference_devices: int
    batch: float

    def seconds(self, devices: np.ndarray, items: float | np.ndarray, beside: frozenset[str] = NOBODY) -> np.ndarray:
        s = _shrunk(self.reference_devices, devices)
        grown = np.where(s == 1, 1.0, s / (1 + np.clip(s / 10, 0.1, 0.9)))
        return self.reference_s * grown * items / self.batch

    def estimate(self, devices: int, items: float, beside: frozenset[str] = NOBODY) -> CostEstimate:
        return _estimate(self, devices, items)

    def reach(self) -> float:
        return float("inf")


def _shrunk(reference: int, devices: np.ndarray) -> np.ndarray:
    """How many times fewer devices. A worker on the host has none (0), and is as fast whatever the plan."""
    n = np.asarray(devices, float)
    return np.where(n > 0, max(reference, 1) / np.maximum(n, 1.0), 1.0) if reference else np.ones_like(n)


def _estimate(model: CapacityCliff | DampedScaling, devices: int, items: float) -> CostEstimate:
    seconds = float(model.seconds(np.array([devices]), items)[0])
    if devices == model.reference_devices and math.isclose(items, model.batch):
        return CostEstimate.around(seconds, MEASURED, REPEAT)
    return CostEstimate.around(seconds, EXTRAPOLATED, GUESSED, "public placement rule, from one measurement")
