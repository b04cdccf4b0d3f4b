"""Shares of one device work at the same time: a plan names them as devices, in one process, with one memory and at the speed that `crowding` says."""

from __future__ import annotations

import random
import threading
from typing import Any, ClassVar

import built
import pytest
from mock_runs import run, seconds
from timed_flows import cell

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.planning.fit.crowding import checked_factors, stretched
from rlinf_lab.planning.plan.device import Device, extended, whole
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.plan.process_groups import place_hosts
from rlinf_lab.planning.replay.estimate import estimate
from rlinf_lab.runtime.profiling.crowding import Crowd
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

SHARES = ("cpu:0.1", "cpu:0.2")


def flow() -> lab.Workflow:
    """Two halves of the environments, each with three steps, of which the policy answers two."""
    return cell(0.04, 0.04, 2)


def plans(made: lab.Workflow) -> tuple[ExecutionPlan, ExecutionPlan]:
    one_by_one: dict[str, Any] = {"sub_batches": {"sim": 2}, "micro_batches": {"obs": 1}}
    temporal = ExecutionPlan.temporal(made, ["cpu:0"], **one_by_one)
    return temporal, ExecutionPlan.spatial(made, SHARES, {"sim": [0], "policy": [1]}, **one_by_one)


@pytest.mark.parametrize("name", ["node2/cuda:13.2", "cpu:0.1", "node1/cpu:3"])
def test_a_name_is_taken_apart_and_put_together(name: str) -> None:
    device = Device.parse(name)
    assert str(device) == name and device.local == whole(name).rpartition("/")[2]


FACTOR = "how many times longer work takes when 1, 2, 3"


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        *((lambda name=name: Device.parse(name), "is no device") for name in ("cuda:0.0", "cuda:0.01", "cuda.1")),
        (lambda: ExecutionPlan.temporal(flow(), ["cuda:1", "cuda:0", "cuda:0.2"]),
         r"has cuda:0 and a share of it, cuda:0\.2.*Next: shares only, 'cuda:0\.1' and 'cuda:0\.2'"),
        *((lambda bad=bad: checked_factors(bad), FACTOR) for bad in ((2.0,), (1.0, 0.9), (1.0, float("nan")), (1.0, "x"), 3)),
    ],
)  # fmt: skip
def test_what_is_no_share_no_plan_of_shares_and_no_factor_is_refused(ask: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        ask()
    assert extended(["cuda:0.1"], 2) == ("cuda:0.1", "cuda:1")


def test_shares_of_a_device_are_in_one_process_and_have_the_memory_of_one_device() -> None:
    made, places, shares = flow(), {"sim": [0], "policy": [1]}, ["cuda:0.1", "cuda:0.2"]
    apart, together = (place_hosts(Layout(made.graph, ExecutionPlan.spatial(made, on, places))) for on in (["cuda:0.1", "cuda:1.1"], shares))
    assert apart["sim", 0] != apart["policy", 0] and together["sim", 0] == together["policy", 0]
    fits: dict[str, Any] = {"memory": {"sim": 6, "policy": 3}, "working": {"policy": 1}, "device_memory": 10}
    ExecutionPlan.spatial(made, shares, places, **fits)
    ExecutionPlan.spatial(made, ["cuda:0", "cuda:1"], places, **{**fits, "device_memory": 9})
    with pytest.raises(PlanError, match=r"shares of cuda:0 need 6 \+ 4 units of memory at the same time .* has 9 "):
        ExecutionPlan.spatial(made, shares, places, **{**fits, "device_memory": 9})


def test_two_streams_overlap_as_far_as_they_do_not_slow_each_other_down() -> None:
    """Measured on all of the device, predicted for its shares, and run there: in a made-up time the same to the nanosecond.

    Six steps of simulator and four of the policy, one after another: 10 × 40 ms. With two halves in turn the policy's are hidden: 6 × 40 and one more.
    """
    made = flow()
    temporal, spatial = plans(made)
    measured, ran = (run(made, plan, 3) for plan in (temporal, spatial))
    assert seconds(measured) == pytest.approx(0.4)
    free = estimate(made, temporal, measured.timeline).iteration_seconds(spatial)
    assert free == pytest.approx(seconds(ran), rel=1e-6) and free < 0.3
    crowded = estimate(made, temporal, measured.timeline, crowding=(1.0, 2.0))
    assert crowded.iteration_seconds(temporal) == pytest.approx(0.4, rel=1e-6)
    assert crowded.iteration_seconds(spatial) == pytest.approx(0.4, rel=0.02), "at half the speed nothing is gained"
    lanes = {track.worker: track.devices for track in ran.timeline.tracks if track.worker in ("sim", "policy")}
    assert lanes == {"sim": ("cpu:0.1",), "policy": ("cpu:0.2",)}
    spans = [span for span in ran.timeline.rows() if span.kind == SpanKind.RUN and span.track.worker in lanes]
    assert any(a.start_ns < b.end_ns and b.start_ns < a.end_ns for a in spans for b in spans if a.track.worker != b.track.worker)


# --- cores that work at the same time slow each other down ----------------------------------------------------------
FACTORS = (1.0, 1.5, 2.0)
Made = list[tuple[tuple[str, ...], int, int]]


def timeline_of(runs: Made) -> Timeline:
    """One rank for each run: its devices, start and end in ns."""
    return built.timeline_of(*(("w", number, devices, SpanKind.RUN, start, end, 0) for number, (devices, start, end) in enumerate(runs)))


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
    assert stretched(before, ()) is before and stretched(before, (1.0,)) is before
    assert len(after) == len(before) and after.devices == before.devices and after.tracks == before.tracks
    for old, new in zip(before.rows(), after.rows(), strict=True):
        assert (new.start_ns, new.end_ns) == pytest.approx((bare(runs, old.start_ns), bare(runs, old.end_ns)), abs=0.5)


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
