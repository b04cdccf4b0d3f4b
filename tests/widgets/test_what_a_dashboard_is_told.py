"""Arguments of a dashboard that make no sense are refused where they are given: the page showed "iteration x", or nothing any more."""

from __future__ import annotations

import json
import math
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from rlinf_lab.errors import ConfigError
from rlinf_lab.timeline import Timeline
from rlinf_lab.widgets import Dashboard
from rlinf_lab.widgets.pushable import tidy_state


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
    {"metrics": [{"iteration": 0, "loss": np.zeros(3)}]}, {"metrics": [{"iteration": 0, "loss": object()}]}, {"metrics": [{"iteration": 0, 5: 1.0}]},
    {"metrics": [{"iteration": 2.5}]}, {"state": {"standstill": 5}}, {"state": {"standstill": "one"}}, {"state": {"waits": 5}},
    {"state": {"iteration": math.nan}},
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


LOSSES = [torch.tensor(0.5), torch.tensor(0.5, dtype=torch.bfloat16), np.array(0.5), np.float16(0.5), Decimal("0.5"), Fraction(1, 2), pd.Series([0.5])[0]]


@pytest.mark.parametrize("half", LOSSES, ids=lambda value: type(value).__name__)
def test_a_number_without_dimensions_is_a_number(half: Any) -> None:
    """One that JSON cannot hold came into the history, and no page that connected later was sent anything."""
    board = Dashboard(charts=["loss"])
    board.push({"elapsed_seconds": half}, [{"iteration": 3, "loss": half}], counters={"cpu:0": half})
    told = json.loads(json.dumps(board._history()[0]))
    assert told["metrics"] == [{"iteration": 3, "loss": 0.5}] and told["state"] == {"elapsed_seconds": 0.5}
    assert told["counters"][0][1] == {"cpu:0": 0.5} and "loss: 0.5" in board.still().html


@pytest.mark.parametrize("three", [3.0, np.float64(3), torch.tensor(3), np.array(3), np.uint8(3)], ids=lambda value: type(value).__name__)
def test_iterations_of_a_table_are_whole_numbers(three: Any) -> None:
    board = Dashboard()
    board.push({"iteration": three, "iterations": three}, [{"iteration": three, "loss": 1.0}])
    assert board._rows() == [{"iteration": 3, "loss": 1.0}] and repr(board) == "Dashboard('run': starting, iteration 3/3)"


def test_what_is_not_known() -> None:
    board = Dashboard(charts=["loss"])
    unknown = {"message": None, "load_note": None, "standstill": None, "waits": None, "iterations": math.inf, "eta_seconds": math.nan}
    board.push(unknown, [{"iteration": 0, "loss": None, "return": pd.NA, "ok": np.bool_(True)}], counters={"cpu:0": None, "cpu:1": 0.5})
    told = json.loads(json.dumps(board._history()[0], allow_nan=False))
    assert told["state"] == {"message": "", "load_note": "", "standstill": [], "waits": {}, "iterations": None, "eta_seconds": None}
    assert told["metrics"] == [{"iteration": 0, "loss": None, "return": None, "ok": True}] and told["counters"][0][1] == {"cpu:1": 0.5}
    assert "starting" in board.still().html


def test_names_of_a_generator_are_kept() -> None:
    board = Dashboard(devices=(f"cpu:{i}" for i in range(2)), charts=(name for name in ["loss"]))
    assert board.config["devices"] == ["cpu:0", "cpu:1"] and board.config["charts"] == ["loss"]


def test_only_a_function_hears_the_buttons() -> None:
    with pytest.raises(ConfigError, match="on_command"):
        Dashboard().on_command(5)  # type: ignore[arg-type]


def test_a_state_is_told_whole_where_pandas_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list and mapping in it had become nothing."""
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    state = {"standstill": ["learner waits for things"], "waits": {"nodes": [], "edges": [], "cycles": []}}
    assert tidy_state(state) == state
