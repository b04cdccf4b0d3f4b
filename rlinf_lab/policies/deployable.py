"""A trained policy as one plain module, for whatever runs torch programs or ONNX."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from rlinf_lab.policies.heads import Head


class Deployable(nn.Module):
    """Observations, a tree of tensors (B, *shape) as the environment gives them, to greedy actions, a tree of tensors
    (B, ...).

    Preprocessing and its statistics are inside. A copy: training on does not change it.
    """

    def __init__(self, preprocess: nn.Module, encoder: nn.Module, actor: nn.Module, head: Head) -> None:
        super().__init__()
        self.preprocess, self.encoder, self.actor, self.head = copy.deepcopy((preprocess, encoder, actor, head))
        self.eval().requires_grad_(False)

    def forward(self, obs: Any) -> Any:
        return self.head.greedy(self.actor(self.encoder(self.preprocess(obs))))
