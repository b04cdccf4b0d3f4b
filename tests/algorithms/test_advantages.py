"""GAE against hand-computed numbers, against its definition, and at its limits."""

from __future__ import annotations

import numpy as np
import pytest

from rlinf_lab.algorithms import gae


def column(*values, dtype=float):
    return np.array(values, dtype=dtype)[:, None]


def no(steps):
    return np.zeros((steps, 1), bool)


def test_three_steps_by_hand():
    # gamma = 0.5, lambda = 0.5; delta = r + 0.5 V' - V = (1+1-1, 2+0.5-2, 3+2-1) = (1, 0.5, 4)
    adv, ret = gae(column(1, 2, 3), column(1, 2, 1), column(2, 1, 4), no(3), no(3), gamma=0.5, lam=0.5)
    np.testing.assert_allclose(adv[:, 0], [1 + 0.25 * 1.5, 0.5 + 0.25 * 4, 4])
    np.testing.assert_allclose(ret, adv + column(1, 2, 1))


def test_termination_ignores_the_value_behind_it():
    args = column(1, 1), column(0.5, 0.5)
    adv, _ = gae(*args, column(0.5, 1e9), column(False, True, dtype=bool), no(2), gamma=0.9, lam=1.0)
    np.testing.assert_allclose(adv[:, 0], [0.95 + 0.9 * 0.5, 0.5])


def test_time_limit_bootstraps_the_final_observation_and_stops_the_sum():
    truncated = column(False, True, False, dtype=bool)
    adv, _ = gae(column(1, 1, 1), column(0, 0, 0), column(0, 7, 5), no(3), truncated, gamma=0.9, lam=0.8)
    at_limit = 1 + 0.9 * 7
    np.testing.assert_allclose(adv[:, 0], [1 + 0.72 * at_limit, at_limit, 1 + 0.9 * 5])


def test_both_flags_at_once_count_as_termination():
    adv, _ = gae(column(1.0), column(0.25), column(9.0), ~no(1), ~no(1), gamma=0.9, lam=0.9)
    assert adv.item() == 0.75


def brute_force(r, v, nv, term, trunc, gamma, lam):
    """The definition: the (1-lambda)-weighted mean of n-step advantages is the sum of decayed errors inside the episode."""
    T, N = r.shape
    out = np.zeros_like(r)
    for n in range(N):
        for t in range(T):
            weight = 1.0
            for k in range(t, T):
                out[t, n] += weight * (r[k, n] + gamma * (0 if term[k, n] else nv[k, n]) - v[k, n])
                if term[k, n] or trunc[k, n]:
                    break
                weight *= gamma * lam
    return out


@pytest.mark.parametrize("seed", range(5))
def test_equals_the_definition(seed):
    rng = np.random.default_rng(seed)
    r, v, nv = rng.normal(size=(3, 17, 4))
    term, trunc = rng.random((2, 17, 4)) < 0.15
    adv, _ = gae(r, v, nv, term, trunc, gamma=0.93, lam=0.8)
    np.testing.assert_allclose(adv, brute_force(r, v, nv, term, trunc, 0.93, 0.8), atol=1e-12)


def test_lambda_zero_is_the_one_step_error():
    rng = np.random.default_rng(0)
    r, v, nv = rng.normal(size=(3, 9, 2))
    flags = np.zeros((9, 2), bool)
    adv, ret = gae(r, v, nv, flags, flags, gamma=0.9, lam=0.0)
    np.testing.assert_allclose(adv, r + 0.9 * nv - v)
    np.testing.assert_allclose(ret, r + 0.9 * nv)


def test_lambda_one_is_the_discounted_return_minus_the_value():
    rng = np.random.default_rng(1)
    r, v = rng.normal(size=(2, 6, 1))
    last = 3.0
    nv = np.concatenate([v[1:], [[last]]])
    _, ret = gae(r, v, nv, no(6), no(6), gamma=0.9, lam=1.0)
    expected = [sum(0.9 ** (k - t) * r[k, 0] for k in range(t, 6)) + 0.9 ** (6 - t) * last for t in range(6)]
    np.testing.assert_allclose(ret[:, 0], expected)


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        gae(np.zeros((3, 2)), np.zeros((2, 2)), np.zeros((3, 2)), np.zeros((3, 2), bool), no(3), gamma=1, lam=1)
