"""What a plan shows of itself: everything that changes what happens, as text and as HTML."""

from __future__ import annotations

import dataclasses

import pytest

import rlinf_lab as lab

PLAIN = lab.ExecutionPlan("p", ("cpu:0", "cpu:1"), {"a": ((0,),), "b": ((0,), (1,)), "c": ((1,),)})
CHANGES = {
    "name": "other", "devices": ("cpu:2", "cpu:1"), "placements": {"a": ((1,),), "b": ((0,), (1,)), "c": ((1,),)},
    "micro_batches": {"x": 3}, "capacities": {"x": 4},
    "sub_batches": {"a": 2}, "fused": (("a", "b"),), "memory": {"a": 1}, "device_memory": 2, "staleness": 1, "working": {"a": 1}, "priorities": {"a": 1},
    "in_flight": {"a": 16},
}  # fmt: skip


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(lab.ExecutionPlan)])
def test_every_field_is_seen(field: str) -> None:
    changed = dataclasses.replace(PLAIN, **{field: CHANGES[field]})
    assert repr(changed) != repr(PLAIN) and changed._repr_html_() != PLAIN._repr_html_()


def test_what_is_default_is_not_mentioned() -> None:
    assert len(repr(PLAIN).splitlines()) == 4 and "<small></small>" in PLAIN._repr_html_()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"memory": {"a": 1, "b": 1}, "device_memory": 1}, "memory       a 1, b 1; a device has 1 unit: time-shared a, b"),
        ({"memory": {"a": 1, "b": 1}, "device_memory": 2}, "memory       a 1, b 1; a device has 2 units: everybody stays"),
        ({"memory": {"a": 1}, "working": {"b": 1}, "device_memory": 1}, "memory       a 1, b 0 + 1 at work; a device has 1 unit: time-shared a"),
        ({"memory": {"a": 1}, "working": {"a": 1}, "device_memory": 2}, "memory       a 1 + 1 at work; a device has 2 units: everybody stays"),
        ({"memory": {"c": 3}}, "memory       c 3; a device has no limit: everybody stays"),
        ({"priorities": {"a": 2, "b": 0}}, "priorities   b 0, a 2"),
        ({"capacities": {"x": None, "y": 3}}, "capacities   x unbounded, y 3"),
    ],
)
def test_memory_turns_and_bounds_in_words(fields: dict[str, object], said: str) -> None:
    plan = dataclasses.replace(PLAIN, **fields)
    assert f"  {said}" in repr(plan).splitlines()
    assert said.split(maxsplit=1)[1] in plan._repr_html_()


def test_names_are_text_in_html() -> None:
    plan = lab.ExecutionPlan("p", ("cpu:0",), {"<a>": ((0,),)}, memory={"<a>": 1}, priorities={"<a>": 1})
    assert "<a>" not in plan._repr_html_()
