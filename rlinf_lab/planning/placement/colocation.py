"""The search's best plan that really fits. Branch and bound settles who has a device in common with whom, as far as
memory asks for it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from rlinf_lab.planning.placement.device_ranges import seatings, spread
from rlinf_lab.planning.placement.free_memory import APART, Forms, Window, allowed
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Arrangement, Setting
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.memory import ROUNDING
from rlinf_lab.planning.search.effort import Search, search_of
from rlinf_lab.planning.search.plan_tree import TEMPORAL, Tree, colocated, evaluate, meeting
from rlinf_lab.planning.search.solver import Only

# searches for a plan that fits, before what others keep on a device is counted as the most that it can be
MAX_SPLITS = 64
# searches for a faster one in which some of those who stay have no device in common with some others
MAX_BRANCHES = 256
MAX_WORK = 3_000_000  # of all these searches together: device counts times granularities times ways to cut a flow
FASTER_FACTOR, AS_FAST_FACTOR = 1 - 1e-9, 1 + 1e-9


@dataclass(frozen=True)
class Fitting:
    """A plan that fits, and the search's seconds."""

    searched: float
    tree: Tree


Fits = list[tuple[Arrangement, Fitting]]


def counted(
    setting: Setting, arrangement: Arrangement, ceiling: float, only: Only, search: Search | None = None
) -> Fits:
    """The best plan in which what is kept counts for all who time-share. What everybody who stays keeps; none where all
    take longer than ``ceiling``. ``search``: instead of an exact one."""
    return _Counted(setting, only, search).best(arrangement, ceiling)


def branched(
    setting: Setting,
    arrangement: Arrangement,
    ceiling: float,
    only: Only,
    search: Search | None = None,
    branches: int | None = None,
) -> Fits:
    """The best plan that takes less than ``ceiling``, kept memory counted where devices are shared. What everybody
    keeps counts for those only who have a device in common with them: parts that time-share have some in common, not
    all. ``branches``: how many searches for it (None: as many as are affordable for the best plan of all)."""
    most = branches if branches is not None else _affordable(setting) if only.last is None else 0
    if (
        not most
        or TEMPORAL not in only.kinds
        or not arrangement.staying
        or setting.costs_nothing(arrangement.staying, arrangement.forms)
    ):
        return []
    return _Branches(setting, only, search).best(arrangement, ceiling * FASTER_FACTOR, most)


def _affordable(setting: Setting) -> int:
    """Searches for each arrangement."""
    cells = sum(len(u.members) > 1 for u in setting.stages)
    arrangements = 2 ** (setting.optional_stays.bit_count() + cells)
    one = 3 ** len(setting.stages) * int(np.prod(setting.shape)) * setting.granularities
    return min(MAX_BRANCHES, MAX_WORK // (one * arrangements))


def settled(placement: Placement) -> Placement:
    """The same, counting of those that stay only who is really there."""
    forms = placement.arrangement.forms
    if forms.meeting is None:
        return placement
    return replace(
        placement,
        arrangement=replace(placement.arrangement, forms=replace(forms, meeting=placement.meetings, apart=frozenset())),
    )


@dataclass(frozen=True)
class _Looks:
    """Searches, the most promising one first."""

    setting: Setting
    only: Only
    search: Search | None
    _waiting: list[tuple[float, int, Arrangement, Tree]] = field(default_factory=list)
    _numbered: Iterator[int] = field(default_factory=itertools.count)

    def look(self, used: Arrangement, ceiling: float) -> None:
        problem = self.setting.problem(used)
        plans = (self.search or search_of(problem, self.only))(problem, ceiling, self.only)
        if plans:
            heapq.heappush(self._waiting, (plans[0].seconds, next(self._numbered), used, plans[0].tree))

    def take(self, most: int) -> Iterator[tuple[float, Arrangement, Tree]]:
        """As long as there are some, at most so many."""
        for _ in range(most):
            if not self._waiting:
                return
            seconds, _, used, tree = heapq.heappop(self._waiting)
            yield seconds, used, tree

    def spread(self, used: Arrangement, tree: Tree) -> tuple[Tree, ...]:
        """Over the devices that it leaves unused, and as it is."""
        wide = spread(tree, self.setting.problem(used), colocated(tree, used.staying))
        return (tree,) if wide == tree else (wide, tree)

    def seated(self, used: Arrangement, tree: Tree) -> Iterator[Placement]:
        """In all ways to seat it that may matter."""
        sizes = {i: len(u.members) for i, u in enumerate(self.setting.stages) if used.forms[i] == APART}
        for seating in seatings(tree, sizes):
            yield Placement(self.setting, replace(used, seating=seating), tree)


class _Counted(_Looks):
    """All that stay count.

    The search counts what others keep on a device as if they had the most devices that they may have, so it finds the
    best plan or a better one that does not fit. Then their numbers are split in two, and both halves are searched, the
    more promising one first.
    """

    def best(self, arrangement: Arrangement, ceiling: float) -> Fits:
        self.look(arrangement, ceiling)
        for seconds, used, tree in self.take(MAX_SPLITS):
            for one in self.spread(used, tree):
                if fits := next((p for p in self.seated(used, one) if not p.clash()), None):
                    return [(fits.arrangement, Fitting(seconds, one))]
            for half in _halves(Placement(self.setting, used, tree), used):
                self.look(half, ceiling)
        if not self._waiting:
            return []
        self._waiting.clear()
        self.look(replace(arrangement, forms=replace(arrangement.forms, careful=True)), ceiling)
        return [(u, Fitting(s, t)) for s, u, t in self.take(1) if not Placement(self.setting, u, t).clash()]


class _Branches(_Looks):
    """Nobody counts to begin with. Who then has too little memory in the best plan either has a device in common with
    those who stay there, and they count, or has none: both are searched, the more promising one first. Of 86 random
    flows with limited memory, two have a plan only so and four a faster one (by up to 4 %)."""

    def best(self, arrangement: Arrangement, ceiling: float, most: int) -> Fits:
        found: Fits = []
        self.look(replace(arrangement, forms=replace(arrangement.forms, meeting=frozenset())), ceiling)
        for seconds, used, tree in self.take(most):
            if seconds > ceiling:
                return found
            fits = self._fitting(used, tree)
            if fits is not None:
                took = evaluate(fits.tree, self.setting.problem(fits.arrangement))
                if took < ceiling:
                    found, ceiling = [(fits.arrangement, Fitting(took, fits.tree))], took * FASTER_FACTOR
                if took <= seconds * AS_FAST_FACTOR:
                    return found
            for branch in self._branches(used, tree, fits):
                self.look(branch, ceiling)
        return found

    def _fitting(self, used: Arrangement, tree: Tree) -> Placement | None:
        """The plan with those counted who are really there."""
        for one in self.spread(used, tree):
            for placement in self.seated(used, one):
                if not placement.clash():
                    again = settled(placement)
                    if again.seats == placement.seats:
                        return again
        return None

    def _branches(self, used: Arrangement, tree: Tree, fits: Placement | None) -> list[Arrangement]:
        """Those that together are all plans. ``fits``: the one that was found, where it only takes longer with those
        counted who are really there.
        """
        if fits is not None:
            those = [e for e in _beside(fits) if not _any(e, used.forms.meeting or ()) and e not in used.forms.apart]
            return self._settle(used, those[0]) if those else _halves(fits, used)
        broken: list[tuple[Placement, frozenset[str]]] = []
        for placement in self.seated(used, tree):
            again = [e for e in sorted(used.forms.apart, key=sorted) if _any(e, placement.meetings)]
            if not again:
                many = _too_many(placement)
                return (
                    _halves(placement, used, many) if _any(many, used.forms.meeting or ()) else self._settle(used, many)
                )
            broken.append((placement, again[0]))
        known = used.forms.meeting or frozenset()
        pairs = [frozenset(pair) for _, e in broken for pair in itertools.combinations(sorted(e), 2)]
        undecided = next((pair for pair in pairs if pair not in used.forms.apart and not _any(pair, known)), None)
        return self._settle(used, undecided) if undecided else self._smaller(used, *broken[0])

    def _settle(self, used: Arrangement, together: frozenset[str]) -> list[Arrangement]:
        """Branch in two: these workers share a device, or they do not. Before that it is settled on which kind those
        who stay are.
        """
        forms, kinds = used.forms, self.setting.kinds
        if len(together) < 2:
            return []
        staying = [n for n in sorted(together) if used.staying >> self.setting.home[n] & 1]
        home = kinds
        for name in staying:
            home = tuple(k for k in kinds if self._may_be_on(name, k, forms))
            if len(home) > 1:
                return [self._on(used, name, forms.window(name)._replace(kinds=frozenset([k]))) for k in home]
        yes = replace(used, forms=replace(forms, meeting=(forms.meeting or frozenset()) | {together}))
        no = replace(used, forms=replace(forms, apart=forms.apart | {together}))
        # who is on another kind is in the first of the two, where nothing counts for it
        for name in sorted(together) if len(kinds) > 1 else ():
            no = self._on(no, name, no.forms.window(name)._replace(kinds=frozenset(home)))
        return [yes, no]

    def _smaller(self, used: Arrangement, placement: Placement, together: frozenset[str]) -> list[Arrangement]:
        """They shall have no device in common and cannot but have one. So one of them has fewer devices.

        Two that together have more than there are: at most so many for the one, or at most what is then left for the
        other. Else with so few that they need have none in common in this plan; in others as many might do, which are
        not looked for.
        """
        seats, counts = placement.seats, {n: len(placement.seats[n].devices) for n in sorted(together)}
        most = {name: count - 1 for name, count in counts.items()}
        if len(counts) == 2:
            (one, a), (other, b) = counts.items()
            room = self.setting.devices[placement.kind(seats[one])]
            if a + b > room:
                most[one] = a - (a + b - room + 1) // 2
                most[other] = room - most[one] - 1
            else:
                stages = {self.setting.home[n] for n in counts}
                room = max(meeting(placement.tree, *stages).devices) if len(stages) == 2 else 0
                most = {one: max(min(a - 1, room - b), 1), other: max(min(b - 1, room - a), 1)}
        windows = {name: used.forms.window(name) for name in most}
        return [
            self._on(used, n, windows[n]._replace(most=m))
            for n, m in most.items()
            if max(1, windows[n].fewest) <= m < counts[n]
        ]

    def _may_be_on(self, name: str, kind: str, forms: Forms) -> bool:
        devices = np.arange(1, self.setting.devices[kind] + 1)
        return bool(np.any(allowed(self.setting.profile.workers[name], devices) & forms.window(name).on(kind, devices)))

    def _on(self, used: Arrangement, name: str, window: Window) -> Arrangement:
        return _windowed(self.setting, used, name, window)


def _windowed(setting: Setting, used: Arrangement, name: str, window: Window) -> Arrangement:
    """The arrangement with another window of a worker. Members of its cell on the same devices have it, too."""
    stage = setting.home[name]
    names = (name,) if used.forms[stage] == APART else setting.stages[stage].members
    return replace(used, forms=used.forms.within(names, window))


def _any(those: frozenset[str], sets: Iterable[frozenset[str]]) -> bool:
    return any(those <= s for s in sets)


def _beside(placement: Placement) -> list[frozenset[str]]:
    """Each worker with those who stay on one of its devices."""
    found = []
    for name in placement.seats:
        mates = placement.setting.stages[placement.setting.home[name]].members
        for there in sorted(placement.meetings, key=sorted):
            others = {o for o in there if placement.seats[o].stays and o not in mates}
            if name in there and others:
                found.append(frozenset({name, *others}))
    return found


def _too_many(placement: Placement) -> frozenset[str]:
    """As few as are too many on a device that has too little memory. They are who works there, and those that keep
    most.
    """
    clash = placement.clash()
    if clash is None:
        return frozenset()
    found, spare = {clash.worker}, placement.missing(clash) - ROUNDING
    beside = placement.kept_beside(clash.worker, clash.device)
    there = [clash.worker, *placement.mates_on(clash.worker, clash.device), *beside]
    for name, gib in sorted(beside.items(), key=lambda k: (k[1], k[0])):
        rest = [other for other in there if other != name]
        gib -= placement.counted_twice(there) - placement.counted_twice(rest)
        if gib < spare:
            spare, there = spare - gib, rest  # without it they are still too many
        else:
            found.add(name)
    return frozenset(found)


def _halves(placement: Placement, used: Arrangement, some: Collection[str] | None = None) -> list[Arrangement]:
    """Two windows for who stays and keeps most more than was counted. None when nothing was counted wrongly. ``some``:
    of these workers (None: of all).
    """
    setting, found = placement.setting, list[tuple[float, str, int]]()
    for name, seat in placement.seats.items():
        if seat.stays and seat.devices and (some is None or name in some):
            worker, count = setting.profile.workers[name], len(seat.devices)
            real = float(memory.kept(worker, np.array([count]), setting.profile.items)[0])
            counted = setting.tables.free_memory.kept((name,), placement.kind(seat), used.forms)
            if real > counted + ROUNDING:
                found.append((real - counted, name, count))
    if not found:
        return []
    _, name, count = max(found)
    window = used.forms.window(name)
    return [_windowed(setting, used, name, w) for w in (window._replace(most=count), window._replace(fewest=count + 1))]
