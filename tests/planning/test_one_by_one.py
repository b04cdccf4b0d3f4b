"""Where iterations overlap, plans say what their runs take if sources put items one by one and ranks begin with theirs: another turn of the devices."""

from __future__ import annotations

import pytest
from mock_runs import between_ends, run
from timed_flows import timed

import rlinf_lab as lab
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.profile.profile import Profile


def made() -> tuple[lab.Workflow, Profile]:
    return timed("ab bc", 64, {"a": (0, 0.01), "b": (0.01, 0.005), "c": (0, 0.005)})


def test_a_plan_says_what_items_that_come_one_by_one_would_change() -> None:
    flow, profile = made()
    plans = lab.plan(flow, [f"cpu:{i}" for i in range(4)], profile, micro_batches=1, staleness=1)
    plan = next(p for p in plans if p.shape == "a | (b > c)")
    ran = between_ends(run(flow, plan, 14))
    assert ran > 1.1 * plan.seconds
    (note,) = (n for n in plan.notes if "one by one" in n)
    assert note.endswith(f"an iteration takes about {ran:.4g} s")
    _, simulated = settled(steady(plan.candidate.placement, plan.devices, one_by_one=True), 1)
    assert simulated == pytest.approx(ran)


def test_nothing_is_said_where_it_changes_nothing_or_iterations_do_not_overlap() -> None:
    flow, profile = made()
    apart = next(p for p in lab.plan(flow, [f"cpu:{i}" for i in range(4)], profile, micro_batches=1, staleness=1) if p.mode == "spatial")
    assert between_ends(run(flow, apart, 14)) == pytest.approx(apart.seconds, rel=0.02)
    assert not any("put one by one" in n for n in apart.notes)
    for plan in lab.plan(flow, [f"cpu:{i}" for i in range(4)], profile, micro_batches=1):
        assert not any("simulated as handing over" in n for n in plan.notes)
