"""Which plan is the best: the scheduler in virtual time says so, not the search.

The search finds good plans of each shape, several where they are about as fast. Some of them are simulated, in less
detail; the best ones are improved step by step among their neighbours (`nearby`); the best of each shape is what is
ranked, the first ones simulated in full detail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.forecast.stream_estimate import follow
from rlinf_lab.planning.planner.candidates import Candidate, alike
from rlinf_lab.planning.planner.nearby import fitting, neighbours
from rlinf_lab.planning.search.plan_tree import TEMPORAL, Composed, Leaf, nodes
from rlinf_lab.timeline.timeline import Timeline

SIMULATED = 6  # plans that are run by the scheduler in virtual time before they are ranked
# of those whose iterations overlap: what is followed of them is up to 1.7 times as long as what is simulated, where
# ranks differ in number
OVERLAPPING = 24
SEVERAL = 3  # plans of each shape that may be simulated
LOOKED_AT = 12  # plans that are simulated in less detail
# of the best one of these, and of the best ones of other shapes, that are simulated in vain; what one leaves is for the
# next
NEIGHBOURS = (16, 8, 8, 8)
WORTH = 1.1  # times as long by the search as the plan beside it: such a neighbour is not simulated
CLOSE = 1.1  # times as long as the best one, simulated: of a third shape that takes longer no neighbours are
# times as long as the best one, simulated: of a third shape no neighbours are that promise less, followed
PROMISED = 1.03
# devices and micro-batches: with more of them, of which a simulation takes longer, two shapes have neighbours, and
# whoever promises a tenth more
MANY, FINE = 256, 64
DETAIL = 256  # bundles of an iteration, a quarter of a forecast's
GAIN = 1e-4  # relative: a neighbour that is faster by less is no step
TIED = 1e-6  # relative: seconds that count as the same


@dataclass(frozen=True)
class Shown:
    """A candidate, the seconds that are shown, and, where it was simulated, its timeline."""

    candidate: Candidate
    seconds: float
    timeline: Timeline | None = None

    @property
    def simulated(self) -> float | None:
        """Seconds, None where it was not simulated."""
        return None if self.timeline is None else self.seconds


def ranking(found: Sequence[Candidate], devices: Sequence[str], simulate: bool = True) -> list[Shown]:
    """The best plan of each shape, fastest first; see `order` for those that take as long."""
    if not simulate:
        return order([Shown(c, c.seconds) for c in found])
    setting = found[0].placement.setting
    trials = _Trials(tuple(devices), OVERLAPPING if setting.overlap else 0)
    if setting.rule != "fitted":  # by a rule of its own the search chooses: what is simulated follows the fitted models
        return trials.ranked(
            sorted(
                {c.placement.shape: c for c in sorted(found, key=lambda c: -c.searched)}.values(),
                key=lambda c: c.seconds,
            )
        )
    trials.look(found)
    return trials.ranked(found)


def simulated(candidate: Candidate, devices: Sequence[str]) -> Shown:
    """In full detail."""
    timeline = steady(candidate.placement, devices)
    return Shown(candidate, settled(timeline, candidate.placement.setting.staleness)[1], timeline)


def order(shown: Sequence[Shown]) -> list[Shown]:
    """By seconds; of those that take as long by `preference`; without those that seat everybody as a faster
    one does.
    """
    waiting, found = sorted(shown, key=lambda s: s.seconds), list[Shown]()
    while waiting:
        tied = [s for s in waiting if s.seconds <= waiting[0].seconds * (1 + TIED)]
        del waiting[: len(tied)]
        found += sorted(tied, key=lambda s: preference(s.candidate))
    kept: list[Shown] = []
    for s in found:
        if not any(alike(s.candidate.placement, k.candidate.placement) for k in kept):
            kept.append(s)
    return kept


def preference(candidate: Candidate) -> tuple[object, ...]:
    """What comes first of plans that take as long: the one with the fewest switches, then the one with the most even
    numbers of devices, with fewer micro-batches, then in the order of the graph."""
    tree = candidate.placement.tree
    leaves = [n for n in nodes(tree) if isinstance(n, Leaf)]
    time_shared = [n for n in nodes(tree) if isinstance(n, Composed) and n.kind == TEMPORAL]
    # who works on the host makes nobody switch
    turns = sum(2**n.grain for n in time_shared if any(n.before.devices) and any(n.after.devices))
    counts = [sum(leaf.devices) for leaf in leaves]
    by_worker = sorted((leaf.worker, leaf.devices, leaf.grain) for leaf in leaves)
    return (
        turns,
        max(counts) - min(counts),
        sum(leaf.grain for leaf in leaves),
        [leaf.worker for leaf in leaves],
        candidate.placement.shape,
        by_worker,
    )


def _is_another(candidate: Candidate, begun: Sequence[Candidate]) -> bool:
    """Neither of the shape of one of these, whatever the order of its turns, nor on the same seats by another name."""
    return not any(candidate.outline == b.outline or alike(candidate.placement, b.placement) for b in begun)


def _key(candidate: Candidate) -> tuple[object, ...]:
    return candidate.placement.tree, candidate.placement.arrangement


@dataclass
class _Trials:
    """Simulations in less detail, each plan once. ``more``: how many plans are simulated at least in either detail."""

    devices: tuple[str, ...]
    more: int = 0
    _seen: dict[tuple[object, ...], tuple[Candidate, float]] = field(default_factory=dict)

    def look(self, found: Sequence[Candidate]) -> None:
        """The most promising plans by what is followed, the search's favourite, and what is near the best of them."""
        first = [c for i, c in enumerate(found) if not any(alike(c.placement, other.placement) for other in found[:i])]
        for candidate in [min(found, key=lambda c: c.searched), *first[: max(self.more, LOOKED_AT)]]:
            self._seconds(candidate)
        left, begun, few = (
            0,
            list[Candidate](),
            len(self.devices) <= MANY and found[0].placement.setting.micro_batches <= FINE,
        )
        for i, most in enumerate(NEIGHBOURS if few else NEIGHBOURS[:2]):
            start = self._start(begun)
            if start is None or (i > 1 and self._seconds(start) > CLOSE * self._best()):
                break
            begun.append(start)
            left = self._climb(start, found, most + left, np.inf if i < 2 else PROMISED * self._best())
        # What is followed knows nothing of some waits: where a plan took longer than that, a neighbour may keep the
        # promise.
        promising = min(
            (c for c, _ in self._seen.values() if _is_another(c, begun)), key=lambda c: c.seconds, default=None
        )
        if promising is not None and promising.seconds * (1 if few else WORTH) < self._best():
            self._climb(promising, found, NEIGHBOURS[1] + left, PROMISED * self._best())
        if few:
            best = min(self._seen.values(), key=lambda s: (s[1], preference(s[0])))[0]
            self._climb(best, found, NEIGHBOURS[0])  # unless all of its neighbours were looked at

    def _start(self, begun: Sequence[Candidate]) -> Candidate | None:
        """The fastest one of another shape: of several names for the same seats the one that the search
        finds fastest.
        """
        others = [(s, preference(c), c) for c, s in self._seen.values() if _is_another(c, begun)]
        if not others:
            return None
        least, _, first = min(others, key=lambda o: o[:2])
        return min(
            (o for o in others if o[0] <= least * (1 + TIED) and alike(o[2].placement, first.placement)),
            key=lambda o: (o[2].searched, o[1]),
        )[2]

    def _best(self) -> float:
        return min(seconds for _, seconds in self._seen.values())

    def ranked(self, found: Sequence[Candidate]) -> list[Shown]:
        """The best of each shape. As many as are worth it, and on until the first is one of them, are simulated in full
        detail.
        """
        best = self._best_of_each(found)
        shown = [Shown(c, c.seconds) for _, c in best]
        promised = {_key(c): seconds for seconds, c in best}
        wanted = min(max(self.more, SIMULATED), len(shown))
        while True:
            shown.sort(key=lambda s: s.seconds)
            some = [i for i, s in enumerate(shown) if s.timeline is None]
            if not some or (len(shown) - len(some) >= wanted and shown[0].timeline is not None):
                return order(shown)
            i = min(some, key=lambda i: promised[_key(shown[i].candidate)]) if len(shown) - len(some) < wanted else 0
            shown[i] = simulated(shown[i].candidate, self.devices)

    def _best_of_each(self, found: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
        """(seconds, plan) of each shape, simulated in less detail where some were: of those that take about as long the
        one that the search finds fastest.
        """
        shapes = dict[str, list[tuple[float, Candidate]]]()
        for c, seconds in self._seen.values():
            shapes.setdefault(c.placement.shape, []).append((seconds, c))
        for c in found:
            shapes.setdefault(c.placement.shape, [(c.seconds, c)])
        best = []
        for some in shapes.values():
            least = min(seconds for seconds, _ in some)
            best.append(
                min((s for s in some if s[0] <= least * (1 + GAIN)), key=lambda s: (s[1].searched, preference(s[1])))
            )
        return best

    def _climb(self, best: Candidate, found: Sequence[Candidate], most: int, ceiling: float = np.inf) -> int:
        """From neighbour to neighbour as long as they are faster, so many simulations in vain at most. How many of
        these are left.
        """
        climbs = True
        while climbs:
            seconds, climbs = self._seconds(best), False
            for near in self._near(best, found, ceiling):
                new = _key(near) not in self._seen
                if new and not most:
                    return 0
                if self._seconds(near) < seconds * (1 - GAIN):
                    best, climbs = near, True
                    break
                most -= new
        return most

    def _near(self, best: Candidate, found: Sequence[Candidate], ceiling: float) -> Iterator[Candidate]:
        """Neighbours, those first that the search finds fastest: first the same seats by other names."""
        yield from (c for c in found if c is not best and alike(c.placement, best.placement))
        kept = min(1.0, self._seconds(best) / best.seconds) if best.seconds else 1.0
        fits = (fitting(best.placement, tree) for tree in neighbours(best.placement))
        for placement, searched in sorted(
            (f for f in fits if f is not None and f[1] <= WORTH * best.searched), key=lambda f: f[1]
        ):
            near = Candidate(placement, searched, follow(placement))
            if placement.shape != best.placement.shape or near.seconds * kept < ceiling:
                yield near

    def _seconds(self, candidate: Candidate) -> float:
        key = _key(candidate)
        if key not in self._seen:
            seconds = settled(steady(candidate.placement, self.devices, DETAIL), candidate.placement.setting.staleness)[
                1
            ]
            self._seen[key] = candidate, seconds
        return self._seen[key][1]
