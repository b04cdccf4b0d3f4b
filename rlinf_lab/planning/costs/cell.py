"""The cost of a cell for the calls of an iteration. Its workers answer each other step by step (simulator and policy).

On one set of devices they time-share. On devices of their own, with k sub-batches, one half steps while the answers for
the other half are computed: an iteration takes ``max(k · slowest member, sum of the members)``, each at a k-th of the
items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_lab.planning.costs.base import ASSUMED, EXTRAPOLATED, INTERPOLATED, MEASURED, CostEstimate

_SURENESS = (MEASURED, INTERPOLATED, EXTRAPOLATED, ASSUMED)


@dataclass(frozen=True)
class CellModel:
    """Seconds of a cell from those of its members, all their calls. ``calibration``: measured seconds over the sum of
    the calls, where it is known.
    """

    calibration: float = 1.0

    def together(self, members: Sequence[np.ndarray]) -> np.ndarray:
        """All members on the same devices, time-shared. ``members``: seconds of each, arrays of one shape."""
        return np.asarray(self.calibration * np.sum(members, axis=0))

    def apart(self, slowest: np.ndarray, total: np.ndarray, sub_batches: int) -> np.ndarray:
        """Members on devices of their own. ``slowest`` of them and ``total`` of all, in seconds of one sub-batch."""
        return np.asarray(self.calibration * np.maximum(sub_batches * slowest, total))

    def estimate(self, members: Mapping[str, CostEstimate], sub_batches: int | None = None) -> CostEstimate:
        """With the members' ranges; as sure as the least sure of them. ``sub_batches``: of which each estimate is one;
        None: time-shared.
        """
        seconds, low, high = (
            self._seconds(ends, sub_batches)
            for ends in zip(*((m.seconds, m.low, m.high) for m in members.values()), strict=True)
        )
        basis = max((m.basis for m in members.values()), key=_SURENESS.index)
        return CostEstimate(
            seconds, low, high, basis, "; ".join(f"{name}: {m.note}" for name, m in members.items() if m.note)
        )

    def _seconds(self, members: Sequence[float], sub_batches: int | None) -> float:
        if sub_batches is None:
            return float(self.together([np.array(m) for m in members]))
        return float(self.apart(np.array(max(members)), np.array(sum(members)), sub_batches))
