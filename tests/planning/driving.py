"""What tests share that run random flows with held up threads on the local executor."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.host.control.scheduler import Scheduler
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.workflow import Workflow


def hold_up_threads(monkeypatch: pytest.MonkeyPatch, seed: int, share: float, seconds: float) -> None:
    """At random places: the order in which they happen to run must have no influence."""
    rng, guard, original = random.Random(seed), threading.Lock(), Scheduler.post

    def delayed(self: Scheduler, *args: Any, **kwargs: Any) -> Any:
        with guard:
            pause = rng.random() < share
        if pause:
            time.sleep(seconds)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Scheduler, "post", delayed)


def recorded(plan: ExecutionPlan, executor: LocalExecutor) -> Timeline:
    """What a stopped executor has recorded."""
    timeline = Timeline(plan.devices)
    for batch in executor.news.drain():
        timeline.extend(batch)
    return timeline


def executed(flow: Workflow, plan: ExecutionPlan, iterations: int = 3, arguments: Callable[[int], tuple] = lambda i: ()) -> Timeline:
    """Really run, with a clock that computing alone moves. ``arguments`` of the iteration function, by iteration."""
    return finished(LocalExecutor(flow, plan, MockClock()), plan, iterations, arguments)


def finished(executor: LocalExecutor, plan: ExecutionPlan, iterations: int = 3, arguments: Callable[[int], tuple] = lambda i: ()) -> Timeline:
    executor.start()
    session = Session(executor)
    try:
        for i in range(iterations):
            session.submit(*arguments(i))
        session.finish()
    finally:
        assert executor.stop() == Ended()
    return recorded(plan, executor)
