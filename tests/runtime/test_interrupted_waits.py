"""A wait that is interrupted, by a stop or because another rank failed, is a wait in the timeline, and nothing before it is written twice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.driver import waiting
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.timeline.record.span import Span, SpanKind

LONG_NS = 150_000_000


class Maker(lab.Worker):
    def make(self, out: lab.Outbox) -> None:
        for i in range(1000):
            out.put(i)

    def make_one(self, out: lab.Outbox) -> None:
        out.put(0)
        while not self.cancelled:
            time.sleep(0.01)

    def fail(self) -> None:
        time.sleep(0.4)
        raise ValueError("as it was asked to")


class Taker(lab.Worker):
    def take_slowly(self, inbox: lab.Inbox) -> None:
        inbox.get(1)
        while not self.cancelled:
            time.sleep(0.01)

    def take(self, inbox: lab.Inbox) -> None:
        for _ in inbox:
            pass

    def meet(self) -> None:
        if self.rank == 0:
            self.exchange(1)
        while not self.cancelled:
            time.sleep(0.01)


def spans_of(run: lab.Run, worker: str) -> list[Span]:
    """Those that took time, but for the setup, by start."""
    rows = [s for s in run.timeline.rows() if s.track.worker == worker and s.track.rank == 0 and s.end_ns > s.start_ns and s.kind != SpanKind.SETUP]
    return sorted(rows, key=lambda s: (s.start_ns, s.end_ns))


def stopped(loop: Callable, workers: dict[str, type], ranks: int = 1) -> lab.Run:
    flow = lab.Workflow("interrupted")
    items = flow.channel("items", capacity=2)
    made = {name: flow.worker(cls, name=name) for name, cls in workers.items()}

    @flow.iteration
    def iteration() -> None:
        loop(items, **made)

    names = [f"cpu:{i}" for i in range(ranks * len(workers))]
    places = {name: list(range(i * ranks, (i + 1) * ranks)) for i, name in enumerate(workers)}
    run = lab.run(flow, lab.ExecutionPlan.spatial(flow, names, places), 1, dashboard=False, emulate=True)
    while run.state == "starting":
        time.sleep(0.01)
    time.sleep(0.5)
    run.stop()
    return run


def assert_none_overlap(spans: list[Span]) -> None:
    assert spans
    for a, b in pairwise(spans):
        assert a.end_ns <= b.start_ns, (a, b)


def test_who_waits_for_room_when_the_run_is_stopped() -> None:
    run = stopped(lambda items, maker, taker: (maker.make(items), taker.take_slowly(items)), {"maker": Maker, "taker": Taker})
    spans = spans_of(run, "maker")
    assert_none_overlap(spans)
    long = [s for s in spans if s.end_ns - s.start_ns > LONG_NS]
    assert [(s.kind, s.items, s.channel) for s in long] == [(SpanKind.PUT, 0, "items")]  # and it was not computing meanwhile
    assert run.timeline.bubble_sum_error_ns() == 0


def test_who_waits_for_items_when_the_run_is_stopped() -> None:
    run = stopped(lambda items, maker, taker: (maker.make_one(items), taker.take(items)), {"maker": Maker, "taker": Taker})
    spans = spans_of(run, "taker")
    assert_none_overlap(spans)
    assert [(s.kind, s.items, s.channel) for s in spans if s.end_ns - s.start_ns > LONG_NS] == [(SpanKind.GET, 0, "items")]


def test_who_waits_for_the_other_ranks_when_the_run_is_stopped() -> None:
    run = stopped(lambda items, taker: taker.meet(), {"taker": Taker}, ranks=2)
    spans = spans_of(run, "taker")
    assert_none_overlap(spans)
    assert [s.kind for s in spans if s.end_ns - s.start_ns > LONG_NS] == [SpanKind.WAIT]


def test_who_waits_when_another_one_fails() -> None:
    flow = lab.Workflow("failed")
    items = flow.channel("items", capacity=2)
    maker, taker, other = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker"), flow.worker(Maker, name="other")

    @flow.iteration
    def iteration() -> None:
        maker.make_one(items)
        taker.take(items)
        other.fail()

    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"maker": [0], "taker": [1], "other": [2]})
    run = lab.run(flow, plan, 1, dashboard=False, emulate=True)
    with pytest.raises(lab.errors.WorkerError, match="as it was asked to"):
        run.wait(30)
    spans = spans_of(run, "taker")
    assert_none_overlap(spans)
    assert [(s.kind, s.items) for s in spans if s.end_ns - s.start_ns > LONG_NS] == [(SpanKind.GET, 0)]


class Lasts(lab.Worker):
    """Its first call lasts until the test has seen what is said of it."""

    began, said = threading.Event(), threading.Event()

    def go(self, lasts: bool) -> str:
        self.began.set()
        if lasts:
            assert self.said.wait(60)
        return "done"


def test_an_iteration_that_waits_for_an_interrupted_call_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Before, the next step stood there without a word until the old call had returned."""
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "UNSAID_SECONDS", 0.01)
    flow = lab.Workflow("lasts")
    worker = flow.worker(Lasts, name="worker")
    Lasts.began.clear(), Lasts.said.clear()
    interrupted: list[BaseException] = []

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "worker[0].go" in record.getMessage():
                Lasts.said.set()

    @flow.iteration
    def iteration(lasts: bool) -> Any:
        value = worker.go(lasts)
        if interrupted:
            assert Lasts.began.wait(60)
            raise interrupted.pop()
        return value

    logger, seen = logging.getLogger("rlinf_lab"), Seen()
    logger.addHandler(seen)
    try:
        with session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])) as s:
            interrupted.append(KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                s.step(True)
            assert s.step(False) == "done"
    finally:
        logger.removeHandler(seen)
    told = [r.getMessage() for r in caplog.records if "left computing" in r.getMessage()]
    assert len(told) == 1 and "waits for worker[0].go" in told[0] and "Next: wait" in told[0]


def test_a_run_that_was_stopped_says_so_when_it_is_waited_for() -> None:
    flow = lab.Workflow("stopped")
    worker = flow.worker(Lasts, name="worker")
    flow.iteration(lambda: worker.go(False))
    going = run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), 1_000_000)
    going.stop()
    with pytest.warns(RuntimeWarning, match=r"was stopped after \d+ of 1000000 iterations: .*Next: "):
        going.wait(60)
