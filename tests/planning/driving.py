"""What tests share that run random flows with held up threads on the local executor."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.host.control.scheduler import Scheduler
from rlinf_lab.timeline.timeline import Timeline


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
