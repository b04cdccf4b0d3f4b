"""How much cores slow each other down, measured: each rank works alone, then two at the same time, then more, round after round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.runtime.devices import cores
from rlinf_lab.runtime.run import session
from rlinf_lab.runtime.typical import TypicalWork
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow

REPEATS = 400  # of an iteration: some hundredths of a second
ROUNDS = 12  # the first one warms up

Shifts = Sequence[tuple[int, ...]]
"""the ranks that work in each iteration of a round"""


class _Works(Worker):
    def setup(self) -> None:
        self.typical = TypicalWork()

    def work(self, who: Sequence[int]) -> None:
        if self.rank in who:
            self.typical.do(REPEATS)


def crowding(executor: str = "processes", devices: Sequence[str] | None = None, **options: Any) -> tuple[float, ...]:
    """How many times longer the same work takes when 1, 2, 4 ... of the ``devices`` (default: all cores) are busy: a factor for each number of them.

    Two threads of one core slow each other down; so do caches and a shared clock budget. A second or two; numbers between those that are tried are
    interpolated. ``options``: of the executor. For ``lab.estimate(..., crowding=)``. Under ``"local"`` it is what threads of one interpreter lose.

    What works together is compared with the same ranks alone in the same round, tenths of a second before: a machine that others use, too, is faster in
    one second than in the next by more than its cores slow each other down.

    Raises `PlanError` without devices, and what the executor raises.
    """
    names = list(devices) if devices is not None else [f"cpu:{i}" for i in range(len(cores()))]
    if not names:
        raise PlanError("crowding(devices=[]): at least one device. Next: crowding(), or crowding(devices=['cpu:0', 'cpu:1']).")
    counts = sorted({1 << k for k in range(len(names).bit_length()) if 1 << k <= len(names)} | {len(names)})
    shifts = [*((rank,) for rank in range(len(names))), *(tuple(range(count)) for count in counts[1:])]
    flow = Workflow("crowding")
    works = flow.worker(_Works, name="works")

    @flow.iteration
    def iteration(who: Sequence[int] = (0,)) -> None:
        works.work(who)

    plan = ExecutionPlan.temporal(flow, names, {"works": len(names)})
    with session(flow, plan, executor, **options) as made:
        for _ in range(ROUNDS):
            for shift in shifts:
                made.step(shift)
    factors = _factors(_spent(made.timeline), shifts)
    times = np.interp(range(1, len(names) + 1), counts, factors)
    return tuple(accumulate(map(float, times), max))  # noise falls, too


def _factors(spent: Mapping[tuple[int, int], float], shifts: Shifts) -> list[float]:
    """For each number of ranks that work together, how many times longer they take than alone in the same round: medians over rounds and ranks.

    ``spent``: by (iteration, rank); iterations are the shifts of a round, round after round, and the first round does not count.
    """
    alone = {shift[0]: i for i, shift in enumerate(shifts) if len(shift) == 1}
    begins = range(len(shifts), max(i for i, _ in spent) + 1, len(shifts))
    together = [(i, shift) for i, shift in enumerate(shifts) if len(shift) > 1]
    return [1.0, *(statistics.median(spent[b + i, r] / spent[b + alone[r], r] for b in begins for r in shift) for i, shift in together)]


def _spent(timeline: Timeline) -> dict[tuple[int, int], float]:
    """Seconds of each call by (iteration, rank)."""
    found: dict[tuple[int, int], float] = {}
    for span in timeline.rows():
        if span.kind == SpanKind.RUN and span.name == "work":
            key = span.iteration, span.track.rank
            found[key] = found.get(key, 0.0) + (span.end_ns - span.start_ns) / 1e9
    return found
