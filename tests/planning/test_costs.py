"""Cost models: fits that meet their samples, identification, waves under a concurrency cap, what they say about their sureness."""

from __future__ import annotations

import dataclasses
import heapq

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.planning.costs import (
    BatchModel,
    CapacityCliff,
    CellModel,
    CostModel,
    DampedScaling,
    GenerationModel,
    SimulatorModel,
    fit,
    fit_worker,
)
from rlinf_lab.planning.costs.base import REPEAT
from rlinf_lab.planning.costs.batch import _affine, _errors
from rlinf_lab.planning.costs.completion_curve import lengths_from_completion
from rlinf_lab.planning.costs.generation import _in_rounds, _starts
from rlinf_lab.planning.costs.lengths import QUANTILES, fractions
from rlinf_lab.planning.profile.profile import Lengths, ModelShape, Profile, Sample, WorkerProfile

SHAPE = ModelShape(28, 4, 128, 15.2)


def samples(*rows: tuple[float, ...]) -> tuple[Sample, ...]:
    return tuple(Sample(int(n), float(m), float(t)) for n, m, t in rows)


# --- batch -----------------------------------------------------------------------------------------------
def test_batch_recovers_its_own_law() -> None:
    def law(n: int, m: float) -> float:
        return 3.0 + 0.02 * m / n**0.8

    model = BatchModel(samples(*[(n, m, law(n, m)) for n in (4, 16) for m in (256, 1024)]))
    got = model.seconds(np.array([2, 8, 32]), 4096)
    assert got == pytest.approx([law(n, 4096) for n in (2, 8, 32)], rel=0.01)
    assert model.curves[frozenset()].exponent == pytest.approx(0.8, abs=0.006)


def test_batch_meets_its_samples_and_says_where_it_guesses() -> None:
    measured = {64: 367.7, 128: 200.3, 256: 111.5}
    model = BatchModel(samples(*((n, 8192, t) for n, t in measured.items())))
    found = {n: model.estimate(n, 8192) for n in (8, 32, 64, 100, 128, 256)}
    assert {n: found[n].seconds for n in measured} == pytest.approx(measured)
    assert [e.basis for e in found.values()] == ["extrapolated", "extrapolated", "measured", "interpolated", "measured", "measured"]
    assert found[8].high / found[8].seconds > found[32].high / found[32].seconds and "8 devices, measured at 64 to 256" in found[8].note
    alone = BatchModel(samples((64, 8192, 88.5))).estimate(32, 8192)
    assert alone.basis == "assumed" and alone.seconds == pytest.approx(177) == BatchModel(samples((64, 8192, 88.5)), 0.5).estimate(16, 8192).seconds


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 500), st.floats(0.01, 100)), min_size=1, max_size=6))
def test_batch_is_positive_and_falls_with_fewer_items(rows: list[tuple[int, int, float]]) -> None:
    model = BatchModel(samples(*rows))
    n = np.arange(1, 65)
    large, small = model.seconds(n, 512.0), model.seconds(n, 64.0)
    assert (small >= 0).all() and (large >= small - 1e-9).all() and np.isfinite(large).all()


@given(st.lists(st.tuples(st.integers(1, 50_000).map(lambda n: n / 100), st.floats(0.01, 100)), min_size=2, max_size=6), st.booleans())
@example([(3.0, 2.0), (3.0, 3.0), (3.0, 3.0)], True)  # the sizes are equal, and to the power of 0.8 their mean is another number
def test_the_error_of_each_exponent_is_that_of_its_fit(rows: list[tuple[float, float]], with_fixed: bool) -> None:
    x, t = np.array(rows).T
    several = x ** np.array([[0.5], [0.8], [1.0]])
    assert _errors(several, t, with_fixed) == pytest.approx([_affine(one, t, with_fixed)[2] for one in several], rel=1e-6, abs=1e-9)


# --- generation ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("exponent", [None, 0.0, 0.5, 1.0])
def test_generation_without_a_cap_is_a_constant_plus_a_part_over_devices(exponent: float | None) -> None:
    """Which part is said by an exponent, as docs/profile.md has it, or follows from the model's shape."""
    model = GenerationModel(samples((64, 8192, 234.5)), Lengths(28672.0, mean_tokens=6000.0), SHAPE if exponent is None else None, exponent=exponent)
    n, share = np.array([16, 32, 64, 128]), model.share if exponent is None else exponent
    assert model.seconds(n, 8192) == pytest.approx(234.5 * (1 + share * (64 / n - 1)))
    assert exponent is not None or (0 < model.share < 1 and model.identified == "model shape")


def test_generation_recovers_alpha_and_beta_from_two_device_counts() -> None:
    truth = GenerationModel(samples((64, 8192, 300)), Lengths(4096.0, mean_tokens=900.0), SHAPE)
    assert truth.tokens.mean() == pytest.approx(900, rel=1e-3) and truth.tokens.max() == 4096 and (np.diff(truth.tokens) >= 0).all()
    rows = [(n, 8192, float(truth.seconds(np.array([n]), 8192)[0])) for n in (32, 64)]
    found = GenerationModel(samples(*rows), Lengths(4096.0, mean_tokens=900.0), SHAPE)
    assert found.identified == "measurements" and found.parameters == pytest.approx(truth.parameters, rel=1e-6)


def test_a_completion_curve_comes_back_as_it_went_in() -> None:
    times = np.linspace(5, 200, 40)
    curve = tuple((float(t), float(1 - np.exp(-t / 60)) if t < 200 else 1.0) for t in times)
    for shape, exponent in ((SHAPE, None), (None, 0.4)):
        model = GenerationModel(samples((64, 8192, 200)), Lengths(16384.0, completion=curve), shape, exponent=exponent)
        stream = model.stream(64, 8192, 20)
        want = np.interp(np.arange(1, 21) / 20, [0, *(p[1] for p in curve)], [0, *(p[0] for p in curve)])
        assert stream.times[:-1] == pytest.approx(want[:-1], rel=0.02, abs=1.0)
        assert stream.times[-1] == pytest.approx(200)
        if exponent:
            assert model.share == pytest.approx(exponent, abs=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_lengths_are_found_behind_the_completion_curve_that_they_make(seed: int) -> None:
    """Where a token takes time by the context of all who run, or by their number."""
    rng = np.random.default_rng(seed)
    most, prompt, ratio, share = float(rng.choice([900, 3000])), float(rng.choice([0, 400])), float(rng.choice([1e-3, 1e-2])), float(rng.choice([0.2, 0.5, 0.9]))
    tokens = np.linspace(0, most, 4001)
    done = (tokens / most) ** rng.uniform(1, 2.5)
    running, middle = 1 - (done[1:] + done[:-1]) / 2, (tokens[1:] + tokens[:-1]) / 2
    kappa = share / (1 - share) / running.mean()
    for by_context, load in ((ratio, ratio * (prompt + middle)), (None, kappa)):
        time = np.concatenate([[0.0], np.cumsum(1 + load * running)])
        points = tuple((float(7 * t), float(d)) for t, d in zip(time[1:] / time[-1], done[1:], strict=True))
        found = lengths_from_completion(Lengths(most, prompt_tokens=prompt, completion=points), by_context, share)
        assert found == pytest.approx(np.interp(fractions(), done, tokens), abs=6e-5 * most) and found[-1] == most and not found.flags.writeable


@given(st.integers(1, QUANTILES), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_load_of_a_schedule_is_the_work(slots: int, by_context: bool) -> None:
    """Every sequence's own work appears exactly once, whoever runs beside it."""
    model = GenerationModel(samples((8, 512, 50)), Lengths(2000.0, mean_tokens=500.0, prompt_tokens=30.0), SHAPE if by_context else None)
    tokens = model.tokens
    work = (tokens * 30 + tokens**2 / 2).sum() if by_context else tokens.sum()
    assert model.schedule(slots).load == pytest.approx(work, rel=1e-9)
    assert model.schedule(slots).steps >= max(tokens.max(), tokens.sum() / slots) - 1e-6


@pytest.mark.parametrize("slots", [None, 8, 64])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 1.0])
def test_the_last_response_is_there_at_the_same_moment_whoever_asks_for_groups(slots: int | None, correlation: float) -> None:
    """On few slots an order of issue by groups has another makespan, by up to a fifth: not for who has one total."""
    lengths = Lengths(4096.0, mean_tokens=300.0, group_correlation=correlation)
    model = GenerationModel((Sample(1, 256.0, 20.0),), lengths, max_running=slots, exponent=0.6)
    for devices, items, group in ((1, 256, 8), (4, 5000, 16), (7, 1024, 2)):
        total = float(model.seconds(np.array([devices]), items)[0])
        times = model.stream(devices, items, 64, group).times
        assert times[-1] == pytest.approx(total, rel=1e-9) and np.all(np.diff(times) >= 0) and times[0] >= 0


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_groups_come_later_and_what_comes_last_is_long(correlation: float) -> None:
    model = GenerationModel(samples((64, 8192, 300)), Lengths(28672.0, mean_tokens=9000.0, group_correlation=correlation), SHAPE)
    one, groups = model.stream(40, 8192, 32), model.stream(40, 8192, 32, group=16)
    assert (groups.times >= one.times - 1e-9).all() and groups.times[0] > one.times[0]
    assert one.weights.mean() == pytest.approx(1) and (np.diff(one.weights) > -1e-9).all() and one.weights[-1] > 1.5


# --- simulator and cell ----------------------------------------------------------------------------------
def test_a_simulator_is_flat_then_linear() -> None:
    model = SimulatorModel(samples((1, 10, 1.0), (1, 20, 1.0), (1, 30, 1.5), (1, 40, 2.0)))
    assert model.hinge == (pytest.approx(1.0), pytest.approx(0.05), pytest.approx(20))
    assert model.seconds(np.array([4, 2, 1]), 60.0) == pytest.approx([1.0, 1.5, 3.0])
    assert [model.estimate(1, n).basis for n in (20, 25, 5, 80)] == ["measured", "interpolated", "extrapolated", "extrapolated"]
    assert model.reach() == 40


def test_a_simulator_of_several_devices_a_rank_counts_environments_of_one_device() -> None:
    some = samples((2, 20, 1.0), (4, 80, 3.0))
    model = SimulatorModel(some, devices_per_rank=2)
    assert model.points[0].tolist() == [10.0, 20.0] and model.reach() == 20
    assert model.seconds(np.array([2, 4, 8, 1]), 40.0).tolist() == pytest.approx([3.0, 1.0, 1.0, 7.0])
    assert SimulatorModel(some, devices_per_rank=2, group_size=16).measured.tolist() == [10.0, 24.0], "of five groups one rank has three"


@pytest.mark.parametrize(("seconds", "hinge"), [((1.0, 3.0, 5.0), (1.0, 0.2, 10)), ((3.0, 2.0, 1.0), (2.0, 0.0, 30)), ((0.5, 2.5, 4.5), (0.5, 0.2, 10))])
def test_neither_part_of_a_simulator_is_negative(seconds: tuple[float, ...], hinge: tuple[float, float, float]) -> None:
    """A line through the first and the last of them meets no environments at a negative time, or falls."""
    model = SimulatorModel(samples(*((1, 10.0 * (i + 1), s) for i, s in enumerate(seconds))))
    assert model.hinge == pytest.approx(hinge)
    assert model.seconds(np.array([1]), 60.0)[0] == pytest.approx(seconds[-1] + hinge[1] * 30)


def test_a_cell_alternates_or_overlaps() -> None:
    simulator, policy = SimulatorModel(samples((1, 10, 1.0), (1, 40, 4.0))), BatchModel(samples((1, 10, 0.5), (1, 40, 2.0)))
    cell = CellModel()
    assert cell.together([10 * m.seconds(np.array([2]), 40.0) for m in (simulator, policy)]) == pytest.approx([10 * (2 + 1)])
    assert cell.apart(np.array([40.0]), np.array([60.0]), 1) == pytest.approx([60])
    assert cell.apart(np.array([20.0]), np.array([30.0]), 2) == pytest.approx([40])  # the simulator never waits
    assert CellModel(1.5).together([np.array([2.0]), np.array([1.0])]) == pytest.approx([4.5])
    parts = {"simulator": simulator.estimate(1, 20).times(10), "policy": policy.estimate(2, 20).times(10)}
    found = cell.estimate(parts, 2)
    assert found.seconds == pytest.approx(40) and found.basis == "assumed" and found.note.startswith("policy: ")
    assert found.low == pytest.approx(2 * parts["simulator"].low) and found.high == pytest.approx(2 * parts["simulator"].high)
    assert cell.estimate(parts).seconds == pytest.approx(20 + 5)


# --- the public tool's rule ------------------------------------------------------------------------------
def test_the_public_rule() -> None:
    worker = WorkerProfile(samples((8, 512, 50)), "generation", lengths=Lengths(99.0, mean_tokens=9.0))
    with pytest.raises(ConfigError, match=r"workers\.a\.max_running"):
        fit(Profile(512, {"a": worker}), "rlinf")
    with pytest.raises(UnknownNameError, match="Did you mean 'rlinf'"):
        fit(Profile(512, {"a": worker}), "rlinff")
    rollout = CapacityCliff(224.0, 128, 8192.0, 128)
    assert rollout.seconds(np.array([128, 80, 64]), 8192.0) == pytest.approx([224, 224, 448])
    assert DampedScaling(101.0, 128, 8192.0).seconds(np.array([128, 32]), 8192.0) == pytest.approx([101, 101 * 4 / 1.4])


def test_equal_workers_share_a_model_that_keeps_no_more_than_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slider asks about the same workers again and again."""
    lengths = Lengths(1000.0, mean_tokens=400.0)
    worker = WorkerProfile(samples((8, 512, 50)), "generation", lengths=lengths, exponent=0.5)
    model = fit_worker(worker)
    assert fit_worker(dataclasses.replace(worker, onload_s=0.0)) is model and fit_worker(dataclasses.replace(worker, exponent=0.4)) is not model
    assert isinstance(model, GenerationModel)
    fresh = GenerationModel(worker.samples, lengths, exponent=0.5)
    monkeypatch.setattr("rlinf_lab.planning.costs.generation.KEPT_SCHEDULES", 3)
    caps = [np.array([float(cap)]) for cap in (4, 8, 16, 24, 4)]
    assert [fresh.seconds(np.array([8]), 512, cap=c)[0] for c in caps] == [model.seconds(np.array([8]), 512, cap=c)[0] for c in caps]
    assert len(fresh._schedules) <= 3


# --- what an estimate rests on --------------------------------------------------------------------------------------
LENGTHS = Lengths(4096.0, mean_tokens=900.0)


def models(rows: list[tuple[int, int, float]]) -> list[CostModel]:
    some = tuple(Sample(n, float(m), t) for n, m, t in rows)
    return [BatchModel(some), SimulatorModel(some), GenerationModel(some, LENGTHS)]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 8, 32]), st.sampled_from([10, 64, 512]), st.floats(0, 100)), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_no_sample_lies_outside_what_is_stated_at_its_point(rows: list[tuple[int, int, float]]) -> None:
    for model in models(rows):
        for n, m, t in rows:
            found = model.estimate(n, m)
            assert found.low <= t <= found.high and found.low <= found.seconds <= found.high
            here = [s for a, b, s in rows if (a, b) == (n, m)]
            if found.basis == "measured" and len(here) == 1 and not isinstance(model, SimulatorModel):
                assert found.seconds == pytest.approx(t, rel=REPEAT + 1e-9)


def test_samples_on_no_line_are_not_said_to_be_met() -> None:
    rows, sizes = [(8, 512, 100.0), (16, 512, 30.0), (32, 512, 90.0)], [(1, 8, 1.0), (1, 16, 1.2), (1, 64, 9.0)]
    generation, batch = models(rows)[2], models(sizes)[0]
    assert [m.estimate(n, i).basis for m, some in ((generation, rows), (batch, sizes)) for n, i, _ in some] == ["interpolated"] * 6
    assert "measured there" in generation.estimate(8, 512).note
    assert generation.estimate(24, 512).high / generation.estimate(24, 512).seconds > 2  # nor is it surer between them


@pytest.mark.parametrize("which", range(3))
def test_samples_that_differ_widen_the_range(which: int) -> None:
    twice = models([(1, 64, 1.0), (1, 64, 2.0)])[which].estimate(1, 64)
    assert twice.basis == "measured" and (twice.low, twice.high) == (1.0, 2.0)
    once = models([(1, 64, 1.0), (1, 64, 1.0)])[which].estimate(1, 64)
    assert once.high == pytest.approx(1 + REPEAT) and once.low == pytest.approx(1 / (1 + REPEAT))
    beside = models([(1, 64, 1.0), (1, 64, 2.0)])[which].estimate(1, 80)
    sure = models([(1, 64, 1.5), (1, 64, 1.5)])[which].estimate(1, 80)
    assert beside.high / beside.seconds > sure.high / sure.seconds


# --- long queues -----------------------------------------------------------------------------------------
def engine(max_running: int, shape: ModelShape | None = None) -> GenerationModel:
    return GenerationModel((Sample(8, 512.0, 100.0),), LENGTHS, shape, max_running=max_running, exponent=None if shape else 0.5)


def brute(model: GenerationModel, requests: int, slots: int) -> float:
    """Steps of the queue, request by request, lengths drawn anew."""
    tokens = np.random.default_rng(1).choice(model.tokens, requests)
    free = np.zeros(slots)
    for length in tokens:
        free[np.argmin(free)] += length
    return float(free.max())


@pytest.mark.parametrize("slots", [1, 10])
@pytest.mark.parametrize("shape", [None, ModelShape(28, 4, 128, 15.2)])
def test_a_long_queue_takes_as_long_as_its_items(slots: int, shape: ModelShape | None) -> None:
    model = engine(slots, shape)
    requests = np.array([2_000, 20_000, 200_000, 2_000_000])
    seconds = np.array([float(model.seconds(np.array([8]), 8.0 * r)[0]) for r in requests])
    each = np.diff(seconds) / np.diff(requests)
    assert each == pytest.approx(np.full(3, each[-1]), rel=0.02)
    alpha, beta = model.parameters
    _, load = model._row(Sample(8, 8.0 * 20_000, 1.0))
    assert seconds[1] == pytest.approx(alpha * brute(model, 20_000, slots) + beta * load, rel=0.05)


def test_fewer_at_once_is_never_faster() -> None:
    model = engine(1_000_000)
    caps = np.array([1.0, 2.0, 3.0, 8.0, 31.0, 32.0, 33.0, 64.0, 500.0, 8192.0])
    for items in (8 * 600, 8 * 8192, 8 * 65_536):
        seconds = model.seconds(np.full(len(caps), 8), items, cap=caps)
        assert (np.diff(seconds) < seconds[:-1] * 0.005).all() and seconds[0] > 1.8 * seconds[1]


@pytest.mark.parametrize("group", [1, 8])
@pytest.mark.parametrize("requests", [700, 100_000])
def test_the_stream_of_a_long_queue_is_even_and_ends_when_it_ends(group: int, requests: int) -> None:
    model = engine(4)
    stream = model.stream(8, 8.0 * requests, 64, group)
    assert stream.times[-1] == pytest.approx(float(model.seconds(np.array([8]), 8.0 * requests)[0]), rel=1e-9 if group == 1 else 1e-3)
    assert (np.diff(stream.times) >= 0).all() and stream.times[0] > 0
    assert stream.times / stream.times[-1] == pytest.approx(np.arange(1, 65) / 64, abs=0.1)


@pytest.mark.parametrize(("group", "slots", "rounds"), [(1, 3, 2), (8, 20, 5), (QUANTILES // 4, 3, 5)])
def test_requests_begin_as_in_a_queue_that_holds_all_rounds_of_them(group: int, slots: int, rounds: int) -> None:
    """A group's rounds follow each other, and whoever is free takes the next request."""
    tokens = np.random.default_rng(0).exponential(100, QUANTILES) + 5
    free, begun = [0.0] * slots, dict[int, float]()
    for first in range(0, QUANTILES, group):
        for i in [*range(first, first + group)] * rounds:
            begun.setdefault(i, free[0])
            heapq.heapreplace(free, free[0] + tokens[i])
    starts, whole = _starts(tokens, slots), tokens.sum() * rounds / slots
    found, last = _in_rounds(starts, tokens, group, rounds, whole / rounds), int(np.argmax(starts + tokens))
    assert found[last] + tokens[last] == pytest.approx(max(free), rel=0.05)
    assert np.delete(found, last) == pytest.approx(np.delete([begun[i] for i in range(QUANTILES)], last), abs=0.05 * whole)


# --- whole items -----------------------------------------------------------------------------------------
@given(st.integers(1, 500), st.integers(1, 64), st.sampled_from([1, 2, 4]))
@settings(max_examples=60, deadline=None)
def test_a_rank_has_whole_items(items: int, ranks: int, size: int) -> None:
    rows = (Sample(size, 64.0, 64.0),)
    for model in (BatchModel(rows, None, size), SimulatorModel((Sample(size, 1.0, 1.0), Sample(size, 500.0, 500.0)), size)):
        assert float(model.seconds(np.array([ranks * size]), items)[0]) == pytest.approx(-(-items // ranks))
    # Micro-batches of a number that is not whole differ by one: together they cost what they hold.
    mean = np.mean([-(-n // ranks) for n in (items, items, items, items + 1)])
    assert float(BatchModel(rows, None, size).seconds(np.array([ranks * size]), items + 0.25)[0]) == pytest.approx(mean)
