"""Re-planning: drift is seen, a better plan is proposed with its payback, and nothing is proposed without reason."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mock_runs import run, run_of
from timed_flows import Timed, timed

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.planning.adapt.profile_update import told_by_sizes
from rlinf_lab.planning.adapt.replan import replan
from rlinf_lab.planning.forecast.forecast import forecast
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import EdgeProfile, Handover, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.timeline.record.batch import SpanBatch
from rlinf_lab.timeline.timeline import Timeline

DOCS = Path(__file__).parents[2] / "docs"


def flat(seconds: float) -> WorkerProfile:
    return WorkerProfile((Sample(1, 64.0, seconds), Sample(8, 64.0, 0.8 * seconds)), onload_s=1.0)


def chain(a: float = 10.0, b: float = 10.0) -> Profile:
    return Profile(64, {"a": flat(a), "b": flat(b)}, (EdgeProfile("a", "b"),), "chain")


def test_without_drift_the_plan_stays() -> None:
    best = plan(chain(), 8).best
    found = replan(run_of(best, chain(), noise=0.05), best)
    assert found.proposal is None and not any(d.sustained for d in found.drifts) and found.iterations == 8
    assert "the plan stays" in repr(found) and found.payback == float("inf") and found.to_dict()["proposal"] is None


def test_drift_proposes_a_plan_with_its_payback() -> None:
    """The second worker turns out to be so cheap that the first one should have its devices."""
    steep = WorkerProfile((Sample(8, 64.0, 8.0),), exponent=1.0)
    believed = Profile(64, {"a": flat(10.0), "b": steep}, (EdgeProfile("a", "b"),))
    best, truth = plan(believed, 8).best, believed.scaled("b", 0.1)
    found = replan(run_of(best, truth), best, restart_s=20.0)
    assert [(d.worker, d.factor) for d in found.drifts if d.sustained] == [("b", pytest.approx(0.1, rel=1e-3))]
    assert found.proposal is not None and found.now > found.then == pytest.approx(plan(truth, 8).best.candidate.seconds, rel=0.02)
    assert found.now == pytest.approx(run_of(best, truth).iterations()["seconds"].iloc[-1], rel=0.02)
    assert found.switching == pytest.approx(21.0) and found.payback == pytest.approx(21 / (found.now - found.then)) == found.to_dict()["payback_iterations"]
    assert "Proposed: " in repr(found) and "paid back after" in found._repr_html_() and found.proposal.execution.validate(found.proposal.graph) is None


def test_what_the_plan_said_and_what_it_takes_with_its_workers_as_measured_are_both_shown() -> None:
    best = plan(chain(), 8).best
    found = replan(run_of(best, chain(a=20.0)), best)
    assert found.promised == best.seconds == found.to_dict()["iteration"]["promised_s"] and best.seconds < 0.9 * found.now
    assert found.elapsed.expected == pytest.approx(found.elapsed.measured, rel=0.02)
    off = round(100 * (found.elapsed.measured / best.seconds - 1))
    for said in (repr(found), found._repr_html_()):
        assert f"{best.seconds:.4g}" in said and f"{found.elapsed.measured:.4g}" in said and f"+{off} %" in said and f"{found.elapsed.expected:.4g}" in said


def test_a_passing_disturbance_is_no_drift() -> None:
    best = plan(chain(), 8).best
    both = Timeline(best.devices)
    for k, timeline in enumerate((run_of(best, chain(30.0), 3), run_of(best, chain(), 6))):  # the first half of the window is slow, the second is not
        rows = timeline.spans.copy()
        rows["iteration"] += k * 3
        both.extend(SpanBatch("simulated", f"part{k}", 0, rows, tuple(timeline.tracks), tuple(timeline.names)))
    assert {d.worker: d.sustained for d in replan(both, best).drifts} == {"a": False, "b": False}


def test_cells_and_long_tails() -> None:
    for name, devices, worker in (("maniskill_openvla", 16, "generator"), ("grpo_7b_long_tail", 64, "rollout")):
        profile = Profile.load(DOCS / "profiles" / f"{name}.json")
        best = plan(profile, devices).best
        calm = replan(run_of(best, profile, 4), best)
        assert not any(d.sustained for d in calm.drifts) and not any("items" in note for note in calm.notes), "bundles are no other numbers of items"
        drifting = replan(run_of(best, profile.scaled(worker, 1.5), 4), best)
        assert [d.worker for d in drifting.drifts if d.sustained] == [worker]
        assert next(d for d in drifting.drifts if d.worker == worker).factor == pytest.approx(1.5, rel=0.05)


def test_who_computes_beside_the_plans_workers_is_named() -> None:
    best = plan(chain(), 8)["temporal"]
    more = chain().replace(workers={**chain().workers, "judge": flat(5.0)}, edges=(EdgeProfile("a", "b"), EdgeProfile("b", "judge")))
    shape = next(p for p in plan(more, 8) if {at["devices"] for at in p.placement.values()} == {8})
    (note,) = (n for n in replan(shape.simulate(4), best).notes if "does not place" in n)
    assert "judge 4 s an iteration" in note and "Next: " in note


def test_what_cannot_be_compared_is_refused() -> None:
    plans = plan(chain(), 8)
    best, temporal, other = plans.best, plans["temporal"], next(p for p in plans if p.mode != "temporal")
    with pytest.raises(PlanError, match="has 2 iterations that came to an end; the first one warms up"):
        replan(run_of(best, chain(), 2), best)
    with pytest.raises(PlanError, match="no span of x, y"):
        replan(run_of(best, chain()), plan(Profile(64, {"x": flat(1.0), "y": flat(1.0)}, (EdgeProfile("x", "y"),)), 8).best)
    with pytest.raises(PlanError, match=r"places '\w+' on .*; in the timeline it worked on .*: a run under another plan"):
        replan(run_of(other, chain()), temporal)
    with pytest.raises(PlanError, match=r"on 8 devices \(cuda:0 to cuda:7\); in the timeline it worked on cuda:0, cuda:1:"):
        replan(run_of(plan(chain(), 2)["temporal"], chain()), temporal)


def test_a_worker_on_the_host_is_measured_too() -> None:
    """It occupies no device, but it runs: without drift nothing is proposed, with drift it is named."""
    host = WorkerProfile((Sample(0, 64.0, 4.0),), resource="host")
    profile = Profile(64, {"a": flat(10.0), "r": host, "b": flat(10.0)}, (EdgeProfile("a", "r"), EdgeProfile("r", "b")), "host")
    best = plan(profile, 8).best
    calm, drifting = (replan(run_of(best, truth), best) for truth in (profile, profile.scaled("r", 2.0)))
    assert not any(d.sustained for d in calm.drifts) and {d.worker: d.measured for d in calm.drifts}["r"] == pytest.approx(4.0)
    assert [d.worker for d in drifting.drifts if d.sustained] == ["r"]


def test_a_worker_that_should_take_no_time_and_does_is_planned_with_what_it_took() -> None:
    free = chain().scaled("b", 0.0)
    best = plan(free, 8).best
    found, calm = (replan(run_of(best, truth), best) for truth in (chain(), free))
    drift = next(d for d in found.drifts if d.worker == "b")
    assert drift.sustained and drift.expected == 0 and drift.percent == "" and "inf" not in repr(found)
    assert found.now == pytest.approx(run_of(best, chain()).iterations()["seconds"].iloc[-1], rel=0.02), "what was measured, not what was expected"
    assert not any(d.sustained for d in calm.drifts) and calm.proposal is None


# --- runs with durations that are known exactly ---------------------------------------------------------------------
DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


class Evaluator(lab.Worker):
    def evaluate(self) -> None:
        self.compute(0.2)


def sometimes(every: int) -> lab.Workflow:
    flow, count = lab.Workflow("evaluated"), itertools.count(1)
    a = flow.channel("a", capacity=None)
    source, learner = (flow.worker(Timed, 16, 0.0, 0.01, 1, name=name) for name in "ab")
    evaluator = flow.worker(Evaluator, name="evaluator")

    @flow.iteration
    def iteration():
        source.make(a)
        learner.work(a)
        if next(count) % every == 0:
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
        flow = timed("ab", 50, {"a": (0.0, 0.01), "b": (fixed, item)})[0]
        best = lab.plan(flow, DEVICES[:2], believed(50), micro_batches=16)["spatial"]
        assert best.placement["b"]["micro_batches"] == 13
        found = lab.replan(run(flow, best, 9), best)
        assert learner_costs(found.profile) == (pytest.approx(fixed, rel=0.02), pytest.approx(item, rel=0.02)) and not found.notes


def test_batches_of_one_size_leave_two_readings() -> None:
    """Coarser micro-batches would help much if batches had become slower. It is the items, so they help little: what is promised is what comes."""
    flow = timed("ab", 64, {"a": (0.0, 0.01), "b": (0.004, 0.03)})[0]
    best = lab.plan(flow, DEVICES[:2], believed(64))["spatial"]
    found = lab.replan(run(flow, best, 9), best)
    assert found.proposal is not None and found.proposal.seconds < 0.95 * found.then
    really = float(run(flow, found.proposal, 9).timeline.iterations()["seconds"].iloc[-1])
    assert really < found.elapsed.measured and found.then == pytest.approx(really, rel=0.02) and "the smaller one of both" in found.notes[0]


def test_a_plan_that_is_better_in_one_reading_only_is_not_proposed() -> None:
    flow = timed("ab", 48, {"a": (0.0, 0.01), "b": (0.0015, 0.03)})[0]
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
