"""Plans as JSON that were edited by hand, and numbers of devices as nobody should write them: the error says what would do."""

from __future__ import annotations

import json

import pytest

import rlinf_lab as lab
from rlinf_lab.cli import main
from rlinf_lab.errors import ConfigError, PlanError, UnknownNameError
from rlinf_lab.planning_commands import counts

PROFILE = {"items": 8, "workers": {"a": {"samples": [{"devices": 1, "items": 8, "seconds": 2.0}]}}, "edges": []}
PLAN = {"name": "by hand", "devices": ["cpu:0", "cpu:1"], "placements": {"a": [[0]]}}


def test_a_name_that_stands_twice_in_a_plan_is_refused() -> None:
    text = json.dumps(PLAN).replace('"a": [[0]]', '"a": [[0]], "a": [[1]]')
    with pytest.raises(PlanError, match=r"gives 'a' twice in one object: 'a', 'a'\. Next: one of the two"):
        lab.ExecutionPlan.from_json(text)


def test_a_plan_may_begin_with_a_mark_of_its_encoding() -> None:
    assert lab.ExecutionPlan.from_json("\ufeff" + json.dumps(PLAN)) == lab.ExecutionPlan.from_dict(PLAN)


@pytest.mark.parametrize("text", ["=4", "h100=2,=4", "4=", "", "1.5", "a" * 1000])
def test_numbers_of_devices_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match="--devices is .*; give a number such as 64.* Next: --devices 8") as caught:
        counts(text)
    assert len(str(caught.value)) < 300


def test_kinds_that_the_profile_does_not_know(tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]) -> None:
    profile = lab.Profile.from_dict(PROFILE)
    with pytest.raises(UnknownNameError, match=r"Unknown kind of device 'h100': profile.kinds has none. .* Next: devices=6\."):
        lab.plan(profile, {"h100": 2, "a100": 4})
    file = tmp_path_factory.mktemp("profiles") / "p.json"
    profile.save(file)
    assert main(["plan", "--profile", str(file), "--devices", "h100=2"]) == 2
    assert capsys.readouterr().err.endswith("Next: --devices 2.\n")
