"""Plans of other structures that are about as fast as the best one: for whoever ranks plans by other seconds than the
search's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from rlinf_lab.planning.search.pareto import ParetoFront
from rlinf_lab.planning.search.plan_tree import TEMPORAL, compositions
from rlinf_lab.planning.search.problem import Problem
from rlinf_lab.planning.search.solver import FEW, Found, Only, _side_by_side, _Solver, _Way, _with_counts, useful_counts
from rlinf_lab.planning.search.structure import Form, Outline

EVERY_FORM = 5  # leaves, of which all forms are looked at in 0.1 s or so; of seven there may be thousands


def varied(problem: Problem, ceiling: float) -> list[Found]:
    """Over few device counts, for every form (`structure.Form`) the best plan that takes no longer than ``ceiling``
    (seconds), fastest first.

    Of more than `EVERY_FORM` leaves some: for every last composition and every way to compose its two parts that is
    better than the others in some number.
    """
    if problem.everyone.bit_count() == 1:
        return []
    useful = [useful_counts(problem, v) for v in range(len(problem.names))]
    chosen = [codes[:: -max(1, -(-len(codes) // FEW))] for codes in useful]
    found, seen = list[Found](), set[frozenset[tuple[str, int, int]]]()
    looking = _EveryForm if len(problem.names) <= EVERY_FORM else _LastTwo
    for plan in sorted(looking(_with_counts(problem, chosen), ceiling, Only()).each(), key=lambda f: f.seconds):
        made = compositions(plan.tree)
        if made not in seen:
            seen.add(made)
            found.append(plan)
    return found


class _EveryForm(_Solver):
    """Each form of a set has a front of its own (the third number of a key). In one front of all, a form that another
    one beats in every number has no points, and no plan is made of it: slower by the search's seconds, but not always
    by those of a simulation."""

    def each(self) -> Iterator[Found]:
        if not np.isinf(self._areas).any():
            for ways in self._formed(self.problem.everyone).values():
                yield from self._best(ways)

    def _best(self, ways: list[_Way]) -> list[Found]:
        """The best plan of some ways to compose everything; none where it takes too long."""
        made = [
            (best, way)
            for way in ways
            if (best := self._best_time_shared(way) if way.kind == TEMPORAL else self._best_side_by_side(way))
            is not None
        ]
        (seconds, g, left, right), way = min(made, key=lambda m: m[0][0], default=((np.inf, 0, 0, 0), ways[0]))
        return (
            [Found(seconds, self._composed(way, g, 0, left, right, self.problem.most))]
            if seconds <= self.ceiling
            else []
        )

    def _formed(self, leaves: int) -> dict[Form, list[_Way]]:
        """The forms of a set, each with the ways to compose it."""
        found: dict[Form, list[_Way]] = {}
        for way in self._ways_of(leaves, 0):
            for i, before in self._forms(way.cut.before):
                for j, after in self._forms(way.cut.after):
                    found.setdefault(self._outline.joined(way.kind, before, after), []).append(
                        _Way(way.kind, way.cut, (i, j))
                    )
        return found

    def _forms(self, leaves: int) -> list[tuple[int, Form]]:
        """Those that may be part of a plan that is fast enough, with the numbers that they have in keys."""
        if leaves not in self._known_forms:
            self._known_forms[leaves] = found = list[tuple[int, Form]]()
            if leaves.bit_count() == 1:
                found.append((0, leaves.bit_length() - 1))
                return found
            for number, (form, ways) in enumerate(self._formed(leaves).items(), start=1):
                self._ways[leaves, number] = ways
                if len(self._front(leaves, 0, number)):  # beside others who stay it is no better
                    found.append((number, form))
        return self._known_forms[leaves]

    @cached_property
    def _known_forms(self) -> dict[int, list[tuple[int, Form]]]:
        return {}

    @cached_property
    def _outline(self) -> Outline:
        return Outline(None, frozenset(self.problem.edges))


class _LastTwo(_Solver):
    """The last composition and those of its two parts are all looked at; of their parts only the best ones
    are known.
    """

    def each(self) -> Iterator[Found]:
        if np.isinf(self._areas).any():
            return
        for way in self._ways_of(self.problem.everyone, 0):
            for seconds, g, left, right in self._turns(way) if way.kind == TEMPORAL else self._streams(way):
                if seconds <= self.ceiling:
                    yield Found(seconds, self._composed(way, g, 0, left, right, self.problem.most))

    def _streams(self, way: _Way) -> Iterator[tuple[float, int, int, int]]:
        """(seconds, granularity, point before, point after) of the best pair for all ways to compose both parts."""
        best: dict[tuple[int, int], tuple[float, int, int, int]] = {}
        for before, after, i, j, g in self._pairs(way, 0, -1):
            fill, period = _side_by_side(before, after, i, j, way.cut.linked)
            micro_batches = self._scale[g]
            seconds = self.problem.iteration(fill + (micro_batches - 1) * period, micro_batches * period)
            some = np.flatnonzero(seconds <= self.ceiling)
            some = some[np.argsort(seconds[some], kind="stable")]
            pairs = np.stack([before.option[i[some]], after.option[j[some]]])
            for k in some[np.unique(pairs, axis=1, return_index=True)[1]] if len(some) else ():
                key, made = (
                    (int(before.option[i[k]]), int(after.option[j[k]])),
                    (float(seconds[k]), int(g[k]), int(i[k]), int(j[k])),
                )
                best[key] = min(best.get(key, made), made)
        yield from best.values()

    def _turns(self, way: _Way) -> Iterator[tuple[float, int, int, int]]:
        there, back = self._switches(way.cut)
        before, after = (self._front(*key) for key in self._parts(way, 0))
        for g in range(self._finest(way) + 1):
            micro_batches = float(self._scale[g])
            for i in self._quickest(before, g):
                for j in self._quickest(after, g):
                    fill = float(before.fill[i] + after.fill[j]) + there
                    yield (
                        float(
                            self.problem.iteration(
                                fill + (micro_batches - 1) * (fill + back), micro_batches * (fill + back)
                            )
                        ),
                        g,
                        i,
                        j,
                    )

    def _quickest(self, front: ParetoFront, g: int) -> list[int]:
        """Of points of a granularity the one with the shortest fill for each way to compose them."""
        first, stop = front.code.searchsorted([g * self.problem.codes, (g + 1) * self.problem.codes]).tolist()
        best: dict[int, int] = {}
        for k in first + np.argsort(front.fill[first:stop], kind="stable"):
            best.setdefault(int(front.option[k]), int(k))
        return list(best.values())
