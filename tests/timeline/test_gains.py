"""What a faster worker would bring: told from a timeline, and compared with the run in which it is faster."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinf_lab as lab
from rlinf_lab.errors import TimelineError, UnknownNameError
from rlinf_lab.runtime.clocks import MockClock
from rlinf_lab.timeline import Recorder, SpanKind, Timeline, gains

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


def measured(chunk: int, lengths: list[int], sampler: float = 1.0, learner: float = 1.0, samplers: int = 2) -> Timeline:
    flow = lab.Workflow("sample_and_train")
    prompts, responses = flow.channels("prompts", "responses")
    s, t = flow.worker(Sampler, speed=sampler, name="sampler"), flow.worker(Learner, speed=learner, name="learner")

    @flow.iteration
    def iteration(batch):
        prompts.put_all(batch)
        s.sample(prompts, responses)
        t.train(responses)

    placed = {"sampler": list(range(samplers)), "learner": [samplers]}
    plan = lab.ExecutionPlan.spatial(flow, [f"cpu:{i}" for i in range(samplers + 1)], placed, chunk=1)
    plan = lab.ExecutionPlan(plan.name, plan.devices, plan.placements, {"prompts": 1, "responses": chunk})
    done = lab.run(flow, plan, inputs=[lengths] * 3, dashboard=False, clock=MockClock())
    done.wait(60)
    return done.timeline


@pytest.mark.parametrize("chunk", [1, 4, 16])
@pytest.mark.parametrize("order", [1, -1])
def test_what_a_faster_learner_gains_is_what_a_run_with_it_gains(chunk: int, order: int) -> None:
    lengths = sorted(LENGTHS)[::order]
    before, after = measured(chunk, lengths), measured(chunk, lengths, learner=2.0)
    table = before.gains(2).set_index("worker")["seconds"]
    assert table["learner"] == pytest.approx((before.elapsed_ns - after.elapsed_ns) / 1e9, rel=1e-6)


@pytest.mark.parametrize("times", [1.5, 2.0, 8.0])
def test_what_a_faster_lone_sampler_gains(times: float) -> None:
    before, after = measured(4, LENGTHS, samplers=1), measured(4, LENGTHS, sampler=times, samplers=1)
    table = before.gains(times).set_index("worker")["seconds"]
    assert table["sampler"] == pytest.approx((before.elapsed_ns - after.elapsed_ns) / 1e9, rel=1e-6)


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
    monkeypatch.setattr(gains, "REPLAYED", 3 * everything.attrs["replayed_spans"] // 4)
    part = whole.gains()
    assert part.attrs["replayed_spans"] <= gains.REPLAYED
    assert np.allclose(part["share"], everything["share"], atol=0.02) and list(part["worker"]) == list(everything["worker"])
    assert everything.attrs["note"] == "" and "EXTRAPOLATED" in part.attrs["note"]
    told = f"replayed are the last {part.attrs['replayed_spans']} of {part.attrs['spans']} spans"
    summary = whole.summary()
    assert told in part.attrs["note"] and told in str(summary) and told in json.loads(summary.to_json())["notes"]["gains"]
