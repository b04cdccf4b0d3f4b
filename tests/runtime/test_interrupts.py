"""An interrupt of the main thread at any line of the toolkit, a stop, a failure of others: the step is over, the next one works, nothing waits for ever,
and a wait that ends so is a wait in the timeline."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from flows import Numbers, apart
from sessions import until

import rlinf_lab as lab
from rlinf_lab import notebook
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.driver import waiting
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.threads import main_thread_guard as served
from rlinf_lab.runtime.threads.main_thread_guard import Servant, Task
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.workflow import Workflow

HERE = str(Path(lab.__file__).parent)


def chain() -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("chain")
    first, second, third = flow.channel("first", capacity=4), flow.channel("second", capacity=4), flow.channel("third", capacity=2)
    source, sink = flow.worker(Numbers, name="source"), flow.worker(Numbers, name="sink")
    between = flow.worker(lambda batch: batch, name="between")

    @flow.iteration
    def iteration() -> Any:
        made = source.make(6, first)
        between(first, second)
        taken = sink.count(second)
        third.put_all(range(6))
        own = sink.count(third)
        return made.wait(), taken.wait(), own.wait()

    return flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"source": [0], "between": [0], "sink": [1]})


every_third = pytest.mark.parametrize("first", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])  # line: a few seconds for each third


class Lines:
    """Counts the lines of the toolkit that this thread executes, and interrupts it at one of them."""

    def __init__(self, interrupt_at: int = -1) -> None:
        self.count, self._at = 0, interrupt_at
        self.where = ""

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(HERE) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._line

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)


@every_third
@pytest.mark.parametrize("submits", [False, True])
def test_a_step_or_a_submit_may_be_interrupted_at_any_line(submits: bool, first: int) -> None:
    assert threading.current_thread() is threading.main_thread(), "only the main thread is interrupted"
    flow, plan = chain()
    with session(flow, dataclasses.replace(plan, staleness=int(submits))) as s:

        def work() -> Any:
            if submits:
                s.submit()
            return s.submit().wait() if submits else s.step()

        work()
        lines = Lines()
        with lines.watching():
            work()
        assert lines.count > 100 * (1 + submits)
        for at in range(2 * first - 1 if submits else first, lines.count + 1, 6 if submits else 3):
            lines = Lines(at)
            with contextlib.suppress(KeyboardInterrupt), lines.watching():
                work()
            for _ in range(2):
                assert (s.submit().wait() if submits else s.step()) == (6, 6, 6), f"after an interrupt at {lines.where}"


def test_opening_and_closing_a_session_may_be_interrupted_at_any_line() -> None:
    flow, plan = chain()
    others = set(threading.enumerate())  # of other tests, by the same names perhaps

    def opened(lines: Lines) -> None:
        with lines.watching(), session(flow, plan):
            pass

    lines = Lines()
    opened(lines)
    assert lines.count > 100
    for at in range(1, lines.count + 1, 5):
        lines = Lines(at)
        with contextlib.suppress(KeyboardInterrupt):
            opened(lines)
        for thread in threading.enumerate():
            if thread not in others and thread.name in ("source[0]", "between[0]", "sink[0]"):  # what ends them may go on in the background
                thread.join(20)
                assert not thread.is_alive(), f"{thread.name} after an interrupt at {lines.where}"


def test_a_run_whose_dashboard_was_interrupted_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    others = set(threading.enumerate())

    def interrupted(run: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(notebook, "show", interrupted)
    with pytest.raises(KeyboardInterrupt):
        notebook.run(*chain(), dashboard=True)
    for thread in (t for t in threading.enumerate() if t not in others and t.name == "run chain"):
        thread.join(20)
        assert not thread.is_alive()


class Interrupted(threading.Thread):
    """Its start is interrupted just before it is known to live."""

    def start(self) -> None:
        super().start()
        raise KeyboardInterrupt

    def is_alive(self) -> bool:
        return False


def test_a_servant_whose_start_was_interrupted_does_one_thing_after_another_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    servant = Servant("served twice")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(served, "threading", SimpleNamespace(**{**vars(threading), "Thread": Interrupted}))  # of nobody else
        servant.do(lambda: 1)
    order: list[str] = []

    def slowly() -> None:
        time.sleep(0.05)  # as long as another thread would need to come between
        order.append("first")

    servant._tasks.put(Task(slowly))  # whoever has asked for it was interrupted while it waited
    servant.do(lambda: order.append("second"))
    assert order == ["first", "second"]
    threads = [t for t in threading.enumerate() if t.name == "served twice"]
    assert len(threads) == 2
    del servant
    for thread in threads:
        thread.join(10)
        assert thread not in threading.enumerate()


# --- waits that end otherwise ---
LONG_NS = 150_000_000


class Maker(lab.Worker):
    def make_one(self, out: lab.Outbox) -> None:
        out.put(0)
        while not self.cancelled:
            time.sleep(0.01)

    def fail(self) -> None:
        time.sleep(0.4)
        raise ValueError("as it was asked to")


class Taker(Numbers):
    def take_slowly(self, inbox: lab.Inbox) -> None:
        inbox.get(1)
        while not self.cancelled:
            time.sleep(0.01)

    def meet(self) -> None:
        if self.rank == 0:
            self.exchange(1)
        while not self.cancelled:
            time.sleep(0.01)


CASES: dict[str, tuple[Callable, dict[str, tuple[type, int]], str, tuple[Any, ...]]] = {  # loop, workers and ranks, who waits, kind and channel of its wait
    "room": (
        lambda items, maker, taker: (maker.make(1000, items), taker.take_slowly(items)),
        {"maker": (Numbers, 1), "taker": (Taker, 1)}, "maker", (SpanKind.PUT, "items"),
    ),
    "items": (
        lambda items, maker, taker: (maker.make_one(items), taker.count(items)),
        {"maker": (Maker, 1), "taker": (Taker, 1)}, "taker", (SpanKind.GET, "items"),
    ),
    "the other ranks": (lambda items, taker: taker.meet(), {"taker": (Taker, 2)}, "taker", (SpanKind.WAIT, "")),
    "another fails": (
        lambda items, maker, taker, other: (maker.make_one(items), taker.count(items), other.fail()),
        {"maker": (Maker, 1), "taker": (Taker, 1), "other": (Maker, 1)}, "taker", (SpanKind.GET, "items"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("loop", "workers", "who", "wait"), CASES.values(), ids=CASES)
def test_who_waits_when_the_run_is_stopped_or_another_one_fails(loop: Callable, workers: dict[str, tuple[type, int]], who: str, wait: tuple[Any, ...]) -> None:
    """And was not computing meanwhile."""
    flow = Workflow("interrupted")
    items = flow.channel("items", capacity=2)
    made = {name: flow.worker(cls, name=name) for name, (cls, _) in workers.items()}
    flow.iteration(lambda: loop(items, **made))
    going = run(flow, apart(flow, {name: ranks for name, (_, ranks) in workers.items()}), 1, emulate=True)
    if "other" in workers:
        with pytest.raises(lab.errors.WorkerError, match="as it was asked to"):
            going.wait(30)
    else:
        until(lambda: any(f"{who}[0]" in str(wait) for wait in going.waits()))
        time.sleep(0.2)
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
    flow = Workflow("lasts")
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

    logger = logging.getLogger("rlinf_lab")
    monkeypatch.setattr(logger, "handlers", [*logger.handlers, Seen()])
    with session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])) as s:
        interrupted.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            s.step(True)
        assert s.step(False) == "done"
    told = [r.getMessage() for r in caplog.records if "left computing" in r.getMessage()]
    assert len(told) == 1 and "waits for worker[0].go" in told[0] and "Next: wait" in told[0]


def test_a_run_that_was_stopped_says_so_when_it_is_waited_for() -> None:
    flow = Workflow("stopped")
    worker = flow.worker(Lasts, name="worker")
    flow.iteration(lambda: worker.go(False))
    going = run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), 1_000_000)
    going.stop()
    with pytest.warns(RuntimeWarning, match=r"was stopped after \d+ of 1000000 iterations: .*Next: "):
        going.wait(60)
