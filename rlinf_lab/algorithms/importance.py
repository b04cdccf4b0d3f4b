"""Weights for samples that another policy drew than the one whose loss is computed. Any shapes.

Two causes, one correction: the sampler computes other probabilities than the trainer for the same weights (kernels,
precision), and the sampler has older weights (staleness). Both give ``exp(log π_near − log π_sampler)``, bounded above.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf_lab.algorithms.aggregation import aggregate
from rlinf_lab.algorithms.kl import kl_estimate
from rlinf_lab.errors import ConfigError, shown


def truncated_importance(trainer_log_prob: Tensor, sampler_log_prob: Tensor, *, cap: float = 2.0) -> Tensor:
    """``min(exp(trainer − sampler), cap)``, without a gradient: the weight of each token in a loss.

    Truncation bounds the variance at the price of a bias towards the sampler. Sources: Ionides, Truncated Importance
    Sampling (2008); Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (2025).
    Raises `ConfigError` for a cap that is not positive.
    """
    if not cap > 0:
        raise ConfigError(f"truncated_importance(cap={shown(cap)}): greater than 0, such as 2.")
    return (trainer_log_prob - sampler_log_prob).detach().exp().clamp(max=cap)


@torch.no_grad()
def mismatch(trainer_log_prob: Tensor, sampler_log_prob: Tensor, mask: Tensor | None = None, *, cap: float = 2.0) -> dict[str, Tensor]:
    """How far sampler and trainer disagree about the same tokens, as scalars.

    ``mismatch_kl``: KL(sampler || trainer) in nats a token (k3, never negative); ``mismatch_max``: largest difference
    of a log-probability; ``mismatch_truncated``: share of tokens whose weight reached the cap. Source: Yao et al. (2025),
    as above.
    """
    gap = trainer_log_prob - sampler_log_prob
    if mask is not None:
        gap = torch.where(mask > 0, gap, 0.0)
    return {
        "mismatch_kl": aggregate(kl_estimate(torch.zeros_like(gap), gap), mask),
        "mismatch_max": gap.abs().max() if gap.numel() else gap.new_zeros(()),
        "mismatch_truncated": aggregate((gap.exp() > cap).to(gap.dtype), mask),
    }
