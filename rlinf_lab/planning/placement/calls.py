"""In how many calls a run works on the items of an iteration. Calls are of whole items, or of whole groups, for each
rank.

The search halves micro-batches, so it asks for 2^g of them. Of 56 groups 32 micro-batches would be of a group and three
quarters; a run makes them of two groups, and so 28 calls. Every call costs its fixed seconds, so it is the calls that
are made which count, not those that were asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinf_lab.planning.costs import CostModel
from rlinf_lab.planning.costs.base import NOBODY, ROUNDING


class Calls(NamedTuple):
    """``number`` of calls of an iteration. Each is of ``full`` items over all ``ranks``, in groups of ``group_size``,
    but the last, which is of the ``rest``.
    """

    number: np.ndarray
    full: np.ndarray
    rest: np.ndarray
    ranks: np.ndarray
    group_size: int

    @classmethod
    def of(cls, items: float, micro_batches: float | np.ndarray, ranks: int | np.ndarray, group_size: int = 1) -> Calls:
        """``items`` of an iteration, which shall flow in so many ``micro_batches``, in groups of ``group_size``. A rank
        is given as many as make no more micro-batches.
        """
        full = group_size * ranks * np.ceil(items / group_size / micro_batches / ranks - ROUNDING)
        number = np.maximum(1.0, np.ceil(items / full - ROUNDING))
        return cls(
            np.asarray(number), np.asarray(full), np.asarray(items - (number - 1) * full), np.asarray(ranks), group_size
        )

    def seconds(self, model: CostModel, devices: np.ndarray, beside: frozenset[str] = NOBODY) -> np.ndarray:
        """Of all of them together."""
        return np.asarray(
            (self.number - 1) * model.seconds(devices, self.full, beside)
            + model.seconds(devices, self.counted(self.rest), beside)
        )

    def counted(self, items: float | np.ndarray) -> np.ndarray:
        """Items of a call that takes as long if the ranks divided them evenly. One takes a whole batch, however few are
        left for the others.
        """
        of_one = np.minimum(items, self.full / self.ranks)
        return np.asarray(np.maximum(items, self.ranks * (of_one - self.group_size) + self.group_size))

    def parts(self) -> np.ndarray:
        """Of one entry: of how many items each call is."""
        return np.append(np.full(int(self.number) - 1, float(self.full)), float(self.rest))
