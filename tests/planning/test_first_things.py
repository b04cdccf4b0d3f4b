"""Who takes its devices before its input is there: the run does what the workflow says, and so do predictions, whatever stands in the profile."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import ClassVar

import pytest
from mock_runs import profiled, run, seconds
from timed_flows import Timed, timed

import rlinf_lab as lab
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.timeline.record.span import SpanKind

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


class Warms(Stage):
    """Computes where that is not seen: in a property. ``seen``: whether it was on its device."""

    seen: ClassVar[list[bool]] = []
    here = True

    def __init__(self) -> None:
        super().__init__(ITEMS, 0.0, EACH, 1)

    def onload(self) -> None:
        self.here = True

    def offload(self) -> None:
        self.here = False

    def model(self) -> None:
        self.seen.append(self.here)
        self.compute(EACH)

    hidden = property(model)

    def asks(self, inbox: lab.Inbox) -> None:
        model = self.hidden
        inbox.get_all()
        assert model is None


def test_who_computes_unseen_does_so_on_its_device() -> None:
    flow = lab.Workflow("unseen")
    x = flow.channel("x", capacity=None)
    a, b = flow.worker(Warms, name="a"), flow.worker(Warms, name="b")

    @flow.iteration
    def iteration() -> None:
        a.make(x)
        b.asks(x)

    Warms.seen.clear()
    plan = lab.ExecutionPlan.temporal(flow, ["cpu:0"], memory={"a": 2, "b": 2}, device_memory=3)
    spans = run(flow, plan, 3).timeline
    assert Warms.seen == [True] * 3
    runs = sorted((s["start"], s["end"]) for s in spans.spans if s["kind"] == SpanKind.RUN)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(runs))


@pytest.mark.parametrize("prepares", [False, True])
def test_the_workflow_tells_and_so_does_a_profile_of_a_run(prepares: bool) -> None:
    planned = lab.plan(chain(prepares), 1, believed().with_worker("b", starts_on_device=not prepares)).best
    of_plan, of_run = planned.candidate.placement.setting.profile, profiled(chain(prepares))
    assert Profile.from_json(of_run.to_json()) == of_run
    for profile in (of_plan, of_run):
        assert {n: w.starts_on_device for n, w in profile.workers.items()} == {"a": False, "b": prepares, "c": prepares}
