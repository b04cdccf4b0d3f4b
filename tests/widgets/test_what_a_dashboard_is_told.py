"""Arguments of a dashboard that make no sense are refused where they are given: the page showed "iteration x", or nothing any more."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rlinf_lab.errors import ConfigError
from rlinf_lab.timeline import Timeline
from rlinf_lab.widgets import Dashboard


@pytest.mark.parametrize("options", [
    {"title": 5}, {"title": None}, {"plan": 5}, {"devices": "cpu:0"}, {"devices": 5}, {"devices": [0]}, {"charts": "loss"}, {"charts": 5},
    {"iterations": -1}, {"iterations": "x"}, {"iterations": True}, {"iterations": 2.5},
])  # fmt: skip
def test_a_dashboard_of_nonsense(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"Dashboard\({next(iter(options))}=.*Next: "):
        Dashboard(**options)


@pytest.mark.parametrize("options", [
    {"state": 5}, {"state": {"iteration": "x"}}, {"state": {"state": 3}}, {"state": {"eta_seconds": "soon"}}, {"metrics": 5}, {"metrics": [5]},
    {"metrics": [{"loss": 1.0}]}, {"metrics": [{"iteration": "x"}]}, {"timeline": 5}, {"counters": 5}, {"counters": {"cpu:0": "x"}},
    {"frame": 5}, {"frame": np.zeros((4, 4, 3), np.uint8)}, {"now_ns": "x"},
])  # fmt: skip
def test_nothing_of_a_push_of_nonsense_is_shown(options: dict[str, Any]) -> None:
    board = Dashboard()
    good: dict[str, Any] = {"state": {"state": "running", "iteration": 1}, "metrics": [{"iteration": 0, "loss": 1.0}], "timeline": Timeline()}
    with pytest.raises(ConfigError, match="Next: "):
        board.push(**good | options)
    assert repr(board) == "Dashboard('run': starting, iteration 0)" and board._rows() == []
    board.push(**good)
    assert repr(board) == "Dashboard('run': running, iteration 1)" and len(board._rows()) == 1


def test_numbers_of_any_library_and_rows_of_a_generator() -> None:
    board = Dashboard(iterations=np.int64(9), charts=["loss"])  # type: ignore[arg-type]
    rows = ({"iteration": np.int64(i), "loss": np.float32(i)} for i in range(3))
    board.push({"state": "running", "iteration": np.int64(3), "eta_seconds": None}, rows, counters={"cpu:0": np.float64(0.5)}, frame=bytearray(b"x"))
    assert len(board._rows()) == 3
    assert json.loads(json.dumps(board._history()[0]))["state"]["iteration"] == 3 and json.dumps(board.config)


def test_only_a_function_hears_the_buttons() -> None:
    with pytest.raises(ConfigError, match="on_command"):
        Dashboard().on_command(5)  # type: ignore[arg-type]
