"""A worker that shares some of its devices with others begins rank by rank: what a plan says is what a run takes."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
from mock_runs import run, seconds
from timed_flows import Timed, timed

import rlinf_lab as lab
from rlinf_lab.planning.forecast.per_rank import by_rank
from rlinf_lab.planning.forecast.stream_estimate import stream_of
from rlinf_lab.planning.planner.planner import Planned, Plans
from rlinf_lab.planning.profile.profile import EdgeProfile, Lengths, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.planning.search.plan_tree import leaf_of
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

FLOWS = {"chain": ("ab", "bc"), "long": ("ab", "bc", "cd"), "fork": ("ab", "ac"), "diamond": ("ab", "ac", "bd", "cd"), "join": ("ac", "bc")}


class InParts(Timed):
    """A source that puts its items in so many parts, as plans count them."""

    parts: ClassVar[dict[str, int]] = {}

    def make(self, *outs: lab.Outbox) -> None:
        first, end = (self.items * r // self.ranks for r in (self.rank, self.rank + 1))
        parts, share = self.parts[self.name], end - first
        for i, j in itertools.pairwise(-(-share * k // parts) for k in range(parts + 1)):
            if j > i:
                self.worked(list(range(first + i, first + j)), outs)


class Case:
    """A workflow whose workers take ``costs[name]`` = (seconds of a batch, and of each item), and a true profile of it."""

    def __init__(self, links: tuple[str, ...], items: int, costs: dict[str, tuple[float, float]], most: dict[str, int | None]) -> None:
        ranks = {n: k for n, k in most.items() if k}
        self.flow, self.profile = timed(" ".join(links), items, costs, ranks, kinds=dict.fromkeys(costs, InParts))

    @classmethod
    def by_chance(cls, seed: int) -> Case:
        rng = random.Random(seed)
        links = FLOWS[rng.choice(list(FLOWS))]
        names = sorted(set("".join(links)))
        fed = {k[1] for k in links}
        costs = {n: (rng.choice([0.0, 0.0, 0.01]) if n in fed else 0.0, rng.choice([0.002, 0.005, 0.01, 0.04])) for n in names}
        return cls(links, rng.choice([24, 32, 48]), costs, {n: rng.choice([None, None, None, 1, 2]) for n in names})

    def plans(self, devices: int, micro_batches: int = 64, simulate: bool = True) -> Plans:
        return lab.plan(self.flow, [f"cpu:{i}" for i in range(devices)], self.profile, micro_batches=micro_batches, simulate=simulate)

    def ran(self, planned: Planned) -> float:
        """Seconds of the last of three iterations."""
        InParts.parts = {n: at["micro_batches"] for n, at in planned.placement.items()}
        return seconds(run(self.flow, planned, 3))


def uneven(planned: Planned) -> bool:
    seats = planned.candidate.placement.seats.values()
    return any(a.ranks > 1 and set(a.devices) & set(b.devices) and a.devices != b.devices for a in seats for b in seats)


def of_shape(plans: Plans, shape: str) -> Planned:
    return next(p for p in plans if p.shape == shape)


def long_chain() -> Case:
    """d takes long, c waits for b now and then: who lent d a device then would have it back after 0.24 s."""
    return Case(FLOWS["long"], 48, {"a": (0, 0.002), "b": (0, 0.002), "c": (0, 0.01), "d": (0, 0.04)}, {"a": None, "b": 1, "c": None, "d": None})


@pytest.mark.parametrize("shape", ["(a | b | c) > d", "a > (b | c) > d"])
def test_a_batch_of_everything_interrupts_nobody_above(shape: str) -> None:
    case = long_chain()
    planned = of_shape(case.plans(8), shape)
    assert planned.execution.micro_batches["cd"] == 0 and planned.placement["d"]["ranks"] == 8
    assert case.ran(planned) == pytest.approx(planned.seconds, rel=0.01)
    assert planned.seconds < 0.36 and planned.notes == ()


def test_ranks_whose_devices_are_free_begin_with_what_is_there() -> None:
    """b is a source's reader, but c does not wait for it: c's ranks begin while b still works on one device."""
    case = Case(FLOWS["fork"], 48, {"a": (0, 0.01), "b": (0, 0.01), "c": (0, 0.05)}, {"a": 4, "b": 1, "c": 5})
    planned = of_shape(case.plans(5), "(a | b) > c")
    assert planned.execution.micro_batches["ac"] == 10
    worker_group = max(0.01 * 48 / 4, 0.01 * 48) + 0.05 * 10
    assert case.ran(planned) == pytest.approx(planned.seconds, rel=0.02) and planned.seconds < 0.95 * worker_group


@pytest.mark.parametrize("first", [0, 12])
def test_runs_of_random_plans_take_what_plans_say(first: int) -> None:
    ratios = {}
    for seed in range(first, first + 6):
        case = Case.by_chance(seed)
        for planned in filter(uneven, case.plans(2 + seed % 8, (64, 8)[seed % 2], simulate=False)):
            told = float(planned.timeline.iterations()["seconds"].iloc[-1])
            ratios[seed, planned.shape] = case.ran(planned) / told
    assert len(ratios) > 5 and max(ratios.values()) < 1.02, ratios
    assert min(ratios.values()) > 0.94 and sum(r > 0.98 for r in ratios.values()) > 0.9 * len(ratios), ratios


def test_of_very_many_batches_a_gang_stands_for_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    by_themselves = of_shape(long_chain().plans(8), "(a | b | c) > d")
    assert by_rank(by_themselves.candidate.placement) == set("abcd")
    assert Counter(t.worker for t in by_themselves.timeline.tracks if t.worker in "abcd") == {"a": 1, "b": 1, "c": 6, "d": 8}
    monkeypatch.setattr("rlinf_lab.planning.forecast.per_rank.MAX_BATCHES", 7)
    planned = of_shape(long_chain().plans(8), "(a | b | c) > d")
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


@pytest.mark.parametrize("factor", [1.0, 1.127])
def test_ranks_of_a_generator_that_are_ready_together_are_so_to_the_nanosecond(factor: float) -> None:
    """Rounded step by step they drifted apart, by 14 ns, and who was first was chance."""
    timeline = of_shape(lab.plan(generating(factor, "tokens"), 6, micro_batches=4), "a > b").timeline
    spans, ranks = timeline.spans, [i for i, track in enumerate(timeline.tracks) if track.worker == "a"]
    puts = spans[(spans["kind"] == SpanKind.PUT) & (spans["iteration"] == 1) & np.isin(spans["track"], ranks)]
    moments, together = np.unique(puts["start"], return_inverse=True)
    assert np.diff(moments).min() > 1000 and set(puts["track"][together == 0]) == set(ranks), "the first groups are ready together"


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
