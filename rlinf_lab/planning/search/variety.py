"""Plans of other structures that are about as fast as the best one: for whoever ranks plans by other seconds than the search's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlinf_lab.planning.search.fronts import Front
from rlinf_lab.planning.search.problem import Problem
from rlinf_lab.planning.search.solver import FEW, Found, Only, _side_by_side, _Solver, _Way, _with_counts, useful_counts
from rlinf_lab.planning.search.trees import TEMPORAL, compositions


def varied(problem: Problem, ceiling: float) -> list[Found]:
    """Over few device counts, for every last composition and every way to compose its two parts the best plan that takes no longer than ``ceiling`` (seconds):
    of each structure one, fastest first."""
    if problem.everyone.bit_count() == 1:
        return []
    useful = [useful_counts(problem, v) for v in range(len(problem.names))]
    chosen = [codes[:: -max(1, -(-len(codes) // FEW))] for codes in useful]
    found, seen = list[Found](), set[frozenset[tuple[str, int, int]]]()
    for plan in sorted(_Varied(_with_counts(problem, chosen), ceiling, Only()).each(), key=lambda f: f.seconds):
        made = compositions(plan.tree)
        if made not in seen:
            seen.add(made)
            found.append(plan)
    return found


class _Varied(_Solver):
    def each(self) -> Iterator[Found]:
        if np.isinf(self._areas).any():
            return
        for way in self._ways_of(self.problem.everyone, False):
            for seconds, g, left, right in self._turns(way) if way.kind == TEMPORAL else self._streams(way):
                if seconds <= self.ceiling:
                    yield Found(seconds, self._composed(way, g, 0, left, right, self.problem.most))

    def _streams(self, way: _Way) -> Iterator[tuple[float, int, int, int]]:
        """(seconds, granularity, point before, point after) of the best pair for all ways to compose both parts."""
        best: dict[tuple[int, int], tuple[float, int, int, int]] = {}
        for before, after, i, j, g in self._pairs(way, 0, -1):
            fill, period = _side_by_side(before, after, i, j, way.cut.linked)
            chunks = self._scale[g]
            seconds = self.problem.iteration(fill + (chunks - 1) * period, chunks * period)
            some = np.flatnonzero(seconds <= self.ceiling)
            some = some[np.argsort(seconds[some], kind="stable")]
            pairs = np.stack([before.option[i[some]], after.option[j[some]]])
            for k in some[np.unique(pairs, axis=1, return_index=True)[1]] if len(some) else ():
                key, made = (int(before.option[i[k]]), int(after.option[j[k]])), (float(seconds[k]), int(g[k]), int(i[k]), int(j[k]))
                best[key] = min(best.get(key, made), made)
        yield from best.values()

    def _turns(self, way: _Way) -> Iterator[tuple[float, int, int, int]]:
        there, back = self._switches(way.cut)
        before, after = (self._front(*key) for key in self._parts(way, 0))
        for g in range(self._finest(way) + 1):
            chunks = float(self._scale[g])
            for i in self._quickest(before, g):
                for j in self._quickest(after, g):
                    fill = float(before.fill[i] + after.fill[j]) + there
                    yield float(self.problem.iteration(fill + (chunks - 1) * (fill + back), chunks * (fill + back))), g, i, j

    def _quickest(self, front: Front, g: int) -> list[int]:
        """Of points of a granularity the one with the shortest fill for each way to compose them."""
        first, stop = front.code.searchsorted([g * self.problem.codes, (g + 1) * self.problem.codes]).tolist()
        best: dict[int, int] = {}
        for k in first + np.argsort(front.fill[first:stop], kind="stable"):
            best.setdefault(int(front.option[k]), int(k))
        return list(best.values())
