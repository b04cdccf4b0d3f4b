"""Re-planning: drift is seen, a better plan is proposed with its payback, and nothing is proposed without reason."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from mock_runs import run, run_of, under
from sweeps import sweep
from timed_flows import Timed, cell, timed

import rlinf_lab as lab
from rlinf_lab.errors import PlanError
from rlinf_lab.planning.adapt.drift import Window
from rlinf_lab.planning.adapt.profile_update import _in_turn_with_others, told_by_sizes
from rlinf_lab.planning.adapt.replan import replan
from rlinf_lab.planning.forecast.forecast import forecast
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.planner.planner import Planned, plan
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
    assert found.promised == best.seconds == found.to_dict()["iteration"]["promised_s"] > found.now
    assert found.switching == pytest.approx(21.0) and found.payback == pytest.approx(21 / (found.now - found.then)) == found.to_dict()["payback_iterations"]
    assert "Proposed: " in repr(found) and "paid back after" in found._repr_html_() and found.proposal.execution.validate(found.proposal.graph) is None


def test_a_passing_disturbance_is_no_drift() -> None:
    best = plan(chain(), 8).best
    both = Timeline(best.devices)
    for k, timeline in enumerate((run_of(best, chain(30.0), 3), run_of(best, chain(), 6))):  # the first half of the window is slow, the second is not
        rows = timeline.spans.copy()
        rows["iteration"] += k * 3
        both.extend(SpanBatch("simulated", f"part{k}", 0, rows, tuple(timeline.tracks), tuple(timeline.names)))
    assert {d.worker: d.sustained for d in replan(both, best).drifts} == {"a": False, "b": False}


ON_THE_HOST = WorkerProfile((Sample(0, 64.0, 4.0),), resource="host")
WITH_A_HOST = Profile(64, {"a": flat(10.0), "r": ON_THE_HOST, "b": flat(10.0)}, (EdgeProfile("a", "r"), EdgeProfile("r", "b")), "host")


@pytest.mark.parametrize(("given", "devices", "worker"), [("maniskill_openvla", 16, "generator"), ("grpo_7b_long_tail", 64, "rollout"), (WITH_A_HOST, 8, "r")])
def test_who_drifts_in_a_cell_with_a_long_tail_or_on_the_host_is_named(given: str | Profile, devices: int, worker: str) -> None:
    profile = Profile.load(DOCS / "profiles" / f"{given}.json") if isinstance(given, str) else given
    best = plan(profile, devices).best
    calm, drifting = (replan(run_of(best, truth, 4), best) for truth in (profile, profile.scaled(worker, 1.5)))
    assert not any(d.sustained for d in calm.drifts) and not any("items" in note for note in calm.notes), "bundles are no other numbers of items"
    assert [(d.worker, d.factor) for d in drifting.drifts if d.sustained] == [(worker, pytest.approx(1.5, rel=0.05))]


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


def test_a_worker_that_should_take_no_time_and_does_is_planned_with_what_it_took() -> None:
    free = chain().scaled("b", 0.0)
    best = plan(free, 8).best
    found, calm = (replan(run_of(best, truth), best) for truth in (chain(), free))
    drift = next(d for d in found.drifts if d.worker == "b")
    assert drift.sustained and drift.expected == 0 and drift.percent == "" and "inf" not in repr(found)
    assert found.now == pytest.approx(run_of(best, chain()).iterations()["seconds"].iloc[-1], rel=0.02), "what was measured, not what was expected"
    assert not any(d.sustained for d in calm.drifts) and calm.proposal is None


# --- runs with durations that are known exactly ---------------------------------------------------------------------
DEVICES, ITEMS = ["cpu:0", "cpu:1", "cpu:2"], 48


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


def worker(fixed: float, each: float, most: int = 0) -> WorkerProfile:
    return WorkerProfile(tuple(Sample(1, float(n), fixed + each * n) for n in (1, ITEMS)), exponent=1.0, ranks=RankRule(most=most))


def believed(n: int = ITEMS, fixed: float = 0.004, item: float = 0.007) -> Profile:
    return Profile(n, {"a": worker(0.0, 0.01, 1), "b": worker(fixed, item, 1)}, (EdgeProfile("a", "b"),))


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
    never = lab.replan(run_of(best, profile.replace(handovers=profile.handovers[:1])), best)
    assert [d.worker for d in never.drifts if d.sustained] == ["a.load()"], "it is made in no iteration"
    window = Window(lab.Timeline(), [1, 2], {}, {("a", "load"): [0.0, 0.5]}, [])
    assert window.of_handover("a", "load") == [0.25], "made in some it is their mean"
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


@pytest.mark.parametrize(("sims", "policies"), [(1, 3), (2, 3), (2, 4)])
def test_of_more_ranks_than_tokens_each_is_expected_to_take_what_it_took(sims: int, policies: int) -> None:
    flow, devices = cell(0.01, 0.02, 6), [f"cpu:{i}" for i in range(sims + policies)]
    seats = {"sim": [[i] for i in range(sims)], "policy": [[sims + i] for i in range(policies)]}
    plan = lab.ExecutionPlan("by hand", devices, seats, {"obs": 1})
    timeline = run(flow, plan).timeline
    plans = lab.planning.planned(flow, plan, lab.planning.profile_from_run(flow, plan, timeline))
    found = lab.replan(timeline, plans)
    assert [d.percent for d in found.drifts] == ["0 %", "0 %"] and not found.elapsed.sustained, found
    for second, expected in (([0.5, 0.5], [2.0, 1.0]), ([], 3.0)):  # nothing was read in an iteration: as planned
        window: Any = SimpleNamespace(taken=lambda _, second=second: [np.ones(2), np.array(second)], is_simulated=False)
        assert _in_turn_with_others(plans.candidate, window, "policy", 3.0) == pytest.approx(np.multiply(expected, 3 * sims / policies if second else 1))


# --- plans are compared by what the scheduler takes -----------------------------------------------------------------

def three(devices: int = 5, micro_batches: int = 64) -> tuple[Planned, Profile]:
    """A plan of streams only, and what is true: the source is quicker, so that it had better share devices with the next one, if they time-shared."""
    workers = {"a": worker(0, 0.005), "b": worker(0, 0.005), "c": worker(0.01, 0.002, 1)}
    believed = Profile(ITEMS, workers, (EdgeProfile("a", "b"), EdgeProfile("b", "c")), "three")
    return plan(believed, devices, micro_batches=micro_batches)["spatial"], believed.scaled("a", 0.6)


def four() -> tuple[Planned, Profile]:
    workers = {"a": worker(0, 0.02), "b": worker(0, 0.002), "c": worker(0.03, 0.002, 1), "d": worker(0, 0.02, 1)}
    believed = Profile(ITEMS, workers, tuple(EdgeProfile(p, q) for p, q in ("ab", "bc", "cd")), "four")
    return next(p for p in plan(believed, 3, micro_batches=8) if p.shape == "a | (b > c) | d"), believed.scaled("c", 0.6)


def simulated(truth: Profile, planned: Planned) -> float:
    return settled(steady(under(truth, planned)), 0)[1]


@pytest.mark.parametrize("made", [three, four])
def test_what_is_proposed_is_faster_as_simulated(made) -> None:
    planned, truth = made()
    found = replan(run_of(planned, truth), planned, restart_s=1.0)
    assert any(d.sustained for d in found.drifts) and found.now == pytest.approx(simulated(truth, planned), rel=1e-6)
    if found.proposal is not None:
        assert found.then == pytest.approx(simulated(truth, found.proposal), rel=1e-6) and found.then < found.now
        assert found.proposal.simulated == found.then == settled(found.proposal.timeline, 0)[1]
    assert found.simulated and found.to_dict()["seconds_are"] == "simulated"


def test_what_the_budget_does_not_reach_is_said_and_not_proposed() -> None:
    steep = Profile(ITEMS, {"a": worker(0, 0.02), "b": worker(0, 0.02)}, (EdgeProfile("a", "b"),), "two")
    planned, truth = plan(steep, 8)["spatial"], steep.scaled("b", 0.1)
    timeline = run_of(planned, truth)
    assert replan(timeline, planned).proposal is not None
    nothing = replan(timeline, planned, moments=1)
    assert nothing.proposal is None and not nothing.simulated and nothing.to_dict()["seconds_are"] == "followed"
    assert "Nothing is proposed" in repr(nothing) and "Next: replan(..., moments=10)" in nothing.notes[0]
    needed = next(n for n in range(1, 10_000, 5) if replan(timeline, planned, moments=n).simulated)
    some = replan(timeline, planned, moments=needed)
    assert some.proposal is None and "more plan" in some.notes[0] and "not simulated" in some.notes[0]
    with pytest.raises(PlanError, match="replan: moments is 0"):
        replan(timeline, planned, moments=0)
    with pytest.raises(PlanError, match=r"replan\(run, None\): a plan of lab\.plan is needed.*Next: plans\.best"):
        replan(timeline)


# --- nobody drifts who costs what was said --------------------------------------------------------------------------
EIGHT = [f"cpu:{i}" for i in range(8)]


class Asking(Timed):
    """``asks``: for so many items at a time, by name; the others leave that to the plan."""

    asks: ClassVar[dict[str, int | None]] = {}

    def work(self, inbox: lab.Inbox, *outs: lab.Outbox) -> list[int]:
        sizes = []
        while batch := inbox.get(self.asks[self.name]):
            sizes.append(self.worked(batch, outs))
        return sizes


def case(seed: int, asking: bool = True) -> tuple[lab.Workflow, Profile]:
    """A chain of two to four workers or two arms and a join; ranks, groups and bounds by chance."""
    rng = random.Random(seed)
    links = rng.choice(["ab", "ab bc", "ab bc cd", "ab ac bd cd"])
    names, fork = sorted(set(links) - {" "}), "cd" in links and "ac" in links
    group = 1 if fork else rng.choice([1, 1, 1, 2, 5, 16])
    costs = {n: (0.0 if n == "a" else rng.choice([0.0, 0.01, 0.1, 1.0]), rng.choice([0.01, 0.05, 0.2])) for n in names}
    most = {n: 1 if n == "a" or (fork and n == "d") else rng.choice([1, 2, 3, 8]) for n in names}
    Asking.asks = {n: rng.choice([None, None, None, 1, 3, 10**6]) if asking else None for n in names}
    groups, kinds = dict.fromkeys(names, group), dict.fromkeys(names, Asking)
    return timed(links, group * rng.randint(2, 30), costs, most, groups, rng.choice([None, None, 32]), kinds=kinds)


@sweep(16, 120)
def test_nobody_drifts_who_costs_what_was_said(seeds: range) -> None:
    for seed in seeds:
        flow, profile = case(seed)
        for planned in lab.plan(flow, EIGHT[: 1 + seed % 8], profile, micro_batches=(4, 16)[seed % 2], simulate=False, quick=True):
            found = lab.replan(run(flow, planned, 4).timeline, planned)
            assert not any(d.sustained for d in found.drifts) and found.proposal is None, (seed, found, planned)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_who_is_really_slower_or_faster_drifts(factor: float) -> None:
    """The run costs what is true; the plan was made for workers of which the first after the source takes a part of that."""
    for seed in range(6):
        flow, profile = case(seed, asking=False)
        planned = lab.plan(flow, EIGHT[: 1 + seed % 8], profile.scaled("b", 1 / factor), simulate=False, quick=True).best
        drifts = {d.worker: d for d in lab.replan(run(flow, planned, 4).timeline, planned).drifts}
        assert drifts["b"].factor == pytest.approx(factor, rel=1e-3) and [w for w, d in drifts.items() if d.sustained] == ["b"], seed
