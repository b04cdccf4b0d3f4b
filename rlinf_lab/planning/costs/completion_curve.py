"""From a completion curve in seconds to lengths in tokens.

With F(t) the fraction finished, sequences advance at ``ds/dt = 1 / (alpha · (1 + load(t)))``: at the start, when all
run, a token takes longer than at the end. The longest response reaches ``max_tokens`` at the last point, which fixes
alpha.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from rlinf_lab.planning.costs.lengths import fractions
from rlinf_lab.planning.profile.profile import Lengths

STEPS = 2_000


@lru_cache(maxsize=64)
def lengths_from_completion(lengths: Lengths, ratio: float | None, share: float) -> np.ndarray:
    """Quantiles [tokens] of the lengths behind a completion curve; not to be written to.

    ``ratio``: load of one token of context of all requests together, relative to the weights (None: load is the number
    running, with ``share`` of the seconds). Only the curve's form matters, not how many seconds it took.
    """
    time = np.array([0.0, *(p[0] for p in lengths.completion)])
    done = np.array([0.0, *(p[1] for p in lengths.completion)])
    time /= time[-1]
    grid = np.linspace(0, 1, STEPS + 1)
    running = 1 - np.interp(grid, time, done)
    tokens = (
        _by_context(grid, running, lengths, ratio)
        if ratio is not None
        else _by_count(grid, running, lengths.max_tokens, share)
    )
    # Time at which each quantile finishes, then the tokens that a sequence has by then.
    at = np.interp(fractions(), done, time)
    found = np.interp(at, grid, tokens)
    found[-1] = lengths.max_tokens
    found.flags.writeable = False
    return found


def _by_context(grid: np.ndarray, running: np.ndarray, lengths: Lengths, ratio: float) -> np.ndarray:
    """Tokens by time where one takes ``alpha · (1 + ratio · running · context)``. Heun's method runs inside a bisection
    on alpha.
    """
    step = float(grid[1])
    low, high = 0.0, float(grid[-1]) / lengths.max_tokens
    tokens = np.zeros_like(grid)
    for _ in range(60):
        alpha = 0.5 * (low + high)
        s = 0.0
        for i in range(len(grid) - 1):
            slope = 1 / (alpha * (1 + ratio * running[i] * (lengths.prompt_tokens + s)))
            ahead = 1 / (alpha * (1 + ratio * running[i + 1] * (lengths.prompt_tokens + s + step * slope)))
            s += step * 0.5 * (slope + ahead)
            tokens[i + 1] = s
        if abs(s / lengths.max_tokens - 1) < 1e-9:
            break
        low, high = (alpha, high) if s > lengths.max_tokens else (low, alpha)
    return tokens


def _by_count(grid: np.ndarray, running: np.ndarray, most: float, share: float) -> np.ndarray:
    """Tokens by time where one takes ``alpha · (1 + kappa · running)``. kappa is such that load has ``share`` of the
    seconds.
    """

    def advance(kappa: float) -> np.ndarray:
        speed = 1 / (1 + kappa * running)
        return np.concatenate([[0.0], np.cumsum(0.5 * (speed[1:] + speed[:-1]) * np.diff(grid))])

    low, high = 0.0, 1e6
    for _ in range(100):
        kappa = 0.5 * (low + high)
        low, high = (kappa, high) if 1 - advance(kappa)[-1] / grid[-1] < share else (low, kappa)
    tokens = advance(0.5 * (low + high))
    return tokens * most / tokens[-1]
