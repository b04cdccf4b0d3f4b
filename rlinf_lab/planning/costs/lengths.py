"""Response lengths as quantiles in tokens, in the order in which requests are issued."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np

from rlinf_lab.planning.profile.profile import Lengths

QUANTILES = 512  # representative requests; the longest one is always among them
SEED = 20_250_915  # which request is long is drawn once: a model must answer the same twice


def fractions() -> np.ndarray:
    """Midpoints, but the last is 1: somebody has the longest response."""
    q = (np.arange(QUANTILES) + 0.5) / QUANTILES
    q[-1] = 1.0
    return q


def quantiles(lengths: Lengths) -> np.ndarray:
    """Lengths [tokens], ascending, shape (QUANTILES,), of a distribution given in tokens."""
    q = fractions()
    if lengths.quantiles:
        tokens = np.array([p[0] for p in lengths.quantiles])
        below = np.array([p[1] for p in lengths.quantiles])
        return np.minimum(
            np.interp(q, np.concatenate([[0.0], below]), np.concatenate([[0.0], tokens])), lengths.max_tokens
        )
    assert lengths.mean_tokens is not None
    return _log_normal(lengths.mean_tokens, lengths.max_tokens, lengths.sigma)


@lru_cache(maxsize=64)
def _log_normal(mean: float, most: float, sigma: float) -> np.ndarray:
    """Log-normal cut at ``most`` (longer ones stop there), whose mean after the cut is ``mean``."""
    q = fractions()
    q[-1] = 1 - 0.5 / QUANTILES
    z = np.exp(sigma * np.array([NormalDist().inv_cdf(p) for p in q]))
    low, high = 1e-9 * mean, 1e9 * most
    for _ in range(200):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if np.minimum(middle * z, most).mean() < mean else (low, middle)
    found = np.minimum(low * z, most)
    found[-1] = most
    return found


@lru_cache(maxsize=64)
def issue_order(group: int, correlation: float) -> np.ndarray:
    """Permutation of the quantiles: position i of the issue order has this rank of length. Groups are consecutive
    positions.

    ``correlation``: of the lengths within a group (Gaussian copula).
    """
    random = np.random.default_rng(SEED)
    groups = -(-QUANTILES // group)
    shared = np.repeat(random.standard_normal(groups), group)[:QUANTILES]
    own = random.standard_normal(QUANTILES)
    z = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    ranks = np.empty(QUANTILES, int)
    ranks[np.argsort(z, kind="stable")] = np.arange(QUANTILES)
    return ranks
