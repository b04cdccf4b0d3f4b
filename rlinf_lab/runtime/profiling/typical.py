"""A little of what workers usually do, for measurements. It is some Python, some small arrays, a small network.

A loop over one matrix would keep its caches warm however long it has slept; between two steps of a network everything
that runs it has been forgotten.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class TypicalWork:
    """Made where it is done (`Worker.setup`): it loads torch."""

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        self._weights = np.ones((48, 48), np.float32) / 48
        self._network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
        self._inputs = torch.zeros(16, 64)

    def do(self, times: int) -> None:
        """Some 40 us each time."""
        with self._torch.no_grad():
            for _ in range(times):
                np.tanh(self._weights @ self._weights).sum()
                sum(i * i for i in range(400))
                self._network(self._inputs)
