"""Which plan is the best: the scheduler in virtual time says so, not the search.

The search finds good plans of each shape, several where they are about as fast. The best of each mode are simulated, in
less detail; the best of each shape is what is ranked, the first ones simulated in full detail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.planner.candidates import Candidate, alike
from rlinf_lab.planning.search.plan_tree import TEMPORAL, Composed, Leaf, nodes
from rlinf_lab.timeline.timeline import Timeline

SIMULATED = 6  # plans that are run by the scheduler in virtual time before they are ranked
# of those whose iterations overlap: what is followed of them is up to 1.7 times as long as what is simulated, where
# ranks differ in number
OVERLAPPING = 24
SEVERAL = 3  # plans of each shape that may be simulated
LOOKED_AT = 12  # plans that are simulated in less detail, and of each mode at least
OF_A_MODE = 4
DETAIL = 256  # bundles of an iteration, a quarter of a forecast's
GAIN = 1e-4  # relative: what is faster by less counts as about as fast
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
    """The best plan of each shape, fastest first. See `order` for those that take as long."""
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
    """By seconds; of those that take as long by `preference`. Without those that seat everybody as a faster
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
    """What comes first of plans that take as long. It is the one with the fewest switches, then the one with the most
    even numbers of devices, with fewer micro-batches, then in the order of the graph.
    """
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


def _key(candidate: Candidate) -> tuple[object, ...]:
    return candidate.placement.tree, candidate.placement.arrangement


@dataclass
class _Trials:
    """Simulations in less detail, each plan once. ``more``: how many plans are simulated at least in either detail."""

    devices: tuple[str, ...]
    more: int = 0
    _seen: dict[tuple[object, ...], tuple[Candidate, float]] = field(default_factory=dict)

    def look(self, found: Sequence[Candidate]) -> None:
        """The plans most promising when followed, of all and of each mode. The search's favourite is among them."""
        first = [c for i, c in enumerate(found) if not any(alike(c.placement, other.placement) for other in found[:i])]
        of_modes = [[c for c in first if c.placement.mode == mode] for mode in {c.placement.mode for c in first}]
        some = [*first[: max(self.more, LOOKED_AT)], *(c for mode in of_modes for c in mode[:OF_A_MODE])]
        for candidate in [min(found, key=lambda c: c.searched), *some]:
            if (key := _key(candidate)) not in self._seen:
                timeline = steady(candidate.placement, self.devices, DETAIL)
                self._seen[key] = candidate, settled(timeline, candidate.placement.setting.staleness)[1]

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
        """(seconds, plan) of each shape, simulated in less detail where some were. Of those that take about as long it
        is the one that the search finds fastest.
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
