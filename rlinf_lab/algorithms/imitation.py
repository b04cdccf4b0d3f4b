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


def dagger_beta(iteration: int, *, decay: float = 0.0) -> float:
    """Probability with which the expert acts in this iteration: ``decay ** iteration``; 0⁰ is 1. Experimental.

    The first iteration is the expert's; with ``decay=0`` all others are the learner's, which the paper found best.
    Source: Ross et al., DAgger (arXiv 1011.0686), algorithm 3.1 and section 3.3.
    """
    if not 0.0 <= decay <= 1.0 or iteration < 0:
        raise ConfigError(f"dagger_beta({shown(iteration)}, decay={shown(decay)}): an iteration from 0, a decay in [0, 1].")
    return float(decay**iteration)


def dagger_mix(learner_B: NDArray, expert_B: NDArray, beta: float, coin_B: NDArray[np.floating]) -> NDArray:
    """The actions to take: the expert's where a row's coin is less than ``beta``.

    Coins are uniform in [0, 1). The *labels* are the expert's actions for all rows, whoever acted. Source: Ross et al., DAgger (arXiv 1011.0686), section 3.3.
    """
    return np.where((coin_B < beta).reshape(-1, *[1] * (np.ndim(learner_B) - 1)), expert_B, learner_B)
