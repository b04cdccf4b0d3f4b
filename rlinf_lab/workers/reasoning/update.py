"""Gradients of a batch that comes in parts.

Groups are added as they are whole, and one step ends the batch.

Each part's loss is a sum; the step divides by the batch's count. So the gradient is that of the whole batch, however
it was cut. Legend: B responses, T tokens.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlinf_lab.algorithms import count_of, kl_estimate, truncated_importance
from rlinf_lab.generation import LanguageModel, TokenBatch, token_batch, token_log_probs
from rlinf_lab.workers.reasoning.records import Response
from rlinf_lab.workers.reasoning.settings import UpdateSettings


class GradientAccumulator:
    """The gradient of `UpdateSettings.loss` over the responses added since the last `step`.

    Of a token that the current weights sampled, "truncated" takes the ratio to the trainer's own probability, which is
    1, and weighs it by the truncated ratio of trainer to sampler; an older token gets PPO's clipped ratio to the
    sampler. "decoupled" treats every token the first way, "none" every token the second.
    """

    def __init__(
        self, model: LanguageModel, settings: UpdateSettings, *, max_tokens: int, temperature: float = 1.0
    ) -> None:
        self.model, self.settings = model, settings
        self.max_tokens, self.temperature = max_tokens, temperature
        self.optimizer = torch.optim.AdamW(
            model.module.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        self._reference = copy.deepcopy(model.module).requires_grad_(False) if settings.kl_coef > 0 else None
        self._moved_from = -1
        self.forget()

    def forget(self) -> None:
        """Give up what has been added."""
        self.optimizer.zero_grad()
        self._count = 0.0
        self._tokens = 0.0
        self._sums: dict[str, float] = defaultdict(float)
        self._largest: dict[str, float] = defaultdict(float)

    def add(self, responses: Sequence[Response], advantage_B: NDArray[np.floating], version: int) -> None:
        """Forward and backward. Responses without tokens, and those without an advantage, only count.

        ``version``: of the weights that this batch's updates began with, to tell which tokens are older.
        """
        settings = self.settings
        lengths = np.array([int(r.completion.sampled.sum()) for r in responses])
        self._count += lengths.sum() if settings.aggregation == "token_mean" else (lengths > 0).sum()
        for response in responses:
            self._tell_staleness(response, version)
        kept = [i for i, n in enumerate(lengths) if n and self._teaches(float(advantage_B[i]))]
        if kept:
            self._backward([responses[i] for i in kept], np.asarray(advantage_B)[kept], version)

    def _teaches(self, advantage: float) -> bool:
        """Whether there is anything to learn from a response with this advantage."""
        return advantage != 0.0 or self._reference is not None

    def _advantage(self, batch: TokenBatch, advantage_B: NDArray[np.floating], log_prob_BT: Tensor) -> Tensor:
        """Of each token, (B, T) or (B, 1)."""
        return torch.as_tensor(advantage_B, dtype=log_prob_BT.dtype, device=log_prob_BT.device)[:, None]

    def _backward(self, responses: Sequence[Response], advantage_B: NDArray[np.floating], version: int) -> None:
        settings, device = self.settings, next(self.model.module.parameters()).device
        batch = token_batch([r.completion for r in responses], pad_id=self.model.pad_id).to(device)
        log_prob_BT = token_log_probs(self.model, batch, temperature=self.temperature)
        near_BT = log_prob_BT.detach()
        own_BT = (batch.version_BT == version) & (version != self._moved_from)
        old_BT, weight_BT = self._corrected(near_BT, batch.log_prob_BT, own_BT)
        loss = settings.loss(
            log_prob_BT,
            old_BT,
            self._advantage(batch, advantage_B, log_prob_BT),
            batch.mask_BT,
            clip=settings.clip_range,
            clip_high=settings.clip_range_high,
            dual_clip=settings.dual_clip,
            weight=weight_BT,
            aggregation=settings.aggregation,
            constant=float(self.max_tokens),
            denominator=1.0,
            **self._towards_reference(batch),
        )
        loss.total.backward()
        tokens = float(count_of(log_prob_BT, batch.mask_BT))
        self._tokens += tokens
        gap_BT = torch.where(batch.mask_BT, near_BT - batch.log_prob_BT, 0.0)
        own_gap_BT = torch.where(own_BT, gap_BT, 0.0)
        self._sums["policy_loss"] += float(loss.total.detach())
        self._sums["kl"] += tokens * float(loss.kl)
        self._sums["clip_fraction"] += tokens * float(loss.clip_fraction)
        self._sums["reference_kl"] += tokens * float(loss.reference_kl)
        self._sums["own"] += float((own_BT & batch.mask_BT).sum())
        # Of the sampler and the trainer with equal weights; for older tokens it is the policy that has moved.
        self._sums["mismatch_kl"] += float(kl_estimate(torch.zeros_like(gap_BT), own_gap_BT).sum())
        self._sums["truncated"] += float((gap_BT.exp() > settings.weight_cap).sum())
        self._largest["mismatch_max"] = max(self._largest["mismatch_max"], float(own_gap_BT.abs().max()))

    def _corrected(self, near_BT: Tensor, sampler_BT: Tensor, own_BT: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the ratio is taken to, and the weight of each token."""
        if self.settings.correction == "none":
            return sampler_BT, None
        weight_BT = truncated_importance(near_BT, sampler_BT, cap=self.settings.weight_cap)
        if self.settings.correction == "decoupled":
            return near_BT, weight_BT
        return torch.where(own_BT, near_BT, sampler_BT), torch.where(own_BT, weight_BT, 1.0)

    def _towards_reference(self, batch: object) -> dict[str, object]:
        if self._reference is None:
            return {}
        with torch.no_grad():
            reference_BT = token_log_probs(self._reference, batch, temperature=self.temperature)  # type: ignore[arg-type]
        return {"reference_log_prob": reference_BT, "kl_coefficient": self.settings.kl_coef}

    def more_state(self) -> dict[str, Any]:
        """What a checkpoint needs beside model and optimiser."""
        return {}

    def load_more(self, state: Mapping[str, Any]) -> None:
        """Take over what `more_state` gave."""

    def _tell_staleness(self, response: Response, version: int) -> None:
        behind_T = version - response.completion.versions[response.completion.sampled]
        if len(behind_T):
            self._sums["staleness"] += float(behind_T.sum())
            self._sums["sampled"] += len(behind_T)
            self._largest["staleness_max"] = max(self._largest["staleness_max"], float(behind_T.max()))

    def step(self, learning_rate: float, version: int = -1) -> dict[str, float]:
        """One optimiser step on what was added, and what to tell about it. Nothing added: no step.

        From then on tokens of ``version`` are not the current weights' own any more.
        """
        sums, tokens, count = self._sums, max(1.0, self._tokens), self._count
        norm = 0.0
        if self._tokens:
            for parameter in self.model.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(count)
            norm = float(torch.nn.utils.clip_grad_norm_(self.model.module.parameters(), self.settings.max_grad_norm))
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
            self._moved_from = version
        told = {
            "policy_loss": sums["policy_loss"] / max(1.0, count),
            "kl": sums["kl"] / tokens,
            "clip_fraction": sums["clip_fraction"] / tokens,
            "mismatch_kl": sums["mismatch_kl"] / max(1.0, sums["own"]),
            "mismatch_max": self._largest["mismatch_max"],
            "weights_truncated": sums["truncated"] / tokens,
            "staleness": sums["staleness"] / max(1.0, sums["sampled"]),
            "staleness_max": self._largest["staleness_max"],
            "grad_norm": norm,
        }
        if self._reference is not None:
            told["reference_kl"] = sums["reference_kl"] / tokens
        self.forget()
        return told
