"""How much cores slow each other down, measured: one rank works, then two at the same time, then more."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.runtime.devices import cores
from rlinf_lab.runtime.run import run
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow

ROUNDS = 400  # of an iteration: some hundredths of a second
ITERATIONS = 9  # the first one warms up


class _Works(Worker):
    """As workers do: some Python, some small arrays, a small network."""

    def setup(self) -> None:
        import torch

        self.weights = np.ones((48, 48), np.float32) / 48
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
        self.inputs = torch.zeros(16, 64)

    def work(self) -> None:
        import torch

        with torch.no_grad():
            for _ in range(ROUNDS):
                np.tanh(self.weights @ self.weights).sum()
                sum(i * i for i in range(400))
                self.network(self.inputs)


def crowding(executor: str = "processes", devices: Sequence[str] | None = None, **options: Any) -> tuple[float, ...]:
    """How many times longer the same work takes when 1, 2, 4 ... of the ``devices`` (default: all cores) are busy: a factor for each number of them.

    Two threads of one core slow each other down; so do caches and a shared clock budget. About a second for each number that is tried; those between are
    interpolated. ``options``: of the executor. For ``lab.estimate(..., crowding=)``. Under ``"local"`` it is what threads of one interpreter lose.

    Raises `PlanError` without devices, and what the executor raises.
    """
    names = list(devices) if devices is not None else [f"cpu:{i}" for i in range(len(cores()))]
    if not names:
        raise PlanError("crowding(devices=[]): at least one device. Next: crowding(), or crowding(devices=['cpu:0', 'cpu:1']).")
    counts = sorted({1 << k for k in range(len(names).bit_length()) if 1 << k <= len(names)} | {len(names)})
    flow = Workflow("crowding")
    works = flow.worker(_Works, name="works")

    @flow.iteration
    def iteration() -> None:
        works.work()

    seconds = []
    for count in counts:
        plan = ExecutionPlan.temporal(flow, names[:count], {"works": count})
        seconds.append(_spent(run(flow, plan, ITERATIONS, executor, **options)))
    times = np.interp(range(1, len(names) + 1), counts, [s / seconds[0] for s in seconds])
    return tuple(accumulate(map(float, times), max))  # noise falls, too


def _spent(made: Any) -> float:
    """Median seconds of a call."""
    made.wait(60)
    timeline: Timeline = made.timeline
    return statistics.median((s.end_ns - s.start_ns) / 1e9 for s in timeline.rows() if s.kind == SpanKind.RUN and s.name == "work" and s.iteration > 0)
