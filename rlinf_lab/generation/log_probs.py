"""The trainer's side: completions as tensors, and their log-probabilities under a model, with gradients.

Several texts share a row, one after another, with positions that begin anew: attention of transformers' modules does not look across. Little is
then computed for padding, however long the tail. Everything per token comes back as (B, T), column t being an answer's token t.

Legend: B completions, T tokens of the longest answer, R rows, C tokens of a row, N answer tokens in all, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf_lab.errors import ConfigError
from rlinf_lab.generation.completion import Completion
from rlinf_lab.generation.generator import module_of


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """B completions in R rows of tokens, ready for a model. With what their sampler said about each answer token."""

    ids_RC: Tensor
    """int64; padding on the right"""
    position_RC: Tensor
    """int64; begins at 0 for each text"""
    place_BT: Tensor
    """int64; where in the flattened rows the token before each answer token stands, whose logits predict it"""
    token_BT: Tensor
    """int64; the answers, 0 after their ends"""
    mask_BT: Tensor
    """bool; which of the (B, T) are answer tokens that were sampled"""
    log_prob_BT: Tensor
    """float32, in nats; the sampler's, 0 after the ends"""
    version_BT: Tensor
    """int64; of the weights that sampled, 0 after the ends"""

    def __len__(self) -> int:
        return len(self.token_BT)

    @property
    def tokens(self) -> int:
        """Answer tokens in all: N."""
        return int(self.mask_BT.sum())

    def to(self, device: str | torch.device) -> TokenBatch:
        """The same on another device."""
        return TokenBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def __repr__(self) -> str:
        R, C = self.ids_RC.shape
        return f"TokenBatch({len(self)} completions, {self.tokens} answer tokens, {R} rows of {C} on {self.ids_RC.device})"


def token_batch(completions: Sequence[Completion], *, pad_id: int = 0, row_tokens: int | None = None) -> TokenBatch:
    """Put completions into rows of ``row_tokens``, longest first.

    Each goes into the first row with room (first-fit decreasing).

    ``row_tokens`` None: as long as the longest text. Raises `ConfigError` for no completions, one without tokens, or one longer than a row.
    """
    if not completions:
        raise ConfigError("token_batch was given no completions. Next: at least one.")
    empty = [c for c in completions if not len(c)]
    if empty:
        raise ConfigError(f"token_batch: {len(empty)} of {len(completions)} completions have no tokens: {empty[0]!r}. Next: leave those out.")
    length_B = [len(c.prompt_ids) + len(c) for c in completions]
    columns = row_tokens or max(length_B)
    if max(length_B) > columns:
        raise ConfigError(f"token_batch(row_tokens={row_tokens}): the longest text has {max(length_B)} tokens. Next: at least so many.")
    rows, begin_B = _rows(length_B, columns)
    longest = max(map(len, completions))
    ids_RC, position_RC = np.full((rows, columns), pad_id, np.int64), np.zeros((rows, columns), np.int64)
    place_BT, token_BT, version_BT = (np.zeros((len(completions), longest), np.int64) for _ in range(3))
    mask_BT, log_prob_BT = np.zeros((len(completions), longest), bool), np.zeros((len(completions), longest), np.float32)
    for b, (c, begin) in enumerate(zip(completions, begin_B, strict=True)):
        n, prompt, text = len(c), len(c.prompt_ids), slice(begin, begin + length_B[b])
        ids_RC.reshape(-1)[text] = np.concatenate([c.prompt_ids, c.token_ids])
        position_RC.reshape(-1)[text] = np.arange(length_B[b])
        place_BT[b, :n] = begin + prompt - 1 + np.arange(n)
        token_BT[b, :n], version_BT[b, :n], mask_BT[b, :n], log_prob_BT[b, :n] = c.token_ids, c.versions, c.sampled, c.log_probs
    return TokenBatch(*map(torch.from_numpy, (ids_RC, position_RC, place_BT, token_BT, mask_BT, log_prob_BT, version_BT)))


def token_log_probs(model: Any, batch: TokenBatch, *, temperature: float = 1.0) -> Tensor:
    """Log-probabilities (B, T) of the answers under ``model``, in nats, 0 after their ends. Gradients flow into the model.

    ``temperature`` divides the logits, as the sampler's did. ``model`` is a `LanguageModel` or a transformers module.
    """
    logits_NV = _answer_logits(model, batch, temperature)
    token_N1 = batch.token_BT[batch.mask_BT][:, None]
    log_prob_N = logits_NV.gather(-1, token_N1).squeeze(-1) - logits_NV.logsumexp(-1)
    return torch.zeros_like(batch.log_prob_BT).masked_scatter(batch.mask_BT, log_prob_N)


def _answer_logits(model: Any, batch: TokenBatch, temperature: float) -> Tensor:
    if temperature <= 0:
        raise ConfigError(f"token_log_probs(temperature={temperature}). Next: the sampler's, above 0; for greedy answers 1.")
    logits_RCV = module_of(model)(input_ids=batch.ids_RC, position_ids=batch.position_RC, use_cache=False).logits
    return logits_RCV.flatten(0, 1)[batch.place_BT[batch.mask_BT]].float() / temperature


def _rows(length_B: Sequence[int], columns: int) -> tuple[int, list[int]]:
    """How many rows, and where each text begins in the flattened rows."""
    filled: list[int] = []
    begin_B = [0] * len(length_B)
    for b in sorted(range(len(length_B)), key=lambda b: -length_B[b]):
        row = next((r for r, used in enumerate(filled) if used + length_B[b] <= columns), len(filled))
        if row == len(filled):
            filled.append(0)
        begin_B[b] = row * columns + filled[row]
        filled[row] += length_B[b]
    return len(filled), begin_B
