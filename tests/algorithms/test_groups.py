"""Advantages of groups against formulas written out for each response."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from rlinf_lab.algorithms import dr_grpo, grpo, informative, overlong_penalty, reinforce_pp, reinforce_pp_baseline, rloo
from rlinf_lab.errors import ConfigError

REWARD_PG = np.array([[1.0, 0.0, 0.0, 1.0], [0.3, 0.3, 0.3, 0.3], [2.0, -1.0, 0.5, 0.1]])


def flat(rows):
    return [x for row in rows for x in row]


@pytest.mark.parametrize("estimator", [
    (grpo, lambda r, i, rows: (r[i] - statistics.mean(r)) / (statistics.stdev(r) + 1e-6)),
    (dr_grpo, lambda r, i, rows: r[i] - statistics.mean(r)),
    (rloo, lambda r, i, rows: r[i] - statistics.mean(r[:i] + r[i + 1 :])),
    (reinforce_pp, lambda r, i, rows: (r[i] - statistics.mean(flat(rows))) / statistics.pstdev(flat(rows))),
    (reinforce_pp_baseline, lambda r, i, rows: (r[i] - statistics.mean(r))
     / statistics.pstdev([x - statistics.mean(row) for row in rows for x in row])),
], ids=lambda pair: pair[0].__name__)  # fmt: skip
def test_each_response_by_hand(estimator):
    function, by_hand = estimator
    rows = REWARD_PG.tolist()
    expected = [[by_hand(row, i, rows) for i in range(len(row))] for row in rows]
    np.testing.assert_allclose(function(REWARD_PG), expected, atol=1e-7)


def test_equal_rewards_give_exactly_nothing():
    equal = np.full((1, 7), 0.1)  # their mean is not 0.1 in float64
    for function in (grpo, dr_grpo, rloo):
        assert (function(equal) == 0).all()
    assert informative(REWARD_PG).tolist() == [True, False, True]


def test_overlong_penalty_falls_linearly_over_the_buffer():
    lengths = np.array([0, 80, 85, 100, 101, 500])
    np.testing.assert_allclose(overlong_penalty(lengths, max_length=100, buffer=20), [0, 0, -0.25, -1, -1, -1])
    with pytest.raises(ConfigError, match="buffer=200"):
        overlong_penalty(lengths, max_length=100, buffer=200)


def test_what_is_no_group_is_refused():
    with pytest.raises(ConfigError, match=r"at least 2 responses, not \(4, 1\)"):
        rloo(np.zeros((4, 1)))
    with pytest.raises(ConfigError, match="response 1 of group 0 is nan"):
        grpo(np.array([[1.0, np.nan]]))
    assert reinforce_pp(np.array([[1.0], [3.0]])).ravel() == pytest.approx([-1, 1])
