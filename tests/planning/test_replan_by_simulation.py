"""Re-planning compares plans by what the scheduler takes for them: micro-batches that are followed alternate where a source, once begun, goes on to its end."""

from __future__ import annotations

import pytest
from mock_runs import run_of, under

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.adapt.replan import replan
from rlinf_lab.planning.cancellation import Abandoned, as_long_as
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.planner.planner import Planned, plan
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, RankRule, Sample, WorkerProfile

ITEMS = 48


def worker(fixed: float, each: float, most: int = 0) -> WorkerProfile:
    return WorkerProfile(tuple(Sample(1, float(n), fixed + each * n) for n in (1, ITEMS)), exponent=1.0, ranks=RankRule(most=most))


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


def test_who_wants_no_answer_any_more_gets_none() -> None:
    planned, truth = three()
    timeline = run_of(planned, truth)
    looks: list[int] = []
    with as_long_as(lambda: looks.append(0) is None):
        replan(timeline, planned)
    left = iter(looks[: len(looks) - 1])
    with pytest.raises(Abandoned), as_long_as(lambda: next(left, None) is not None):
        replan(timeline, planned)
