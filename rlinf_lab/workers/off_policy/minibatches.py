"""Minibatches out of a replay buffer, many at once.

One gather a leaf for a block of them.

Legend: G minibatches, B rows of one, O rows of one from the online buffer, F those from the offline one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlinf_lab.replay import PrioritisedReplayBuffer, ReplayBuffer, Sample
from rlinf_lab.trees import Tree, map_tree, rows

BLOCK_BYTES = 16 << 20  # of minibatches that are drawn at once: they stay in a cache, and images in memory


class Minibatch(NamedTuple):
    """Transitions as tensors on the learner's device."""

    obs: Any
    action: Tensor
    reward: Tensor
    discount: Tensor
    """gamma to the power of the steps that a transition spans, or 0 where the episode terminated"""
    next_obs: Any
    weight: Tensor | None
    """importance weights of a prioritised sample; None: all alike"""


class Minibatches:
    """Draws from ``online`` and, an ``offline_share`` of each minibatch, from ``offline``.

    Source of the mixture: Ball et al., RLPD (arXiv 2302.02948), section 4.1. Where there is nothing online yet, all
    rows are offline ones. ``device``: torch's, of the tensors.
    """

    def __init__(
        self, online: ReplayBuffer, batch_size: int, device: str, offline: ReplayBuffer | None = None,
        offline_share: float = 0.5,
    ) -> None:  # fmt: skip
        self.online, self.offline, self.batch_size, self.device = online, offline, batch_size, device
        self.offline_rows = 0 if offline is None else round(batch_size * offline_share)

    def draw(
        self, count: int, gamma: float, reward_scale: float, beta: float = 1.0
    ) -> Iterator[tuple[Minibatch, np.ndarray]]:
        """``count`` minibatches, each with the places of its rows in the online buffer.

        Of a prioritised buffer each is drawn when it is asked for, so that new priorities count at once. ``beta``: how
        far its weights correct for how often a row is drawn.
        """
        one_by_one = isinstance(self.online, PrioritisedReplayBuffer)
        at_once = 1 if one_by_one else max(1, BLOCK_BYTES // max(1, self.batch_size * self._row_bytes()))
        while count > 0:
            block = min(count, at_once)
            count -= block
            yield from self._block(block, gamma, reward_scale, beta)

    def _row_bytes(self) -> int:
        buffer = self.online if len(self.online) or self.offline is None else self.offline
        return buffer.nbytes // buffer.capacity

    def _block(
        self, block: int, gamma: float, reward_scale: float, beta: float
    ) -> Iterator[tuple[Minibatch, np.ndarray]]:
        sizes = self.batch_size - self.offline_rows, self.offline_rows
        if self.offline is not None and not len(self.online):
            sizes = 0, self.batch_size
        drawn: list[Sample] = []
        for buffer, size in zip((self.online, self.offline), sizes, strict=True):
            if buffer is not None and size:
                corrected = {"beta": beta} if isinstance(buffer, PrioritisedReplayBuffer) else {}
                drawn.append(buffer.sample(block * size, **corrected))
        data: Tree = drawn[0].data
        if len(drawn) > 1:
            data = map_tree(lambda *leaves: _side_by_side(block, *leaves), *(sample.data for sample in drawn))
        tensors = map_tree(self._tensor, data)
        reward_R = tensors["reward"].float() * reward_scale
        discount_R = tensors.get("discount")  # of transitions over several steps
        if discount_R is None:
            discount_R = gamma * (1.0 - tensors["terminated"].float())
        weight_R = self._tensor(drawn[0].weight_B) if isinstance(self.online, PrioritisedReplayBuffer) else None
        index_R = drawn[0].index_B if sizes[0] else np.zeros(0, np.int64)
        for g in range(block):
            mine = slice(g * self.batch_size, (g + 1) * self.batch_size)
            obs, next_obs = rows(tensors["obs"], mine), rows(tensors["next_obs"], mine)
            weight_B = None if weight_R is None else weight_R[mine]
            batch = Minibatch(obs, tensors["action"][mine], reward_R[mine], discount_R[mine], next_obs, weight_B)
            yield batch, index_R[g * sizes[0] : (g + 1) * sizes[0]]

    def _tensor(self, leaf: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(leaf)
        return (tensor.float() if tensor.dtype == torch.float64 else tensor).to(self.device)


def _side_by_side(block: int, *leaves: np.ndarray) -> np.ndarray:
    """Rows of several samples as ``block`` minibatches that each have their share of every one."""
    parts = [leaf.reshape(block, -1, *leaf.shape[1:]) for leaf in leaves]
    joined = np.concatenate(parts, axis=1)
    return joined.reshape(-1, *joined.shape[2:])
