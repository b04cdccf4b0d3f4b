"""What an estimate rests on: `measured` only where the model says what was measured, and no sample outside of what is stated at its point."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.planning.costs import BatchModel, CostModel, GenerationModel, SimulatorModel
from rlinf_lab.planning.costs.base import REPEAT
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import Lengths, ModelShape, Profile, Sample, WorkerProfile

LENGTHS = Lengths(4096.0, mean_tokens=900.0)


def models(rows: list[tuple[int, int, float]]) -> list[CostModel]:
    some = tuple(Sample(n, float(m), t) for n, m, t in rows)
    return [BatchModel(some), SimulatorModel(some), GenerationModel(some, LENGTHS)]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 8, 32]), st.sampled_from([64, 512]), st.floats(0, 100)), min_size=1, max_size=5))
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


@pytest.mark.parametrize("slots", [1, 3, 10, 40])
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
@pytest.mark.parametrize("requests", [512, 700, 8192, 100_000])
def test_the_stream_of_a_long_queue_is_even_and_ends_when_it_ends(group: int, requests: int) -> None:
    model = engine(4)
    stream = model.stream(8, 8.0 * requests, 64, group)
    assert stream.times[-1] == pytest.approx(float(model.seconds(np.array([8]), 8.0 * requests)[0]), rel=1e-9 if group == 1 else 1e-3)
    assert (np.diff(stream.times) >= 0).all() and stream.times[0] > 0
    assert stream.times / stream.times[-1] == pytest.approx(np.arange(1, 65) / 64, abs=0.1)


def test_a_plan_says_when_its_samples_do_not_agree() -> None:
    def notes(*seconds: float) -> tuple[str, ...]:
        worker = WorkerProfile(tuple(Sample(1, 64.0, s) for s in seconds), devices=1)
        return plan(Profile(64, {"a": worker}), 1, micro_batches=1, simulate=False).notes

    assert notes(1.0, 1.02) == () and notes(1.0, 1.5)[0].startswith("a: measured, good to 2")


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


def test_what_was_measured_with_uneven_ranks_is_met() -> None:
    for model in models([(4, 10, 3.0), (1, 10, 9.0)]):
        assert [model.estimate(n, 10).seconds for n in (4, 1)] == pytest.approx([3.0, 9.0])
