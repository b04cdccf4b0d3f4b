"""The cell of generation and tools in virtual time, and lengths drawn from a completion curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.costs.response_lengths import ResponseLengths
from rlinf_lab.planning.simulator.tool_cell import ToolCell

TOY = [(10, 2 + 3 * p) if p % 2 else (12 + 3 * p,) for p in range(8)]


def test_the_toy_of_tools():
    assert ToolCell(0.004, 0.03, by_count=True).simulate(TOY).steps == 86
    for tools, plain in ((1, 63), (4, 41)):
        cell = ToolCell(0.004, 0.03, tools)
        found = cell.best(TOY).simulate(TOY)
        assert cell.simulate(TOY).steps == plain and found.steps == 33
        assert found.seconds <= cell.simulate(TOY).seconds + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(1, 3), st.sampled_from([0.0, 0.5, 2.0, math.inf]),
    st.booleans(), st.sampled_from([0.0, 0.7, 3.0]),
)  # fmt: skip
def test_bounds_that_always_hold(turns, tools, patience, by_count, tool_s):
    found = ToolCell(1.0, tool_s, tools, patience, by_count).simulate(turns)
    longest, total, calls = max(map(sum, turns)), sum(map(sum, turns)), sum(len(t) - 1 for t in turns)
    assert longest <= found.steps <= total
    assert found.seconds == pytest.approx(found.steps + found.waited_s)
    assert found.seconds >= max(sum(t) + tool_s * (len(t) - 1) for t in turns) - 1e-9
    assert found.seconds >= calls * tool_s / tools - 1e-9 and max(found.ends_s) == pytest.approx(found.seconds)
    best = ToolCell(1.0, tool_s, tools).best(turns).simulate(turns)
    assert best.seconds <= ToolCell(1.0, tool_s, tools).simulate(turns).seconds + 0.5


def test_lengths_have_the_curve_they_are_drawn_from():
    points = [(10.0, 0.2), (20.0, 0.5), (60.0, 0.9), (200.0, 1.0)]
    lengths = ResponseLengths.of_completion(points, 30.0)
    tokens = lengths.draw(np.random.default_rng(0), 50_000)
    for seconds, share in points:
        assert (tokens <= seconds * 30).mean() == pytest.approx(share, abs=0.01)
        assert float(lengths.fraction(seconds * 30)) == pytest.approx(share)
    assert tokens.mean() == pytest.approx(lengths.mean, rel=0.02) and "longest 6000" in repr(lengths)


@pytest.mark.parametrize(("make", "says"), [
    (lambda: ToolCell(0.0, 1.0), "step_s must be above 0"), (lambda: ToolCell(1.0, 1.0, tools=0), "tools is 0"),
    (lambda: ToolCell(1.0, 1.0).simulate([(3, 0)]), "turns of at least one token"),
    (lambda: ResponseLengths.of_completion([(1.0, 0.5)], 1.0), "ends at 1"), (lambda: ResponseLengths.of_completion([(1.0, 1.0)], 0.0), "rate above 0"),
    (lambda: ResponseLengths.of_completion([(2.0, 0.5), (1.0, 1.0)], 1.0), "in the order of time"),
])  # fmt: skip
def test_numbers_that_cannot_work_are_named(make, says):
    with pytest.raises(ConfigError, match=says):
        make()
