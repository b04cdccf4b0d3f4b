"""Losses and schedules of learning from an expert. Legend: B batch, A action; masks are 1 where a row counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rlinf_lab.algorithms.aggregation import aggregate
from rlinf_lab.errors import ConfigError, shown


def clone_loss(log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """Behaviour cloning of a stochastic policy: ``−mean(log π(expert's action))``, in nats.

    Any shape. Source: Pomerleau, ALVINN (1988); as maximum likelihood in Ross and Bagnell (2010), section 2.
    """
    return -aggregate(log_prob, mask)


def regression_loss(action_BA: Tensor, expert_BA: Tensor, mask_B: Tensor | None = None, *, absolute: bool = False) -> Tensor:
    """Behaviour cloning of a deterministic policy: mean square (or absolute) error of an action's number.

    Any shape whose last axis is A; padded steps of action chunks are masked. The absolute error is ACT's
    (Zhao et al., arXiv 2304.13705, algorithm 1).
    """
    error = action_BA - expert_BA
    return aggregate((error.abs() if absolute else error.square()).mean(-1), mask_B)


def dagger_beta(iteration: int, *, decay: float = 0.0) -> float:
    """Probability with which the expert acts in this iteration: ``decay ** iteration``; 0⁰ is 1. Experimental.

    The first iteration is the expert's; with ``decay=0`` all others are the learner's, which the paper found best.
    Source: Ross et al., DAgger (arXiv 1011.0686), algorithm 3.1 and section 3.3.
    """
    if not 0.0 <= decay <= 1.0 or iteration < 0:
        raise ConfigError(f"dagger_beta({shown(iteration)}, decay={shown(decay)}): an iteration from 0, a decay in [0, 1].")
    return float(decay**iteration)


def dagger_mix(learner_BA: NDArray, expert_BA: NDArray, beta: float, rng: np.random.Generator) -> tuple[NDArray, NDArray[np.bool_]]:
    """The actions to take, and which of them are the expert's (shape B).

    Each row tosses a coin of its own. Experimental.

    The *labels* are the expert's actions for all rows, whoever acted. Source: Ross et al. (arXiv 1011.0686).
    """
    expert_B = rng.random(len(learner_BA)) < beta
    chosen = expert_B.reshape(-1, *[1] * (learner_BA.ndim - 1))
    return np.where(chosen, expert_BA, learner_BA), expert_B
