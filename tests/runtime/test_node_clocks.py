"""Clocks of hosts on other nodes: asked at once and then twice a second; what they recorded comes to lie where it happened."""

from __future__ import annotations

import time
from typing import Any

import pytest
from flows import Numbers

from rlinf_lab import ExecutionPlan, Outbox, Worker, Workflow
from rlinf_lab.runtime.executors.node_clocks import ASK_NS, AT_ONCE, NodeClocks
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.transport import listener
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.record.clock_offset import DRIFT_PPM

WAY_NS, SKEW_NS, FASTER = 40_000, 123_456_789_000, 30e-6
SECOND = 1_000_000_000


class Far:
    """A driver, and a host whose clock is set otherwise and runs faster; a message takes 40 µs."""

    def __init__(self) -> None:
        self.now, self.questions = 7 * SECOND, 0
        self.clocks = NodeClocks(lambda: self.now, self.ask)
        self.recorder = Recorder("far")
        self.waiting: list[tuple[int, int]] = []

    def theirs(self, ours: int) -> int:
        return round(ours * (1 + FASTER)) + SKEW_NS

    def ask(self, host: str, asked: int) -> None:
        self.questions += 1
        self.waiting.append((asked, self.theirs(self.now + WAY_NS)))

    def answers(self) -> None:
        while self.waiting:
            asked, theirs = self.waiting.pop(0)
            self.now += 2 * WAY_NS
            self.clocks.heard("far", asked, theirs)


@pytest.fixture
def far() -> Far:
    far = Far()
    far.clocks.add("far")
    far.clocks.heard("far", far.now - 5_000_000, far.theirs(far.now - 1_000_000))  # the slow way
    far.clocks.ask("far")
    far.answers()
    return far


def test_it_is_asked_some_times_at_once_and_then_twice_a_second(far: Far) -> None:
    assert far.questions == AT_ONCE - 1
    for _ in range(100):  # ten seconds of news
        far.now += SECOND // 10
        far.clocks.aligned(far.recorder.drain())
        far.answers()
    assert far.questions == pytest.approx(AT_ONCE - 1 + 10 * SECOND / ASK_NS, abs=2)


def test_spans_of_ten_minutes_lie_within_the_bound_that_the_timeline_tells(far: Far) -> None:
    timeline, track, truth = Timeline(), far.recorder.track("w", 0), []
    for _ in range(1200):
        truth.append(far.now + 1000)
        far.recorder.add(track, SpanKind.RUN, 0, far.theirs(far.now + 1000), far.theirs(far.now + 90_000), far.recorder.name("x"))
        far.now += SECOND // 2
        timeline.extend(far.clocks.aligned(far.recorder.drain()))
        far.answers()
    error = timeline.clock_errors["far"]
    assert error < 3 * WAY_NS + 2 * ASK_NS * DRIFT_PPM * 1e-6
    assert max(abs(int(start) - ours) for start, ours in zip(timeline.spans["start"], truth, strict=True)) <= error
    assert f"clocks of other nodes aligned to ± {error / 1e3:,.0f} µs" in repr(timeline)
    near = Recorder("near")
    near.add(near.track("w", 0), SpanKind.RUN, near.name("x"), 5, 6)
    batch = near.drain()
    assert far.clocks.aligned(batch) is batch, "a host of this node has our clock"
    assert f"clock of far: aligned to ± {error / 1e3:,.0f} µs" in repr(timeline.summary())


class Slowly(Worker):
    def make(self, out: Outbox) -> None:
        for i in range(20):
            time.sleep(0.02)  # longer than the first news take, so that answers come over the link
            out.put(i)


def test_processes_that_are_taken_for_other_nodes_are_asked_and_found_to_have_our_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "node_id", lambda: "elsewhere")  # of the driver only: its hosts live on another node, it believes
    flow = Workflow("two nodes")
    items = flow.channel("items")
    maker, taker = flow.worker(Slowly, name="maker"), flow.worker(Numbers, name="taker")

    flow.iteration(lambda: (maker.make(items), taker.total(items))[1])
    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"maker": [0], "taker": [1]}, micro_batch=1)
    with session(flow, plan, "processes", emulate=True) as s:
        steps = 0
        while len(s.timeline.clock_errors) < 2 and (steps := steps + 1) < 40:  # on a busy machine answers take their time
            assert s.step() == 190
    errors = s.timeline.clock_errors
    assert len(errors) == 2 and min(errors.values()) > 0
    executor: Any = s._executor
    for clock in executor.driver.clocks._clocks.values():
        offset, error = clock.offset.at(time.monotonic_ns())
        assert clock.offset.answers >= AT_ONCE and not clock.offset.jumps and abs(offset) <= error, "the truth is 0"
    assert s.timeline.bubble_sum_error_ns() == 0
