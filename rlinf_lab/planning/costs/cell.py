"""A cell: workers that answer each other step by step (simulator and policy), for the calls of an iteration.

On one set of devices they take turns. On devices of their own, with k sub-batches, one half steps while the answers for the other half
are computed: an iteration takes ``max(k · slowest member, sum of the members)``, each at a k-th of the items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_lab.planning.costs.base import ASSUMED, EXTRAPOLATED, INTERPOLATED, MEASURED, NOBODY, CostEstimate, CostModel

_SURENESS = (MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED)


@dataclass(frozen=True)
class CellModel:
    """``calls`` of each member in an iteration; ``calibration``: measured seconds over the sum of the calls, where it is known."""

    names: tuple[str, ...]
    members: tuple[CostModel, ...]
    calls: tuple[float, ...]
    calibration: float = 1.0

    def together(self, devices: np.ndarray, items: float, beside: frozenset[str] = NOBODY) -> np.ndarray:
        """Seconds of an iteration with all members on the same devices."""
        return self.calibration * np.sum([c * m.seconds(devices, items, beside) for c, m in zip(self.calls, self.members, strict=True)], axis=0)

    def apart(self, allocation: Sequence[np.ndarray], items: float, sub_batches: int, beside: frozenset[str] = NOBODY) -> np.ndarray:
        """Seconds of an iteration with member i on ``allocation[i]`` devices; arrays of one shape (or that broadcast)."""
        each = [c * m.seconds(n, items / sub_batches, beside) for c, m, n in zip(self.calls, self.members, allocation, strict=True)]
        slowest, total = each[0], each[0]
        for t in each[1:]:
            slowest, total = np.maximum(slowest, t), total + t
        return self.calibration * np.maximum(sub_batches * slowest, total)

    def estimate(self, allocation: Sequence[int] | int, items: float, sub_batches: int = 1, beside: frozenset[str] = NOBODY) -> CostEstimate:
        """``allocation``: devices of each member, or one number of devices that they share."""
        shared = isinstance(allocation, int)
        counts = [allocation] * len(self.members) if isinstance(allocation, int) else list(allocation)
        parts = [m.estimate(n, items / sub_batches, beside) for m, n in zip(self.members, counts, strict=True)]
        if shared:
            seconds = float(self.together(np.array([counts[0]]), items, beside)[0])
        else:
            seconds = float(self.apart([np.array([n]) for n in counts], items, sub_batches, beside)[0])
        relative = max(p.high / p.seconds - 1 if p.seconds else 0.0 for p in parts)
        basis = max((p.basis for p in parts), key=_SURENESS.index)
        notes = "; ".join(f"{name}: {p.note}" for name, p in zip(self.names, parts, strict=True) if p.note)
        return CostEstimate.around(seconds, basis, relative, notes)
