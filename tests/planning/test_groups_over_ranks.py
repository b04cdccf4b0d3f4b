"""A group is never split over ranks or batches: a plan counts what a run then does, in seconds and in memory."""

from __future__ import annotations

from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.planning.profile import Profile
from rlinf_lab.runtime.clocks import MockClock

SECONDS = 8.0  # of each worker for all items on one device


class Rollout(lab.Worker):
    def generate(self, items: int, group: int, out: lab.Outbox) -> None:
        for i in range(items):
            self.compute(SECONDS / items)
            out.put(i, key=i // group)


class Learner(lab.Worker):
    def train(self, items: int, inbox: lab.Inbox) -> list[int]:
        sizes = []
        for batch in inbox:
            sizes.append(sum(len(group) for group in batch))
            self.compute(SECONDS / items * sizes[-1])
        return sizes


def flow_of(items: int, group: int) -> lab.Workflow:
    flow = lab.Workflow("groups")
    channel = flow.channel("a", capacity=None, group=group)
    rollout, learner = flow.worker(Rollout, name="rollout"), flow.worker(Learner, name="learner")

    @flow.iteration
    def iteration() -> Any:
        rollout.generate(items, group, channel)
        return learner.train(items, channel)

    return flow


def profile_of(items: int, group: int, per_item_gib: float = 0.0) -> Profile:
    sample = {"devices": 1, "items": items, "seconds": SECONDS}
    workers = {
        "rollout": {"samples": [sample], "ranks": {"counts": [1]}},
        "learner": {"samples": [sample], "memory": {"per_item_gib": per_item_gib}, "offloadable": not per_item_gib},
    }
    edge = {"producer": "rollout", "consumer": "learner", "group": group}
    return Profile.from_dict({"items": items, "workers": workers, "edges": [edge], "device_memory_gib": 66.0 if per_item_gib else None})


def run(flow: lab.Workflow, plan: Any) -> tuple[float, list[list[int]]]:
    """Seconds of the last iteration, and its batches by rank."""
    done = lab.run(flow, plan, 3, dashboard=False, clock=MockClock())
    batches = done.wait()[-1]
    return float(done.timeline.iterations()["seconds"].iloc[-1]), batches if isinstance(batches[0], list) else [batches]


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize(("items", "group"), [(32, 4), (32, 16), (32, 32), (24, 3)])
def test_a_run_takes_what_the_plan_says(items: int, group: int, devices: int) -> None:
    flow = flow_of(items, group)
    for planned in lab.plan(flow, [f"cpu:{i}" for i in range(devices)], profile_of(items, group), chunks=8):
        seconds, batches = run(flow, planned)
        assert seconds == pytest.approx(planned.seconds, rel=1e-6), planned.shape
        assert sum(map(sum, batches)) == items and all(size % group == 0 for rank in batches for size in rank)


@pytest.mark.parametrize(("items", "group"), [(24, 8), (30, 5), (35, 5)])
def test_chunks_that_are_not_whole_groups_are_smaller_in_a_run(items: int, group: int) -> None:
    flow = flow_of(items, group)
    for planned in lab.plan(flow, ["cpu:0", "cpu:1"], profile_of(items, group), chunks=8):
        seconds, _ = run(flow, planned)
        assert seconds <= planned.seconds * (1 + 1e-6), planned.shape


@pytest.mark.parametrize("devices", [1, 2])
def test_what_a_rank_holds_is_whole_groups(devices: int) -> None:
    items, group, gib = 30, 5, 8.0
    flow = flow_of(items, group)
    for planned in lab.plan(flow, [f"cpu:{i}" for i in range(devices)], profile_of(items, group, gib), chunks=8):
        _, batches = run(flow, planned)
        held = planned.candidate.placement.gib
        assert gib * max(size for rank in batches for size in rank) <= max(held(d) for d in range(devices)) <= 66.0
