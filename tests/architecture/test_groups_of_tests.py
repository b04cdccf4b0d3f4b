"""Tests that start Ray, or a browser, run one after another, others file by file; pytest 9.2 and pytest-xdist 3.8 together forget that without a word."""

from __future__ import annotations

import os

import pytest
from whole_files import scope


@pytest.mark.xdist_group("together")
def test_a_group_of_tests_is_told_to_the_one_who_distributes_them(request: pytest.FixtureRequest) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ and request.config.getvalue("loadgroup"):
        assert request.node.nodeid.endswith("@together"), "Next: versions of pytest and pytest-xdist in which --dist loadgroup works"


@pytest.mark.ray
def test_what_starts_ray_is_in_its_group(request: pytest.FixtureRequest) -> None:
    assert [m.args for m in request.node.iter_markers("xdist_group")] == [("ray",)]


@pytest.mark.parametrize(
    ("nodeid", "together"),
    [
        ("tests/planning/test_costs.py::test_a[x@y]", "tests/planning/test_costs.py"), ("tests/planning/test_costs.py::test_b", "tests/planning/test_costs.py"),
        ("tests/runtime/test_a.py::test_b[0]@ray", "ray"), ("tests/browser/test_a.py::test_b@browser", "browser"),
        ("tests/generation/test_a.py::test_b", "tests/generation/"), ("tests/notebooks/test_a.py::test_b[c]", "tests/notebooks/test_a.py::test_b[c]"),
    ],
)  # fmt: skip
def test_files_stay_whole(nodeid: str, together: str) -> None:
    assert scope(nodeid) == together
