"""Statistics of runs against closed forms and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rlinf_lab.algorithms import statistics as st
from rlinf_lab.errors import ConfigError


def test_closed_forms():
    scores = np.arange(8.0).reshape(4, 2)
    assert st.interquartile_mean(scores) == 3.5  # of 2, 3, 4, 5
    assert st.interquartile_mean([5.0, -1000.0, 7.0, 1e9]) == 6.0
    assert st.mean(scores) == 3.5 and st.median(scores) == 3.5
    assert st.optimality_gap([[0.5, 2.0]]) == 0.25  # 2 counts as 1
    np.testing.assert_allclose(st.performance_profile(scores, [-1, 3.5, 7]), [1, 0.5, 0])


def test_probability_of_improvement_counts_pairs():
    x, y = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 6.0]]), np.array([[2.0, 5.0], [2.0, 7.0]])
    pairs = [[1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(x[:, m], y[:, m])] for m in (0, 1)]
    assert st.probability_of_improvement(x, y) == pytest.approx(np.mean([np.mean(p) for p in pairs]))
    assert st.probability_of_improvement(x, y) + st.probability_of_improvement(y, x) == pytest.approx(1)
    with pytest.raises(ConfigError, match="2 tasks against 1"):
        st.probability_of_improvement(x, y[:, :1])


def test_the_bootstrap_of_a_mean_is_that_of_all_resamples():
    """Of three runs there are 27 resamples: their quantiles are known."""
    scores = [0.0, 1.0, 5.0]
    every = np.array([np.mean(c) for c in itertools.product(scores, repeat=3)])
    interval = st.bootstrap_interval(st.mean, scores, confidence=0.8, resamples=5_000)
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(every, [0.1, 0.9])), abs=1e-9)
    assert interval.value == 2.0 and repr(interval).startswith("2 [")


def test_the_interval_is_stratified_and_covers():
    different_tasks = np.array([[0.0, 100.0]] * 4)  # no spread within a task
    assert st.bootstrap_interval(st.mean, different_tasks, resamples=50)[1:] == (50.0, 50.0)
    rng, covered = np.random.default_rng(0), 0
    for i in range(100):
        found = st.bootstrap_interval(st.mean, rng.normal(3.0, 1.0, (30, 1)), resamples=200, seed=i)
        covered += found.low <= 3.0 <= found.high
    assert 88 <= covered <= 99
    two = st.bootstrap_interval(st.probability_of_improvement, np.arange(5.0) + 10, np.arange(5.0), resamples=20)
    assert two == (1.0, 1.0, 1.0)


def test_a_run_that_failed_is_told():
    with pytest.raises(ConfigError, match="run 1 on task 0 is nan"):
        st.interquartile_mean([1.0, float("nan")])
    with pytest.raises(ConfigError, match="runs × tasks"):
        st.mean(np.zeros((0, 2)))
