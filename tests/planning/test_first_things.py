"""Who takes its devices before its input is there: the run does what the workflow says, and so do predictions, whatever stands in the profile."""

from __future__ import annotations

from typing import Any

import pytest
from mock_runs import profiled, run, seconds

import rlinf_lab as lab
from rlinf_lab.planning.profile import Profile

ITEMS, SWITCH, EACH = 8, 3.0, 1.0


class Stage(lab.Worker):
    def onload(self) -> None:
        self.compute(SWITCH)

    def offload(self) -> None:
        self.compute(SWITCH)

    def make(self, out: lab.Outbox) -> None:
        for i in range(ITEMS):
            self.compute(EACH)
            out.put(i)

    def reads(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        sizes: list[int] = []
        for batch in inbox:
            self.hand_on(batch, out)
            sizes.append(len(batch))

    def prepares(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        self.prepare()
        for batch in inbox:
            self.hand_on(batch, out)

    def prepare(self) -> None:
        pass

    def hand_on(self, batch: list[int], out: lab.Outbox) -> None:
        self.compute(EACH * len(batch))
        out.put_all(batch)

    def ends(self, inbox: lab.Inbox) -> list[int]:
        sizes = []
        for batch in inbox:
            self.compute(EACH * len(batch))
            sizes.append(len(batch))
        return sizes

    def ends_prepared(self, inbox: lab.Inbox) -> list[int]:
        self.prepare()
        return self.ends(inbox)


def chain(prepares: bool) -> lab.Workflow:
    flow = lab.Workflow("chain")
    x, y = flow.channel("x", capacity=None), flow.channel("y", capacity=None)
    a, b, c = (flow.worker(Stage, name=n) for n in "abc")

    @flow.iteration
    def iteration() -> Any:
        a.make(x)
        b.prepares(x, y) if prepares else b.reads(x, y)
        return c.ends_prepared(y) if prepares else c.ends(y)

    return flow


def believed() -> Profile:
    """By hand. All need most of a device, so those on one take turns."""
    one = {
        "samples": [{"devices": 1, "items": ITEMS, "seconds": ITEMS * EACH}], "ranks": {"counts": [1]}, "memory": {"resident_gib": 60.0},
        "onload_s": SWITCH, "offload_s": SWITCH,
    }  # fmt: skip
    edges = [{"producer": "a", "consumer": "b"}, {"producer": "b", "consumer": "c"}]
    return Profile.from_dict({"items": ITEMS, "workers": dict.fromkeys("abc", one), "edges": edges, "device_memory_gib": 80.0})


@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("prepares", [False, True])
def test_a_run_takes_what_was_promised_whoever_prepares(prepares: bool, devices: int) -> None:
    flow = chain(prepares)
    for planned in lab.plan(flow, [f"cpu:{i}" for i in range(devices)], believed(), chunks=4):
        assert planned.simulated is not None
        assert seconds(run(flow, planned)) == pytest.approx(planned.seconds, rel=1e-6), planned
        early = [note for note in planned.notes if "before its first get" in note]
        shares = any(len(there) > 1 for there in on_each_device(planned).values())
        assert bool(early) == (prepares and shares), planned


def on_each_device(planned: lab.Planned) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for worker, ranks in planned.execution.placements.items():
        for devices in ranks:
            for device in devices:
                found.setdefault(device, []).append(worker)
    return found


def test_preparing_costs_turns_and_the_plans_say_so() -> None:
    """Two devices: where c shares one with b, it comes once for nothing."""
    found = [lab.plan(chain(prepares), ["cpu:0", "cpu:1"], believed(), chunks=4) for prepares in (False, True)]
    worst = [max(p.seconds for p in plans if p.mode == "hybrid") for plans in found]
    assert worst[1] > worst[0] + SWITCH


def test_the_workflow_tells_and_not_the_profile() -> None:
    for prepares in (False, True):
        profile = believed().with_worker("b", starts_on_device=not prepares)
        planned = lab.plan(chain(prepares), 1, profile).best
        workers = planned.candidate.placement.setting.profile.workers
        assert {n: w.starts_on_device for n, w in workers.items()} == {"a": False, "b": prepares, "c": prepares}


def test_a_profile_of_a_run_knows_it() -> None:
    for prepares in (False, True):
        profile = profiled(chain(prepares))
        assert [w.starts_on_device for w in profile.workers.values()] == [False, prepares, prepares]
        assert Profile.from_json(profile.to_json()) == profile
