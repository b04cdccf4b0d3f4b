"""Memory as a hard constraint: measured peaks, who must leave, what stays depends on how many devices it has, and what would help."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
import re
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from random_profiles import chain, random_profile
from sweeps import sweep

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine.engine import Engine
from rlinf_lab.planning.engine.shared_memory import Overlaps
from rlinf_lab.planning.forecast.forecast import forecast, graph_of
from rlinf_lab.planning.placement.colocation import _halves, _too_many, settled
from rlinf_lab.planning.placement.device_ranges import seatings
from rlinf_lab.planning.placement.free_memory import ANY, APART
from rlinf_lab.planning.placement.memory_units import Turns
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.placement.to_execution_plan import execution_plan
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.planner.planner import Planned, plan
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.profile import (
    Cell,
    DeviceKind,
    EdgeProfile,
    Memory,
    Profile,
    RankRule,
    Sample,
    WorkerProfile,
)
from rlinf_lab.planning.search.plan_tree import SPATIAL, TEMPORAL, Composed, Leaf, Tree, evaluate
from rlinf_lab.planning.search.problem import Cuts, Problem
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

NO_MEMORY, ANY_RANKS = Memory(), RankRule()


def worker(memory: Memory = NO_MEMORY, ranks: RankRule = ANY_RANKS) -> WorkerProfile:
    return WorkerProfile((Sample(8, 64.0, 8.0),), exponent=1.0, memory=memory, ranks=ranks)


@pytest.mark.parametrize(("gib", "leaves"), [(64.0, True), (99.0, True), (100.0, False), (None, False)])
def test_who_does_not_fit_beside_the_others_leaves_however_little_that_costs(gib: float | None, leaves: bool) -> None:
    execution = plan(chain(gib, a=worker(memory=Memory(50)), b=worker(memory=Memory(50))), 8)["temporal"].execution
    assert (execution.device_memory is not None) is leaves and bool(execution.memory) is leaves
    if leaves:
        assert sum(execution.memory.values()) > execution.device_memory  # not both at a time


def test_a_measured_peak_is_needed() -> None:
    peaked = dataclasses.replace(worker(), samples=(Sample(8, 64.0, 8.0, peak_gib=70.0),))
    with pytest.raises(PlanError, match="'a' needs 70 GiB .* a device has 40 GiB"):
        plan(chain(40.0, a=peaked, b=worker()), 8)
    assert plan(chain(70.0, a=peaked, b=worker()), 8).best.seconds > 0
    stays = dataclasses.replace(worker(memory=Memory(20)), offloadable=False)
    assert plan(chain(89.0, a=peaked, b=stays), 8).best.placement["a"]["devices"] < 8, "beside what stays there are 69 GiB"


@pytest.mark.parametrize("seed", range(30))
def test_what_a_device_holds_is_counted_item_by_item(seed: int) -> None:
    """Whole items in whole groups of a rank, spread over its devices. Between its own peaks a line; below the least of them; above in proportion or steeper."""
    rng = random.Random(seed)
    per_rank, group, whole, per_item = rng.choice([1, 1, 2, 4]), rng.choice([1, 1, 3]), rng.choice([0, 4.0]), rng.choice([0.0, 0.5, 2.0])
    own = Memory(whole, per_item, rng.random() < 0.5, shared_gib=(shared := rng.choice([0.0, 1.5])), shared_as="m" if shared else "")
    peaks = [(d, rng.randint(1, 64), rng.choice([(), (), (), ("b",)]), rng.choice([None, *range(5, 90, 7)])) for d in rng.choices((1, 2, 4), k=rng.randint(1, 5))]
    samples = tuple(Sample(d, float(n), 1.0, beside, peak_gib=gib) for d, n, beside, gib in peaks)
    one = WorkerProfile(samples, rng.choice(["batch", "simulator"]), memory=own, ranks=RankRule(per_rank))

    def held(items: float, devices: int) -> float:
        return group * math.ceil(math.ceil(items / group) / max(1, devices // per_rank)) / per_rank

    def keeps(devices: int) -> float:
        return shared + (whole / devices if own.sharded else whole)

    found: dict[float, float] = {0.0: 0.0}
    for load, gib in sorted((held(n, d), gib - keeps(d)) for d, n, beside, gib in peaks if gib is not None and not beside):
        found[load] = max(gib, *found.values())
    (before, low), (last, high) = ([(0.0, 0.0), *found.items()])[-2:]
    for devices, items in itertools.product((1, 2, 4, 8), (1.0, 5.5, 16.0, 300.0)):
        n, at = held(items, devices), np.array([devices])
        above = float(np.interp(n, list(found)[1:], list(found.values())[1:])) + max(0.0, n - last) * max(high / last, (high - low) / (last - before)) if last else 0.0
        assert memory.needed(one, at, items, group)[0] == pytest.approx(keeps(devices) + max(per_item * n, above)), (devices, items)
        if group == 1:
            assert memory.kept(one, at, items)[0] == pytest.approx(keeps(devices) + per_item * n * (one.kind == "simulator"))
        for more in (0.0, 0.3):
            free = keeps(devices) + (n + more) * per_item / per_rank
            assert memory.slots(one, at, np.array([free])) == ([math.floor(n + more + 1e-9)] if per_item else None)
    assert memory.slots(one, at, np.array([math.inf])) is None and memory.limits(one) == bool(whole or per_item or shared or any(gib for *_, gib in peaks))
    rule = RankRule(per_rank, divides=rng.choice([0, 12]), counts=rng.choice([(), (1, 3, 4)]), most=rng.choice([0, 3]))
    assert memory.valid(rule, np.arange(33)).tolist() == [rule.allows(n) for n in range(33)]


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n >= 12)) for n in range(25)])
def test_whatever_is_advised_works(seed: int) -> None:
    """Random profiles on few devices with little memory: each way that a refusal names leads to a plan."""
    rng = random.Random(seed)
    made = random_profile(seed).replace(device_memory_gib=float(rng.choice([3, 8, 20])))
    devices = rng.randint(1, 4)
    try:
        plan(made, devices, simulate=False, quick=True)
    except PlanError as refused:
        gib, count = re.search(r"Next: .*memory_gib=(\d+(?:\.\d+)?)", str(refused)), re.search(r"Next: .*\bdevices=(\d+)", str(refused))
        assert gib or count or " and " in str(refused), refused
        if " and devices=" in str(refused):
            assert plan(made, int(count[1]), memory_gib=float(gib[1]), simulate=False, quick=True)
            return
        if gib:
            assert plan(made, devices, memory_gib=float(gib[1]), simulate=False, quick=True)
            with pytest.raises(PlanError):
                plan(made, devices, memory_gib=0.989 * float(gib[1]), simulate=False, quick=True)
        if count:
            assert plan(made, int(count[1]), simulate=False, quick=True)


def test_advised_numbers_are_enough_short_and_at_most_one_percent_more() -> None:
    rng = random.Random(5)
    for needs in [0.9999, 1, 9.999, 40, 99.95, 100, 244.2, *(10 ** rng.uniform(-4, 7) for _ in range(2000))]:
        said = memory.advised(needs)
        assert needs * (1 - 1e-8) <= said <= 1.0101 * needs and memory.advised(said) == said
        assert said == (float(f"{said:.3g}") if said < 100 else int(said)), "three figures, or whole"
        assert memory.less_than_advised(said) < needs * (1 + 1e-8) and memory.less_than_advised(said) >= 0.99 * said - 1e-12
    assert [memory.advised(x) for x in (1.2301, 12.301, 123.01)] == [1.24, 12.4, 124]


# --- turns ----------------------------------------------------------------------------------------------------------
HOST = WorkerProfile((Sample(0, 4.0, 1.0),), resource="host", calls=3)


def leaver(gib: float, per_item: float = 0.0, stays: bool = False, onload: float = 0.5, calls: float = 3.0, **more: object) -> WorkerProfile:
    held = Memory(gib, per_item)
    return WorkerProfile((Sample(1, 4.0, 2.0),), calls=calls, memory=held, offloadable=not stays, onload_s=onload, offload_s=onload, **more)


def ring(one: str, other: str) -> tuple[EdgeProfile, EdgeProfile]:
    return EdgeProfile(one, other), EdgeProfile(other, one)


def _moments(timeline: Timeline, name: str, kind: SpanKind, device: int | None = None) -> list[tuple[float, float]]:
    """``device``: of the rank there only."""
    tracks = [i for i, t in enumerate(timeline.tracks) if t.worker == name and (device is None or timeline.devices[device] in t.devices)]
    spans = timeline.spans
    mine = spans[np.isin(spans["track"], tracks) & (spans["kind"] == kind)]
    return sorted(zip(mine["start"].tolist(), mine["end"].tolist(), strict=True))


def _stays(timeline: Timeline, name: str, device: int) -> list[tuple[float, float]]:
    """From coming to having left, perhaps at once."""
    comes, leaves = ([at for at, _ in _moments(timeline, name, SpanKind.ONLOAD, device)], [at for _, at in _moments(timeline, name, SpanKind.OFFLOAD, device)])
    return list(itertools.zip_longest(comes, leaves, fillvalue=math.inf))


def two_rings(seed: int) -> Profile:
    """Policies and environments, some of these on the host, some of them staying, and perhaps a learner; all leave in some time."""
    rng = random.Random(seed)

    def made() -> WorkerProfile:
        gib, per_item, stays, onload = rng.choice([10, 30, 45, 60]), rng.choice([0, 0, 5, 10]), rng.random() < 0.2, rng.choice([0.25, 0.5])
        return leaver(gib, per_item, stays, onload, ranks=rng.choice([RankRule(), RankRule(most=1)]))

    workers = {"s1": HOST if rng.random() < 0.3 else made(), "t1": made(), "s2": HOST if rng.random() < 0.3 else made(), "t2": made()}
    edges = [*ring("s1", "t1"), *ring("s2", "t2")] + [EdgeProfile("s1", "s2", whole=rng.random() < 0.5)] * (rng.random() < 0.7)
    if rng.random() < 0.4:
        workers["a"] = made()
        edges.append(EdgeProfile("s1", "a", whole=rng.random() < 0.5))
    return Profile(4, workers, tuple(edges), cells=(Cell(("s1", "t1"), (1, 2)), Cell(("s2", "t2"), (1, 2))), device_memory_gib=80.0)


@pytest.mark.parametrize(("per_item", "alone"), [(10.0, True), (1.0, False)])
def test_who_stays_has_those_leave_beside_whom_it_cannot_work(per_item: float, alone: bool) -> None:
    """b keeps 10 GiB while a has its 60, and needs up to 50 while it works."""
    workers = {"a": leaver(60, calls=1), "b": leaver(10, per_item, stays=True, calls=1), "c": leaver(60, calls=1)}
    profile = Profile(4, workers, (EdgeProfile("a", "b", whole=True), EdgeProfile("b", "c", whole=True)), device_memory_gib=80.0)
    planned = plan(profile, 1, micro_batches=1)["temporal"]
    assert bool(planned.execution.working) == alone and "b" not in planned.execution.memory
    timeline = planned.simulate(3)
    assert most_gib(planned, timeline) <= 80
    comes = timeline.to_pandas().query("kind == 'onload' and worker == 'b' and iteration > 0")
    assert not len(comes), "it never left"


@pytest.mark.parametrize("order", ["abc", "bac"])
def test_those_that_nothing_links_go_in_the_order_of_the_plan(order: str) -> None:
    """a and b have no edge; c takes the batches of both."""
    workers = {n: leaver(10, calls=1, onload=0.0) for n in "abc"}
    setting = Setting.of(Profile(4, workers, tuple(EdgeProfile(n, "c", whole=True) for n in "ab")), 1, micro_batches=1)
    first, second, last = (Leaf(setting.home[n], (1,), 0) for n in order)
    placement = Placement(setting, setting.arrangements()[0], Composed(TEMPORAL, Composed(TEMPORAL, first, second, (1,), 0), last, (1,), 0))
    assert placement.shape == " > ".join(order)
    begins = {n: _moments(forecast(placement, 1), n, SpanKind.RUN)[0][0] for n in order}
    assert sorted(begins, key=begins.__getitem__) == list(order)
    graph = graph_of(setting.profile)
    executed = execution_plan(placement, graph, ["cpu:0"], "by hand")
    assert executed.priorities == {n: i for i, n in enumerate(order)}
    assert [p.priority for p in engine_of(Layout(graph, executed)).processes[1:]] == [order.index(n) for n in "abc"]


def test_of_each_that_shares_memory_its_most_with_one_before_is_saved() -> None:
    overlaps, there = Overlaps(), [SimpleNamespace(index=i) for i in range(3)]
    for one, other, units in ((0, 1, 9), (2, 0, 3), (2, 1, 1), (1, 0, 4)):  # a later word counts
        overlaps.set(one, other, units)
    assert [overlaps.saved(some) for some in ([], there[:1], there[1:], there, there[::-1])] == [0, 0, 1, 4 + 3, 1 + 4]


def engine_of(layout: Layout) -> Engine:
    engine = layout.new_engine()
    layout.fill(engine)
    return engine


def most_gib(planned: Planned, timeline: Timeline, once: bool = True) -> float:
    """Of all devices, at any moment of work; weights that several hold count once, or with each of them."""
    placement, found = planned.candidate.placement, 0.0
    workers, seats, turns = placement.setting.profile.workers, placement.seats, Turns.of(placement)
    leave = {n for n in seats if turns.memory.get(n) and planned.execution.device_memory}
    there = {(n, d): _stays(timeline, n, d) if n in leave else [(-math.inf, math.inf)] for n, s in seats.items() for d in s.devices}
    items = placement.setting.profile.items
    kept = {n: float(memory.kept(workers[n], np.array([max(1, len(s.devices))]), items)[0]) for n, s in seats.items()}
    shared = {n: (w.memory.shared_as, w.memory.shared_gib) for n, w in workers.items()}
    for name, seat in seats.items():
        at_once = items / seat.micro_batches / seat.sub_batches
        needs = float(memory.needed(workers[name], np.array([max(1, len(seat.devices))]), at_once)[0])
        for device in seat.devices:
            for start, end in _moments(timeline, name, SpanKind.RUN, device):
                beside = [n for n in seats if n != name and device in seats[n].devices and any(a < end and start < b for a, b in there[n, device])]
                weights = [shared[n] for n in (name, *beside)]
                own = needs + sum(kept[n] for n in beside) - sum(gib for _, gib in weights)
                found = max(found, own + sum(gib for _, gib in (set(weights) if once else weights)))
    return found


def sharing(seed: int) -> Profile:
    """Some of whose workers hold the same weights."""
    made, rng = random_profile(seed), random.Random(seed)
    names, workers = [n for n, w in made.workers.items() if w.resource == "device"], dict(made.workers)
    for name in rng.sample(names, rng.randint(2, len(names))) if len(names) > 1 else ():
        own = dataclasses.replace(workers[name].memory, resident_gib=workers[name].memory.resident_gib / rng.choice([1, 3]), shared_gib=25.0, shared_as="m")
        workers[name] = dataclasses.replace(workers[name], memory=own)
    return made.replace(workers=workers)


@pytest.mark.parametrize("profile_of", [two_rings, random_profile, pytest.param(sharing, marks=pytest.mark.long)])
@sweep(6, 40)
def test_plans_fit_as_simulated(profile_of: Callable[[int], Profile], seeds: range) -> None:
    checked = once = 0
    for seed in seeds:
        profile, rings = profile_of(seed), profile_of is two_rings
        devices, micro_batches = (1 + seed % 3, 1 + seed % 2) if rings else ((4, 16)[seed % 2], 4)
        try:
            plans = plan(profile, devices, micro_batches=micro_batches, simulate=False, quick=rings or seed % 4 > 0)
        except PlanError:
            continue
        gib = profile.device_memory_gib or math.inf
        for planned in plans:
            checked += 1
            timeline = planned.simulate(2)
            assert most_gib(planned, timeline) <= gib + 1e-6, (seed, planned)
            once += most_gib(planned, timeline, once=False) > gib
    assert checked > 10 and (once > 0) == (profile_of is sharing), (checked, once)


# --- what stays counts where it sits --------------------------------------------------------------------------------
def keeps(gib: float, stays: bool = True, **more: object) -> WorkerProfile:
    return WorkerProfile((Sample(1, 8.0, 2.0),), **{"memory": Memory(gib), "offloadable": not stays, **more})


def random_few(seed: int) -> tuple[Profile, dict[str, int]]:
    """Three workers, two of which may answer each other, on a few devices of one kind or two; who stays and how much it keeps at random."""
    rng = random.Random(seed)
    rules = (RankRule(), RankRule(), RankRule(most=1), RankRule(counts=(1, 3)), RankRule(counts=(2,)))

    def made() -> WorkerProfile:
        memory = Memory(rng.choice([0, 20, 45, 60, 90]), rng.choice([0, 0, 1, 3]), rng.random() < 0.5)
        sample, onload = Sample(1, 12.0, rng.choice([3, 5, 11, 24])), rng.choice([0, 1])
        return WorkerProfile((sample,), exponent=1.0, memory=memory, ranks=rng.choice(rules), offloadable=rng.random() < 0.4, onload_s=onload)

    cell = (EdgeProfile("s", "t"), EdgeProfile("t", "s"), EdgeProfile("s", "a", whole=True))
    edges = cell if seed % 3 == 2 else tuple(EdgeProfile(*pair) for pair in itertools.combinations("sta", 2) if rng.random() < 0.6)
    kinds = (DeviceKind("A", 1.0, rng.choice([60.0, 80.0, 100.0])), DeviceKind("B", 2.0, rng.choice([50.0, 90.0])))
    counts = {"A": rng.choice([2, 3, 4])} if rng.random() < 0.7 else {"A": rng.choice([1, 2, 3]), "B": rng.choice([1, 2])}
    return Profile(12, {n: made() for n in "sta"}, edges, kinds=kinds), counts


def every_tree(problem: Problem, leaves: int) -> list[Tree]:
    """One call each, on any devices; those that time-share sit together, or have one device in common."""
    if leaves.bit_count() == 1:
        leaf = leaves.bit_length() - 1
        return [Leaf(leaf, problem.counts(c), 0) for c in np.flatnonzero(np.isfinite(problem.numbers(leaf, 0)[1][0, 0])) if c]
    found: list[Tree] = []
    for cut in Cuts.shared(problem).of(leaves):
        for parts in itertools.product(every_tree(problem, cut.before), every_tree(problem, cut.after)):
            counts = list(zip(*(p.devices for p in parts), problem.devices, strict=True))
            seats = {tuple(max(a, b, min(n, a + b - 1) if far and a and b else 0) for a, b, n in counts) for far in (False, True)}
            found += [Composed(TEMPORAL, *parts, on, 0) for on in seats]
            found += [Composed(SPATIAL, *parts, tuple(a + b for a, b, _ in counts), 0)] if all(a + b <= n for a, b, n in counts) else []
    return found


def has_room(placement: Placement) -> bool:
    """On each of its devices, while one works, for it and for those that stay there or answer it; by hand."""
    setting, seats = placement.setting, placement.seats
    memories = {n: w.memory for n, w in setting.profile.workers.items()}
    keeps = {n: m.resident_gib / (len(seats[n].devices) if m.sharded else 1) for n, m in memories.items()}
    return all(
        keeps[n] + memories[n].per_item_gib * math.ceil(12 / seat.sub_batches / len(seat.devices))
        + sum(keeps[o] for o, other in seats.items() if o != n and d in other.devices and (other.stays or setting.home[o] == setting.home[n])) <= placement.cap(d)
        for n, seat in seats.items() for d in seat.devices
    )  # fmt: skip


MEET = [9, 14, 31, 37, 56, 57, 75, 80, 91, 119, 155, 208, 211, 214, 227, 237, 247, 263, 281, 283, 294, 301, 310, 318, 326]


@pytest.mark.parametrize("seed", [*MEET, *(pytest.param(n, marks=[pytest.mark.slow] * (n >= 12)) for n in range(150) if n not in MEET)])
def test_who_meets_whom_is_settled_as_well_as_by_looking_at_every_plan(seed: int) -> None:
    """In one call each. Memory decides who may share a device with whom; of `MEET` there is no plan, or a slower one, if all that stay count."""
    (profile, counts), best = random_few(seed), math.inf
    setting = Setting(profile, counts, 1, "fitted", 0)
    for used in (dataclasses.replace(a, forms=dataclasses.replace(a.forms, meeting=frozenset())) for a in setting.arrangements()):
        problem, apart = setting.problem(used), {i: len(u.members) for i, u in enumerate(setting.stages) if used.forms[i] == APART}
        for tree in every_tree(problem, problem.everyone):
            for seating in seatings(tree, apart) if evaluate(tree, problem) < best else ():
                if has_room(placement := Placement(setting, dataclasses.replace(used, seating=seating), tree)):
                    best = min(best, evaluate(tree, setting.problem(settled(placement).arrangement)))
    try:
        found = plan(profile, counts, micro_batches=1, simulate=False)
    except PlanError:
        assert math.isinf(best)
    else:
        searched = min(p.candidate.searched for p in found)
        assert min(searched, *(p.candidate.seconds for p in found)) * (1 - 1e-9) <= best <= searched * (1 + 1e-9)
        quick = plan(profile, counts, micro_batches=1, simulate=False, quick=True)
        assert not any(p.candidate.placement.misfit() for p in (*found, quick.best))


@sweep(40, 200)
def test_who_are_too_many_on_a_device_are_as_few_as_can_be(seeds: range) -> None:
    """All stay. With these it has too little memory, and enough without any one of those that only stay there. Who
    keeps more than was counted, for it has fewer devices, is halved: of those that are asked for who keeps most more.
    """
    found: Counter[bool] = Counter()
    for rng in map(random.Random, seeds):
        own, counts = ({n: rng.choice(some) for n in "abcd"} for some in ([4, 8, 20, 32], [1, 2, 4]))
        some = set(rng.sample("abcd", rng.choice([0, 2, 3])))
        workers = {n: keeps(gib, memory=Memory(gib, shared_gib=25.0 * (n in some), shared_as="m" * (n in some), sharded=True)) for n, gib in own.items()}
        profile = chain(float(rng.choice([60, 80])), **workers)
        setting = Setting.of(profile, 4, micro_batches=1)
        leaves = [Leaf(setting.home[n], (counts[n],), 0) for n in "abcd"]
        tree = functools.reduce(lambda a, b: Composed(TEMPORAL, a, b, (max(*a.devices, *b.devices),), 0), leaves)
        placement = Placement(setting, used := setting.arrangements()[0], tree)
        clash, many = placement.clash(), _too_many(placement)
        on_first = [n for n in "abcd" if 0 in placement.seats[n].devices]
        less = [many - {n} for n in many if clash and n != clash.worker]
        gib = [sum(own[n] / counts[n] for n in those) + 25 * bool(some & {*those}) for those in (on_first, many, *less)]
        assert bool(many) is (clash is not None) is (gib[0] > profile.device_memory_gib)
        assert not many or (gib[1] > profile.device_memory_gib >= max(gib[2:], default=0.0))
        for asked in (None, some):
            more = {n: own[n] / counts[n] - own[n] / 4 for n in "abcd" if asked is None or n in asked}
            name = max(more, key=lambda n: (more[n], n), default="")
            made = [half.forms.window(name) for half in _halves(placement, used, asked)]
            assert [(w.fewest, w.most) for w in made] == ([(0, counts[name]), (counts[name] + 1, ANY.most)] if more.get(name) else [])
        found[bool(many)] += 1
    assert min(found[True], found[False]) > 5, found


def test_a_refusal_names_each_kind_of_device_with_its_memory() -> None:
    kinds = (DeviceKind("A", 1.0, 80.0), DeviceKind("B", 1.0, 50.0))
    profile = Profile(8, {"t": keeps(70), "a": keeps(60, stays=False), "light": keeps(0)}, (EdgeProfile("t", "a"),), kinds=kinds)
    with pytest.raises(PlanError) as error:
        plan(profile, {"A": 1, "B": 1})
    needs = "'a' needs 60 GiB on 1 device of A, which has 80, or 60 GiB on 1 device of B, which has 50; 't' keeps 70 GiB (offloadable: false) where they sit."
    assert f"{needs} Next: memory_gib=70 for every kind of device, or devices={{'A': 2, 'B': 1}}." in str(error.value)


def test_a_refusal_offers_a_kind_that_was_not_asked_for() -> None:
    kinds = (DeviceKind("H", 1.0, 80.0), DeviceKind("L", 1.0, 40.0))
    profile = Profile(8, {"t": keeps(50), "a": keeps(10)}, (EdgeProfile("t", "a"),), kinds=kinds)
    for asked, gib in (({"L": 3}, 50), ({"L": 1}, 60)):  # on one device both stay
        offered = {**asked, "H": 1}
        with pytest.raises(PlanError) as error:
            plan(profile, asked)
        assert str(error.value) == f"Worker 't' needs 50 GiB on 1 device, and a device has 40 GiB. Next: memory_gib={gib}, or devices={offered}."
        assert plan(profile, offered, simulate=False).best.seconds > 0


def test_who_fits_on_no_kind_of_device_is_told_what_each_lacks() -> None:
    """In a plan of several kinds no worker has devices of two."""
    kinds = (DeviceKind("A", 1.0, 80.0), DeviceKind("B", 1.0, 40.0))
    profile = Profile(8, {"t": worker(Memory(50), RankRule(counts=(3,))), "a": keeps(10)}, (EdgeProfile("t", "a"),), kinds=kinds)
    with pytest.raises(PlanError, match=r"Worker 't' fits on no kind of device: of A there are 2, it needs 3; a B has 40 GiB, it needs 50\."):
        plan(profile, {"A": 2, "B": 4})
    assert plan(profile, {"A": 3, "B": 4}, simulate=False).best.placement["t"]["devices"] == 3
