"""Who takes its devices before its input is there: the run does what the workflow says, and so do predictions, whatever stands in the profile."""

from __future__ import annotations

from collections import Counter

import pytest
from mock_runs import profiled, run, seconds
from timed_flows import Timed, timed

import rlinf_lab as lab
from rlinf_lab.planning.profile.profile import Profile

ITEMS, SWITCH, EACH = 8, 3.0, 1.0


class Stage(Timed):
    def onload(self) -> None:
        self.compute(SWITCH)

    def offload(self) -> None:
        self.compute(SWITCH)


class Prepares(Stage):
    def work(self, inbox: lab.Inbox, *outs: lab.Outbox) -> list[int]:
        self.prepare()
        return [self.worked(batch, outs) for batch in inbox]

    def prepare(self) -> None:
        pass


def chain(prepares: bool) -> lab.Workflow:
    kind = Prepares if prepares else Stage
    return timed("ab bc", ITEMS, dict.fromkeys("abc", (0, EACH)), kinds={"a": Stage, "b": kind, "c": kind})[0]


def believed() -> Profile:
    """By hand. All need most of a device, so those on one time-share."""
    one = {
        "samples": [{"devices": 1, "items": ITEMS, "seconds": ITEMS * EACH}], "ranks": {"counts": [1]}, "memory": {"resident_gib": 60.0},
        "onload_s": SWITCH, "offload_s": SWITCH,
    }  # fmt: skip
    edges = [{"producer": "a", "consumer": "b"}, {"producer": "b", "consumer": "c"}]
    return Profile.from_dict({"items": ITEMS, "workers": dict.fromkeys("abc", one), "edges": edges, "device_memory_gib": 80.0})


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("prepares", [False, True])
def test_a_run_takes_what_was_promised_whoever_prepares(prepares: bool, devices: int) -> None:
    flow = chain(prepares)
    for planned in lab.plan(flow, [f"cpu:{i}" for i in range(devices)], believed(), micro_batches=4):
        assert planned.simulated is not None
        assert seconds(run(flow, planned)) == pytest.approx(planned.seconds, rel=1e-6), planned
        early = [note for note in planned.notes if "before its first get" in note]
        seats = Counter(d for ranks in planned.execution.placements.values() for devices in ranks for d in devices)
        assert bool(early) == (prepares and max(seats.values()) > 1), planned


@pytest.mark.parametrize("fed", [False, True])
def test_who_begins_a_cycle_is_not_told_to_read_first(fed: bool) -> None:
    """It would stand still. Where nobody else feeds it, it takes its devices once, for its items come when it is there."""
    one = believed().to_dict()["workers"]["a"]
    workers = dict.fromkeys("abcd", one) | {n: {**one, "memory": {"resident_gib": 30.0}, "starts_on_device": n == "a"} for n in "ab"}
    edges = [{"producer": p, "consumer": c} for p, c in ("ab", "ba", "ac", *(["da"] if fed else []))]
    profile = Profile.from_dict({"items": ITEMS, "workers": workers if fed else {n: workers[n] for n in "abc"}, "edges": edges, "device_memory_gib": 80.0})
    notes = [note for note in lab.plan(profile, 1).best.notes if "before its first get" in note]
    assert len(notes) == fed
    assert all("Next" not in note and "from c and d before" in note for note in notes)


@pytest.mark.parametrize("prepares", [False, True])
def test_the_workflow_tells_and_so_does_a_profile_of_a_run(prepares: bool) -> None:
    planned = lab.plan(chain(prepares), 1, believed().with_worker("b", starts_on_device=not prepares)).best
    of_plan, of_run = planned.candidate.placement.setting.profile, profiled(chain(prepares))
    assert Profile.from_json(of_run.to_json()) == of_run
    for profile in (of_plan, of_run):
        assert {n: w.starts_on_device for n, w in profile.workers.items()} == {"a": False, "b": prepares, "c": prepares}
