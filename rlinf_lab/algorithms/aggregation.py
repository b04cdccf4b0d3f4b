"""How a value of each token becomes one number. Legend: B sequences, T tokens; masks are 1 where a token counts.

The three ways differ in what a long response weighs: as much as its tokens ("token_mean", DAPO), as much as a short one
("sequence_mean", the original GRPO, which makes long wrong answers cheap), or its tokens over a constant that no
response changes ("constant", Dr. GRPO). Sources: arXiv 2503.14476 equation 8; 2402.03300 equation 3; 2503.20783
section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlinf_lab.errors import ConfigError, UnknownNameError, shown

AGGREGATIONS = ("token_mean", "sequence_mean", "constant")


def aggregate(
    value: Tensor,
    mask: Tensor | None = None,
    how: str = "token_mean",
    *,
    constant: float | None = None,
    denominator: float | Tensor | None = None,
) -> Tensor:
    """A scalar. ``mask`` has the shape of ``value``; for the ways of sequences the last axis is T.

    ``denominator`` replaces the count that a mean is divided by (`count_of`): a batch in parts, each divided by the
    whole's count, sums up to the whole. Raises `UnknownNameError` for another ``how``.
    """
    total = _total(value, mask, how, constant)
    if denominator is None:
        denominator = count_of(value, mask, how)
    return total / denominator


def count_of(value: Tensor, mask: Tensor | None = None, how: str = "token_mean") -> Tensor | int:
    """What `aggregate` divides by: tokens, or sequences that have any; at least 1."""
    if mask is None:
        return max(1, value.numel() if how == "token_mean" else value[..., 0].numel())
    if how == "token_mean":
        return mask.sum().clamp(min=1)
    return (mask.sum(-1) > 0).sum().clamp(min=1)


def _total(value: Tensor, mask: Tensor | None, how: str, constant: float | None) -> Tensor:
    # where, not a product: what is not finite outside of the mask must not become NaN
    masked = value if mask is None else torch.where(mask > 0, value, 0.0)
    if how == "token_mean":
        return masked.sum()
    if how == "sequence_mean":
        tokens = value.shape[-1] if mask is None else mask.sum(-1).clamp(min=1)
        return (masked.sum(-1) / tokens).sum()
    if how == "constant":
        if constant is None or not constant > 0:
            raise ConfigError(f"aggregation 'constant' divides by constant={shown(constant)}. Next: the longest response's tokens.")
        return masked.sum() / constant
    raise UnknownNameError.of("aggregation", how, AGGREGATIONS)
