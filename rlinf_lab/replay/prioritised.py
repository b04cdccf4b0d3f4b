"""Prioritised experience replay. Legend: B rows of a sample.

Source: Schaul et al., Prioritized Experience Replay (arXiv 1511.05952), section 3.3 (proportional) and 3.4 (weights).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.replay.buffer import ReplayBuffer, Sample
from rlinf_lab.replay.flat import Tree


class SumTree:
    """Sums over a binary tree in one array. Leaves are set, and found by cumulative sum, many at once."""

    def __init__(self, leaves: int) -> None:
        self._first = 1 << max(0, (leaves - 1).bit_length())
        self._node = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        return float(self._node[1])

    def get(self, leaf: ArrayLike) -> NDArray[np.float64]:
        return self._node[self._first + np.asarray(leaf)]

    def set(self, leaf: NDArray[np.integer], value: ArrayLike) -> None:
        """Where a leaf is named twice, the last value counts."""
        self._node[self._first + leaf] = value
        node = np.unique((self._first + leaf) // 2)
        while node.size and node[0] >= 1:
            self._node[node] = self._node[2 * node] + self._node[2 * node + 1]
            node = np.unique(node // 2)

    def find(self, sum_B: NDArray[np.float64]) -> NDArray[np.int64]:
        """The leaf in which each cumulative sum, 0 ≤ sum < total, lies."""
        node_B, rest_B = np.ones(len(sum_B), np.int64), sum_B.copy()
        while node_B[0] < self._first:
            left_B = self._node[2 * node_B]
            # A sum that rounding has pushed to the very end must not go where nothing is.
            right_B = (rest_B >= left_B) & (self._node[2 * node_B + 1] > 0)
            rest_B -= np.where(right_B, left_B, 0.0)
            node_B = 2 * node_B + right_B
        return node_B - self._first


class PrioritisedReplayBuffer(ReplayBuffer):
    """The last ``capacity`` transitions, drawn in proportion to ``priority ** alpha``.

    New transitions get the largest priority seen so far; `update` gives them that of their temporal difference.
    ``alpha`` 0 is uniform, 1 fully proportional. ``epsilon`` is added to each priority, so none is never drawn.
    """

    def __init__(self, capacity: int, *, alpha: float = 0.6, epsilon: float = 1e-6, seed: int = 0) -> None:
        super().__init__(capacity, seed=seed)
        if not 0.0 <= alpha <= 1.0 or not epsilon > 0.0:
            raise ConfigError(
                f"PrioritisedReplayBuffer(alpha={shown(alpha)}, epsilon={shown(epsilon)}): alpha in [0, 1], epsilon > 0."
            )
        self.alpha, self.epsilon = alpha, epsilon
        self._tree = SumTree(self.capacity)
        self._largest = 1.0

    def add(self, transitions: Tree) -> NDArray[np.int64]:
        """As `ReplayBuffer.add`."""
        index = super().add(transitions)
        self._tree.set(index, self._largest**self.alpha)
        return index

    def sample(self, size: int, *, beta: float = 0.4) -> Sample:
        """``size`` rows, one from each equal part of the whole priority. Weights ``(N·P)^-beta`` over their largest."""
        self._require_rows(size)
        if not 0.0 <= beta <= 1.0:
            raise ConfigError(f"sample(beta={shown(beta)}): between 0 (no correction) and 1 (full).")
        part_B = (np.arange(size) + self._rng.random(size)) / size
        index_B = self._tree.find(part_B * self._tree.total)
        probability_B = self._tree.get(index_B) / self._tree.total
        weight_B = (len(self) * probability_B) ** -beta
        return Sample(self.rows(index_B), index_B, (weight_B / weight_B.max()).astype(np.float32))

    def update(self, index_B: NDArray[np.integer], priority_B: ArrayLike) -> None:
        """Set the priorities of drawn rows, such as absolute temporal differences.

        Raises `ConfigError` for one that is negative or not finite. A row that was overwritten since gets it, too.
        """
        value_B = np.asarray(priority_B, np.float64)
        if not (np.isfinite(value_B).all() and (value_B >= 0).all()):
            worst = value_B[~(np.isfinite(value_B) & (value_B >= 0))][0]
            raise ConfigError(
                f"a priority is {worst}: finite and not negative. Next: abs() of the temporal difference."
            )
        value_B = value_B + self.epsilon
        self._tree.set(np.asarray(index_B), value_B**self.alpha)
        self._largest = max(self._largest, float(value_B.max(initial=0.0)))

    def clear(self) -> None:
        super().clear()
        self._tree, self._largest = SumTree(self.capacity), 1.0

    @classmethod
    def _made(cls, state: Mapping[str, Any]) -> Self:
        return cls(state["capacity"], alpha=state["alpha"], epsilon=state["epsilon"])

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "alpha": self.alpha, "epsilon": self.epsilon, "largest": self._largest}

    def _arrays(self) -> dict[str, NDArray]:
        return {"weight": self._tree.get(self.order)}

    def _restore(self, own: Mapping[str, NDArray], state: Mapping[str, Any]) -> None:
        super()._restore(own, state)
        self._largest = state["largest"]
        if len(self):
            self._tree.set(self.order, own["weight"])
