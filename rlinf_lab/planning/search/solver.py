"""The search itself. It is exact, composes fronts, and prunes by what the best plan so far needs.

For a set of leaves, a granularity and the leaves that stay on the same devices, the front of (devices, fill, period) is
made from

- a leaf: fill = period = seconds of a micro-batch;
- a finer granularity: 2^k of its micro-batches, fill + (2^k - 1) * period and 2^k * period;
- a cut in time, on the same devices: fills add up with the switch between; the period adds the switch back;
- a cut in space, on devices of their own: fills add up where an edge links the parts, the larger one counts where none
  does; periods: the larger one.

On chains this is exact for streams of equal micro-batches. On branching graphs the fill is an upper bound (the two
parts' longest paths may not meet).

Source: RLinf (arXiv 2509.15965), algorithm 1, which keeps one number for a set and cuts one topological order only.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rlinf_lab.planning.cached_method import cached_method
from rlinf_lab.planning.cancellation import check
from rlinf_lab.planning.search.bounds import Bounds
from rlinf_lab.planning.search.pareto import ParetoFront, lower, spread, undominated
from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, Composed, Leaf, Tree, compositions, evaluate, leaf_of
from rlinf_lab.planning.search.problem import Counts, Cut, Cuts, Problem, members

EXACT = 1 + 1e-12  # ties with the best so far are kept
FEW, CLOSER = 10, 5  # device counts of a leaf in the first, coarse search; how much nearer each next search looks
SEVERAL = 5  # leaves, of which most sets of those who stay make a front of their own
UNITS = 128  # of devices, evenly spaced, that are looked at where there are very many
BLOCK = 4_000_000  # pairs looked at together
MODERATE = 256  # device counts of a leaf up to which a coarse search alone gives a bound that is worth its time
MANY = 2_000  # more points than these are sorted out at once
# points of each number of devices that are kept of so many, where leaves are cut in groups
SPREAD = 2
ALL = 10_000  # pairs of points that are all looked at
LEAF = -1
BOTH = (TEMPORAL, SPATIAL)


@dataclass(frozen=True)
class Found:
    """A plan and its seconds between iterations."""

    seconds: float
    tree: Tree


@dataclass(frozen=True)
class Only:
    """What is looked for. It may be some ``kinds`` of composition, the ``last`` one (its kind and the leaves before
    it), None: any, and plans of compositions ``among`` some (of `plan_tree.compositions`).
    """

    kinds: tuple[str, ...] = BOTH
    last: tuple[str, int] | None = None
    among: frozenset[tuple[str, int, int]] | None = None


# of a front: leaves, and those that stay on the same devices
_Key = tuple[int, int]


@dataclass(frozen=True)
class _Way:
    """A composition."""

    kind: str
    cut: Cut


def solve(problem: Problem, ceiling: float = np.inf, only: Only = Only()) -> list[Found]:
    """The best plan for every way to make the last composition, fastest first. The first one is optimal. Empty when no
    plan is possible.

    ``ceiling``: plans that take longer are of no interest, and plans not much slower than the best may be missing below
    it.
    """
    if SPATIAL in only.kinds and len(problem.names) > 1 and np.isinf(ceiling):
        most = max(len(useful_counts(problem, v)) for v in range(len(problem.names)))
        if most > FEW:
            ceiling = min([ceiling, *(f.seconds for f in guess(problem, ceiling, only, coarse=most <= MODERATE)[:1])])
    return _fastest(problem, ceiling, only)


def near(problem: Problem, ceiling: float = np.inf, only: Only = Only(), units: int = UNITS) -> list[Found]:
    """Search as `solve` does, but over some device counts. There are so many evenly spaced ones, so that they add up,
    then finer ones near the best plan. For many devices of one kind on which seconds fall smoothly this finds nearly
    the best plan in a fraction of the time.
    """
    useful = [useful_counts(problem, v) for v in range(len(problem.names))]
    unit = -(-problem.most // units)
    chosen = [_thinned(codes, np.arange(problem.most, 0, -unit)) for codes in useful]
    found = solve(_with_counts(problem, chosen), ceiling, only)
    while found and unit > 1:
        at = [_code(problem, leaf_of(found[0].tree, v).devices) for v in range(len(useful))]
        step = max(1, unit // CLOSER)
        around = step * np.arange(-CLOSER, CLOSER + 1)
        chosen = [_thinned(codes, np.clip(n + around, 0, problem.most)) for codes, n in zip(useful, at, strict=True)]
        unit = step if step < unit else 1
        found = sorted([*found, *solve(_with_counts(problem, chosen), found[0].seconds, only)], key=lambda f: f.seconds)
    return found


def _thinned(codes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The largest codes that are no larger than those wanted, and the smallest of all."""
    at = np.searchsorted(codes, wanted, side="right") - 1
    return codes[np.unique(np.clip(at, 0, None))] if len(codes) else codes


def guess(problem: Problem, ceiling: float = np.inf, only: Only = Only(), coarse: bool = False) -> list[Found]:
    """Good plans, fastest first. They come of a search over few device counts, then (unless ``coarse``) over counts
    nearer and nearer to those that it chose.
    """
    if problem.everyone.bit_count() == 1 or SPATIAL not in only.kinds:
        return solve(problem, ceiling, only)  # quick enough: on the same devices numbers of devices do not add up
    useful = [useful_counts(problem, v) for v in range(len(problem.names))]
    if not all(len(codes) for codes in useful):
        return []
    strides = [-(-len(codes) // FEW) for codes in useful]
    chosen = [codes[::-stride] for codes, stride in zip(useful, strides, strict=True)]
    found = _look(problem, chosen, ceiling, only)
    while found and max(strides) > 1 and not coarse:
        strides = [max(1, stride // CLOSER) for stride in strides]
        near = _around(problem, useful, found[0].tree, strides)
        # In streams its own compositions first: few, and against a faster plan little else is worth keeping.
        own = [] if TEMPORAL in only.kinds else [replace(only, among=compositions(found[0].tree))]
        for some in (*own, only):
            found = sorted([*_look(problem, near, found[0].seconds, some), *found], key=lambda f: f.seconds)
    return found


def _look(problem: Problem, chosen: list[np.ndarray], ceiling: float, only: Only) -> list[Found]:
    """Over some device counts of each leaf, fastest first.

    First as if nobody minded who stays beside it, for then each part is searched once: where that plan is as fast in
    truth there is none faster, and else it is at least a plan to beat.
    """
    some = _with_counts(problem, chosen)
    if len(chosen) >= SEVERAL and TEMPORAL in only.kinds and any(some.minded or ()):
        easy = _fastest(replace(some, minded=(0,) * len(chosen)), ceiling, only)[:1]
        if not easy or (true := evaluate(easy[0].tree, some)) <= easy[0].seconds * EXACT:
            return easy
        ceiling = min(ceiling, true)
    return _fastest(some, ceiling, only)


def _fastest(problem: Problem, ceiling: float, only: Only) -> list[Found]:
    """The best plan of each last composition, fastest first."""
    return sorted(_Solver(problem, ceiling, only).plans(), key=lambda f: f.seconds)


def _around(problem: Problem, useful: list[np.ndarray], tree: Tree, strides: list[int]) -> list[np.ndarray]:
    """Useful counts of each leaf that are near a plan's. There are a few on either side of it, and the largest."""
    chosen = []
    for v, codes in enumerate(useful):
        at = int(np.searchsorted(codes, _code(problem, leaf_of(tree, v).devices)))
        around = at + strides[v] * np.arange(-CLOSER, CLOSER + 1)
        chosen.append(codes[np.unique(np.clip([*around, len(codes) - 1], 0, len(codes) - 1))])
    return chosen


def useful_counts(problem: Problem, leaf: int) -> np.ndarray:
    """Device counts on which a leaf is faster than on any fewer. With some size of micro-batch."""
    rows = np.concatenate(problem.numbers(leaf, 0)).reshape(-1, problem.codes)
    return np.flatnonzero(lower(rows, problem.shape).any(axis=0))


def _with_counts(problem: Problem, chosen: list[np.ndarray]) -> Problem:
    """The same problem with the chosen device counts of each leaf."""

    def some(leaf: int, rows: np.ndarray) -> np.ndarray:
        found = np.full_like(rows, np.inf)
        found[..., chosen[leaf]] = rows[..., chosen[leaf]]
        return found

    def table(leaf: int, context: int) -> np.ndarray:
        return some(leaf, problem.table(leaf, context))

    def streams(leaf: int, context: int) -> tuple[np.ndarray, np.ndarray]:
        fill, period = problem.numbers(leaf, context)
        return some(leaf, fill), some(leaf, period)

    return replace(problem, table=table, streams=streams)


def _code(problem: Problem, devices: Counts) -> int:
    return int(np.ravel_multi_index(devices, problem.shape))


class _Solver:
    """Fronts by `_Key`, of all granularities."""

    def __init__(self, problem: Problem, ceiling: float, only: Only) -> None:
        self.problem, self.ceiling, self.kinds, self.last = problem, ceiling * EXACT, only.kinds, only.last
        self._among = only.among
        self.cuts = cuts = Cuts.shared(problem)
        self._kept = MANY if self.cuts.is_grouped else None
        self._numbers = functools.cache(problem.numbers)
        self._switches = functools.cache(
            lambda cut: tuple(
                problem.switch(*ends, cuts) for ends in ((cut.before, cut.after), (cut.after, cut.before))
            )
        )
        self._least: dict[_Key, np.ndarray] = {}
        self._options: list[_Way] = []
        self._option_numbers: dict[_Way, int] = {}
        self._scale = 2.0 ** np.arange(problem.granularities)
        self._bounds = Bounds(problem, self.ceiling, self.kinds, self._numbers)

    # --- the whole ---------------------------------------------------------------------------------------
    def plans(self) -> list[Found]:
        """The best plan of each last composition (kind and cut)."""
        problem = self.problem
        everyone = problem.everyone
        if self._bounds.exclude_all():
            return []
        if everyone.bit_count() == 1:
            return self._alone()
        found = []
        for way in self._ways_of(everyone):
            if self.last is not None and self.last != (way.kind, way.cut.before):
                continue
            check()
            best = self._best_time_shared(way) if way.kind == TEMPORAL else self._best_side_by_side(way)
            if best is not None and best[0] <= self.ceiling:
                seconds, g, left, right = best
                found.append(Found(seconds, self._composed(way, g, 0, left, right, problem.most)))
        return found

    def _alone(self) -> list[Found]:
        front = self._front(1, 0).upto(0, self.problem.codes)
        if not len(front):
            return []
        seconds = self.problem.iteration(front.fill, front.period)
        best = int(np.argmin(seconds))
        return [Found(float(seconds[best]), self._tree(1, 0, best))]

    def _best_time_shared(self, way: _Way) -> tuple[float, int, int, int] | None:
        """(seconds, granularity, point before, point after) of the best way to compose everything like this."""
        parts = self._least_fills(way, 0)
        if parts is None:
            return None
        there, back = self._switches(way.cut)
        fill = (parts[0][:, -1] + parts[1][:, -1] + there)[: self._finest(way) + 1]
        possible = np.flatnonzero(np.isfinite(fill))
        if not len(possible):
            return None
        fill, micro_batches = fill[possible], self._scale[possible]
        seconds = self.problem.iteration(fill + (micro_batches - 1) * (fill + back), micro_batches * (fill + back))
        best = int(np.argmin(seconds))
        g = int(possible[best])
        return float(seconds[best]), g, *self._points_time_shared(way, 0, g, self.problem.most)

    def _best_side_by_side(self, way: _Way) -> tuple[float, int, int, int] | None:
        problem = self.problem
        best: tuple[float, int, int, int] | None = None
        for before, after, i, j, g in self._pairs(way, 0, -1):
            fill, period = _side_by_side(before, after, i, j, way.cut.linked)
            micro_batches = self._scale[g]
            seconds = problem.iteration(fill + (micro_batches - 1) * period, micro_batches * period)
            k = int(np.argmin(seconds))
            better = float(seconds[k]), int(g[k]), int(i[k]), int(j[k])
            best = better if best is None or better[:2] < best[:2] else best
        return best

    # --- parts -------------------------------------------------------------------------------------------
    @cached_method
    def _ways_of(self, leaves: int) -> list[_Way]:
        """Every way to compose a set."""
        found = []
        for cut in self.cuts.of(leaves):
            for kind in self.kinds:
                aside = kind == TEMPORAL and not self.problem.may_time_share(cut)
                # the other way round
                again = (
                    kind == SPATIAL and not cut.linked and cut.before > cut.after and leaves != self.problem.everyone
                )
                if self._among is not None:
                    again = (kind, cut.before, cut.after) not in self._among
                if not aside and not again:
                    found.append(_Way(kind, cut))
        return found

    @cached_method
    def _front(self, leaves: int, context: int) -> ParetoFront:
        if leaves.bit_count() > 1:
            return self._composite(leaves, context)
        return (self._leaf if leaves & self.problem.once else self._call)(leaves, context)

    def _leaf(self, leaves: int, context: int) -> ParetoFront:
        options = []
        for number, (fill, period) in enumerate(zip(*self._numbers(leaves.bit_length() - 1, context), strict=True)):
            code = np.flatnonzero(lower(fill, self.problem.shape) | lower(period, self.problem.shape))
            options.append(
                ParetoFront.of(
                    code, fill.reshape(-1)[code], period.reshape(-1)[code], LEAF, number, 0, code // self.problem.codes
                )
            )
        return self._with_finer(leaves, options)

    def _call(self, leaves: int, context: int) -> ParetoFront:
        """A leaf with calls for each micro-batch. Fill and period are one number, and so the better of a micro-batch at
        once and of two halves.
        """
        # powers of two: nothing is rounded
        rows, scale = self._numbers(leaves.bit_length() - 1, context)[1][0], self._scale[:, None]
        best = np.minimum.accumulate((scale * rows)[::-1])[::-1] / scale
        # as good at once as in halves: then at once
        at_once = np.where(rows <= best * EXACT, np.arange(len(rows))[:, None], len(rows))
        grain = np.minimum.accumulate(at_once[::-1])[::-1]
        code = np.flatnonzero(lower(best, self.problem.shape))
        seconds = best.reshape(-1)[code]
        useful = self._bounds.useful(leaves, code, seconds, seconds)
        code, seconds = code[useful], seconds[useful]
        return ParetoFront.of(code, seconds, seconds, LEAF, 0, 0, grain.reshape(-1)[code])

    def _composite(self, leaves: int, context: int) -> ParetoFront:
        options = []
        for way in self._ways_of(leaves):
            check()
            options += self._temporal(way, context) if way.kind == TEMPORAL else self._spatial(leaves, way, context)
        return self._with_finer(leaves, options)

    def _with_finer(self, leaves: int, options: list[ParetoFront]) -> ParetoFront:
        """The useful points, and these with micro-batches of finer granularities passing as one. Of equal points the
        first and coarsest stays.
        """
        made = self._best_of(leaves, ParetoFront.joined(options))
        if not len(made) or self.problem.granularities == 1:
            return made
        copies = made.grain + 1
        point = np.repeat(np.arange(len(made)), copies)
        finer = np.arange(len(point)) - np.repeat(np.cumsum(copies) - copies, copies)
        micro_batches, period = self._scale[finer], made.period[point]
        code, fill = made.code[point] - finer * self.problem.codes, made.fill[point] + (micro_batches - 1) * period
        return self._best_of(
            leaves,
            ParetoFront(
                code,
                fill,
                micro_batches * period,
                made.option[point],
                made.left[point],
                made.right[point],
                made.grain[point],
            ),
        )

    def _best_of(self, leaves: int, front: ParetoFront) -> ParetoFront:
        useful = self._bounds.useful(leaves, front.code, front.fill, front.period)
        best = useful[undominated(front.code[useful], front.fill[useful], front.period[useful], self.problem.shape)]
        return front.take(
            best[spread(front.code[best], SPREAD)] if self._kept is not None and len(best) > self._kept else best
        )

    def _temporal(self, way: _Way, context: int) -> list[ParetoFront]:
        parts = self._least_fills(way, context)
        if parts is None:
            return []
        least = (parts[0] + parts[1])[: self._finest(way) + 1]
        there, back = self._switches(way.cut)
        code = np.flatnonzero(lower(least, self.problem.shape))
        fill = least.reshape(-1)[code] + there
        return [ParetoFront.of(code, fill, fill + back, self._option(way), 0, 0, code // self.problem.codes)]

    def _spatial(self, leaves: int, way: _Way, context: int) -> list[ParetoFront]:
        option, found, codes = self._option(way), list[ParetoFront](), self.problem.codes
        for before, after, i, j, g in self._pairs(way, context, self._bounds.others(leaves)[0]):
            fill, period = _side_by_side(before, after, i, j, way.cut.linked)
            code = before.code[i] + after.code[j] - g * codes
            made = ParetoFront.of(code, fill, period, option, i, j, g)
            # few are looked at together
            found.append(made.take(self._bounds.useful(leaves, code, fill, period)) if len(made) > MANY else made)
        return found

    def _pairs(
        self, way: _Way, context: int, limit: int
    ) -> Iterator[tuple[ParetoFront, ParetoFront, np.ndarray, np.ndarray, np.ndarray]]:
        """Both parts, and pairs of their points that fit on the devices together. Pairs are of one granularity, as
        index arrays in blocks, with their granularities: all that use at most ``limit`` devices; of those that use more
        (and are only ever given all devices), all that may be the best.
        """
        problem, finest = self.problem, self._finest(way)
        keys = self._parts(way, context)
        before = self._front(*keys[0]).upto(finest, problem.codes)
        if not len(before) or not len(after := self._front(*keys[1]).upto(finest, problem.codes)):
            return
        g = before.code // problem.codes
        if len(problem.devices) > 1:
            pairs = _fitting_of_kinds(problem, before, after)
        elif len(before) * len(after) <= ALL:
            pairs = _fitting(before, after, problem.most, g * problem.codes)
        else:
            pairs = self._pairs_of_many(before, after, keys, g, limit)
        for i, j in pairs:
            check()
            if len(i):
                yield before, after, i, j, g[i]

    def _pairs_of_many(
        self, before: ParetoFront, after: ParetoFront, keys: tuple[_Key, _Key], g: np.ndarray, limit: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Where more devices make a part better, it gets all that the other one leaves."""
        codes, most = self.problem.codes, self.problem.most
        one, other = (self._falls(key) for key in keys)
        yield from _fitting(before, after, np.where((one | other)[g], limit, most), g * codes)
        chosen = np.flatnonzero(other[g])
        yield _largest(before, after, most, chosen, codes)
        chosen = np.flatnonzero((one & ~other)[after.code // codes])
        yield _largest(after, before, most, chosen, codes)[::-1]

    # --- small things ----------------------------------------------------------------------------------------
    def _finest(self, way: _Way) -> int:
        """The finest granularity in which the parts of a way are composed. Leaves that are called once an iteration
        time-share as a whole only, and so do some others; so does everybody where nobody streams: each in as many calls
        as suit it, and the switches once.
        """
        whole = SPATIAL not in self.kinds or (way.cut.before | way.cut.after) & (self.problem.once | self.problem.whole)
        return 0 if way.kind == TEMPORAL and whole else way.cut.finest

    def _parts(self, way: _Way, context: int) -> tuple[_Key, _Key]:
        """Which fronts the parts have."""
        before, after = self._contexts(way, context)
        left, right = way.cut.before, way.cut.after
        return (left, before & self._minded(left)), (right, after & self._minded(right))

    @cached_method
    def _minded(self, leaves: int) -> int:
        """Those whose co-location may matter to some of a set. Beside the others its front is the same."""
        if self.problem.minded is None:
            return self.problem.everyone
        return functools.reduce(operator.or_, (self.problem.minded[v] for v in members(leaves)), 0)

    def _contexts(self, way: _Way, context: int) -> tuple[int, int]:
        """Who stays on the devices of each part."""
        if way.kind == SPATIAL:
            return context, context
        return context | way.cut.after & self.problem.staying, context | way.cut.before & self.problem.staying

    def _least_fills(self, way: _Way, context: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Of both parts, of shape (granularities, codes); None where one of them cannot be."""
        keys = self._parts(way, context)
        for key in keys:
            if key not in self._least:
                front = self._front(*key)
                if not len(front):
                    return None
                self._least[key] = front.least_fill(self.problem.granularities, self.problem.shape)
        return self._least[keys[0]], self._least[keys[1]]

    @cached_method
    def _falls(self, key: _Key) -> np.ndarray:
        return self._front(*key).falling(self.problem.granularities, self.problem.codes)

    def _option(self, way: _Way) -> int:
        if way not in self._option_numbers:
            self._option_numbers[way] = len(self._options)
            self._options.append(way)
        return self._option_numbers[way]

    # --- back to a plan --------------------------------------------------------------------------------------
    def _tree(self, leaves: int, context: int, point: int) -> Tree:
        front = self._front(leaves, context)
        code, option, g = (int(column[point]) for column in (front.code, front.option, front.grain))
        code, left, right = code % self.problem.codes, int(front.left[point]), int(front.right[point])
        if option == LEAF:
            return Leaf(leaves.bit_length() - 1, self.problem.counts(code), g, left)
        way = self._options[option]
        if way.kind == TEMPORAL:
            left, right = self._points_time_shared(way, context, g, code)
        return self._composed(way, g, context, left, right, code)

    def _points_time_shared(self, way: _Way, context: int, g: int, code: int) -> tuple[int, int]:
        before, after = (self._front(*key).best_at(g, code, self.problem.shape) for key in self._parts(way, context))
        return before, after

    def _composed(self, way: _Way, g: int, context: int, left: int, right: int, code: int) -> Composed:
        before, after = self._parts(way, context)
        return Composed(way.kind, self._tree(*before, left), self._tree(*after, right), self.problem.counts(code), g)


def _side_by_side(
    before: ParetoFront, after: ParetoFront, i: np.ndarray, j: np.ndarray, linked: bool
) -> tuple[np.ndarray, np.ndarray]:
    a, b = before.fill[i], after.fill[j]
    return a + b if linked else np.maximum(a, b), np.maximum(before.period[i], after.period[j])


def _fitting(
    before: ParetoFront, after: ParetoFront, most: int | np.ndarray, first: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of one granularity on at most so many devices of one kind. ``first``: code of no devices in the
    granularity of each point before.
    """
    start = after.code.searchsorted(first)
    count = np.maximum(after.code.searchsorted(2 * first + most - before.code, side="right") - start, 0)
    ends = np.cumsum(count)
    at, points = 0, np.arange(len(before))
    while at < len(before):
        to = (
            len(before)
            if ends[-1] <= BLOCK
            else max(at + 1, int(np.searchsorted(ends, (ends[at - 1] if at else 0) + BLOCK, side="right")))
        )
        some = count[at:to]
        i = np.repeat(points[at:to], some)
        yield i, np.arange(len(i)) + np.repeat(start[at:to] - np.cumsum(some) + some, some)
        at = to


def _fitting_of_kinds(
    problem: Problem, before: ParetoFront, after: ParetoFront
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same on devices of several kinds."""
    shape, codes = problem.shape, problem.codes
    a, b = (np.array(np.unravel_index(f.code % codes, shape)) for f in (before, after))
    g, h = before.code // codes, after.code // codes
    most = np.array(problem.devices)[:, None, None]
    rows = max(1, BLOCK // len(after))
    for start in range(0, len(before), rows):
        some = slice(start, start + rows)
        i, j = np.nonzero(np.all(a[:, some, None] + b[:, None, :] <= most, axis=0) & (g[some, None] == h))
        yield i + start, j


def _largest(
    one: ParetoFront, other: ParetoFront, most: int, chosen: np.ndarray, codes: int
) -> tuple[np.ndarray, np.ndarray]:
    """One pair for each of the ``chosen`` points of one part. The other part has all the devices that the point leaves,
    for its numbers fall with devices.
    """
    code = one.code[chosen]
    first = code // codes * codes
    j = other.code.searchsorted(2 * first + most - code, side="right") - 1
    there = (j >= 0) & (other.code[j] >= first)
    return chosen[there], j[there]
