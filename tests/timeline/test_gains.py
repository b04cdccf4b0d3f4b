"""What a faster worker would bring: told from a timeline, and compared with the run in which it is faster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinf_lab as lab
from rlinf_lab.errors import TimelineError, UnknownNameError
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.critical import gains

LENGTHS = [8 + (7 * i) % 9 for i in range(15)] + [60]


class Sampler(lab.Worker):
    def __init__(self, speed: float) -> None:
        self.speed = speed

    def sample(self, prompts: lab.Inbox, responses: lab.Outbox) -> None:
        for batch in prompts:
            for length in batch:
                self.compute(length * 0.001 / self.speed)
                responses.put(length)


class Learner(Sampler):
    def train(self, responses: lab.Inbox) -> None:
        for batch in responses:
            self.compute((0.006 + 0.004 * len(batch)) / self.speed)


def measured(micro_batch: int, lengths: list[int], sampler: float = 1.0, learner: float = 1.0, samplers: int = 2) -> Timeline:
    flow = lab.Workflow("sample_and_train")
    prompts, responses = flow.channels("prompts", "responses")
    s, t = flow.worker(Sampler, speed=sampler, name="sampler"), flow.worker(Learner, speed=learner, name="learner")

    @flow.iteration
    def iteration(batch):
        prompts.put_all(batch)
        s.sample(prompts, responses)
        t.train(responses)

    placed = {"sampler": list(range(samplers)), "learner": [samplers]}
    plan = lab.ExecutionPlan.spatial(flow, [f"cpu:{i}" for i in range(samplers + 1)], placed, micro_batch=1)
    plan = lab.ExecutionPlan(plan.name, plan.devices, plan.placements, {"prompts": 1, "responses": micro_batch})
    done = lab.run(flow, plan, inputs=[lengths] * 3, dashboard=False, clock=MockClock())
    done.wait(60)
    return done.timeline


def told(timeline: Timeline, times: float = 2.0) -> pd.Series[float]:
    """Seconds by worker."""
    return timeline.gains(times).set_index("worker")["seconds"]


@pytest.mark.parametrize("micro_batch", [1, 4, 16])
@pytest.mark.parametrize("order", [1, -1])
def test_what_a_faster_learner_gains_is_what_a_run_with_it_gains(micro_batch: int, order: int) -> None:
    lengths = sorted(LENGTHS)[::order]
    before, after = measured(micro_batch, lengths), measured(micro_batch, lengths, learner=2.0)
    assert told(before)["learner"] == pytest.approx((before.elapsed_ns - after.elapsed_ns) / 1e9, rel=1e-6)


@pytest.mark.parametrize("times", [1.5, 2.0, 8.0])
def test_what_a_faster_lone_sampler_gains(times: float) -> None:
    before, after = measured(4, LENGTHS, samplers=1), measured(4, LENGTHS, sampler=times, samplers=1)
    assert told(before, times)["sampler"] == pytest.approx((before.elapsed_ns - after.elapsed_ns) / 1e9, rel=1e-6)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_nothing_is_gained_by_nothing_and_never_more_than_the_work(data: st.DataObject) -> None:
    recorder = Recorder()
    tracks = [recorder.track(f"w{i}", 0, (f"cpu:{i % 2}",)) for i in range(3)]
    name, channel = recorder.name("m"), recorder.channel("c")
    for track in tracks:
        at = data.draw(st.integers(0, 50))
        for _ in range(data.draw(st.integers(0, 6))):
            kind = data.draw(st.sampled_from([k for k in SpanKind if k is not SpanKind.MARK]))
            end = at + data.draw(st.integers(0, 40))
            recorder.add(track, kind, name, at, end, data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2)), 0, channel, data.draw(st.integers(-1, 4)))
            at = max(0, end + data.draw(st.integers(-10, 10)))
    timeline = Timeline()
    timeline.extend(recorder.drain())
    assert (timeline.gains(1)["seconds"] == 0).all()
    twice = timeline.gains(2)
    assert (twice["seconds"] <= twice["run_seconds"] / 2 + 1e-9 * len(timeline)).all()


def test_by_name_of_the_call_and_of_nothing() -> None:
    table = measured(4, LENGTHS).gains(by=["worker", "name"])
    assert set(zip(table["worker"], table["name"], strict=True)) == {("sampler", "sample"), ("learner", "train")}
    assert list(Timeline().gains().columns) == ["worker", "run_seconds", "seconds", "share"] and not len(Timeline().gains())
    assert "Gained if twice as fast" in str(measured(4, LENGTHS).summary())


@pytest.mark.parametrize("times", [0, -1, "2", None, True, float("nan")])
def test_how_many_times_is_checked(times: Any) -> None:
    with pytest.raises(TimelineError, match=r"gains\(times=.*Next"):
        Timeline().gains(times)
    with pytest.raises(UnknownNameError, match="wroker"):
        Timeline().gains(by="wroker")


def test_of_a_long_timeline_the_last_iterations_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured(4, LENGTHS)
    everything = whole.gains()
    monkeypatch.setattr(gains, "MAX_REPLAYED_SPANS", 3 * everything.attrs["replayed_spans"] // 4)
    part = whole.gains()
    assert part.attrs["replayed_spans"] <= gains.MAX_REPLAYED_SPANS
    assert np.allclose(part["share"], everything["share"], atol=0.02) and list(part["worker"]) == list(everything["worker"])
    assert everything.attrs["note"] == "" and "EXTRAPOLATED" in part.attrs["note"]
    told = f"replayed are the last {part.attrs['replayed_spans']} of {part.attrs['spans']} spans"
    summary = whole.summary()
    assert told in part.attrs["note"] and told in str(summary) and told in json.loads(summary.to_json())["notes"]["gains"]


def between_processes(run_ns: int, count: int = 6) -> Timeline:
    """As a run in two processes records it: items are worked on, put, travel, and are taken; the taker needs but 2 ns."""
    recorder, timeline = Recorder(), Timeline()
    maker, taker, way = recorder.track("maker", 0, ("cpu:0",)), recorder.track("taker", 0, ("cpu:1",)), recorder.track("host0 → host1", 0)
    names, channel, taken = [recorder.name(n) for n in ("make", "take", "stream")], recorder.channel("c"), 0
    for item in range(count):
        put = run_ns * (item + 1)
        recorder.add(maker, SpanKind.RUN, names[0], put - run_ns, put, 0)
        recorder.add(maker, SpanKind.PUT, names[0], put, put, 0, 1, 0, channel, item)
        recorder.add(way, SpanKind.TRANSFER, names[2], put + 1, put + 3, 0, 1, 8, channel)
        recorder.add(taker, SpanKind.GET, names[1], taken, put + 4, 0, 1, 0, channel, item)
        recorder.add(taker, SpanKind.RUN, names[1], put + 4, taken := put + 6, 0)
    timeline.extend(recorder.drain())
    return timeline


def test_what_travels_leaves_when_it_is_put() -> None:
    before, after = between_processes(20), between_processes(10)
    assert before.gains(2).set_index("worker")["seconds"]["maker"] == pytest.approx((before.elapsed_ns - after.elapsed_ns) / 1e9)


def test_the_clock_may_begin_anywhere() -> None:
    batches = []
    for zero in (0, -1000):
        recorder = Recorder()
        for i in range(20):  # in turns on one device
            recorder.add(recorder.track(f"w{i % 2}", 0, ("cpu:0",)), SpanKind.RUN, recorder.name("m"), zero + i * 10, zero + i * 10 + 10)
        batches.append(recorder.drain())
    first, second = Timeline(), Timeline()
    first.extend(batches[0])
    second.extend(batches[1])
    assert list(first.gains()["seconds"]) == list(second.gains()["seconds"]) and (first.gains()["seconds"] > 0).all()


def test_groups_side_by_side_are_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = measured(4, LENGTHS)
    at_once = timeline.gains(by=["worker", "rank"])
    monkeypatch.setattr(gains, "_MAX_NUMBERS", 1)
    assert timeline.gains(by=["worker", "rank"]).equals(at_once)


def test_what_is_brought_to_a_device_is_no_faster() -> None:
    recorder = Recorder("here")
    for worker, start in (("a", 0), ("b", 14)):
        track = recorder.track(worker, 0, ("cpu:0",))
        recorder.add(track, SpanKind.ONLOAD, recorder.name("onload"), start, start + 10, 0)
        recorder.add(track, SpanKind.RUN, recorder.name("work"), start + 10, start + 14, 0)
    timeline = Timeline()
    timeline.extend(recorder.drain())
    assert (timeline.gains(2)["seconds"] * 1e9).tolist() == [2, 2]


def one_after_another(recorder: Recorder, count: int) -> None:
    track, name = recorder.track("torch", 0, ("cpu:0",)), recorder.name("op")
    for i in range(count):
        recorder.add(track, SpanKind.RUN, name, i * 10, i * 10 + 9)


def in_threads(recorder: Recorder, count: int) -> None:
    name = recorder.name("op")
    for i in range(count):
        recorder.add(recorder.track("torch", i % 2, (f"cpu:{i % 2}",)), SpanKind.RUN, name, i * 10, i * 10 + 19)


def at_one_instant(recorder: Recorder, count: int) -> None:
    name, channel = recorder.name("m"), recorder.channel("c")
    for i in range(count):
        kind = (SpanKind.RUN, SpanKind.PUT, SpanKind.GET)[i % 3]
        recorder.add(recorder.track("w", i % 3 + 3 * (i // 6)), kind, name, 90, 100, 0, 1, 0, channel, i // 3)


def steps_of(write: Callable[[Recorder, int], None], count: int) -> int:
    """Lines that `gains` runs in its room of the house for a timeline of so many spans."""
    recorder, timeline, steps = Recorder(), Timeline(), 0
    write(recorder, count)
    timeline.extend(recorder.drain())

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace if "timeline" in frame.f_code.co_filename else None

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        timeline.gains()
    finally:
        sys.settrace(outer)
    return steps


@pytest.mark.parametrize("write", [one_after_another, in_threads, at_one_instant])
def test_four_times_as_many_spans_take_about_four_times_as_many_steps(write: Callable[[Recorder, int], None]) -> None:
    assert steps_of(write, 1600) < 5 * steps_of(write, 400)
