"""Transitions over several steps, made from single ones as they come. Legend: T time, N environments.

Source: Sutton (1988), Hessel et al., Rainbow (arXiv 1710.02298), section "Multi-step learning".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.trees import Tree, length, map_tree, rows

NEEDED = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


class NStep:
    """Turns steps of N environments into transitions of up to ``n`` steps.

    The reward becomes the discounted sum, ``next_obs`` what the last of the steps led to, ``discount`` gamma to the
    power of the steps, 0 where the last of them terminated: the target is ``reward + discount · value(next_obs)``.
    None reaches across the end of an episode, so fewer steps are spanned before one. ``truncated`` is left out, for
    ``discount`` says what follows; all else is that of the first step.
    """

    def __init__(self, n: int, gamma: float) -> None:
        if not isinstance(n, int) or n < 1 or not isinstance(gamma, (int, float)) or not 0.0 <= gamma <= 1.0:
            raise ConfigError(f"NStep({shown(n)}, gamma={shown(gamma)}): at least 1 step, gamma between 0 and 1.")
        self.n, self.gamma = n, gamma
        self._waiting: dict[str, Tree] | None = None

    def push(self, steps: dict[str, Tree], begins_N: NDArray[np.bool_] | None = None) -> dict[str, Tree]:
        """Take the next T steps of all environments. The transitions that are complete now, the oldest first.

        ``steps``: leaves of leading axes T, N, named as in `NEEDED`; ``next_obs`` is before any reset. ``begins_N``:
        where the first of them begins an episode although the last did not end; that one then counts as truncated.
        Of other environments than before, what waits is given up. Raises `ConfigError` for what is missing.
        """
        missing = [name for name in NEEDED if name not in steps]
        if missing:
            raise ConfigError(f"steps lack {missing}. Next: a dict with {', '.join(NEEDED)}.")
        before = self._waiting
        if before is not None and before["reward"].shape[1] == steps["reward"].shape[1]:
            if begins_N is not None:
                before["truncated"][-1] |= begins_N & ~before["terminated"][-1]
            steps = map_tree(lambda *parts: np.concatenate(parts), before, steps)
        complete = max(0, length(steps["reward"]) - self.n + 1)
        rest = map_tree(lambda leaf: leaf[complete:].copy(), steps)
        self._waiting = rest if length(rest["reward"]) else None
        return over_n_steps(steps, self.n, self.gamma, complete)

    def flush(self) -> dict[str, Tree] | None:
        """The transitions that are incomplete, spanning what there is.

        None without any. For a pause, or the end.
        """
        rest, self._waiting = self._waiting, None
        return None if rest is None else over_n_steps(rest, self.n, self.gamma)

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to go on here."""
        waiting = None if self._waiting is None else map_tree(np.copy, self._waiting)
        return {"n": self.n, "gamma": self.gamma, "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._waiting = None if state["waiting"] is None else map_tree(np.copy, state["waiting"])

    def __repr__(self) -> str:
        waiting = 0 if self._waiting is None else length(self._waiting["reward"])
        return f"NStep({self.n}, gamma={self.gamma}; {waiting} steps wait)"


def over_n_steps(steps: dict[str, Tree], n: int, gamma: float, count: int | None = None) -> dict[str, Tree]:
    """Transitions of up to ``n`` steps, as `NStep` makes them.

    Those that begin in the first ``count`` of T steps of N environments; None: in all. The last of the T steps is no
    end, but nothing behind it is known: fewer steps are spanned there.
    """
    T, N = steps["reward"].shape
    count = T if count is None else count
    return_TN, last_TN, going_TN = np.zeros((count, N)), np.zeros((count, N), np.int64), np.ones((count, N), bool)
    ends_TN = steps["terminated"] | steps["truncated"]
    for k in range(n):
        here, later = slice(min(count, max(0, T - k))), slice(k, min(count + k, T))
        return_TN[here] += np.where(going_TN[here], gamma**k * steps["reward"][later].astype(np.float64), 0.0)
        last_TN[here] = np.where(going_TN[here], k, last_TN[here])
        going_TN[here] &= ~ends_TN[later]
    at_last = np.arange(count)[:, None] + last_TN, np.arange(N)[None]
    terminated_TN = steps["terminated"][at_last]
    first = {name: rows(part, slice(count)) for name, part in steps.items() if name != "truncated"}
    return first | {
        "reward": return_TN.astype(np.result_type(steps["reward"], np.float32)),
        "next_obs": rows(steps["next_obs"], at_last),
        "terminated": terminated_TN,
        "discount": np.where(terminated_TN, 0.0, gamma ** (last_TN + 1)).astype(np.float32),
    }
