"""Sessions that tests open: on threads, with a made-up clock, or between several hosts in this process. What hangs fails, and says who waits for whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mesh import MeshExecutor

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.host.liveness.wait_graph import WaitGraph
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.workflow import Workflow

SECONDS = 20
both = pytest.mark.parametrize("kind", ["local", "mesh"])
exact = pytest.mark.parametrize("kind", ["mock", "mesh"])
kinds = pytest.mark.parametrize("kind", ["local", "mock", "mesh"])


def executor_of(kind: str, flow: Workflow, plan: ExecutionPlan, delay: float = 0.001, **options: Any) -> Any:
    """``kind``: "local", "mock" (its time is made up), or "mesh" (several hosts, with messages on their way for up to ``delay`` seconds)."""
    if kind == "mesh":
        return MeshExecutor(flow, plan, delay, **options)
    return LocalExecutor(flow, plan, *([MockClock()] if kind == "mock" else []), emulate=True, **options)


@contextmanager
def opened(kind: str, flow: Workflow, plan: ExecutionPlan, delay: float = 0.001, **options: Any) -> Iterator[Session]:
    with session_of(executor_of(kind, flow, plan, delay, **options)) as session:
        yield session


@contextmanager
def session_of(executor: Any, clean: bool = True) -> Iterator[Session]:
    """``clean``: at the end nobody is left behind, and nobody has failed to close."""
    executor.start()
    try:
        yield Session(executor)
    finally:
        found = in_time(executor.stop)
        assert not clean or found == Ended()


def step_within(session: Session, *args: Any, seconds: float = SECONDS) -> Any:
    return in_time(lambda: session.step(*args), session, seconds)


def in_time(do: Callable[[], Any], session: Session | None = None, seconds: float = SECONDS) -> Any:
    """What it returns or raises, in a thread, so that a hang is a failure of this test."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append((do(), None))
        except BaseException as error:
            found.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs:\n" + ("\n".join(WaitGraph(tuple(session._executor.news.waits())).lines()) if session else "")
    value, error = found[0]
    if error is not None:
        raise error
    return value


def until(is_so: Callable[[], Any], seconds: float = 60) -> None:
    """Wait for what comes soon, however busy the machine is."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def recorded(session: Session) -> Timeline:
    """What has been recorded since it was asked for the last time."""
    executor: Any = session._executor
    timeline = Timeline(executor.layout.plan.devices)
    for batch in executor.news.drain():
        timeline.extend(batch)
    return timeline
