"""Everybody time-shared on the same devices: nothing but the order is left to find.

Each leaf has the number of devices that suits it best, and beside it stay all that stay, whatever the order; so its
seconds are one number, and what the order decides are the switches. The best order of a set is the best one of two
parts and the switch between: a few numbers where `solver` has fronts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rlinf_lab.planning.search.plan_tree import TEMPORAL, Composed, Leaf, Tree
from rlinf_lab.planning.search.problem import Cut, Problem, members

Cutting = Callable[[int], Iterable[Cut]]
Switch = Callable[[Cut], tuple[float, float]]


class Turns:
    """``leaves``: seconds and place of each leaf, None where it has none; ``cuts`` of a set and ``switches`` (there,
    back) of a cut, in seconds.
    """

    def __init__(
        self, problem: Problem, leaves: list[tuple[float, Leaf] | None], cuts: Cutting, switches: Switch
    ) -> None:
        self._problem, self._leaves, self._cuts, self._switches = problem, leaves, cuts, switches
        self._known: dict[int, tuple[float, Cut] | None] = {}

    def plans(self) -> list[tuple[float, Composed]]:
        """(seconds between iterations, plan) for every last composition, in the order of the cuts."""
        found = []
        for cut in self._cuts(self._problem.everyone):
            before, after = self._seconds(cut.before), self._seconds(cut.after)
            if before is not None and after is not None:
                there, back = self._switches(cut)
                fill = before + after + there
                tree = Composed(TEMPORAL, self._tree(cut.before), self._tree(cut.after), self._problem.devices, 0)
                found.append((float(self._problem.iteration(fill, fill + back)), tree))
        return found

    def _seconds(self, leaves: int) -> float | None:
        if not leaves & (leaves - 1):
            leaf = self._leaves[leaves.bit_length() - 1]
            return None if leaf is None else leaf[0]
        best = self._best(leaves)
        return None if best is None else best[0]

    def _best(self, leaves: int) -> tuple[float, Cut] | None:
        if leaves not in self._known:
            best: tuple[float, Cut] | None = None
            for cut in self._cuts(leaves):
                before = self._seconds(cut.before)
                after = None if before is None else self._seconds(cut.after)
                if before is not None and after is not None:
                    fill = before + after + self._switches(cut)[0]
                    if best is None or fill < best[0]:
                        best = fill, cut
            self._known[leaves] = best
        return self._known[leaves]

    def _tree(self, leaves: int) -> Tree:
        if not leaves & (leaves - 1):
            leaf = self._leaves[members(leaves)[0]]
            assert leaf is not None  # it has seconds
            return leaf[1]
        best = self._best(leaves)
        assert best is not None
        before, after = self._tree(best[1].before), self._tree(best[1].after)
        return Composed(TEMPORAL, before, after, tuple(map(max, before.devices, after.devices)), 0)
