"""Clocks of other nodes: the truth is within the bound that is told, however skewed, drifting and late the answers."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.record.clock_offset import DRIFT_PPM, AlignedClock, ClockOffset

SECOND = 1_000_000_000


class FakeClock:
    """Another node's clock: it says something else than ours from the beginning, and runs a little faster or slower, changing by and by."""

    def __init__(self, rng: Random, skew_ns: int, ppm: float, until_ns: int) -> None:
        self.ours = np.linspace(0, until_ns, 40)
        rates = [1 + rng.uniform(-ppm, ppm) * 1e-6 for _ in self.ours[1:]]
        self.theirs = skew_ns + np.append(0, np.cumsum(np.diff(self.ours) * rates))

    def at(self, ours: int) -> int:
        return round(float(np.interp(ours, self.ours, self.theirs)))


def ask(offset: ClockOffset, clock: FakeClock, now: int, there: int, back: int) -> int:
    """A round trip; returns when it was over."""
    offset.heard(now, clock.at(now + there), now + there + back)
    return now + there + back


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(-10 * SECOND, 10 * SECOND), st.floats(0, DRIFT_PPM))
def test_the_truth_is_within_the_bound_over_an_hour(seed: int, skew: int, ppm: float) -> None:
    rng, offset = Random(seed), ClockOffset()
    clock, now = FakeClock(rng, skew, ppm, 3700 * SECOND), 0
    while now < 3600 * SECOND:
        now = ask(offset, clock, now, int(rng.expovariate(1 / 3e5)) + 30_000, int(rng.expovariate(1 / 3e5)) + 30_000)
        for later in (now, now + rng.randrange(60 * SECOND)):
            found, bound = offset.at(later)
            assert abs(found - (later - clock.at(later))) <= bound + 2  # two readings are rounded
        now += rng.randrange(60 * SECOND)
    assert offset.jumps == 0


def test_the_fastest_round_trip_makes_the_bound_and_a_slow_one_does_no_harm() -> None:
    offset, clock, now = ClockOffset(), FakeClock(Random(1), 5 * SECOND, 0, SECOND), 0
    for there, back in ((4_000_000, 4_000_000), (20_000, 30_000), (9_000_000, 100_000)):
        now = ask(offset, clock, now, there, back)
    found, bound = offset.at(now)
    assert bound <= 25_000 + 2 * DRIFT_PPM * 1e-6 * 20_000_000 and abs(found + 5 * SECOND) <= bound
    assert offset.at(now + 10 * SECOND)[1] == pytest.approx(bound + 10 * SECOND * DRIFT_PPM * 1e-6, abs=2), "nobody asks: it grows"


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(-10 * SECOND, 10 * SECOND), st.floats(0, DRIFT_PPM))
def test_spans_of_a_drifting_clock_keep_their_order_and_are_as_near_as_told(seed: int, skew: int, ppm: float) -> None:
    rng = Random(seed)
    clock, aligned, recorder, timeline = FakeClock(rng, skew, ppm, 700 * SECOND), AlignedClock(), Recorder("far"), Timeline()
    track, name, truth, now = recorder.track("w", 0), recorder.name("x"), [], 1000
    begun = now
    for _ in range(60):
        asked = now
        now = ask(aligned.offset, clock, now, rng.randrange(20_000, 2_000_000), rng.randrange(20_000, 2_000_000))
        for _ in range(rng.randrange(5)):
            start = rng.choice((begun, asked, now))
            now += rng.randrange(SECOND)
            truth.append((start, now))
            recorder.add(track, SpanKind.RUN, name, clock.at(start), clock.at(now), len(truth) - 1)
        now += rng.randrange(10 * SECOND)
        timeline.extend(aligned.aligned(recorder.drain(), now))
    spans = np.sort(timeline.spans, order="iteration")  # long ones arrive behind the others
    for row, (start, end) in zip(spans, truth, strict=True):
        assert max(abs(int(row["start"]) - start), abs(int(row["end"]) - end)) <= aligned.error_ns + 2
    there = np.array(sorted(clock.at(t) for pair in truth for t in pair), np.int64)
    assert not truth or (np.diff(aligned._ours(there)) >= 0).all(), "no later time is before an earlier one"


def test_where_nobody_asks_the_error_that_is_told_grows_and_stays() -> None:
    aligned, recorder = AlignedClock(), Recorder("far")
    track, name, told = recorder.track("w", 0), recorder.name("x"), list[int]()
    for seconds in (0, 1000, 1001):
        now = seconds * SECOND
        if seconds in (0, 1001):
            aligned.offset.heard(now - 20_000, round((now - 10_000) * (1 + DRIFT_PPM * 1e-6)), now)
        recorder.add(track, SpanKind.RUN, name, *(2 * [round(now * (1 + DRIFT_PPM * 1e-6))]))
        batch = aligned.aligned(recorder.drain(), now)
        told.append(batch.clock_error_ns)
        assert abs(int(batch.spans["start"][0]) - now) <= batch.clock_error_ns + 2
    assert told[0] < 20_000 < 900 * DRIFT_PPM * 1000 < told[1] <= told[2]


def test_how_far_off_times_are_is_true_also_when_a_clock_was_set_back() -> None:
    aligned, recorder, timeline = AlignedClock(), Recorder("far"), Timeline()
    track, name = recorder.track("w", 0), recorder.name("x")
    for k in range(60):
        now, ahead = 100 * SECOND + k * SECOND // 10, (30 if k < 40 else -70) * SECOND
        aligned.offset.heard(now - 200_000, now - 100_000 + ahead, now)
        recorder.add(track, SpanKind.RUN, name, now - 50_000 + ahead, now - 40_000 + ahead)
        timeline.extend(aligned.aligned(recorder.drain(), now + 1_000))
    true = 100 * SECOND + np.arange(60) * (SECOND // 10) - 50_000
    off = np.abs(timeline.spans["start"] - true).max()
    assert off == 100 * SECOND <= timeline.clock_errors["far"] < 101 * SECOND
    assert timeline.clock_jumps == timeline.snapshot().clock_jumps == {"far": 1} and "clocks that JUMPED: far" in repr(timeline)
