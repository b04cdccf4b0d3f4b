"""An interrupt of the main thread at any line of the toolkit: the step is over, the next one works, nothing waits for ever."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from flows import Numbers

import rlinf_lab
from rlinf_lab import notebook
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.threads import main_thread_guard as served
from rlinf_lab.runtime.threads.main_thread_guard import Servant, Task
from rlinf_lab.workflow.workflow import Workflow

HERE = str(Path(rlinf_lab.__file__).parent)


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
def test_a_step_may_be_interrupted_at_any_line(first: int) -> None:
    assert threading.current_thread() is threading.main_thread(), "only the main thread is interrupted"
    flow, plan = chain()
    with session(flow, plan) as s:
        s.step()
        lines = Lines()
        with lines.watching():
            s.step()
        assert lines.count > 100
        for at in range(first, lines.count + 1, 3):
            lines = Lines(at)
            with contextlib.suppress(KeyboardInterrupt), lines.watching():
                s.step()
            for _ in range(2):
                assert s.step() == (6, 6, 6), f"after an interrupt at {lines.where}"


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
    flow, plan = chain()
    others = set(threading.enumerate())

    def interrupted(run: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(notebook, "show", interrupted)
    with pytest.raises(KeyboardInterrupt):
        notebook.run(flow, plan, dashboard=True)
    for thread in threading.enumerate():
        if thread not in others and thread.name == "run chain":
            thread.join(20)
            assert not thread.is_alive()


@every_third
def test_submitting_may_be_interrupted_at_any_line(first: int) -> None:
    flow, plan = chain()
    with session(flow, dataclasses.replace(plan, staleness=1)) as s:

        def two() -> None:
            s.submit()
            s.submit().wait()

        two()
        lines = Lines()
        with lines.watching():
            two()
        assert lines.count > 200
        for at in range(2 * first - 1, lines.count + 1, 6):
            lines = Lines(at)
            with contextlib.suppress(KeyboardInterrupt), lines.watching():
                two()
            for _ in range(2):
                assert s.submit().wait() == (6, 6, 6), f"after an interrupt at {lines.where}"


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
