"""A rank that has fewer items than another ends sooner and lends its device: no run is below the bound."""

from __future__ import annotations

import pytest
from mock_runs import run, seconds
from test_whole_calls import chain

import rlinf_lab as lab


@pytest.mark.parametrize("items, devices", [(21, 2), (7, 2), (16, 3), (31, 4), (5, 4)])
@pytest.mark.parametrize("costs", [((0, 0.005), (0.1, 0.01)), ((0, 0.01), (0, 0.002)), ((0, 0.04), (0.01, 0.005))])
def test_no_run_is_below_the_bound(items: int, devices: int, costs: tuple[tuple[float, float], tuple[float, float]]) -> None:
    flow, profile = chain({"a": costs[0], "b": costs[1]}, items, most=(1, devices))
    plans = lab.plan(flow, [f"cpu:{i}" for i in range(devices)], profile, micro_batches=4)
    assert all(plans.bound.seconds <= seconds(run(flow, p, 2)) * (1 + 1e-6) for p in plans)
    assert plans.bound.seconds <= plans.best.seconds


def test_work_is_counted_by_the_mean_rank() -> None:
    """21 items of two ranks are 10.5 of each: (0.1 + 0.105) s of b and 0.0525 s of a, on both devices."""
    flow, profile = chain({"a": (0, 0.005), "b": (0.1, 0.01)}, 21, most=(2, 2))
    bound = lab.plan(flow, ["cpu:0", "cpu:1"], profile).bound
    assert bound.seconds == pytest.approx(0.2575) and "together need 0.515 device seconds" in bound.why
