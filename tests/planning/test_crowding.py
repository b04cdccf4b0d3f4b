"""Cores that work at the same time slow each other down: a predicted timeline is stretched where several of a machine work."""

from __future__ import annotations

import random
import threading
from typing import Any, ClassVar, cast

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.planning.fit.crowding import checked_factors, stretched
from rlinf_lab.runtime.profiling.crowding import Crowd
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

FACTORS = (1.0, 1.5, 2.0)
Made = list[tuple[tuple[str, ...], int, int]]


def timeline_of(runs: Made) -> Timeline:
    """One rank for each run: its devices, start and end in ns."""
    recorder, timeline = Recorder("simulated"), Timeline()
    for number, (devices, start, end) in enumerate(runs):
        recorder.add(recorder.track("w", number, devices), SpanKind.RUN, recorder.name("work"), start, end, 0)
    timeline.extend(recorder.drain())
    return timeline


def bare(runs: Made, time: int) -> float:
    """Where ``time`` comes to lie, nanosecond by nanosecond."""
    total = 0.0
    for moment in range(time):
        used = {d for devices, start, end in runs if start <= moment < end for d in devices if "cpu" in d}
        machines = [d.rpartition("/")[0] for d in used]
        crowd = max((machines.count(m) for m in machines), default=0)
        total += FACTORS[min(max(crowd, 1), len(FACTORS)) - 1]
    return total


@pytest.mark.parametrize("seed", range(30))
def test_every_moment_counts_as_often_as_the_cores_that_work_in_it_make_it(seed: int) -> None:
    rng = random.Random(seed)
    names = ["cpu:0", "cpu:1", "cpu:2", "cpu:3", "node1/cpu:0", "node1/cpu:1", "cuda:0"]
    runs: Made = []
    for _ in range(rng.randint(1, 8)):
        start = rng.randint(0, 60)
        runs.append((tuple(rng.sample(names, rng.randint(0, 2))), start, start + rng.randint(0, 40)))
    runs.append((("cpu:0",), 0, 1))
    before, after = timeline_of(runs), stretched(timeline_of(runs), FACTORS)
    assert len(after) == len(before) and after.devices == before.devices and after.tracks == before.tracks
    for old, new in zip(before.rows(), after.rows(), strict=True):
        assert (new.start_ns, new.end_ns) == pytest.approx((bare(runs, old.start_ns), bare(runs, old.end_ns)), abs=0.5)


def test_work_on_one_core_or_without_factors_takes_as_long_as_before() -> None:
    alone = [(("cpu:0",), 0, 10), (("cpu:0",), 5, 20), (("cuda:0",), 0, 20)]
    assert not stretched(timeline_of(alone), FACTORS).diff(timeline_of(alone))
    both = timeline_of([(("cpu:0",), 0, 10), (("cpu:1",), 0, 10)])
    assert stretched(both, ()) is both and stretched(both, (1.0,)) is both
    assert stretched(both, FACTORS).elapsed_ns == 15


@pytest.mark.parametrize("bad", [(2.0,), (1.0, 0.9), (1.0, float("nan")), (1.0, "x"), 3])
def test_factors_that_cannot_be_are_refused(bad: object) -> None:
    with pytest.raises(PlanError, match="how many times longer work takes when 1, 2, 3"):
        checked_factors(cast(Any, bad))


class Together(lab.Worker):
    """Two copies: iterations of even numbers are done alone, those of odd ones at the same time. (What follows from their seconds: `runtime`.)"""

    both = threading.Barrier(2)
    at_work: ClassVar[list[str]] = []

    def work(self) -> None:
        self.at_work.append(self.device)
        if self.iteration % 2:
            self.both.wait(60)
        elif len(self.at_work) > 1:
            raise RuntimeError(f"{self.at_work} are at work")
        self.compute(0.001)
        self.at_work.pop()


def test_copies_of_a_workflow_of_one_s_own_work_alone_and_together() -> None:
    flow = lab.Workflow("own")
    worker = flow.worker(Together, name="own")
    flow.iteration(lambda: worker.work())
    with Crowd("local", ["cpu:0", "cpu:1"], flow, emulate=True) as crowd:
        crowd.round()
        with pytest.raises(PlanError, match="after the with block"):
            crowd.factors()
    assert repr(crowd) == "Crowd(cpu:0, cpu:1: copies of workflow 'own', 1 rounds)"
    with pytest.raises(PlanError, match="the first round warms up, and 1 were done"):
        crowd.factors()


def test_rounds_are_done_in_the_block() -> None:
    measuring = lab.profiling.PingPong("local")
    with pytest.raises(PlanError, match=r"its sessions are not open\. Next: round\(\) in the with block"):
        measuring.round()
    with measuring:
        measuring.round()
    with pytest.raises(PlanError, match="its sessions are not open"):
        measuring.round()
