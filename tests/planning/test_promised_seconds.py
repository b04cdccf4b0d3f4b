"""A run takes what its plan says, and none is below the bound: with uneven ranks, whole groups, last batches, and channels that hold less than a batch."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from mock_runs import between_ends, run, seconds
from sweeps import sweep
from timed_flows import Costs, Timed, timed

import rlinf_lab as lab
from rlinf_lab.planning.costs import BatchModel
from rlinf_lab.planning.forecast.bundles import MAX_BUNDLES, Bundles
from rlinf_lab.planning.forecast.per_rank import by_rank
from rlinf_lab.planning.forecast.stream_estimate import stream_of
from rlinf_lab.planning.placement.calls import Calls
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.planner import Planned, Plans
from rlinf_lab.planning.profile.profile import EdgeProfile, Lengths, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.planning.search.plan_tree import leaf_of
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline


class InParts(Timed):
    """A source that puts its items in so many parts, as plans count them."""

    parts: ClassVar[dict[str, int]] = {}

    def make(self, *outs: lab.Outbox) -> None:
        first, end = (self.items * r // self.ranks for r in (self.rank, self.rank + 1))
        parts, share = self.parts[self.name], end - first
        for i, j in itertools.pairwise(-(-share * k // parts) for k in range(parts + 1)):
            if j > i:
                self.worked(list(range(first + i, first + j)), outs)


@dataclass(frozen=True)
class Promise:
    """A flow and where it is planned. ``shape``: of the plan that is run, or of all where it is empty. ``batches``: of readers are as many as planned.
    ``in_parts``: sources put their items in parts."""

    links: str
    items: int
    costs: Costs
    devices: int
    micro_batches: int = 64
    shape: str = ""
    most: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    capacity: int | None = None
    in_turn: str = ""
    host: str = ""
    batches: bool = False
    in_parts: bool = False

    def made(self) -> tuple[lab.Workflow, Profile]:
        kinds = dict.fromkeys(self.costs, InParts if self.in_parts else Timed)
        return timed(self.links, self.items, self.costs, self.most, self.groups, self.capacity, self.in_turn, self.host, kinds)

    def plans(self, flow: lab.Workflow, profile: Profile, **more: int) -> Plans:
        return lab.plan(flow, [f"cpu:{i}" for i in range(self.devices)], profile, micro_batches=self.micro_batches, **more)


def chain(items: int, *costs: tuple[float, float], most: tuple[int, ...] = (), group: int = 1, **more: object) -> Promise:
    """a > b > .., with so many ranks each, and one more device than the others have."""
    names, ranks = "abcd"[: len(costs)], (*most, *(1,) * (len(costs) - len(most)))
    links = " ".join(f"{p}{c}" for p, c in itertools.pairwise(names))
    given = {"devices": sum(ranks), "most": dict(zip(names, ranks, strict=True)), "groups": dict.fromkeys(names, group), **more}
    return Promise(links, items, dict(zip(names, costs, strict=True)), **given)  # type: ignore[arg-type]


REWARDS, ALIKE = ((0.0, 0.05), (0.5, 0.01), (0.2, 0.05)), ((0.0, 0.05), (0.3, 0.03), (0.3, 0.03))
LAST = [(8, 3, 2), (10, 4, 2), (20, 3, 4), (33, 5, 2), (40, 7, 4), (50, 4, 8), (50, 7, 4), (14, 4, 16)]
UNEVEN = [(21, 2, ((0, 0.005), (0.1, 0.01))), (7, 2, ((0, 0.01), (0, 0.002))), (16, 3, ((0, 0.01), (0, 0.002))), (5, 4, ((0, 0.04), (0.01, 0.005)))]
PROMISES = {
    # Numbers of items or groups that are no power of two: plans count the calls that a run makes of whole ones.
    **{f"{g} groups of {n}, rewards": chain(g * n, *REWARDS, group=n, batches=True) for g, n in ((15, 8), (56, 8), (30, 2))},
    **{f"{g} groups of {n}, alike": chain(g * n, *ALIKE, group=n, batches=True) for g, n in ((31, 8), (63, 8), (22, 1))},
    # The last batch of an iteration goes to one rank, whole: nobody divides it among those that are free.
    **{
        f"{n} items on {r} ranks in {k}": chain(n, (0, 0.002), (0.02 * (i % 2), 0.1), (0, 0.002), most=(1, r), micro_batches=k, shape="a | b | c")
        for i, (n, r, k) in enumerate(LAST)
    },
    # A rank that has fewer items than another ends sooner and lends its device.
    **{f"{n} items, the bound of {d}": chain(n, *costs, most=(1, d), devices=d, micro_batches=4) for n, d, costs in UNEVEN},
    # More devices than items, or micro-batches that are smaller than the ranks.
    **{
        f"{n} items on {d} devices": Promise("sa ab", n, {"s": (0, 0), "a": (0, 1), "b": (0, 1)}, d, host="s")
        for n, d in ((4, 16), (16, 8), (12, 5))
    },
    # A bound that is smaller than a batch would cut every batch to what the channel holds.
    **{f"{n} items, {k} fit, {r} ranks": chain(n, (0, 0.01), (1.0, 0.01), most=(1, r), capacity=k) for n, k, r in ((16, 2, 1), (512, 64, 1), (64, 4, 2))},
}  # fmt: skip
HELD_UP = {
    # The short arm fills up while the long one works: a would wait, and with it b, c and d.
    "two arms": Promise("ab bc cd de ae", 256, {"a": (0, 0.01), **dict.fromkeys("bcd", (0.5, 0.008)), "e": (0, 0.01)}, 5, shape="a | b | c | d | e"),
    # c takes nothing of a while there is more of b.
    "in turn": Promise("ab bc ac", 256, {"a": (0, 0.005), "b": (0, 0.002), "c": (0, 0.002)}, 4, shape="a | b | c", in_turn="c"),
    # d is slow, and c waits for a batch of everything.
    "fork": Promise("ab ac ad", 256, {"a": (0, 0.002), "b": (0, 0.002), "c": (1.0, 0.01), "d": (0, 0.02)}, 4, shape="a | b | c | d"),
    # While a waits for room, c takes its devices, and keeps them. (The other name of these seats, (a > c) | (b > d), is no plan of its own.)
    "taken devices": Promise("ab cd bd", 256, {"a": (0, 0.002), "b": (0.01, 0.01), "c": (0, 0.04), "d": (0.01, 0.002)}, 3, shape="a > (c | (b > d))"),
    # c comes before b, and a could have all ready for it by then.
    "turns": Promise("ab cd bd", 256, {"a": (0, 0.02), "b": (0.01, 0.01), "c": (0, 0.04), "d": (0.01, 0.002)}, 3, shape="a | (c > b > d)"),
}


def ran(flow: lab.Workflow, planned: Planned, iterations: int = 2) -> lab.Run:
    InParts.parts = {n: at["micro_batches"] for n, at in planned.placement.items()}
    return run(flow, planned, iterations)


def kept(promise: Promise) -> tuple[lab.Workflow, list[Planned]]:
    """Each plan, or the one of its shape, takes what it says."""
    flow, profile = promise.made()
    plans = promise.plans(flow, profile)
    shown = [p for p in plans if promise.shape in ("", p.shape)]
    assert shown and plans.bound.seconds <= plans.best.seconds * (1 + 1e-6)
    for planned in shown:
        done = ran(flow, planned)
        assert seconds(done) == pytest.approx(planned.seconds, rel=0.02), planned
        assert plans.bound.seconds <= seconds(done) * (1 + 1e-6), planned
        if promise.batches:
            assert {n: len(sizes) for n, sizes in done.wait()[-1].items()} == {n: planned.placement[n]["micro_batches"] for n in "bc"}, planned
    return flow, shown


@pytest.mark.parametrize("name", PROMISES)
def test_a_run_takes_what_its_plan_says(name: str) -> None:
    kept(PROMISES[name])


@sweep(6, 12)
def test_who_is_fed_by_groups_works_through_whole_ones(seeds: range) -> None:
    """No plan counts on finer micro-batches than a run has. Groups into b, perhaps into c."""
    for seed in seeds:
        rng = random.Random(seed)
        groups = {"a": rng.choice([2, 8, 16, 32]), "b": rng.choice([1, 1, 4, 16])}
        costs = {n: (0.0, rng.choice([1, 2, 3, 5]) / 4) for n in "abc"}
        kept(Promise("ab bc", 32, costs, 1 + seed % 3, (64, 4)[seed % 2], most=dict.fromkeys("abc", 1), groups=groups, batches=True))


@pytest.mark.parametrize("name", HELD_UP)
def test_a_full_channel_holds_up_its_producer_and_nobody_else(name: str) -> None:
    """Where others would wait with it, a plan's channel holds all items."""
    promise = dataclasses.replace(HELD_UP[name], micro_batches=16, capacity=64, most=dict.fromkeys("abcde", 1))
    if promise.devices == 3:
        promise = dataclasses.replace(promise, most={"a": 2, "b": 2, "c": 2, "d": 1})
    flow, (planned,) = kept(promise)
    assert 256 in planned.execution.capacities.values()
    assert seconds(run(flow, dataclasses.replace(planned.execution, capacities={}), 2)) > 1.2 * planned.seconds, "others would wait with it"
    if name == "taken devices":
        where = planned.execution.placements
        assert where["a"] == where["c"] and where["b"] == where["d"] and where["a"] != where["b"]


def test_channels_hold_what_is_taken_at_once_and_no_bound_is_changed_without_need() -> None:
    room = PROMISES["512 items, 64 fit, 1 ranks"]
    plans = room.plans(*room.made())
    streams, micro_batch = plans["spatial"].execution, plans["spatial"].execution.micro_batches["ab"]
    assert streams.capacities == {"ab": min(512, 2 * micro_batch)} and micro_batch > 64 and f"ab {streams.capacities['ab']}" in repr(streams)
    assert not plans["temporal"].execution.capacities, "who shares a device has no bound"
    roomy = chain(16, (0, 0.01), (1.0, 0.01), capacity=64)
    apart = chain(512, (0, 0.01), (0, 0.02), (0, 0.01), (0, 0.03), capacity=64, shape="a | b | c | d")
    assert not any(p.execution.capacities for p in roomy.plans(*roomy.made())) and not any(p.execution.capacities for p in kept(apart)[1])


@pytest.mark.parametrize("groups, group, ranks", [(16, 4, 5), (14, 1, 4), (9, 2, 2)])
@pytest.mark.parametrize("micro_batches", [1, 16])
def test_ranks_of_a_source_make_whole_groups_by_themselves(groups: int, group: int, ranks: int, micro_batches: int) -> None:
    """So many ranks are asked for: 16 groups take five ranks as long as four, and then four are chosen."""
    promise = chain(groups * group, (0, 0.04), (0.1, 0.002), most=(ranks,), group=group, micro_batches=micro_batches)
    flow, profile = promise.made()
    plans, chosen = promise.plans(flow, profile.with_worker("a", devices=ranks)), promise.plans(flow, profile).best
    assert chosen.seconds <= min(p.seconds for p in plans) * (1 + 1e-6)
    assert seconds(run(flow, chosen, 2)) == pytest.approx(chosen.seconds, rel=0.04)
    for planned in (plans["spatial"], plans["temporal"]) if micro_batches == 1 else [plans["spatial"]]:
        assert planned.placement["a"]["ranks"] == ranks
        assert seconds(run(flow, planned, 2)) == pytest.approx(planned.seconds, rel=0.04), planned


def test_micro_batches_are_chosen_by_what_the_last_batch_takes() -> None:
    """Four batches of two items on three ranks are two rounds; three batches of 3, 3 and 2 are one."""
    promise = chain(8, (0, 0.002), (0, 0.1), (0, 0.002), most=(1, 3), micro_batches=2)
    flow, profile = promise.made()
    best = promise.plans(flow, profile).best
    assert best.execution.micro_batches["ab"] == 3 and seconds(run(flow, best, 2)) < 0.35
    seven = chain(40, (0, 0.002), (0, 0.1), most=(1, 7), micro_batches=2)
    for items, simulated in ((40, True), (42, False)):
        planned = seven.plans(seven.made()[0], seven.made()[1].replace(items=items))["spatial"]
        assert ("b" in by_rank(planned.candidate.placement)) == simulated, "who has a rest is simulated by rank"


def test_work_is_counted_by_the_mean_rank() -> None:
    """21 items of two ranks are 10.5 of each: (0.1 + 0.105) s of b and 0.0525 s of a, on both devices."""
    promise = chain(21, (0, 0.005), (0.1, 0.01), most=(2, 2), devices=2)
    bound = promise.plans(*promise.made()).bound
    assert bound.seconds == pytest.approx(0.2575) and "together need 0.515 device seconds" in bound.why


# --- who shares some devices begins rank by rank --------------------------------------------------------------------
def by_chance(seed: int) -> Promise:
    rng = random.Random(seed)
    links = rng.choice(["ab bc", "ab bc cd", "ab ac", "ab ac bd cd", "ac bc"])
    names, fed = sorted(set(links) - {" "}), {k[1] for k in links.split()}
    costs = {n: (rng.choice([0.0, 0.0, 0.01]) if n in fed else 0.0, rng.choice([0.002, 0.005, 0.01, 0.04])) for n in names}
    items, most = rng.choice([24, 32, 48]), {n: rng.choice([0, 0, 0, 1, 2]) for n in names}
    return Promise(links, items, costs, 2 + seed % 8, (64, 8)[seed % 2], most=most, in_parts=True)


@pytest.mark.parametrize("items", [24, 240, 2520, 5040])
def test_no_bundle_is_a_part_of_two_micro_batches_or_calls_and_each_rank_has_one_of_each_of_its(items: int) -> None:
    for promise in (dataclasses.replace(by_chance(seed), items=items) for seed in range(8)):
        for placement in (p.candidate.placement for p in promise.plans(*promise.made(), simulate=False, quick=True)):
            bundles = Bundles(placement, placement.setting.profile.edges, 1)
            calls = {n: s for n, s in placement.seats.items() if n in placement.setting.in_whole_calls}
            parts = {n: int(placement.calls(s).full) // (s.ranks if n in bundles.by_rank else 1) for n, s in calls.items()}
            steps = [s.micro_batches for n, s in placement.seats.items() if n not in calls]
            if math.lcm(max([1, *steps]), items // math.gcd(items, *parts.values())) <= MAX_BUNDLES:
                assert all(part * bundles.count % items == 0 for part in parts.values()) and bundles.count % max([1, *steps]) == 0
            for name, seat in placement.seats.items():
                each = seat.ranks * (seat.micro_batches if name in bundles.by_rank else 1)
                assert bundles.count == items or not bundles.independent(name) or bundles.count >= each


def uneven(planned: Planned) -> bool:
    seats = planned.candidate.placement.seats.values()
    return any(a.ranks > 1 and set(a.devices) & set(b.devices) and a.devices != b.devices for a in seats for b in seats)


def of_shape(plans: Plans, shape: str) -> Planned:
    return next(p for p in plans if p.shape == shape)


# d takes long, c waits for b now and then: who lent d a device then would have it back after 0.24 s.
LONG = Promise("ab bc cd", 48, {"a": (0, 0.002), "b": (0, 0.002), "c": (0, 0.01), "d": (0, 0.04)}, 8, most={"b": 1}, in_parts=True)


@pytest.mark.parametrize("shape", ["(a | b | c) > d", "a > (b | c) > d"])
def test_a_batch_of_everything_interrupts_nobody_above(shape: str) -> None:
    _, (planned,) = kept(dataclasses.replace(LONG, shape=shape))
    assert planned.execution.micro_batches["cd"] == 0 and planned.placement["d"]["ranks"] == 8
    assert planned.seconds < 0.36 and planned.notes == ()


def test_ranks_whose_devices_are_free_begin_with_what_is_there() -> None:
    """b is a source's reader, but c does not wait for it: c's ranks begin while b still works on one device."""
    costs = {"a": (0, 0.01), "b": (0, 0.01), "c": (0, 0.05)}
    _, (planned,) = kept(Promise("ab ac", 48, costs, 5, shape="(a | b) > c", most={"a": 4, "b": 1, "c": 5}, in_parts=True))
    assert planned.execution.micro_batches["ac"] == 10
    assert planned.seconds < 0.95 * (max(0.01 * 48 / 4, 0.01 * 48) + 0.05 * 10), "as a worker group"


@pytest.mark.parametrize("first", [0, 12])
def test_runs_of_random_plans_take_what_plans_say(first: int) -> None:
    ratios = {}
    for seed in range(first, first + 6):
        flow, profile = (promise := by_chance(seed)).made()
        for planned in filter(uneven, promise.plans(flow, profile, simulate=False)):
            told = float(planned.timeline.iterations()["seconds"].iloc[-1])
            ratios[seed, planned.shape] = seconds(ran(flow, planned, 3)) / told
    assert len(ratios) > 5 and max(ratios.values()) < 1.02, ratios
    assert min(ratios.values()) > 0.94 and sum(r > 0.98 for r in ratios.values()) > 0.9 * len(ratios), ratios


def test_of_very_many_batches_a_gang_stands_for_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    by_themselves = of_shape(LONG.plans(*LONG.made()), "(a | b | c) > d")
    assert by_rank(by_themselves.candidate.placement) == set("abcd")
    assert Counter(t.worker for t in by_themselves.timeline.tracks if t.worker in "abcd") == {"a": 1, "b": 1, "c": 6, "d": 8}
    monkeypatch.setattr("rlinf_lab.planning.forecast.per_rank.MAX_BATCHES", 7)
    planned = of_shape(LONG.plans(*LONG.made()), "(a | b | c) > d")
    assert by_rank(planned.candidate.placement) == set("ab") and len(planned.timeline.tracks) == 1 + 4


@pytest.mark.parametrize("factor", [1.0, 1.127, 1.128, 1.17])
def test_a_rank_works_on_the_tokens_of_the_items_that_it_has(factor: float) -> None:
    """Ranks that waited for devices of a generator began some nanoseconds apart, in an order that was chance. Weights once went by that order: a plan took 4 %
    more or less with a generator that was a thousandth slower."""
    planned, equal = (of_shape(lab.plan(generating(factor, weights), 6, micro_batches=4), "a > b") for weights in ("tokens", "equal"))
    shares, even = (shares_and_seconds(p.timeline) for p in (planned, equal))
    placement = planned.candidate.placement
    stream = stream_of(placement, leaf_of(placement.tree, 0), 32, 8)
    assert stream is not None
    weights = [float(part.mean()) for part in np.split(stream.weights, [11, 22])]
    assert weights == sorted(weights) and weights[2] > 2 * weights[0], "responses that are ready later are longer"
    assert [(first, items) for first, items, _ in shares] == [(first, items) for first, items, _ in even] == [(0, 352), (352, 352), (704, 320)]
    assert [work / same for (*_, work), (*_, same) in zip(shares, even, strict=True)] == pytest.approx(weights, rel=1e-6)


def generating(factor: float, weights: str) -> Profile:
    """A generator, with seconds times a factor, and a learner of which two devices are a rank: three of them on six, for 32 groups."""
    lengths = Lengths(4096.0, mean_tokens=500.0, group_correlation=0.8)
    rollout = WorkerProfile((Sample(8, 256.0, 36.4 * factor),), "generation", lengths=lengths, exponent=0.6)
    learner = WorkerProfile((Sample(8, 256.0, 58.4),), ranks=RankRule(2))
    return Profile(256, {"a": rollout, "b": learner}, (EdgeProfile("a", "b", 8),), weights=weights)


def shares_and_seconds(timeline: Timeline) -> list[tuple[int, int, float]]:
    """(first item, items, seconds of work) of each rank of b in the second iteration."""
    spans, found = timeline.spans[timeline.spans["iteration"] == 1], []
    for i, track in enumerate(timeline.tracks):
        if track.worker == "b":
            own = spans[spans["track"] == i]
            (got,) = own[(own["kind"] == SpanKind.GET) & (own["items"] > 0)]
            work = own[own["kind"] == SpanKind.RUN]
            found.append((int(got["flow"]), int(got["items"]), float((work["end"] - work["start"]).sum()) / 1e9))
    return found


# --- items and groups are whole -------------------------------------------------------------------------------------
@pytest.mark.parametrize("items, micro_batches, ranks, unit, sizes", [
    (448, 32, 1, 8, [16] * 28), (448, 64, 1, 8, [8] * 56), (504, 32, 1, 8, [16] * 31 + [8]),
    (22, 4, 4, 1, [8, 8, 6]), (24, 1, 32, 8, [24]), (64, 8, 2, 1, [8] * 8), (20, 4, 3, 1, [6, 6, 6, 2]), (7, 1, 4, 1, [7]),
])  # fmt: skip
def test_calls_are_of_whole_groups_for_each_rank(items: int, micro_batches: int, ranks: int, unit: int, sizes: list[int]) -> None:
    assert Calls.of(items, micro_batches, ranks, unit).parts().tolist() == sizes


def test_the_parts_of_a_share_are_the_share_and_the_least_that_comes_is_a_group() -> None:
    model = BatchModel((Sample(1, 32.0, 32.0),), 1.0, 1, 4)
    assert model.seconds(np.array([5]), 32) == pytest.approx(8.0)  # eight groups: two of four for one of five ranks
    assert model.of_a_part(np.array([5]), 32, 64)[0] * 64 == pytest.approx(8.0)
    workers = {n: WorkerProfile((Sample(1, 32.0, 1.0),)) for n in "abcd"}
    profile = Profile(32, workers, (EdgeProfile("a", "b", 8), EdgeProfile("b", "c"), EdgeProfile("a", "d", 4, whole=True)))
    assert {n: Setting.of(profile, 2).fewest_items(n) for n in "abcd"} == {"a": 1, "b": 8, "c": 1, "d": 32}
    assert profile.group_size("a") == 8


@pytest.mark.parametrize("items, ranks, staleness", [(5, 2, 1), (5, 3, 1), (7, 3, 2)])
@pytest.mark.parametrize("fixed", [0.0, 0.5])
def test_no_plan_that_overlaps_runs_below_the_bound(items: int, ranks: int, staleness: int, fixed: float) -> None:
    flow, profile = timed("ab", items, {"a": (0, 0.01), "b": (fixed, 0.2)}, {"a": 1, "b": ranks})
    devices = [f"cpu:{i}" for i in range(1 + ranks)]
    plans = lab.plan(flow, devices, profile, staleness=staleness)
    for micro_batch in (1, 2, 3, items):
        places = {"a": ((0,),), "b": tuple((1 + i,) for i in range(ranks))}
        plan = lab.ExecutionPlan("by hand", tuple(devices), places, {"ab": micro_batch}, staleness=staleness)
        assert between_ends(run(flow, plan, 12 * ranks + 6)) >= plans.bound.seconds * (1 - 1e-6), micro_batch
    assert plans.bound.seconds <= plans.best.seconds
