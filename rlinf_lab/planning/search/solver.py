"""The search itself: exact, by composition of fronts, pruned by what the best plan so far needs.

For a set of leaves, a granularity and the leaves that stay on the same devices, the front of (devices, fill, period) is made from

- a leaf: fill = period = seconds of a chunk;
- the next finer granularity: two of its chunks, fill + period and 2 * period;
- a cut in time, on the same devices: fills add up with the switch between; the period adds the switch back;
- a cut in space, on devices of their own: fills add up where an edge links the parts, the larger one counts where none does; periods: the larger one.

On chains this is exact for streams of equal chunks. On branching graphs the fill is an upper bound (the two parts' longest paths may not meet).

Source: RLinf (arXiv 2509.15965), algorithm 1, which keeps one number for a set and cuts one topological order only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rlinf_lab.planning.patience import check
from rlinf_lab.planning.search.fronts import EMPTY, Front, drops, lower, pareto
from rlinf_lab.planning.search.outline import Outline
from rlinf_lab.planning.search.problem import Counts, Cut, Cuts, Problem
from rlinf_lab.planning.search.trees import SPATIAL, TEMPORAL, Composed, Leaf, Tree, leaf_of

EXACT = 1 + 1e-12  # ties with the best so far are kept
FEW, CLOSER = 10, 5  # device counts of a leaf in the first, coarse search; how much nearer each next search looks
UNITS = 128  # of devices, evenly spaced, that are looked at where there are very many
BLOCK = 4_000_000  # pairs looked at together
MODERATE = 256  # device counts of a leaf up to which a coarse search alone gives a bound that is worth its time
MANY = 2_000  # more points than these are sorted out at once
LEAF, LIFT = -1, -2
BOTH = (TEMPORAL, SPATIAL)


@dataclass(frozen=True)
class Found:
    """A plan and its seconds between iterations."""

    seconds: float
    tree: Tree


@dataclass(frozen=True)
class Only:
    """What is looked for: ``kinds`` of composition, the ``last`` one (its kind and the leaves before it), None: any, and plans ``unlike`` an outline."""

    kinds: tuple[str, ...] = BOTH
    last: tuple[str, int] | None = None
    unlike: Outline | None = None


@dataclass(frozen=True)
class _Way:
    """A composition. ``unlike``: which of the parts are only those that are not as the outline has them."""

    kind: str
    cut: Cut
    unlike: tuple[bool, bool]


def solve(problem: Problem, ceiling: float = np.inf, only: Only = Only()) -> list[Found]:
    """The best plan for every way to make the last composition, fastest first; the first one is optimal. Empty when no plan is possible.

    ``ceiling``: plans that take longer are of no interest, and plans not much slower than the best may be missing below it.
    """
    several = SPATIAL in only.kinds and problem.everyone.bit_count() > 1
    if several and np.isinf(ceiling) and any(len(useful_counts(problem, v)) > FEW for v in range(len(problem.names))):
        moderate = all(len(useful_counts(problem, v)) <= MODERATE for v in range(len(problem.names)))
        ceiling = min([ceiling, *(f.seconds for f in guess(problem, ceiling, only, coarse=moderate)[:1])])
    return sorted(_Solver(problem, ceiling, only).plans(), key=lambda f: f.seconds)


def near(problem: Problem, ceiling: float = np.inf, only: Only = Only()) -> list[Found]:
    """As `solve`, but over some device counts: evenly spaced ones, so that they add up, then finer ones near the best plan. For many devices of one kind
    on which seconds fall smoothly: nearly the best plan in a fraction of the time."""
    useful = [useful_counts(problem, v) for v in range(len(problem.names))]
    unit = -(-problem.most // UNITS)
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
    """Good plans, fastest first: a search over few device counts, then (unless ``coarse``) over counts nearer and nearer to those that it chose."""
    if problem.everyone.bit_count() == 1 or SPATIAL not in only.kinds:
        return solve(problem, ceiling, only)  # quick enough: on the same devices numbers of devices do not add up
    useful = [useful_counts(problem, v) for v in range(len(problem.names))]
    if not all(len(codes) for codes in useful):
        return []
    # Who needs no devices works beside the others: to have it take turns with somebody is hardly ever better, and twice the work.
    aside = sum(1 << v for v, codes in enumerate(useful) if not codes.any())
    strides, found = [-(-len(codes) // FEW) for codes in useful], list[Found]()
    chosen = [codes[::-stride] for codes, stride in zip(useful, strides, strict=True)]
    while True:
        plans = _Solver(_with_counts(problem, chosen), ceiling, only, aside).plans()
        found = sorted([*plans, *found], key=lambda f: f.seconds)
        if not plans or max(strides) == 1 or coarse:
            return found
        ceiling = min(ceiling, found[0].seconds)
        strides = [max(1, stride // CLOSER) for stride in strides]
        for v, codes in enumerate(useful):
            at = int(np.searchsorted(codes, _code(problem, leaf_of(found[0].tree, v).devices)))
            around = at + strides[v] * np.arange(-CLOSER, CLOSER + 1)
            chosen[v] = codes[np.unique(np.clip([*around, len(codes) - 1], 0, len(codes) - 1))]


def useful_counts(problem: Problem, leaf: int) -> np.ndarray:
    """Device counts on which a leaf is faster than on any fewer, with some size of chunk."""
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
    """Fronts by (set, context, whether of plans unlike the outline only), for all granularities at once."""

    def __init__(self, problem: Problem, ceiling: float, only: Only, aside: int = 0) -> None:
        """``aside``: leaves that take no turns, unless ``only`` asks for it."""
        self.problem, self.ceiling, self.kinds, self.last, self.unlike = problem, ceiling * EXACT, only.kinds, only.last, only.unlike
        self._aside = 0 if only != Only() else aside
        self.cuts = Cuts(problem)
        self._tables: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self._fronts: dict[tuple[int, int, bool], list[Front]] = {}
        self._least: dict[tuple[int, int, bool, int], np.ndarray] = {}
        self._ways: dict[tuple[int, bool], list[_Way]] = {}
        self._options: list[_Way] = []
        self._option_numbers: dict[_Way, int] = {}
        self._beside: dict[int, tuple[int, float]] = {}
        self._seconds: dict[Cut, tuple[float, float]] = {}
        self._areas = [self._area(v) for v in range(len(problem.names))]
        self._fewest = [self._least_devices(v) for v in range(len(problem.names))]

    # --- the whole ---------------------------------------------------------------------------------------
    def plans(self) -> list[Found]:
        """The best plan of each last composition (kind and cut)."""
        problem = self.problem
        everyone = problem.everyone
        if np.isinf(self._areas).any():
            return []
        if everyone.bit_count() == 1:
            return self._alone()
        found = []
        for way in self._ways_of(everyone, self.unlike is not None):
            if self.last is not None and self.last != (way.kind, way.cut.before):
                continue
            best: tuple[float, int, int, int] | None = None
            for g in range(self._finest(way) + 1):
                check()
                better = self._best_whole(way, g)
                if better is not None and (best is None or better[0] < best[0]):
                    best = (*better, g)
            if best is not None and best[0] <= self.ceiling:
                seconds, left, right, g = best
                found.append(Found(seconds, self._composed(way, g, 0, left, right, problem.most)))
        return found

    def _alone(self) -> list[Found]:
        front = self._front(1, 0, self.unlike is not None)[0]
        if not len(front):
            return []
        seconds = self.problem.iteration(front.fill, front.period)
        best = int(np.argmin(seconds))
        return [Found(float(seconds[best]), self._tree(1, 0, False, 0, best))]

    def _best_whole(self, way: _Way, g: int) -> tuple[float, int, int] | None:
        """(seconds, point before, point after) of the best way to compose everything like this."""
        problem, chunks = self.problem, 2.0**g
        before, after = self._parts(way, 0, g)
        if not len(before) or not len(after):
            return None
        if way.kind == TEMPORAL:
            first, second = int(np.argmin(before.fill)), int(np.argmin(after.fill))
            there, back = self._switches(way.cut)
            fill = before.fill[first] + after.fill[second] + there
            return float(problem.iteration(fill + (chunks - 1) * (fill + back), chunks * (fill + back))), first, second
        best: tuple[float, int, int] | None = None
        for i, j in self._pairs(before, after, -1):
            fill, period = _side_by_side(before, after, i, j, way.cut.linked)
            seconds = problem.iteration(fill + (chunks - 1) * period, chunks * period)
            k = int(np.argmin(seconds))
            if best is None or seconds[k] < best[0]:
                best = float(seconds[k]), int(i[k]), int(j[k])
        return best

    # --- parts -------------------------------------------------------------------------------------------
    def _ways_of(self, leaves: int, unlike: bool) -> list[_Way]:
        """Every way to compose a set. A plan is unlike the outline where it has another composition, or where a part is unlike it."""
        key = (leaves, unlike)
        if key not in self._ways:
            found = []
            for cut in self.cuts.of(leaves):
                for kind in self.kinds:
                    aside = kind == TEMPORAL and (self._is_aside(cut) or not self.problem.may_take_turns(cut))
                    again = kind == SPATIAL and not cut.linked and cut.before > cut.after and leaves != self.problem.everyone  # the other way round
                    if not aside and not again:
                        like = unlike and self.unlike is not None and self.unlike.has(kind, cut)
                        found += [_Way(kind, cut, parts) for parts in (((True, False), (False, True)) if like else ((False, False),))]
            self._ways[key] = found
        return self._ways[key]

    def _front(self, leaves: int, context: int, unlike: bool) -> list[Front]:
        """By granularity."""
        key = (leaves, context, unlike)
        if key not in self._fronts:
            if leaves.bit_count() > 1:
                self._fronts[key] = self._composite(leaves, context, unlike)
            elif unlike:
                self._fronts[key] = [EMPTY] * self.problem.granularities
            else:
                self._fronts[key] = (self._leaf if leaves & self.problem.once else self._call)(leaves, context)
        return self._fronts[key]

    def _leaf(self, leaves: int, context: int) -> list[Front]:
        fills, periods = self._numbers(leaves.bit_length() - 1, context)
        found = [EMPTY]
        for g in reversed(range(self.problem.granularities)):
            options = []
            for number, (fill, period) in enumerate(zip(fills[:, g], periods[:, g], strict=True)):
                code = np.union1d(drops(fill, self.problem.shape), drops(period, self.problem.shape))
                options.append(Front.of(code, fill[code], period[code], LEAF, np.full(len(code), number), code))
            made = Front.joined([o for o in [*options, _lifted(found[-1])] if len(o)])
            made = made.take(self._useful(leaves, g, made.code, made.fill, made.period))
            found.append(pareto(made, self.problem.shape) if len(made) else EMPTY)
        return found[:0:-1]

    def _call(self, leaves: int, context: int) -> list[Front]:
        """A leaf with calls for each chunk: fill and period are one number, and so the better of a chunk at once and of two halves."""
        rows = self._numbers(leaves.bit_length() - 1, context)[1][0]
        scale = 2.0 ** np.arange(len(rows))[:, None]  # powers of two: nothing is rounded
        best = np.minimum.accumulate((scale * rows)[::-1])[::-1] / scale
        at_once = rows <= best  # as good at once as in halves: then at once
        kept = lower(best, self.problem.shape)
        found: list[Front] = []
        for g in reversed(range(len(rows))):
            code = kept[g].nonzero()[0]
            code = code[self._useful(leaves, g, code, best[g, code], best[g, code])]
            left = np.asarray(np.searchsorted(found[-1].code if found else code, code))
            found.append(Front(code, best[g, code], best[g, code], np.where(at_once[g, code], LEAF, LIFT), left, left))
        return found[::-1]

    def _composite(self, leaves: int, context: int, unlike: bool) -> list[Front]:
        found = [EMPTY]
        for g in reversed(range(self.problem.granularities)):
            found.append(self._made(leaves, context, unlike, g, found[-1]))
        return found[:0:-1]

    def _made(self, leaves: int, context: int, unlike: bool, g: int, finer: Front) -> Front:
        check()
        options = []
        for way in self._ways_of(leaves, unlike):
            if g <= self._finest(way):
                options += self._temporal(way, context, g) if way.kind == TEMPORAL else self._spatial(leaves, way, context, g)
        if len(finer):
            options.append(_lifted(finer))
        options = [o for o in options if len(o)]  # coarse ones first: of equal points the first is kept
        if not options:
            return EMPTY
        front = Front.joined(options)
        front = front.take(self._useful(leaves, g, front.code, front.fill, front.period))
        return pareto(front, self.problem.shape) if len(front) else EMPTY

    def _temporal(self, way: _Way, context: int, g: int) -> list[Front]:
        if not all(map(len, self._parts(way, context, g))):
            return []
        before, after = self._contexts(way, context)
        least = self._least_fill(way.cut.before, before, way.unlike[0], g) + self._least_fill(way.cut.after, after, way.unlike[1], g)
        there, back = self._switches(way.cut)
        code = drops(least, self.problem.shape)
        fill = least[code] + there
        none = np.zeros(len(code), np.int64)
        return [Front.of(code, fill, fill + back, self._option(way), none, none)]

    def _spatial(self, leaves: int, way: _Way, context: int, g: int) -> list[Front]:
        before, after = self._parts(way, context, g)
        if not len(before) or not len(after):
            return []
        option, found = self._option(way), list[Front]()
        for i, j in self._pairs(before, after, self._others(leaves)[0]):
            fill, period = _side_by_side(before, after, i, j, way.cut.linked)
            code = before.code[i] + after.code[j]
            made = Front.of(code, fill, period, option, i, j)
            found.append(made.take(self._useful(leaves, g, code, fill, period)) if len(made) > MANY else made)  # few are looked at together, in `_made`
        return found

    def _pairs(self, before: Front, after: Front, limit: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs of points that fit on the devices together, in blocks of index arrays: all that use at most ``limit`` devices; of those
        that use more (and are only ever given all devices), all that may be the best."""
        if not len(before) or not len(after):
            return
        most = self.problem.most
        if len(self.problem.devices) > 1:
            yield from self._pairs_of_kinds(before, after)
        elif after.falling or before.falling:
            yield from _fitting(before, after, limit)
            i, j = _largest(before, after, most)
            if len(i):
                yield i, j
        else:
            yield from _fitting(before, after, most)

    def _pairs_of_kinds(self, before: Front, after: Front) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        shape = self.problem.shape
        a, b = np.array(np.unravel_index(before.code, shape)), np.array(np.unravel_index(after.code, shape))
        most = np.array(self.problem.devices)[:, None, None]
        rows = max(1, BLOCK // len(after))
        for start in range(0, len(before), rows):
            i, j = np.nonzero(np.all(a[:, start : start + rows, None] + b[:, None, :] <= most, axis=0))
            if len(i):
                yield i + start, j

    # --- what is worth keeping -----------------------------------------------------------------------------
    def _useful(self, leaves: int, g: int, code: np.ndarray, fill: np.ndarray, period: np.ndarray) -> np.ndarray:
        """Points that may be part of a plan as good as the best so far."""
        if self.ceiling == np.inf:
            return np.arange(len(code))
        problem = self.problem
        limit, elsewhere = self._others(leaves)
        working = 2.0**g * np.minimum(fill, period)
        # A part holds its devices for as long as it works, and everybody else needs device seconds as well.
        devices = problem.totals[code]
        devices = np.where(devices <= limit, devices, problem.totals[-1])
        good = devices * working + elsewhere <= problem.totals[-1] * self.ceiling
        good &= problem.at_least(g, fill, period) <= self.ceiling
        return np.asarray(good.nonzero()[0])

    def _others(self, leaves: int) -> tuple[int, float]:
        """(most devices that a part can have without having all, fewest device seconds of everybody else): somebody else has devices beside it."""
        if leaves not in self._beside:
            others = [v for v in range(len(self._areas)) if not leaves >> v & 1]
            self._beside[leaves] = int(self.problem.totals[-1] - min((self._fewest[v] for v in others), default=0)), sum(self._areas[v] for v in others)
        return self._beside[leaves]

    def _area(self, leaf: int) -> float:
        """Fewest device seconds of a leaf in an iteration that is as short as the best so far."""
        busy = self._busy(leaf)
        possible = np.isfinite(busy) & (busy <= self.ceiling)
        return float(np.min(np.where(possible, busy, 0.0) * self.problem.totals, where=possible, initial=np.inf))

    def _least_devices(self, leaf: int) -> float:
        busy = self._busy(leaf)
        return float(np.min(np.where(busy <= self.ceiling, self.problem.totals, np.inf), where=np.isfinite(busy), initial=np.inf))

    def _busy(self, leaf: int) -> np.ndarray:
        """Least seconds that a leaf holds its devices in an iteration, shape (granularities, codes)."""
        fill, period = self._numbers(leaf, 0)
        return np.min(np.minimum(fill, period), axis=0) * 2.0 ** np.arange(self.problem.granularities)[:, None]

    # --- small things ----------------------------------------------------------------------------------------
    def _finest(self, way: _Way) -> int:
        """Leaves that are called once an iteration take turns as a whole only; so does everybody where nobody streams: each in as many calls as suit it,
        and the switches once."""
        whole = SPATIAL not in self.kinds or (way.cut.before | way.cut.after) & self.problem.once
        return 0 if way.kind == TEMPORAL and whole else way.cut.finest

    def _is_aside(self, cut: Cut) -> bool:
        return not cut.before & ~self._aside or not cut.after & ~self._aside

    def _parts(self, way: _Way, context: int, g: int) -> tuple[Front, Front]:
        before, after = self._contexts(way, context)
        return self._front(way.cut.before, before, way.unlike[0])[g], self._front(way.cut.after, after, way.unlike[1])[g]

    def _contexts(self, way: _Way, context: int) -> tuple[int, int]:
        """Who stays on the devices of each part."""
        if way.kind == SPATIAL:
            return context, context
        return context | way.cut.after & self.problem.staying, context | way.cut.before & self.problem.staying

    def _switches(self, cut: Cut) -> tuple[float, float]:
        if cut not in self._seconds:
            self._seconds[cut] = self.problem.switch(cut.before, cut.after, self.cuts), self.problem.switch(cut.after, cut.before, self.cuts)
        return self._seconds[cut]

    def _least_fill(self, leaves: int, context: int, unlike: bool, g: int) -> np.ndarray:
        key = (leaves, context, unlike, g)
        if key not in self._least:
            self._least[key] = self._front(leaves, context, unlike)[g].least_fill(self.problem.shape)
        return self._least[key]

    def _numbers(self, leaf: int, context: int) -> tuple[np.ndarray, np.ndarray]:
        key = (leaf, context)
        if key not in self._tables:
            self._tables[key] = self.problem.numbers(leaf, context)
        return self._tables[key]

    def _option(self, way: _Way) -> int:
        if way not in self._option_numbers:
            self._option_numbers[way] = len(self._options)
            self._options.append(way)
        return self._option_numbers[way]

    # --- back to a plan --------------------------------------------------------------------------------------
    def _tree(self, leaves: int, context: int, unlike: bool, g: int, point: int) -> Tree:
        front = self._front(leaves, context, unlike)[g]
        while front.option[point] == LIFT:
            point, g = int(front.left[point]), g + 1
            front = self._front(leaves, context, unlike)[g]
        code, option = int(front.code[point]), int(front.option[point])
        if option == LEAF:
            number = int(front.left[point]) if leaves & self.problem.once else 0
            return Leaf(leaves.bit_length() - 1, self.problem.counts(code), g, number)
        way = self._options[option]
        left, right = int(front.left[point]), int(front.right[point])
        if way.kind == TEMPORAL:
            left, right = (part.best_at(code, self.problem.shape) for part in self._parts(way, context, g))
        return self._composed(way, g, context, left, right, code)

    def _composed(self, way: _Way, g: int, context: int, left: int, right: int, code: int) -> Composed:
        (before, after), (one, other) = self._contexts(way, context), way.unlike
        parts = self._tree(way.cut.before, before, one, g, left), self._tree(way.cut.after, after, other, g, right)
        return Composed(way.kind, *parts, self.problem.counts(code), g)


def _lifted(finer: Front) -> Front:
    """Two chunks of the next finer granularity as one."""
    point = np.arange(len(finer))
    return Front.of(finer.code, finer.fill + finer.period, 2 * finer.period, LIFT, point, point)


def _side_by_side(before: Front, after: Front, i: np.ndarray, j: np.ndarray, linked: bool) -> tuple[np.ndarray, np.ndarray]:
    a, b = before.fill[i], after.fill[j]
    return a + b if linked else np.maximum(a, b), np.maximum(before.period[i], after.period[j])



def _fitting(before: Front, after: Front, most: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs on at most so many devices of one kind."""
    fitting = np.searchsorted(after.code, most - before.code, side="right")
    ends = np.cumsum(fitting)
    start = 0
    while start < len(before):
        stop = max(start + 1, int(np.searchsorted(ends, (ends[start - 1] if start else 0) + BLOCK)))
        count = fitting[start:stop]
        i = np.repeat(np.arange(start, min(stop, len(before))), count)
        if len(i):
            yield i, np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count)
        start = stop


def _largest(before: Front, after: Front, most: int) -> tuple[np.ndarray, np.ndarray]:
    """One pair for each point of one part, with all the devices that it leaves to the other, whose numbers fall with devices."""
    if not after.falling:
        j, i = _largest(after, before, most)
        return i, j
    j = np.searchsorted(after.code, most - before.code, side="right") - 1
    i = np.flatnonzero(j >= 0)
    return i, j[i]
