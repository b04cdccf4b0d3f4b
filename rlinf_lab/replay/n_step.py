"""Transitions over several steps, made from single ones as they come. Legend: N environments.

Source: Sutton (1988), Hessel et al., Rainbow (arXiv 1710.02298), section "Multi-step learning".
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.replay.flat import flat, nested

NEEDED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


class NStep:
    """Turns steps of N environments into transitions of up to ``n`` steps.

    The reward becomes the discounted sum, ``next_obs`` what the last of the steps led to, ``discount`` gamma to the
    power of the steps, 0 where the last of them terminated: the target is ``reward + discount · value(next_obs)``.
    None reaches across the end of an episode, so fewer steps are spanned before one.
    """

    def __init__(self, n: int, gamma: float) -> None:
        if not isinstance(n, int) or n < 1 or not 0.0 <= gamma <= 1.0:
            raise ConfigError(f"NStep({shown(n)}, gamma={shown(gamma)}): at least 1 step, gamma between 0 and 1.")
        self.n, self.gamma = n, gamma
        self._window: deque[dict[str, Any]] = deque()

    def push(self, step: dict[str, Any]) -> dict[str, Any] | None:
        """Take one step of all N environments. The N transitions that begin n − 1 steps earlier, or None at first.

        ``step``: leaves of leading axis N under "obs", "action", "reward", "next_obs" (before any reset), "terminated",
        "truncated"; more is kept from the first step. Raises `ConfigError` for what is missing.
        """
        missing = [name for name in NEEDED if name not in step]
        if missing:
            raise ConfigError(f"a step lacks {missing}. Next: a dict with {', '.join(NEEDED)}.")
        self._window.append(step)
        return self._oldest() if len(self._window) == self.n else None

    def flush(self) -> list[dict[str, Any]]:
        """The transitions that are still incomplete, spanning what there is. Before a pause, or at the end."""
        rest = []
        while self._window:
            rest.append(self._oldest())
        return rest

    def _oldest(self) -> dict[str, Any]:
        steps = list(self._window)
        reward_N = np.zeros_like(np.asarray(steps[0]["reward"]))
        going_N = np.ones(len(reward_N), bool)
        last_N = np.zeros(len(reward_N), np.int64)
        for k, step in enumerate(steps):
            reward_N = reward_N + np.where(going_N, self.gamma**k * step["reward"], 0.0).astype(reward_N.dtype)
            last_N[going_N] = k
            going_N &= ~(step["terminated"] | step["truncated"])
        rows_N = np.arange(len(reward_N))

        def at_last(name: str) -> Any:
            each = [flat(step[name]) for step in steps]
            return nested({leaf: np.stack([part[leaf] for part in each])[last_N, rows_N] for leaf in each[0]})

        terminated_N = at_last("terminated")
        made = {
            **self._window.popleft(),
            "reward": reward_N,
            "next_obs": at_last("next_obs"),
            "terminated": terminated_N,
            "truncated": at_last("truncated"),
            "discount": np.where(terminated_N, 0.0, self.gamma ** (last_N + 1)).astype(np.float32),
        }
        return made

    def __repr__(self) -> str:
        return f"NStep({self.n}, gamma={self.gamma}; {len(self._window)} steps wait)"
