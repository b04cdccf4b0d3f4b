"""V-trace against the sum of its definition, and against GAE where the two policies are equal."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlinf_lab.algorithms import gae, vtrace


def drawn(seed, T=13, N=3):
    rng = np.random.default_rng(seed)
    r, v, nv, log_ratio = rng.normal(size=(4, T, N))
    term, trunc = rng.random((2, T, N)) < 0.15
    return log_ratio, r, v, nv, term, trunc


def by_definition(log_ratio, r, v, nv, term, trunc, gamma, lam, rho_clip, c_clip):
    """Equation 1 of the paper: v_s = V_s + sum_t gamma^(t-s) (product of c) rho_t delta_t, inside the episode."""
    T, N = r.shape
    target = v.copy()
    for n in range(N):
        for s in range(T):
            weight = 1.0
            for t in range(s, T):
                rho = min(rho_clip, math.exp(log_ratio[t, n]))
                target[s, n] += weight * rho * (r[t, n] + gamma * (0 if term[t, n] else nv[t, n]) - v[t, n])
                if term[t, n] or trunc[t, n]:
                    break
                weight *= gamma * lam * min(c_clip, math.exp(log_ratio[t, n]))
    advantage = np.empty_like(v)
    for n in range(N):
        for s in range(T):
            last = s == T - 1 or trunc[s, n]
            following = 0 if term[s, n] else nv[s, n] if last else target[s + 1, n]
            advantage[s, n] = min(1.0, math.exp(log_ratio[s, n])) * (r[s, n] + gamma * following - v[s, n])
    return advantage, target


@pytest.mark.parametrize(("seed", "lam", "rho_clip", "c_clip"), [(0, 1, 1, 1), (1, 0.9, 2, 1), (2, 0.7, 0.5, 0.3)])
def test_equals_the_definition(seed, lam, rho_clip, c_clip):
    args = drawn(seed)
    got = vtrace(*args, gamma=0.93, lam=lam, rho_clip=rho_clip, c_clip=c_clip)
    for one, other in zip(got, by_definition(*args, 0.93, lam, rho_clip, c_clip), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_on_policy_targets_are_those_of_gae():
    log_ratio, *steps = drawn(3)
    _, target = vtrace(np.zeros_like(log_ratio), *steps, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(target, gae(*steps, gamma=0.9, lam=0.8)[1], atol=1e-12)
