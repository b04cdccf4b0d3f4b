"""Re-planning: drift is seen, a better plan is proposed with its payback, and nothing is proposed without reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from mock_runs import run_of

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.adapt.replan import replan
from rlinf_lab.planning.planner.planner import plan
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, Sample, WorkerProfile
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
    best = plan(believed, 8).best
    truth = believed.scaled("b", 0.1)
    found = replan(run_of(best, truth), best, restart_s=20.0)
    drift = {d.worker: d for d in found.drifts}
    assert drift["b"].sustained and drift["b"].factor == pytest.approx(0.1, rel=1e-3) and not drift["a"].sustained
    assert found.proposal is not None and found.then < found.now
    assert found.now == pytest.approx(run_of(best, truth).iterations()["seconds"].iloc[-1], rel=0.02)
    assert found.then == pytest.approx(plan(truth, 8).best.candidate.seconds, rel=0.02)
    assert found.switching == pytest.approx(21.0) and found.payback == pytest.approx(21 / (found.now - found.then))
    assert "Proposed: " in repr(found) and "paid back after" in found._repr_html_()
    assert found.to_dict()["payback_iterations"] == found.payback and found.proposal.execution.validate(found.proposal.graph) is None


def test_what_the_plan_said_and_what_it_takes_with_its_workers_as_measured_are_both_shown() -> None:
    best = plan(chain(), 8).best
    truth = chain(a=20.0)
    found = replan(run_of(best, truth), best)
    assert found.promised == best.seconds and found.elapsed.expected == pytest.approx(found.elapsed.measured, rel=0.02) and best.seconds < 0.9 * found.now
    *_, said, so, verdict = repr(found).splitlines()[: 2 + len(found.drifts) + 2]
    off = round(100 * (found.elapsed.measured / best.seconds - 1))
    assert said.split() == f"an iteration {found.elapsed.measured:.4g} s, the plan said {best.seconds:.4g} s (+{off} %)".split()
    assert so.split()[:6] == f"with its workers as measured {found.elapsed.expected:.4g}".split() and verdict.strip() == found._verdict()
    html = found._repr_html_()
    assert f"an iteration, as the plan said</td><td>{best.seconds:.4g}</td><td>{found.elapsed.measured:.4g}</td><td>+{off} %</td>" in html
    assert f"an iteration, with workers as measured</td><td>{found.elapsed.expected:.4g}</td>" in html
    assert found.to_dict()["iteration"]["promised_s"] == best.seconds


def test_a_passing_disturbance_is_no_drift() -> None:
    best = plan(chain(), 8).best
    calm, slow = run_of(best, chain(), 6), run_of(best, chain(30.0), 3)
    both = Timeline(best.devices)
    for k, timeline in enumerate((slow, calm)):  # the first half of the window is slow, the second is not
        rows = timeline.spans.copy()
        rows["iteration"] += k * 3
        both.extend(_batch(timeline, rows))
    found = replan(both, best)
    assert {d.worker: d.sustained for d in found.drifts} == {"a": False, "b": False}


def _batch(timeline: Timeline, rows):
    from rlinf_lab.timeline.record.batch import SpanBatch

    return SpanBatch("simulated", f"part{rows['iteration'].min()}", 0, rows, tuple(timeline.tracks), tuple(timeline.names))


def test_cells_and_long_tails() -> None:
    for name, devices, worker in (("maniskill_openvla", 16, "generator"), ("grpo_7b_long_tail", 64, "rollout")):
        profile = Profile.load(DOCS / "profiles" / f"{name}.json")
        best = plan(profile, devices).best
        calm = replan(run_of(best, profile, 4), best)
        assert not any(d.sustained for d in calm.drifts), repr(calm)
        drifting = replan(run_of(best, profile.scaled(worker, 1.5), 4), best)
        assert [d.worker for d in drifting.drifts if d.sustained] == [worker]
        assert next(d for d in drifting.drifts if d.worker == worker).factor == pytest.approx(1.5, rel=0.05)


def test_who_computes_beside_the_plans_workers_is_named() -> None:
    best = plan(chain(), 8)["temporal"]
    more = plan(chain().replace(workers={**chain().workers, "judge": flat(5.0)}, edges=(EdgeProfile("a", "b"), EdgeProfile("b", "judge"))), 8)
    shape = next(p for p in more if {at["devices"] for at in p.placement.values()} == {8})
    found = replan(shape.simulate(4), best)
    (note,) = (n for n in found.notes if "does not place" in n)
    assert "judge 4 s an iteration" in note and "Next: " in note
    assert not any("does not place" in n for n in replan(run_of(best, chain()), best).notes)


def test_what_cannot_be_compared_is_refused() -> None:
    best = plan(chain(), 8).best
    with pytest.raises(PlanError, match="has 2 iterations that came to an end; the first one warms up"):
        replan(run_of(best, chain(), 2), best)
    with pytest.raises(PlanError, match="window=1"):
        replan(run_of(best, chain()), best, window=1)
    other = plan(Profile(64, {"x": flat(1.0), "y": flat(1.0)}, (EdgeProfile("x", "y"),)), 8).best
    with pytest.raises(PlanError, match="no span of x, y"):
        replan(run_of(best, chain()), other)


def test_a_worker_on_the_host_is_measured_too() -> None:
    """It occupies no device, but it runs: without drift nothing is proposed, with drift it is named."""
    host = WorkerProfile((Sample(0, 64.0, 4.0),), resource="host")
    profile = Profile(64, {"a": flat(10.0), "reward": host, "b": flat(10.0)}, (EdgeProfile("a", "reward"), EdgeProfile("reward", "b")), "host")
    best = plan(profile, 8).best
    calm = replan(run_of(best, profile), best)
    assert not any(d.sustained for d in calm.drifts), repr(calm)
    assert {d.worker: d.measured for d in calm.drifts}["reward"] == pytest.approx(4.0)
    drifting = replan(run_of(best, profile.scaled("reward", 2.0)), best)
    assert [d.worker for d in drifting.drifts if d.sustained] == ["reward"]


def test_a_worker_that_should_take_no_time_and_does_is_planned_with_what_it_took() -> None:
    free = chain().scaled("b", 0.0)
    best = plan(free, 8).best
    found = replan(run_of(best, chain()), best)
    drift = next(d for d in found.drifts if d.worker == "b")
    assert drift.sustained and drift.expected == 0 and drift.percent == "" and "inf" not in repr(found)
    (elapsed,) = {round(s, 6) for s in run_of(best, chain()).iterations()["seconds"]}
    assert found.now == pytest.approx(elapsed, rel=0.02), "what was measured, not what was expected"
    calm = replan(run_of(best, free), best)
    assert not any(d.sustained for d in calm.drifts) and calm.proposal is None


def test_a_run_under_another_plan_is_refused() -> None:
    plans = plan(chain(), 8)
    one, other = plans["temporal"], next(p for p in plans if p.mode != "temporal")
    with pytest.raises(PlanError, match=r"places '\w+' on .*; in the timeline it worked on .*: a run under another plan"):
        replan(run_of(other, chain()), one)
    assert replan(run_of(other, chain()), other).proposal is None
    with pytest.raises(PlanError, match=r"on 8 devices \(cuda:0 to cuda:7\); in the timeline it worked on cuda:0, cuda:1:"):
        replan(run_of(plan(chain(), 2)["temporal"], chain()), one)


@pytest.mark.parametrize(("name", "devices"), [("grpo_7b_case4", 16), ("maniskill_openvla", 16)])
def test_bundles_of_a_simulation_are_no_other_numbers_of_items(name: str, devices: int, tmp_path: Path) -> None:
    """1024 bundles at most stand for the profile's 8192 items, or for 256. (Of a run that was executed the note is told: `test_unfinished_iterations`.)"""
    best = plan(Profile.load(DOCS / "profiles" / f"{name}.json"), devices).best
    timeline = best.simulate(4)
    for told in (timeline, Timeline.open(timeline.to_parquet(tmp_path / "simulated.parquet"))):
        assert not any("items" in note for note in replan(told, best).notes)
