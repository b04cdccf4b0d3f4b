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
from rlinf_lab.timeline.record.span import SpanKind

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


CASES: dict[str, tuple[Callable, dict[str, tuple[type, int]], str, tuple[Any, ...]]] = {  # loop, workers and ranks, who waits, kind and channel of its wait
    "room": (lambda items, maker, taker: (maker.make(items), taker.take_slowly(items)), {"maker": (Maker, 1), "taker": (Taker, 1)}, "maker", (SpanKind.PUT, "items")),
    "items": (lambda items, maker, taker: (maker.make_one(items), taker.take(items)), {"maker": (Maker, 1), "taker": (Taker, 1)}, "taker", (SpanKind.GET, "items")),
    "the other ranks": (lambda items, taker: taker.meet(), {"taker": (Taker, 2)}, "taker", (SpanKind.WAIT, "")),
    "another fails": (
        lambda items, maker, taker, other: (maker.make_one(items), taker.take(items), other.fail()),
        {"maker": (Maker, 1), "taker": (Taker, 1), "other": (Maker, 1)}, "taker", (SpanKind.GET, "items"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("loop", "workers", "who", "wait"), CASES.values(), ids=CASES)
def test_who_waits_when_the_run_is_stopped_or_another_one_fails(loop: Callable, workers: dict[str, tuple[type, int]], who: str, wait: tuple[Any, ...]) -> None:
    """And was not computing meanwhile."""
    flow = lab.Workflow("interrupted")
    items = flow.channel("items", capacity=2)
    made = {name: flow.worker(cls, name=name) for name, (cls, _) in workers.items()}
    flow.iteration(lambda: loop(items, **made))
    devices, places = 0, {}
    for name, (_, ranks) in workers.items():
        places[name], devices = tuple((devices + r,) for r in range(ranks)), devices + ranks
    going = run(flow, lab.ExecutionPlan("apart", tuple(f"cpu:{i}" for i in range(devices)), places), 1, emulate=True)
    if "other" in workers:
        with pytest.raises(lab.errors.WorkerError, match="as it was asked to"):
            going.wait(30)
    else:
        while going.state == "starting":
            time.sleep(0.01)
        time.sleep(0.5)
        going.stop()
    rows = [s for s in going.timeline.rows() if (s.track.worker, s.track.rank) == (who, 0) and s.end_ns > s.start_ns and s.kind != SpanKind.SETUP]
    spans = sorted(rows, key=lambda s: (s.start_ns, s.end_ns))
    assert spans and all(a.end_ns <= b.start_ns for a, b in pairwise(spans)), spans
    last = [s for s in spans if s.end_ns - s.start_ns > LONG_NS][-1]  # one before may have waited for its core
    assert (last.kind, last.channel, last.items) == (*wait, 0)
    assert going.timeline.bubble_sum_error_ns() == 0


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
