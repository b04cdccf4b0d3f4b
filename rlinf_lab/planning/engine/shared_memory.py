"""What workers on one device have in common, such as shared weights, is there once."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_lab.planning.engine.state import Process


class Overlaps:
    """Units of memory by pairs of processes. A driver sets them when it has seen the workers (`Engine.share`); nothing
    is known before.
    """

    def __init__(self) -> None:
        self._units: dict[tuple[int, int], int] = {}

    def set(self, one: int, other: int, units: int) -> None:
        """So much of both is the same memory; a later word counts."""
        pair = min(one, other), max(one, other)
        if units:
            self._units[pair] = units
        else:
            self._units.pop(pair, None)

    def saved(self, there: Sequence[Process]) -> int:
        """What adding their sizes counts too much, but never more than is true. Of each it is the most that it shares
        with one before it.
        """
        if not self._units:
            return 0
        units, indices = self._units, [p.index for p in there]
        return sum(
            max((units.get((min(i, j), max(i, j)), 0) for j in indices[:n]), default=0) for n, i in enumerate(indices)
        )

    def fit(self, there: Sequence[Process], one: Process, memory: int | None) -> bool:
        """Whether all of a device fit into its memory while another than ``one`` works."""
        working = max((p.working for p in there if p is not one), default=0)
        return memory is None or len(there) < 2 or sum(p.size for p in there) - self.saved(there) + working <= memory
