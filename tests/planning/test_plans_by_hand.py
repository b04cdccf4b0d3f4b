"""Plans made by hand: the hybrid form, and devices on which nobody sits."""

from __future__ import annotations

from typing import Any

import pytest
from mock_chain_of_three import chain_of_three

from rlinf_lab import ExecutionPlan
from rlinf_lab.errors import PlanError

DEVICES = ("cpu:0", "cpu:1", "cpu:2", "cpu:3")


def test_in_a_hybrid_plan_those_who_share_devices_take_turns_and_the_others_stream() -> None:
    flow = chain_of_three()
    plan = ExecutionPlan.hybrid(flow, DEVICES, {"source": [0, 1], "stage": [2, 3], "sink": [2]}, micro_batch=4)
    assert plan.micro_batches == {"made": 4, "done": 0} and plan.unused_devices == ()
    assert plan.name == "hybrid" and plan.placements["stage"] == ((2,), (3,))


@pytest.mark.parametrize(
    ("on", "says"),
    [
        ({"source": [0], "stage": [1], "sink": [2]}, r"nobody shares a device\. Next: ExecutionPlan\.spatial"),
        ({"source": [0], "stage": [0, 1], "sink": [0]}, r"all do\. Next: ExecutionPlan\.temporal"),
        ({"source": [0], "stage": [0]}, r"no devices for 'sink'"),
    ],
)
def test_what_is_no_hybrid_plan_says_which_form_it_is(on: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        ExecutionPlan.hybrid(chain_of_three(), DEVICES, on)


def test_devices_on_which_nobody_sits_are_named_with_what_would_use_them() -> None:
    plan = ExecutionPlan.temporal(chain_of_three(), DEVICES)
    assert plan.unused_devices == DEVICES[1:]
    assert "3 of 4. Next: ranks={'source': 4}, or lab.plan" in repr(plan) and "unused: cpu:1" in plan._repr_html_()
    assert "unused" not in repr(ExecutionPlan.temporal(chain_of_three(), DEVICES, dict.fromkeys(("source", "stage", "sink"), 4)))
