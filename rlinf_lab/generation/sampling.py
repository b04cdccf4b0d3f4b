"""Choosing tokens with noise of the request and the position alone.

It depends neither on the batch nor on the slot, the process or what ran before.

The noise is the counter-based generator SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), so a
request that moves to another instance in the middle of its answer goes on with the very numbers it would have had.

Legend: R rows (requests), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_MIX_1, _MIX_2 = -4658895280553007687, -7723592293110705685  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 23  # a float32 below 1 times a sum about 1 then stays below that sum


def uniform(key_R: Tensor, position_R: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) with 23 bits, float32. One for each (key, position), both int64."""
    z = key_R + (position_R + 1) * _GOLDEN
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    z = z ^ _shift(z, 31)
    return _shift(z, 64 - _BITS).to(torch.float32) * 2.0**-_BITS


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


@dataclass(frozen=True, eq=False)
class Choice:
    """How each row chooses: columns of the requests' `SamplingParams`, all of shape (R,)."""

    key_R: Tensor
    """int64, `Request.key`"""
    temperature_R: Tensor
    """float32; 0: greedy"""
    top_p_R: Tensor
    """float32"""
    top_k_R: Tensor
    """int64; 0: all"""
    truncated: bool
    """whether any row has a top_p or top_k: otherwise nothing is sorted"""


def choose(logits_RV: Tensor, choice: Choice, position_R: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (R, int64) and their log-probabilities (R, float32, nats).

    Under the distribution that they were drawn from.

    ``position_R`` counts the tokens before, prompt included. A row of temperature 0 takes the likeliest token, with the model's own log-probability.
    """
    greedy_R = choice.temperature_R == 0
    divisor_R = torch.where(greedy_R, 1.0, choice.temperature_R)
    log_prob_RV = torch.log_softmax(logits_RV.float() / divisor_R[:, None], -1)
    drawn_RV = truncated(log_prob_RV, choice.top_p_R, choice.top_k_R) if choice.truncated else log_prob_RV
    mass_RV = drawn_RV.exp().cumsum(-1)
    aim_R1 = uniform(choice.key_R, position_R)[:, None] * mass_RV[:, -1:]
    token_R = torch.searchsorted(mass_RV, aim_R1, right=True).squeeze(-1).clamp_(max=logits_RV.shape[-1] - 1)
    token_R = torch.where(greedy_R, log_prob_RV.argmax(-1), token_R)
    if choice.truncated:
        drawn_RV = torch.where(greedy_R[:, None], log_prob_RV, drawn_RV)
    return token_R, drawn_RV.gather(-1, token_R[:, None]).squeeze(-1)


def truncated(log_prob_RV: Tensor, top_p_R: Tensor, top_k_R: Tensor) -> Tensor:
    """Log-probabilities with only the likeliest tokens left, renormalised.

    First top-k, then top-p of what that leaves.
    """
    sorted_RV, order_RV = log_prob_RV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(log_prob_RV.shape[-1], device=log_prob_RV.device)
    sorted_RV = sorted_RV.masked_fill((top_k_R > 0)[:, None] & (rank_V >= top_k_R[:, None]), -torch.inf).log_softmax(-1)
    prob_RV = sorted_RV.exp()
    before_RV = prob_RV.cumsum(-1) - prob_RV
    sorted_RV = sorted_RV.masked_fill((before_RV >= top_p_R[:, None]) & (rank_V > 0), -torch.inf).log_softmax(-1)
    return torch.empty_like(sorted_RV).scatter_(-1, order_RV, sorted_RV)
