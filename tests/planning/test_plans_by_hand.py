"""Plans made by hand: the hybrid form, and devices on which nobody sits."""

from __future__ import annotations

from typing import Any

import pytest
from timed_flows import timed

from rlinf_lab import ExecutionPlan
from rlinf_lab.errors import PlanError

FLOW = timed("ab bc", 8, dict.fromkeys("abc", (0.0, 1.0)))[0]
DEVICES = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")


def test_in_a_hybrid_plan_those_who_share_devices_take_turns_and_the_others_stream() -> None:
    plan = ExecutionPlan.hybrid(FLOW, DEVICES, {"a": [0, 1], "b": [2, 3], "c": [2]}, micro_batch=4)
    assert plan.micro_batches == {"ab": 4, "bc": 0} and plan.unused_devices == ()
    assert plan.name == "hybrid" and plan.placements["b"] == ((2,), (3,))


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ({"a": [0], "b": [1], "c": [2]}, r"nobody shares a device\. Next: ExecutionPlan\.spatial"),
        ({"a": [0], "b": [0, 1], "c": [0]}, r"all do\. Next: ExecutionPlan\.temporal"),
        ({"a": [0], "b": [0]}, r"no devices for 'c'"),
    ],
)
def test_what_is_no_hybrid_plan_says_which_form_it_is(on: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        ExecutionPlan.hybrid(FLOW, DEVICES, on)


def test_devices_on_which_nobody_sits_are_named_with_what_would_use_them() -> None:
    plan = ExecutionPlan.temporal(FLOW, DEVICES)
    assert plan.unused_devices == DEVICES[1:]
    assert "3 of 4. Next: ranks={'a': 4}, or lab.plan" in repr(plan) and "unused: cpu:1" in plan._repr_html_()
    assert "unused" not in repr(ExecutionPlan.temporal(FLOW, DEVICES, dict.fromkeys("abc", 4)))
