"""Statistics of few runs: aggregate scores with intervals from a stratified bootstrap. Legend: R runs, M tasks.

Source: Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice (arXiv 2108.13264), whose
library is rliable; equal definitions, on arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinf_lab.errors import ConfigError, shown

Scores = NDArray[np.float64]


class Interval(NamedTuple):
    """A statistic and the percentile interval of its bootstrap."""

    value: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


def scores_of(scores: ArrayLike) -> Scores:
    """Scores as a finite R×M array; one task may be given as R numbers. Raises `ConfigError`."""
    score_RM = np.asarray(scores, dtype=np.float64)
    if score_RM.ndim == 1:
        score_RM = score_RM[:, None]
    if score_RM.ndim != 2 or not score_RM.size:
        raise ConfigError(f"scores have the shape runs × tasks, not {score_RM.shape}. Next: a number for each run and task.")
    if not np.isfinite(score_RM).all():
        run, task = np.argwhere(~np.isfinite(score_RM))[0]
        raise ConfigError(f"the score of run {run} on task {task} is {score_RM[run, task]}: a run that failed has no mean.")
    return score_RM


def mean(scores: ArrayLike) -> float:
    """Mean over runs and tasks."""
    return float(scores_of(scores).mean())


def median(scores: ArrayLike) -> float:
    """Median over tasks of each task's mean over runs."""
    return float(np.median(scores_of(scores).mean(0)))


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all runs on all tasks. A quarter, rounded down, is cut off at each end."""
    ordered = np.sort(scores_of(scores), axis=None)
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def optimality_gap(scores: ArrayLike, target: float = 1.0) -> float:
    """By how much runs fall short of ``target``, on average. What is above it does not make up for others."""
    return float(target - np.minimum(scores_of(scores), target).mean())


def probability_of_improvement(scores: ArrayLike, other: ArrayLike) -> float:
    """Probability that a run of ``scores`` beats one of ``other``.

    On a task drawn at random; ties count one half.

    The Mann-Whitney statistic of each task, averaged. The numbers of runs may differ, the tasks may not.
    """
    x_RM, y_SM = scores_of(scores), scores_of(other)
    if x_RM.shape[1] != y_SM.shape[1]:
        raise ConfigError(f"{x_RM.shape[1]} tasks against {y_SM.shape[1]}: both need the same tasks, in one order.")
    greater = (x_RM[:, None] > y_SM[None]).mean((0, 1)) + 0.5 * (x_RM[:, None] == y_SM[None]).mean((0, 1))
    return float(greater.mean())


def performance_profile(scores: ArrayLike, thresholds: ArrayLike) -> NDArray[np.float64]:
    """Share of the runs, over all tasks, that score above each threshold."""
    return (scores_of(scores).ravel()[None] > np.asarray(thresholds, float).reshape(-1, 1)).mean(1)


def bootstrap_interval(
    statistic: Callable[..., float],
    *scores: ArrayLike,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """``statistic`` of one or more sets of scores, with its percentile interval.

    Stratified: each resample draws the runs of every task anew, with replacement, and keeps the tasks. Raises
    `ConfigError` for a confidence outside (0, 1) or fewer than one resample.
    """
    if not 0.0 < confidence < 1.0 or resamples < 1:
        raise ConfigError(f"bootstrap_interval(confidence={shown(confidence)}, resamples={shown(resamples)}): between 0 and 1, at least 1.")
    sets = [scores_of(s) for s in scores]
    rng = np.random.default_rng(seed)
    drawn = [statistic(*(_resampled(s, rng) for s in sets)) for _ in range(resamples)]
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(drawn, [tail, 1.0 - tail])
    return Interval(float(statistic(*sets)), float(low), float(high))


def _resampled(score_RM: Scores, rng: np.random.Generator) -> Scores:
    rows_RM = rng.integers(len(score_RM), size=score_RM.shape)
    return np.take_along_axis(score_RM, rows_RM, axis=0)
