"""How much cores slow each other down, measured. A copy of the work runs on each core alone, then on two at the same
time, then on more, round after round.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.machine.devices import cores
from rlinf_lab.runtime.profiling.rounds import Rounds
from rlinf_lab.runtime.profiling.typical import TypicalWork
from rlinf_lab.runtime.run.run import session
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow

REPEATS = 400  # of an iteration: some hundredths of a second
ROUNDS = 12  # the first one warms up

Shifts = Sequence[tuple[int, ...]]
"""the devices on which a copy works, by position, in each step of a round"""


class _Works(Worker):
    def setup(self) -> None:
        self.typical = TypicalWork()

    def work(self) -> None:
        self.typical.do(REPEATS)


def crowding(
    executor: str = "processes", devices: Sequence[str] | None = None, flow: Workflow | None = None, **options: Any
) -> tuple[float, ...]:
    """How many times longer the same work takes when 1, 2, 4 ... of the ``devices`` (default: all cores) are busy: a
    factor for each number of them.

    Two threads of one core slow each other down; so do caches and a shared clock budget. How much depends on the work:
    ``flow`` is the workflow whose iterations are done, all of it on each device (default: some Python, small arrays and
    a small network, a second or two). Numbers between those that are tried are interpolated. ``options``: of the
    executor. For ``lab.estimate(..., crowding=)``. Under ``"local"`` it is what threads of one interpreter lose, and
    streams of one GPU: ``crowding("local", ["cuda:0.1", "cuda:0.2"], flow)``.

    What works together is compared with the same copies alone in the same round, just before: a machine that others
    use, too, is faster in one second than in the next by more than its cores slow each other down. See `Crowd` for
    rounds between other measurements.

    Raises `PlanError` without devices, and what the executor raises.
    """
    with Crowd(executor, devices, flow, **options) as crowd:
        for _ in range(ROUNDS):
            crowd.round()
    return crowd.factors()


class Crowd(Rounds):
    """Copies of a workflow, one on each device, that work alone and together by turns. Arguments are those of
    `crowding`.

    ``with Crowd(...) as crowd:`` and in it `round`, at least twice (the first one warms up); `factors` after it, when
    all that was recorded has come.
    """

    def __init__(
        self,
        executor: str = "processes",
        devices: Sequence[str] | None = None,
        flow: Workflow | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.devices = tuple(devices) if devices is not None else tuple(f"cpu:{i}" for i in range(len(cores())))
        if not self.devices:
            raise PlanError(
                "crowding(devices=[]): at least one device. Next: crowding(), or crowding(devices=['cpu:0', 'cpu:1'])."
            )
        n = len(self.devices)
        self._counts = sorted({1 << k for k in range(n.bit_length()) if 1 << k <= n} | {n})
        self._shifts = [*((i,) for i in range(n)), *(tuple(range(count)) for count in self._counts[1:])]
        self._flow, self._executor, self._options = _typical() if flow is None else flow, executor, options
        # of each copy, which step of all its iterations were
        self._steps: list[dict[int, int]] = [{} for _ in self.devices]

    def _open(self, opening: ExitStack) -> None:
        plans = [ExecutionPlan.temporal(self._flow, [device]) for device in self.devices]
        self._copies = [
            opening.enter_context(session(self._flow, plan, self._executor, **self._options)) for plan in plans
        ]
        self._threads = opening.enter_context(ThreadPoolExecutor(len(plans)))

    def _do_round(self) -> None:
        """Each copy does an iteration alone, then two at the same time, then more."""
        done: list[dict[int, int]] = [{} for _ in self.devices]
        for number, shift in enumerate(self._shifts, self._rounds * len(self._shifts)):
            steps = [self._threads.submit(self._copies[i].step) for i in shift]
            wait(steps)  # nobody computes on when one of them has failed
            for i, step in zip(shift, steps, strict=True):
                step.result()
                done[i][self._copies[i].iteration - 1] = number
        for steps_of_copy, new in zip(self._steps, done, strict=True):
            steps_of_copy.update(new)

    def factors(self) -> tuple[float, ...]:
        """As `crowding` returns them. Raises `PlanError` before the end of the block and for less than two rounds."""
        self._refuse_early("factors")
        spent = {
            (steps[iteration], i): seconds
            for i, (copy, steps) in enumerate(zip(self._copies, self._steps, strict=True))
            for iteration, seconds in computed(copy.timeline).items()
            if iteration in steps  # of a round that was done to its end
        }
        times = np.interp(range(1, len(self.devices) + 1), self._counts, _factors(spent, self._shifts))
        return tuple(accumulate(map(float, times), max))  # noise falls, too

    def __repr__(self) -> str:
        return f"Crowd({', '.join(self.devices)}: copies of workflow {self._flow.name!r}, {self._rounds} rounds)"


def _typical() -> Workflow:
    flow = Workflow("crowding")
    works = flow.worker(_Works, name="works")

    @flow.iteration
    def iteration() -> None:
        works.work()

    return flow


def _factors(spent: Mapping[tuple[int, int], float], shifts: Shifts) -> list[float]:
    """How many times longer copies that work together take than alone, by their number. Both are of the same round;
    medians over rounds and copies are given.

    ``spent``: seconds by (step, copy); steps are the shifts of a round, round after round, and the first round does not
    count.
    """
    alone = {shift[0]: i for i, shift in enumerate(shifts) if len(shift) == 1}
    begins = range(len(shifts), max(i for i, _ in spent) + 1, len(shifts))
    together = [(i, shift) for i, shift in enumerate(shifts) if len(shift) > 1]
    return [
        1.0,
        *(
            statistics.median(spent[b + i, r] / spent[b + alone[r], r] for b in begins for r in shift)
            for i, shift in together
        ),
    ]


def computed(timeline: Timeline) -> dict[int, float]:
    """Seconds that the workers computed in each iteration."""
    sums: dict[int, int] = {}
    for span in timeline.rows():
        if span.kind == SpanKind.RUN and span.track.worker != DRIVER:
            sums[span.iteration] = sums.get(span.iteration, 0) + span.end_ns - span.start_ns
    return {iteration: ns / 1e9 for iteration, ns in sums.items()}
