"""Values that go from call to call: what a run with new weights takes is what its profile's plans say, and runs of those plans."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_runs import profiled, run, seconds
from timed_flows import Timed

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.profile.handovers import handed_over, is_closed, tail
from rlinf_lab.planning.profile.profile import EdgeProfile, Handover, Profile, Sample, WorkerProfile

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


class Part(Timed):
    """``seconds``: of giving weights, or of loading them."""

    def __init__(self, item: float, seconds: float) -> None:
        super().__init__(16, 0.0, item, 1)
        self.seconds = seconds

    def load(self, weights: float) -> None:
        self.compute(self.seconds)

    def weights(self) -> float:
        self.compute(self.seconds)
        return 2.0


def weights_by_value(item: float = 0.01, weights: float = 0.5, load: float = 0.5, stages: tuple[float, ...] = (), kind: type[Part] = Part, first: bool = False) -> lab.Workflow:
    """The loop of the papers: generate, train, hand the new weights to whoever generates."""
    flow = lab.Workflow("sync")
    channels = [flow.channel(f"c{i}", capacity=None) for i in range(len(stages) + 1)]
    source, learner = flow.worker(kind, item, load, name="source"), flow.worker(kind, item, weights, name="learner")
    between = [flow.worker(Timed, 16, 0.0, s, 1, name=f"stage{i}") for i, s in enumerate(stages)]

    @flow.iteration
    def iteration():
        if first:
            source.load(learner.weights())
            source.load(source.weights())  # which it need not wait for
        source.make(channels[0])
        for i, stage in enumerate(between):
            stage.work(channels[i], channels[i + 1])
        update = learner.work(channels[-1])
        if not first:
            source.load(learner.weights())
        return update

    return flow


def test_new_weights_by_value_are_in_profile_and_plans() -> None:
    flow = weights_by_value()
    profile = profiled(flow)
    assert profile.handovers == (Handover("learner", "weights", 0.5), Handover("source", "load", 0.5, ("learner",)))
    assert "then source.load(): 0.5 s, after learner" in repr(profile) and Profile.from_json(profile.to_json()) == profile
    plans = lab.plan(flow, DEVICES[:2], profile)
    assert plans.best.mode == "spatial" and plans.best.seconds == pytest.approx(1.17)
    assert plans.bound.seconds == pytest.approx(1.16) and "handing over 1 s" in plans.bound.why
    assert "handing over 1 s" in plans["temporal"].reason and "switching" not in plans["temporal"].reason
    for plan in plans:
        assert seconds(run(flow, plan)) == pytest.approx(plan.seconds, rel=1e-6) and plan.candidate.seconds == pytest.approx(plan.seconds, rel=0.02)


def test_what_is_handed_over_before_anything_streams_is_no_handover() -> None:
    assert not profiled(weights_by_value(first=True)).handovers


class Large(Part):
    def onload(self) -> None:
        self.compute(self.seconds / 4)

    def offload(self) -> None:
        self.compute(self.seconds / 8)


@pytest.mark.parametrize("staleness", [0, 1])
def test_who_loads_new_weights_comes_to_its_device_for_it(staleness: int) -> None:
    """One device for both: the source comes back to load, and stays for the next iteration."""
    flow = weights_by_value(0.01, 0.3, 0.4, kind=Large)
    measured = lab.ExecutionPlan.temporal(flow, DEVICES[:1], memory={"source": 1, "learner": 1}, device_memory=1)
    profile = lab.planning.profile_from_run(flow, measured, run(flow, measured).timeline)
    plans = lab.plan(flow, DEVICES[:1], profile, staleness=staleness)
    assert plans.best.seconds == pytest.approx(1.2825) and plans.best.candidate.seconds == pytest.approx(1.2825)
    assert seconds(run(flow, plans.best)) == pytest.approx(1.2825) and plans.bound.seconds == pytest.approx(1.02)


@settings(max_examples=4, deadline=None)
@given(
    st.floats(0.001, 0.05), st.floats(0.0, 0.5), st.floats(0.001, 0.5), st.lists(st.floats(0.001, 0.05), max_size=1).map(tuple), st.integers(0, 2)
)  # fmt: skip
def test_plans_take_what_runs_take(item: float, weights: float, load: float, stages: tuple[float, ...], staleness: int) -> None:
    """Also with staleness, which cannot help who waits for new weights."""
    flow = weights_by_value(item, weights, load, stages)
    plans = lab.plan(flow, DEVICES, profiled(flow), staleness=staleness)
    assert is_closed(plans.profile)
    for plan in (plans.best, plans[-1]):
        assert seconds(run(flow, plan, 5)) == pytest.approx(plan.seconds, rel=0.02)
    assert weights + load < plans.bound.seconds <= plans.best.seconds * (1 + 1e-6)


def by_hand(handovers: tuple[Handover, ...]) -> Profile:
    workers = {w: WorkerProfile((Sample(1, 8.0, 1.0),)) for w in ("a", "b", "c")}
    return Profile(8, workers, (EdgeProfile("a", "b"), EdgeProfile("b", "c")), handovers=handovers)


def test_only_what_begins_after_everything_counts_for_every_plan() -> None:
    late = by_hand((Handover("c", "weights", 1.0), Handover("a", "load", 2.0, ("c",))))
    assert tail(late) == 3.0 and is_closed(late)
    with pytest.raises(ConfigError, match=r"are both a.load\(\)"):
        by_hand((Handover("a", "load", 1.0), Handover("a", "load", 2.0)))
    early = by_hand((Handover("a", "report", 5.0), Handover("b", "log", 1.0, ("a",))))
    assert tail(early) == 0.0 and not is_closed(early) and tail(by_hand(())) == 0.0
    ended = handed_over(early, {"a": 1.0, "b": 4.0, "c": 9.0})
    assert ended == {"a": 6.0, "b": 7.0, "c": 9.0}
    assert lab.plan(early, 3).bound.seconds <= lab.plan(early, 3).best.seconds
    one_device = lab.plan(early, {"": 1}, staleness=1).best  # iterations overlap, but the device has its work and the handovers of all
    assert one_device.seconds == pytest.approx(9.0, rel=0.01) and one_device.candidate.seconds == pytest.approx(9.0)


def test_who_waits_for_a_value_goes_on_doing_so_when_an_earlier_iteration_ends() -> None:
    """c waits for a's second value from 1.1 to 2 s, and the first iteration ends with b at 1.5 s."""
    flow = lab.Workflow("overlapping")
    a, b, c = (flow.worker(Part, 0.0, each, name=name) for name, each in (("a", 1.0), ("b", 1.5), ("c", 0.1)))
    flow.iteration(lambda: (c.load(a.weights()), b.weights()))
    plan = lab.ExecutionPlan.spatial(flow, DEVICES, {"a": [0], "b": [1], "c": [2]}, staleness=1)
    done = run(flow, plan)
    assert lab.estimate(flow, plan, done.timeline).simulate(plan, 4).elapsed_ns == done.timeline.elapsed_ns == 6e9
