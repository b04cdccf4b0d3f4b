"""Moments: any split and any order of merging gives the moments of all rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_lab.algorithms import Moments


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 1000), st.floats(-1e4, 1e4))
def test_merging_ranks_equals_one_pass(sizes, seed, offset):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(offset, 3, size=(n, 2)) for n in sizes]
    rows = np.concatenate(parts)
    merged = Moments.empty(2)
    for part in rng.permutation(np.arange(len(parts))):
        merged = merged.merge(Moments.of(parts[part]))
    assert merged.count == len(rows)
    if len(rows):
        np.testing.assert_allclose(merged.mean, rows.mean(0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(merged.variance, rows.var(0), rtol=1e-6, atol=1e-6)


def test_nothing_seen_normalises_nothing():
    empty = Moments.empty(3)
    assert (empty.mean == 0).all() and (empty.std == 1).all()
    assert empty.merge(Moments.empty(3)).count == 0


def test_single_precision_rows_do_not_cancel():
    rows = (1e4 + np.random.default_rng(0).normal(0, 1e-1, (5000, 1))).astype(np.float32)
    running = Moments.empty(1)
    for part in np.array_split(rows, 50):
        running = running.update(part)
    np.testing.assert_allclose(running.std, rows.astype(np.float64).std(0), rtol=1e-9)


def test_shapes_must_agree_and_repr_is_short():
    with pytest.raises(ValueError, match="shape"):
        Moments.empty(2).merge(Moments.empty(3))
    assert "count=4" in repr(Moments.of(np.ones((4, 2))))
