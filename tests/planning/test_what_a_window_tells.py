"""Re-planning from runs with durations that are known exactly: fixed parts and items, handovers, calls of some iterations, what nobody accounts for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mock_runs import run, run_of
from timed_flows import Timed, timed

import rlinf_lab as lab
from rlinf_lab.planning.adapt.drift import Drift
from rlinf_lab.planning.adapt.profile_update import told_by_sizes
from rlinf_lab.planning.forecast.forecast import forecast
from rlinf_lab.planning.profile.profile import EdgeProfile, Handover, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.timeline.record.batch import SpanBatch
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


class Evaluator(lab.Worker):
    def evaluate(self) -> None:
        self.compute(0.2)


def two_stages(fixed: float, item: float, n: int) -> lab.Workflow:
    return timed("ab", n, {"a": (0.0, 0.01), "b": (fixed, item)})[0]


def sometimes(every: int) -> lab.Workflow:
    flow = lab.Workflow("evaluated")
    a = flow.channel("a", capacity=None)
    source, learner = (flow.worker(Timed, 16, 0.0, 0.01, 1, name=name) for name in "ab")
    evaluator = flow.worker(Evaluator, name="evaluator")
    count = [0]

    @flow.iteration
    def iteration():
        count[0] += 1
        source.make(a)
        learner.work(a)
        if count[0] % every == 0:
            evaluator.evaluate()

    return flow


def batch(fixed: float, item: float) -> WorkerProfile:
    return WorkerProfile(tuple(Sample(1, float(n), fixed + item * n) for n in (1, 48)), ranks=RankRule(most=1))


def believed(n: int = 48, fixed: float = 0.004, item: float = 0.007) -> Profile:
    return Profile(n, {"a": batch(0.0, 0.01), "b": batch(fixed, item)}, (EdgeProfile("a", "b"),))


def learner_costs(profile: Profile) -> tuple[float, float]:
    seconds = {s.items: s.seconds for s in profile.workers["b"].samples}
    each = (seconds[48] - seconds[1]) / 47
    return seconds[1] - each, each


def test_batches_of_two_sizes_tell_what_has_changed() -> None:
    """50 items in micro-batches of 4 leave a batch of 2 at the end: enough to tell 20 ms a batch from 20 ms an item."""
    for fixed, item in ((0.004, 0.03), (0.05, 0.007), (0.02, 0.02)):
        flow = two_stages(fixed, item, 50)
        best = lab.plan(flow, DEVICES[:2], believed(50), micro_batches=16)["spatial"]
        assert best.placement["b"]["micro_batches"] == 13
        found = lab.replan(run(flow, best, 9), best)
        assert learner_costs(found.profile) == (pytest.approx(fixed, rel=0.02), pytest.approx(item, rel=0.02)) and not found.notes


def test_batches_of_one_size_leave_two_readings() -> None:
    """Coarser micro-batches would help much if batches had become slower. It is the items, so they help little: what is promised is what comes."""
    flow = two_stages(0.004, 0.03, 64)
    best = lab.plan(flow, DEVICES[:2], believed(64))["spatial"]
    found = lab.replan(run(flow, best, 9), best)
    assert found.proposal is not None and found.proposal.seconds < 0.95 * found.then
    really = float(run(flow, found.proposal, 9).timeline.iterations()["seconds"].iloc[-1])
    assert really < found.elapsed.measured and found.then == pytest.approx(really, rel=0.02) and "the smaller one of both" in found.notes[0]


def test_a_plan_that_is_better_in_one_reading_only_is_not_proposed() -> None:
    flow = two_stages(0.0015, 0.03, 48)
    best = lab.plan(flow, DEVICES[:2], believed(fixed=0.0015))["spatial"]
    found = lab.replan(run(flow, best, 9), best)
    assert found.proposal is None and found.drifts[1].sustained
    assert "of one size" in found.notes[0] and "Next: measure again" in repr(found) and found.notes == tuple(found.to_dict()["notes"])


def test_sizes_tell_where_seconds_are_even() -> None:
    sizes, random = np.array([4.0, 4.0, 4.0, 2.0] * 8), np.random.default_rng(0)
    even = 0.02 + 0.03 * sizes
    assert told_by_sizes(sizes, even) == pytest.approx(0.02) and told_by_sizes(np.full(8, 4.0), np.full(8, 0.14)) is None
    assert told_by_sizes(sizes, even * random.normal(1.0, 0.01, 32)) == pytest.approx(0.02, abs=0.01)
    assert told_by_sizes(sizes, even * random.normal(1.0, 0.5, 32)) is None, "an intercept of noise tells nothing"


def test_drift_of_handovers_is_measured_by_itself() -> None:
    profile = believed().replace(handovers=(Handover("b", "weights", 0.1), Handover("a", "load", 0.2, ("b",))))
    best = lab.plan(profile, 2).best
    calm = lab.replan(forecast(best.candidate.placement, 9, best.devices), best)
    assert [d.worker for d in calm.drifts] == ["a", "b", "b.weights()", "a.load()"]
    assert not any(d.sustained for d in (*calm.drifts, calm.elapsed)) and calm.elapsed.factor == pytest.approx(1.0, rel=1e-6)
    slow = profile.replace(handovers=(profile.handovers[0], replace(profile.handovers[1], seconds=0.6)))
    found = lab.replan(run_of(best, slow), best)
    assert [d.worker for d in found.drifts if d.sustained] == ["a.load()"] and found.profile == slow
    assert found.now == pytest.approx(found.elapsed.measured, rel=0.02) and found.to_dict()["iteration"]["measured_s"] == found.elapsed.measured


def test_a_handover_of_some_iterations_does_not_drift() -> None:
    """Such as new weights every second iteration: the profile has the mean, which no iteration takes."""
    profile = believed().replace(handovers=(Handover("b", "weights", 0.05), Handover("a", "load", 0.1, ("b",))))
    best = lab.plan(profile, 2).best
    timeline = forecast(best.candidate.placement, 9, best.devices)
    rows = timeline.spans.copy()
    handed = np.isin(rows["name"], [i for i, name in enumerate(timeline.names) if name in ("weights", "load")]) & (rows["kind"] == SpanKind.RUN)
    rows["end"][handed] += rows["end"][handed] - rows["start"][handed]  # twice as long
    some = Timeline(timeline.devices)
    some.extend(SpanBatch("simulated", "some", 0, rows[~handed | (rows["iteration"] % 2 == 0)], tuple(timeline.tracks), tuple(timeline.names)))
    found = lab.replan(some, best)
    assert [(d.worker, d.percent, d.sustained) for d in found.drifts[2:]] == [("b.weights()", "0 %", False), ("a.load()", "0 %", False)]


def test_an_iteration_that_its_workers_do_not_account_for_is_no_stillness() -> None:
    """The learner waits for the whole batch, of which the profile knows nothing: nobody computes longer, every iteration is longer."""
    profile = believed()
    best = lab.plan(profile, 2)["spatial"]
    truth = profile.replace(edges=(EdgeProfile("a", "b", whole=True, value=True),))
    found = lab.replan(run_of(best, truth), best)
    assert not any(d.sustained for d in found.drifts) and found.elapsed.sustained and found.elapsed.factor > 1.3
    said = repr(found)
    assert "No sustained drift" not in said and "No worker drifts" in said and "is not in the profile" in said
    assert "an iteration takes" in found._repr_html_()


def test_a_worker_of_some_iterations_counts_with_its_share() -> None:
    flow = sometimes(3)
    plan = lab.ExecutionPlan.temporal(flow, DEVICES[:1])
    profile = lab.planning.profile_from_run(flow, plan, run(flow, plan, 10).timeline)
    assert profile.workers["evaluator"].calls == pytest.approx(1 / 3) and profile.workers["evaluator"].samples[0].seconds == pytest.approx(0.2)
    assert any("'evaluator' worked in 3 of the 9 iterations" in note for note in profile.notes)
    best = lab.plan(flow, DEVICES[:1], profile).best
    done = run(flow, best, 12)
    assert best.seconds == pytest.approx(done.timeline.elapsed_ns / 12e9, rel=1e-6)
    found = lab.replan(done, best)
    drift = next(d for d in found.drifts if d.worker == "evaluator")
    assert drift.percent == "0 %" and not drift.sustained and not found.elapsed.sustained


def test_percents_are_signed_where_there_is_something_to_sign() -> None:
    assert [Drift("w", 1.0, m, False).percent for m in (0.998, 1.004, 1.2, 0.5)] == ["0 %", "0 %", "+20 %", "-50 %"]
