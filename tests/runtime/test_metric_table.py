"""The table of metrics by itself: what a row holds, which rows are new, what is forgotten."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlinf_lab.runtime.run.metrics import MetricTable, labels


def test_ranks_are_averaged_and_the_last_value_of_each_counts() -> None:
    table = MetricTable()
    table.logged("w", 0, 0, {"x": 100.0})
    table.logged("w", 0, 0, {"x": 1.0})
    table.logged("w", 1, 0, {"x": 3.0})
    assert len(table.frame()) == 0  # the iteration goes on
    table.finished(0, 0.5, {"total": 7.0})
    assert table.since(0)[0] == [{"iteration": 0, "seconds": 0.5, "x": 2.0, "total": 7.0}]


def test_a_name_of_two_workers_is_a_column_for_each_and_earlier_rows_come_again() -> None:
    table = MetricTable()
    for i in range(2):
        table.logged("a", 0, i, {"loss": 1.0})
        table.finished(i, 0.1, {})
    rows, version = table.since(0)
    assert [set(row) for row in rows] == [{"iteration", "seconds", "loss"}] * 2
    table.logged("b", 0, 2, {"loss": 101.0})
    table.finished(2, 0.1, {})
    again, _ = table.since(version)
    assert [row["iteration"] for row in again] == [0, 1, 2] and again[0]["a.loss"] == 1.0 and "loss" not in again[0]
    assert list(table.frame().columns) == ["iteration", "seconds", "a.loss", "b.loss"]


@given(st.sets(st.tuples(st.sampled_from(["driver", "a", "b", "c"]), st.sampled_from(["x", "y", "a.x", "b.a.x", "c.b.a.x"]))))
def test_no_two_columns_have_one_name(keys: set[tuple[str, str]]) -> None:
    """What the loop returns keeps its name."""
    assert len(set(labels(keys).values())) == len(keys)
    assert labels([("driver", "loss"), ("a", "loss"), ("a", "x")]) == {("driver", "loss"): "loss", ("a", "loss"): "a.loss", ("a", "x"): "x"}


def test_only_what_has_changed_is_told_and_values_of_ranks_are_forgotten_when_an_iteration_cannot_change() -> None:
    table = MetricTable()
    for i in range(1000):
        table.finished(i, 0.1, {"r": float(i)})
    rows, version = table.since(0)
    assert len(rows) == 1000 and table.since(version) == ([], version)
    table.logged("w", 0, 998, {"late": 5.0})  # of a process whose news come ten times a second
    table.finished(1000, 0.1, {})
    rows, _ = table.since(version)
    assert rows == [{"iteration": 998, "seconds": 0.1, "r": 998.0, "late": 5.0}, {"iteration": 1000, "seconds": 0.1}]
    table.logged("w", 0, 1000, {"late": 6.0})
    table.settle(999)
    assert set(table._ranks) == {1000} and list(table.frame()["late"].dropna()) == [5.0, 6.0]


def test_rows_of_failed_iterations_and_missing_numbers_leave_gaps() -> None:
    table = MetricTable()
    table.finished(2, 0.2, {"b": 2.0})
    table.logged("w", 0, 1, {"a": 1.0})
    table.finished(0, 0.1, {})
    frame = table.frame()
    assert list(frame["iteration"]) == [0, 2] and np.isnan(frame["b"][0]) and frame["a"].isna().all()
    assert table.pace() is not None and math.isclose(table.pace() or 0, 0.15)


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from("xyz"), st.floats(-9, 9)), max_size=40), st.lists(st.integers(0, 40), max_size=5))
def test_a_listener_that_replaces_rows_has_the_whole_table(said: list[tuple[int, str, float]], looks: list[int]) -> None:
    table, seen, version = MetricTable(), {}, 0
    for number, (iteration, name, value) in enumerate(said):
        table.logged("ab"[number % 2], 0, iteration, {name: value})
        table.finished(iteration, 0.1, {})
        if number in looks:
            rows, version = table.since(version)
            seen |= {row["iteration"]: row for row in rows}
    rows, version = table.since(version)
    seen |= {row["iteration"]: row for row in rows}
    whole = table.frame().to_dict("records")
    assert [{k: v for k, v in row.items() if not math.isnan(v)} for row in whole] == [seen[i] for i in sorted(seen)]
