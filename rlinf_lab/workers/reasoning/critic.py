"""PPO with a critic for tokens.

A value of each place in an answer, and GAE from the reward at its end.

Source: Schulman et al., arXiv 1506.02438 (GAE) and arXiv 1707.06347 (PPO). Legend: B responses, T tokens, R rows, C
tokens of a row, N sampled tokens, H hidden.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.generation import LanguageModel, TokenBatch
from rlinf_lab.workers.reasoning.settings import UpdateSettings
from rlinf_lab.workers.reasoning.update import GradientAccumulator


class TokenCritic(nn.Module):
    """A copy of the model's body, whose head values what is written so far."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.body = copy.deepcopy(model.module.base_model)
        width = int(model.module.config.hidden_size)
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Values (B, T) before each sampled token; 0 elsewhere."""
        hidden_RCH = self.body(
            input_ids=batch.ids_RC, position_ids=batch.position_RC, use_cache=False
        ).last_hidden_state
        value_N = self.head(hidden_RCH.flatten(0, 1)[batch.place_BT[batch.mask_BT]].float()).squeeze(-1)
        return torch.zeros_like(batch.log_prob_BT).masked_scatter(batch.mask_BT, value_N)


def token_gae(reward_B: Tensor, value_BT: Tensor, mask_BT: Tensor, lam: float) -> Tensor:
    """Advantages (B, T) of the tokens of ``mask_BT``, without discount. The reward comes with the last of them."""
    advantage_BT = torch.zeros_like(value_BT)
    next_value_B, after_B = reward_B.clone(), torch.zeros_like(reward_B)
    for t in range(value_BT.shape[1] - 1, -1, -1):
        here_B, value_B = mask_BT[:, t], value_BT[:, t]
        now_B = next_value_B - value_B + lam * after_B
        advantage_BT[:, t] = torch.where(here_B, now_B, 0.0)
        after_B = torch.where(here_B, now_B, after_B)
        next_value_B = torch.where(here_B, value_B, next_value_B)
    return advantage_BT


class CriticAccumulator(GradientAccumulator):
    """As `GradientAccumulator`, for rewards: the critic turns them into advantages and learns what they were."""

    def __init__(
        self, model: LanguageModel, settings: UpdateSettings, *, max_tokens: int, temperature: float = 1.0
    ) -> None:
        self.critic = TokenCritic(model).to(next(model.module.parameters()).device)
        self.critic_optimizer = torch.optim.AdamW(
            self.critic.parameters(), lr=settings.critic_learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )
        super().__init__(model, settings, max_tokens=max_tokens, temperature=temperature)

    def forget(self) -> None:
        super().forget()
        self.critic_optimizer.zero_grad()

    def _teaches(self, advantage: float) -> bool:
        return True

    def _advantage(self, batch: TokenBatch, advantage_B: NDArray[np.floating], log_prob_BT: Tensor) -> Tensor:
        reward_B = torch.as_tensor(advantage_B, dtype=log_prob_BT.dtype, device=log_prob_BT.device)
        value_BT = self.critic(batch)
        advantage_BT = token_gae(reward_B, value_BT.detach(), batch.mask_BT, self.settings.gae_lambda)
        return_BT = value_BT.detach() + advantage_BT
        error_BT = torch.where(batch.mask_BT, value_BT - return_BT, 0.0)
        loss = 0.5 * error_BT.square().sum()
        loss.backward()
        self._sums["value_loss"] += float(loss.detach())
        self._sums["value"] += float(value_BT.detach().sum())
        return advantage_BT

    def step(self, learning_rate: float, version: int = -1) -> dict[str, float]:
        tokens = max(1.0, self._tokens)
        told = {"value_loss": self._sums["value_loss"] / tokens, "value": self._sums["value"] / tokens}
        if self._tokens:
            for parameter in self.critic.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(tokens)
            nn.utils.clip_grad_norm_(self.critic.parameters(), self.settings.max_grad_norm)
            self.critic_optimizer.step()
        return {**super().step(learning_rate, version), **told}

    def more_state(self) -> dict[str, Any]:
        return {"critic": self.critic.state_dict(), "critic_optimizer": self.critic_optimizer.state_dict()}

    def load_more(self, state: Mapping[str, Any]) -> None:
        self.critic.load_state_dict(state["critic"])
        self.critic_optimizer.load_state_dict(copy.deepcopy(state["critic_optimizer"]))
