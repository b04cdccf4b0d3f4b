"""What any plan with a part of the leaves takes at least. That tells which points of its front are worth keeping."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from rlinf_lab.planning.cached_method import cached_method
from rlinf_lab.planning.search.pareto import within
from rlinf_lab.planning.search.plan_tree import TEMPORAL
from rlinf_lab.planning.search.problem import Problem, members

AT_ONCE = 8_000  # points of one granularity or another that are compared together


class Bounds:
    """Of plans that take at most ``ceiling`` seconds, in some ``kinds`` of composition. ``numbers``: see `Problem`."""

    def __init__(
        self,
        problem: Problem,
        ceiling: float,
        kinds: Collection[str],
        numbers: Callable[[int, int], tuple[np.ndarray, np.ndarray]],
    ) -> None:
        self._problem, self._ceiling, self._kinds, self._numbers = problem, ceiling, kinds, numbers
        self._scale = 2.0 ** np.arange(problem.granularities)
        # micro-batches of a granularity (second axis) in one of another
        self._times = np.maximum(self._scale / self._scale[:, None], 1.0)
        # inf where the first is finer
        self._finer = np.where(np.tri(problem.granularities, k=-1, dtype=bool), np.inf, 0.0)
        self._areas, self._fewest = zip(*(self._least_needs(v) for v in range(len(problem.names))), strict=True)

    def exclude_all(self) -> bool:
        """Whether no plan is as fast as that. All leaves together need more device seconds than there are."""
        return bool(np.isinf(self._areas).any()) or sum(self._areas) > self._problem.totals[-1] * self._ceiling

    def useful(self, leaves: int, code: np.ndarray, fill: np.ndarray, period: np.ndarray) -> np.ndarray:
        """Points that may be part of a plan as good as the best so far."""
        if self._ceiling == np.inf:
            return np.arange(len(code))
        problem, g = self._problem, code // self._problem.codes
        limit, elsewhere = self.others(leaves)
        least = np.minimum(fill, period)
        # A part holds its devices for as long as it works, and everybody else needs device seconds as well.
        devices = problem.totals[code - g * problem.codes]
        good = (
            np.where(devices <= limit, devices, problem.totals[-1]) * (self._scale[g] * least) + elsewhere
            <= problem.totals[-1] * self._ceiling
        )
        if TEMPORAL not in self._kinds:  # nobody has all
            good &= devices <= limit
        good &= problem.at_least(g, fill, period) <= self._ceiling
        found = np.asarray(good.nonzero()[0])
        linked = self._linked(leaves)
        together = linked and len(found) * len(linked) * problem.granularities <= AT_ONCE
        ways = {
            some: float(self._of_leaves(leaves, some)[2].max())
            for some in ([linked] if together else [(v,) for v in linked])
        }
        turns = fill[found] + (self._scale[g[found]] - 1) * least[found]
        kept, hard = np.ones(len(found), bool), np.arange(len(found))
        for some, alone in sorted(ways.items(), key=lambda way: -way[1]):
            # Most points are good enough where all time-share, and then beside all who take less as well.
            hard = hard[~((turns[hard] + alone) / (1 + problem.staleness) <= self._ceiling)]
            if not len(hard):
                break
            near = (
                self._least_with(leaves, some, *(column[found[hard]] for column in (code, g, fill, period)))
                <= self._ceiling
            )
            kept[hard[~near]] = False
            hard = hard[near]
        return np.asarray(found[kept])

    @cached_method
    def _linked(self, leaves: int) -> tuple[int, ...]:
        """Leaves outside a set that a way of edges links with it, in either direction. What cuts make holds all leaves
        of such a way, so wherever the two ends are cut apart an edge is, too. Without this bound a search on 1,024
        devices with a fixed cost for each call takes 316 ms instead of 42.
        """
        reached = 0
        for pairs in (self._problem.edges, [edge[::-1] for edge in self._problem.edges]):
            there, found = 0, leaves
            while there != found:
                there = found
                found |= sum(1 << v for v in {b for a, b in pairs if there >> a & 1} if not there >> v & 1)
            reached |= found
        return members(reached & ~leaves)

    def _least_with(
        self, part: int, leaves: tuple[int, ...], code: np.ndarray, g: np.ndarray, fill: np.ndarray, period: np.ndarray
    ) -> np.ndarray:
        """Seconds between iterations of any plan with a part of these numbers and these leaves. Each leaf is linked to
        the part.

        Either the two time-share, somewhere above: then their seconds add up. Or they have devices of their own, and
        meet in a composition of granularity h, not finer than the part's: there their fills add up, and 2^h
        micro-batches follow each other no closer than the slower one of the two allows.
        """
        problem, scale = self._problem, self._scale
        fills, followed, alone = self._of_leaves(part, leaves)
        least, beside = np.minimum(fill, period), problem.most - code % problem.codes
        found = fill + (scale[g] - 1) * least + alone
        some = max(1, AT_ONCE // fills[..., 0].size)  # points that are looked at together
        for first in range(0, len(code), some):
            block = slice(first, first + some)
            times, there = self._times.take(g[block], axis=-1), beside[block]  # shape (granularities, points)
            together = fills.take(there, axis=-1)  # shape (leaves, granularities, points)
            together += (scale[:, None] - 1) * (times * least[block])
            np.maximum(together, followed.take(there, axis=-1), out=together)
            together += fill[block] + (times - 1) * least[block] + self._finer.take(g[block], axis=-1)
            np.minimum(found[:, block], together.min(axis=1), out=found[:, block])
        return np.asarray(found.max(axis=0) / (1 + problem.staleness))

    @cached_method
    def _of_leaves(self, part: int, leaves: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`_least_beside` of some leaves together."""
        fills, followed, alone = zip(*(self._least_beside(part, v) for v in leaves), strict=True)
        return np.array(fills), np.array(followed), np.array(alone)[:, None]

    def _least_beside(self, part: int, leaf: int) -> tuple[np.ndarray, np.ndarray, float]:
        """`_least_numbers` by the devices that a part leaves. In streams alone nobody time-shares, and all others need
        some of them, too.
        """
        fills, followed, alone = self._least_numbers(leaf)
        if TEMPORAL in self._kinds:
            return fills, followed, alone
        if len(self._problem.devices) == 1:
            others = members(self._problem.everyone & ~part & ~(1 << leaf))
            left = np.maximum(np.arange(self._problem.codes) - int(sum(self._fewest[v] for v in others)), 0)
            fills, followed = fills[:, left], followed[:, left]
        return fills, followed, np.inf

    @cached_method
    def _least_numbers(self, leaf: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Least numbers of a leaf on at most so many devices. It has its own micro-batches or finer ones. They have
        shape (granularities, codes): the shortest fill, and the shortest in which its last micro-batch can have left;
        and the shortest period of a whole iteration.
        """
        fill, period = self._numbers(leaf, 0)
        least = np.minimum(fill, period)
        some = np.isfinite(least).any(axis=(0, 1)).nonzero()[0]  # few numbers of devices, mostly
        fill, least = fill[:, None, :, some], least[:, :, some]
        # no micro-batches of inf seconds times zero
        more = np.where(np.isfinite(least), least, 0.0)[:, None] * (self._times[..., None] - 1)
        fills, periods = np.full((2, *period.shape[1:]), np.inf)
        fills[:, some] = (fill + more + self._finer[..., None]).min(axis=(0, 2))
        micro_batches = self._scale[:, None]
        # powers of two: nothing is rounded
        periods[:, some] = np.minimum.accumulate((micro_batches * least.min(axis=0))[::-1])[::-1] / micro_batches
        fills, periods = within(fills, self._problem.shape), within(periods, self._problem.shape)
        followed = fills.copy()
        followed[1:] += (self._scale[1:, None] - 1) * periods[1:]  # one micro-batch is followed by none
        return fills, followed, float(periods[0, -1])

    @cached_method
    def others(self, leaves: int) -> tuple[int, float]:
        """What a part must leave to everybody else. Returns (most devices of a part that has not all, fewest device
        seconds of everybody else): somebody else has devices beside it, in streams alone everybody else.
        """
        others = [v for v in range(len(self._areas)) if not leaves >> v & 1]
        fewest = [self._fewest[v] for v in others]
        taken = min(fewest, default=0) if TEMPORAL in self._kinds else sum(fewest)
        return int(self._problem.totals[-1] - taken), sum(self._areas[v] for v in others)

    def _least_needs(self, leaf: int) -> tuple[float, float]:
        """What a leaf needs in an iteration as short as the best so far. Returns (fewest device seconds, fewest
        devices).
        """
        fill, period = self._numbers(leaf, 0)
        # least seconds that it holds its devices, shape (granularities, codes)
        busy = np.minimum(fill, period).min(axis=0) * self._scale[:, None]
        possible = np.isfinite(busy) & (busy <= self._ceiling)
        totals = np.broadcast_to(self._problem.totals, busy.shape)[possible]
        return float((busy[possible] * totals).min(initial=np.inf)), float(totals.min()) if len(totals) else np.inf
