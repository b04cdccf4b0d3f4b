"""A plan's channels hold what its consumers take at once: a smaller bound would cut every batch to what it holds."""

from __future__ import annotations

import pytest
from mock_runs import run

import rlinf_lab as lab
from rlinf_lab.planning.profile.profile import Profile


class Source(lab.Worker):
    def make(self, items: int, out: lab.Outbox) -> None:
        for i in range(items):
            self.compute(0.01)
            out.put(i)


class Sink(lab.Worker):
    def end(self, inbox: lab.Inbox) -> None:
        for batch in inbox:
            self.compute(1.0 + 0.01 * len(batch))


def case(items: int, capacity: int | str | None, ranks: int = 1) -> tuple[lab.Workflow, Profile]:
    """Each of the sink's batches takes a second, and its items little."""
    flow = lab.Workflow("two")
    samples = flow.channel("samples") if capacity == "default" else flow.channel("samples", capacity=capacity)
    source, sink = flow.worker(Source, name="source"), flow.worker(Sink, name="sink")

    @flow.iteration
    def iteration() -> None:
        source.make(items, samples)
        sink.end(samples)

    def worker(always: float, devices: int) -> dict:
        sizes = sorted({devices, items})
        return {"samples": [{"devices": devices, "items": n, "seconds": always + 0.01 * n / devices} for n in sizes], "ranks": {"counts": [devices]}}

    workers = {"source": worker(0.0, 1), "sink": worker(1.0, ranks)}
    return flow, Profile.from_dict({"items": items, "workers": workers, "edges": [{"producer": "source", "consumer": "sink"}]})


@pytest.mark.parametrize(("items", "capacity", "ranks"), [(16, 2, 1), (16, 8, 1), (512, "default", 1), (64, 4, 2), (16, None, 1)])
def test_a_run_takes_what_its_plan_says_whatever_a_channel_may_hold(items: int, capacity: int | str | None, ranks: int) -> None:
    flow, profile = case(items, capacity, ranks)
    for plan in lab.plan(flow, [f"cpu:{i}" for i in range(ranks + 1)], profile):
        seconds = float(run(flow, plan, 3).timeline.iterations()["seconds"].iloc[-1])
        assert seconds == pytest.approx(plan.seconds, rel=0.02), plan


def test_the_plan_says_what_a_channel_holds_and_leaves_what_is_enough() -> None:
    flow, profile = case(512, "default")
    streams = lab.plan(flow, ["cpu:0", "cpu:1"], profile)["spatial"].execution
    micro_batch = streams.micro_batches["samples"]
    assert streams.capacities == {"samples": min(512, 2 * micro_batch)} and micro_batch > 64 and f"samples {streams.capacities['samples']}" in repr(streams)
    turns = lab.plan(flow, ["cpu:0", "cpu:1"], profile)["temporal"].execution
    assert not turns.capacities  # who shares a device has no bound
    flow, profile = case(16, 64)
    assert not any(p.execution.capacities for p in lab.plan(flow, ["cpu:0", "cpu:1"], profile))
