"""Three ways to the same seconds: the search's sum, micro-batches followed one by one, and the scheduler in virtual time."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import pytest
from built import timeline_of
from random_profiles import branching, chain, random_profile
from sweeps import sweep

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.forecast.forecast import forecast, graph_of
from rlinf_lab.planning.forecast.per_rank import has_a_rest
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.forecast.stream_estimate import follow
from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.planner.gantt import gantt
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import EdgeProfile, Lengths, Memory, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.planning.search.plan_tree import TEMPORAL, Composed, nodes
from rlinf_lab.planning.search.solver import Only, solve
from rlinf_lab.timeline.record.span import SpanKind


def placements(profile: Profile, devices: int = 16, micro_batches: int = 16, **options) -> list[tuple[Placement, float]]:
    """The best plan of each kind of composition, for two arrangements, with the search's seconds; none where nothing fits."""
    try:
        setting = Setting.of(profile, devices, micro_batches, **options)
    except PlanError:
        return []
    found = []
    arrangements = setting.arrangements()
    for arrangement in {arrangements[0]: 0, arrangements[-1]: 0}:
        for kinds in (("temporal",), ("spatial",), ("temporal", "spatial")):
            plans = solve(setting.problem(arrangement), only=Only(kinds))
            found += [(Placement(setting, arrangement, p.tree), p.seconds) for p in plans[:1]]
    return found


def never_gives_way(placement: Placement) -> bool:
    """Whether somebody time-shares in micro-batches whom nobody feeds: it never waits, so its devices are free for others when it has ended. The search knows
    nothing of that."""
    setting = placement.setting
    sources = sum(1 << setting.home[name] for name in setting.sources if placement.seats[name].devices)
    return any(isinstance(n, Composed) and n.kind == TEMPORAL and n.grain > 0 and n.leaves & sources for n in nodes(placement.tree))


@sweep(6, 60)
def test_followed_chunks_take_what_the_search_says(seeds: range) -> None:
    """On chains to the digit; on branching graphs the search's fill is an upper bound; with generators its two numbers for a stream are an approximation."""
    faster, off = 0, []
    for seed in seeds:
        for placement, seconds in placements(random_profile(seed, generators=False, chain=True)):
            assert follow(placement).seconds == pytest.approx(seconds) or never_gives_way(placement), seed
        for placement, seconds in placements(random_profile(seed, generators=False)):
            found = follow(placement).seconds
            faster += found < seconds * 0.999
            assert found <= seconds * (1 + 1e-9) or never_gives_way(placement), seed
        off += [follow(p).seconds / s for p, s in placements(random_profile(seed, memory=False, cells=False)) if not never_gives_way(p)]
    assert faster and np.median(np.abs(np.array(off) - 1)) < 0.01 and min(off) > 0.8 and max(off) < 1.2


def test_the_scheduler_in_virtual_time_agrees() -> None:
    """It may do better than strict turns. Where unlinked workers time-share in a pipeline it may choose another order: worse. With staleness the model is
    the longer of period and fill / (1 + staleness), and one iteration may fill another's gaps."""
    plans = [p for seed in range(8) for p, _ in placements(random_profile(seed), 8, 8)]
    ratios = [forecast(p, 2).iterations()["seconds"].iloc[-1] / follow(p).seconds for p in plans]
    assert 0.99 < np.median(ratios) < 1.01 and np.quantile(ratios, 0.1) > 0.95 and np.quantile(ratios, 0.85) < 1.05
    for seed in range(4):
        for placement, seconds in placements(random_profile(seed, generators=False, chain=True, cells=False), 8, 8, staleness=2):
            assert 0.6 * seconds < settled(steady(placement), 2)[1] < 1.1 * seconds, (seed, placement.shape)


def test_who_uses_up_a_lead_settles_to_what_its_device_works_for_an_iteration() -> None:
    """Where nothing is repeated: iterations become longer, or shorter, by a second each. Else to what is repeated."""
    for gaps, each in ((range(1, 11), 6.5), (range(10, 0, -1), 5.5), ([8, 4, 6] * 4, 6.0)):
        ends = [int(end) * 10**9 for end in np.cumsum(gaps)]
        rows = [("a", 0, ("d",), kind, end - gap * 10**9, end, i) for kind in (SpanKind.RUN, SpanKind.MARK) for i, (end, gap) in enumerate(zip(ends, gaps, strict=True))]
        assert settled(timeline_of(*rows), 1) == (ends[-3] / 1e9, each)


@pytest.mark.parametrize(("made", "devices", "micro_batches"), [
    *((random_profile(seed, generators=False), 16, 16) for seed in (7, 33, 35)),
    *((random_profile(seed, memory=False, cells=False), 16, 16) for seed in (5, 30)),
    *((profile, devices, more["micro_batches"]) for profile, devices, more in map(branching, (1, 16))),
])  # fmt: skip
def test_who_never_waits_takes_its_turn_once(made: Profile, devices: int, micro_batches: int) -> None:
    """The search has it give its devices away after each micro-batch, and promises 14 to 42 % less than it takes."""
    found = [(p, seconds) for p, seconds in placements(made, devices, micro_batches) if never_gives_way(p)]
    assert found
    for placement, searched in found:
        simulated, followed = forecast(placement, 2).iterations()["seconds"].iloc[-1], follow(placement).seconds
        assert followed == pytest.approx(simulated, rel=0.02) and searched < 0.9 * simulated


WORK = WorkerProfile((Sample(4, 64.0, 8.0),), exponent=1.0)


def test_switches_are_paid_by_those_who_leave() -> None:
    heavy = dataclasses.replace(WORK, memory=Memory(50), onload_s=2.0, offload_s=1.0)
    (placement, seconds), *_ = [p for p in placements(chain(a=heavy, b=heavy).replace(device_memory_gib=60), 4) if p[0].arrangement.staying == 0]
    timeline = forecast(placement, 3)
    assert seconds == 8 + 8 + 2 * (1 + 2)
    assert timeline.iterations()["seconds"].tolist() == pytest.approx([16 + 2 + 1 + 2, 22, 22])
    kinds = timeline.spans["kind"]
    assert (kinds == SpanKind.ONLOAD).sum() == 6 and timeline.bubble_sum_error_ns() == 0
    assert timeline.bubbles().set_index("cause")["seconds"]["switch"] == pytest.approx(4 * (2 + 3 + 6 + 6))
    work = forecast(placement, 800, noise=0.7).to_pandas().query("kind == 'run'")["seconds"]
    assert work.mean() == pytest.approx(8.0, rel=0.05), "noise makes nobody slower in the mean"
    wild, again, other = (forecast(placement, 3, noise=0.3, seed=s) for s in (1, 1, 2))
    assert wild.diff(again) == "" and wild.diff(other) != "" and wild.diff(timeline) != ""


def test_a_generator_has_a_tail_and_streams() -> None:
    sampler = WorkerProfile((Sample(4, 64.0, 20.0),), "generation", lengths=Lengths(1000.0, mean_tokens=200.0), exponent=0.5)
    profile = chain(sampler=sampler, learner=WORK).replace(weights="tokens")
    found = {p.tree.kind: p for p, _ in placements(profile, 4)}
    spatial = follow(found["spatial"])
    learner = spatial.work[1]
    assert learner.starts[0] < spatial.work[0].ends[-1] < learner.ends[-1]
    # Long responses come last and weigh more: the learner's last calls are its longest.
    length = learner.ends - learner.starts
    assert length[-1] > 1.5 * length[0] and learner.busy == pytest.approx(length.size * length.mean())
    timeline = forecast(found["temporal"], 1)
    ranks = timeline.to_pandas().query("worker == 'sampler' and kind == 'run'").groupby("rank")["end_ns"].max()
    assert len(ranks) == 4 and ranks.max() == pytest.approx(20e9) and ranks.min() < 20e9
    assert timeline.bubbles().set_index("cause")["seconds"].sum() > 0


@pytest.mark.parametrize("cap", [None, 0.5, 1.0, 1.5, 3.0])
def test_the_fill_of_a_stream_is_the_least_after_which_no_micro_batch_is_late(cap: float | None) -> None:
    """With so many responses at a time as memory has room for; where it has none others refuse the plan."""
    sampler = WorkerProfile((Sample(4, 64.0, 20.0),), "generation", lengths=Lengths(1000.0, mean_tokens=200.0), exponent=0.5)
    setting = Setting.of(chain(sampler=sampler, learner=WORK), 4, 16)
    model, atoms = setting.models["sampler", ""], 2 ** (setting.granularities - 1)
    fills, times = setting.tables._lags_at("sampler", model, 4, cap), model.stream(4, 64, atoms, 1, cap if cap and cap >= 1 else None).times
    for (number, rate), g in itertools.product(enumerate(setting.tables._rates()), range(1, setting.granularities)):
        late = times[atoms // 2**g - 1 :: atoms // 2**g] / times[-1] - rate * np.arange(2**g) / 2**g - fills[number, g]
        assert late.max() == pytest.approx(0, abs=1e-9)


def test_what_is_put_at_the_end_comes_once_and_then() -> None:
    profile = chain(a=WORK, b=WORK).replace(edges=(EdgeProfile("a", "b", at_end=True),))
    assert plan(profile, 8, modes=("spatial",)).best.simulate(1).elapsed_ns == pytest.approx(16e9), "8 s each, on 4 devices"


def test_of_two_readers_the_one_of_groups_is_fed_later() -> None:
    generator = WorkerProfile((Sample(1, 64.0, 10.0),), "generation", lengths=Lengths(4096.0, mean_tokens=800.0), exponent=0.5)
    workers = {"g": generator, **{name: WorkerProfile((Sample(1, 64.0, 4.0),)) for name in "ac"}}
    profile = Profile(64, workers, (EdgeProfile("g", "a"), EdgeProfile("g", "c", group=8)))
    puts = [s for s in plan(profile, 3, modes=("spatial",)).best.simulate(1).rows() if s.kind == SpanKind.PUT]
    first = {channel: min(s.end_ns for s in puts if s.channel == channel) for channel in ("g_to_a", "g_to_c")}
    assert 0 < first["g_to_a"] < first["g_to_c"] and max(s.end_ns for s in puts) <= 10e9


def test_the_graph_of_a_profile() -> None:
    graph = graph_of(random_profile(6))
    graph.validate()
    profile = Profile(8, {"e-1": WorkerProfile((Sample(1, 8.0, 1.0),), "simulator", 4), "p": WorkerProfile((Sample(1, 8.0, 1.0),), calls=4)},
                      (EdgeProfile("e-1", "p"), EdgeProfile("p", "e-1")))  # fmt: skip
    assert graph_of(profile).cells == (("e-1", "p"),)
    assert [c.keyed for c in graph_of(profile).channels] == [False, True]
    assert [forecast(p, 1).iterations()["seconds"][0] for p, _ in placements(profile, 1)][:1] == [8.0]


@pytest.mark.parametrize("edges", [("ab", "ba", "bc", "cb"), ("ab", "bc", "ca", "cb")], ids="-".join)
def test_cells_that_are_no_ring(edges: tuple[str, ...]) -> None:
    three = {n: WorkerProfile((Sample(1, 8.0, seconds),), calls=4) for n, seconds in zip("abc", (1.0, 2.0, 1.5), strict=True)}
    profile = Profile(8, {**three, "d": WORK}, (*(EdgeProfile(p, c) for p, c in edges), EdgeProfile("c", "d")))
    for devices in (1, 5):
        for planned in plan(profile, devices):
            timeline, members = planned.timeline, planned.placement
            busy = {n: sum(s.end_ns - s.start_ns for s in timeline.rows() if s.kind == SpanKind.RUN and s.track.worker == n) / 1e9 / 2 for n in "abc"}
            expected = {n: 4 * s * -(-8 // members[n]["devices"]) / 8 for n, s in zip("abc", (1.0, 2.0, 1.5), strict=True)}
            assert busy == pytest.approx(expected) and planned.seconds >= max(expected.values()) * (1 - 1e-9)


def test_iterations_overlap_with_staleness() -> None:
    """Side by side only the slower of two counts; the whole batch first loses nothing; turns gain nothing."""
    slow, fast = dataclasses.replace(WORK, samples=(Sample(1, 64.0, 6.0),)), dataclasses.replace(WORK, samples=(Sample(1, 64.0, 4.0),))
    whole = Profile(64, {"a": dataclasses.replace(slow, devices=1), "b": dataclasses.replace(fast, devices=1)}, (EdgeProfile("a", "b", whole=True),))
    for staleness, side_by_side in ((0, 10.0), (1, 6.0), (3, 6.0)):
        plans = plan(whole, 2, staleness=staleness)
        assert plans["spatial"].seconds == pytest.approx(side_by_side) and plans["temporal"].seconds == pytest.approx(10.0)
        assert plans.bound.seconds <= plans.best.seconds and plans["spatial"].execution.staleness == staleness
        timeline = plans["spatial"].simulate(12)
        assert timeline.elapsed_ns == pytest.approx((4 + 12 * 6 if staleness else 120) * 1e9) and timeline.bubble_sum_error_ns() == 0
        picture = gantt(plans["spatial"])
        busy = [sum(end - start for start, end, low, *_ in picture.bars if low == lane) for lane in (0, 1)]
        assert busy == pytest.approx([6, 4]) and picture.bars[:, 1].max() == pytest.approx(side_by_side)


# --- services on the host, and generators that others feed ----------------------------------------------------------
def service(seed: int) -> tuple[Profile, str]:
    """A branching flow in which one of the first two generates on the host, and its name."""
    rng = random.Random(seed)
    names = list("abcd"[: rng.randint(2, 4)])
    workers = {n: WorkerProfile((Sample(8, 256.0, rng.uniform(3, 60)),), exponent=rng.choice([0.6, 1.0]), ranks=RankRule(rng.choice([1, 1, 2]))) for n in names}
    lengths = Lengths(4096.0, mean_tokens=rng.choice([300.0, 1500.0]), group_correlation=rng.random())
    sample, name = Sample(0, 256.0, rng.uniform(5, 60)), rng.choice(names[:2])
    workers[name] = WorkerProfile(
        (sample,), "generation", rng.choice([1.0, 3.0]), rng.choice([None, 0.6]), resource="host", lengths=lengths, max_running=rng.choice([None, 16])
    )
    edges = tuple(EdgeProfile(p, c, rng.choice([1, 8]), rng.random() < 0.1) for p, c in itertools.combinations(names, 2) if rng.random() < 0.7)
    return Profile(256, workers, edges, weights=rng.choice(["equal", "tokens"])), name


def beside(profile: Profile, name: str) -> Profile:
    """The same with the service on a device of its own."""
    worker = profile.workers[name]
    return profile.with_worker(name, resource="device", devices=1, samples=tuple(dataclasses.replace(s, devices=1) for s in worker.samples))


@pytest.mark.parametrize("seed", range(6))
def test_on_the_host_it_streams_as_on_one_more_device(seed: int) -> None:
    profile, name = service(seed)
    host, device = (
        plan(p, n, micro_batches=16, modes=("spatial",), simulate=False, staleness=seed % 2).best.candidate
        for p, n in ((profile, 8), (beside(profile, name), 9))
    )  # fmt: skip
    assert (host.searched, host.seconds) == (pytest.approx(device.searched), pytest.approx(device.seconds))


@pytest.mark.parametrize("resource", ["host", "device"])
@pytest.mark.parametrize("seed", range(4))
def test_in_the_middle_of_a_flow_all_its_requests_are_there_before_it_begins(seed: int, resource: str) -> None:
    """The search, the followed micro-batches and the scheduler in virtual time agree: what is known of its lengths holds for requests that start together.

    To the digit, but where the last call of c has less items than the others: its ranks take what there is by themselves. Of plans that the search prefers
    that is at most 2 %. Of those that the simulation prefers for it at most 4 %, or one call that a rank without more to do is earlier.
    """
    rng = random.Random(seed)
    first, last = (WorkerProfile((Sample(8, 256.0, rng.uniform(5, 60)),), exponent=1.0) for _ in range(2))
    sample = Sample(0 if resource == "host" else 8, 256.0, rng.uniform(5, 60))
    middle = WorkerProfile((sample,), "generation", exponent=0.6, resource=resource, lengths=Lengths(4096.0, mean_tokens=rng.choice([300.0, 1500.0])))
    profile = Profile(256, {"a": first, "b": middle, "c": last}, (EdgeProfile("a", "b"), EdgeProfile("b", "c")))
    for made in (*plan(profile, 8, micro_batches=16, simulate=False), *plan(profile, 8, micro_batches=16)):
        work, timeline = made.candidate.streamed.work, made.timeline.to_pandas().query("iteration == 0 and kind == 'run'")
        assert work[1].starts[0] >= work[0].ends[-1] * (1 - 1e-9)
        begun, ended = timeline.query("worker == 'b'")["start_ns"].min(), timeline.query("worker == 'a'")["end_ns"].max()
        assert begun >= ended - 1
        followed, simulated = made.candidate.seconds, settled(made.timeline, 0)[1]
        seat, later = made.candidate.placement.seats["c"], 1e-6 * followed
        if has_a_rest(made.candidate.placement, seat):
            later = (0.02 if made.simulated is None else 0.04) * followed
        call = float(np.max(work[2].ends - work[2].starts)) if later > 1e-6 * followed and made.simulated is not None and seat.micro_batches > 1 else 0.0
        assert followed - max(later, call) <= simulated <= followed + later, made
        ranks = made.placement["b"]["ranks"]
        assert made.execution.micro_batches["a_to_b"] == (0 if ranks == 1 else -(-256 // ranks))
