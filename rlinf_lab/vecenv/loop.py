"""A vector made of N single environments stepped one after another in this process.

For simulators whose step costs tens of microseconds or more a loop beats every pool of processes on one core; cores are used by
giving the simulator worker more ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import EnvError
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv.base import EnvSpec, Restorable, cannot_leave


class Outcome(NamedTuple):
    """What a single environment gives for one step."""

    obs_O: NDArray
    reward: float
    terminated: bool
    truncated: bool
    success: bool


class SingleEnv(Protocol):
    """One environment, as an adapter provides it. The horizon is counted by `LoopVecEnv`.

    If it also has what `base.Restorable` has, for itself, the vector can leave its device.
    """

    def reset(self, seed: int | None) -> NDArray: ...
    def step(self, action_A: NDArray) -> Outcome: ...
    def render(self) -> NDArray[np.uint8] | None: ...
    def close(self) -> None: ...


class LoopVecEnv:
    """See `base.VecEnv` for the contract."""

    def __init__(self, envs: Sequence[SingleEnv], spec: EnvSpec) -> None:
        self.num_envs, self.spec = len(envs), spec
        self._envs = list(envs)
        self._age_N = np.zeros(len(envs), np.int64)
        self._started = False

    def reset(self, *, seed: int | None = None) -> NDArray[np.float32]:
        self._age_N[:] = 0
        self._started = True
        seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
        return np.stack([env.reset(s) for env, s in zip(self._envs, seeds, strict=True)]).astype(np.float32)

    def step(self, action_NA: NDArray) -> EnvStep:
        n, size = self.num_envs, self.spec.obs_size
        action_NA = checked_actions(self.spec, n, action_NA, self._started)
        obs_NO = np.empty((n, size), np.float32)
        final_NO = np.empty((n, size), np.float32)
        reward_N = np.empty(n, np.float32)
        terminated_N, truncated_N, success_N = np.empty((3, n), bool)
        self._age_N += 1
        for i, env in enumerate(self._envs):
            outcome = env.step(action_NA[i])
            final_NO[i] = obs_NO[i] = outcome.obs_O
            reward_N[i], terminated_N[i], success_N[i] = outcome.reward, outcome.terminated, outcome.success
            truncated_N[i] = not outcome.terminated and (outcome.truncated or self._age_N[i] >= self.spec.horizon)
            if terminated_N[i] or truncated_N[i]:
                obs_NO[i] = env.reset(None)
                self._age_N[i] = 0
        return EnvStep(obs_NO, reward_N, terminated_N, truncated_N, success_N, final_NO)

    def cannot_leave(self) -> str:
        """See `base.cannot_leave`: its environments are all alike."""
        return cannot_leave(self._envs[0])

    def save_state(self) -> dict[str, Any]:
        """See `base.Restorable`. `EnvError` when the environments cannot be saved."""
        return {"of": self._kind(), "age_N": self._age_N.copy(), "started": self._started, "envs": [env.save_state() for env in self._restorable()]}

    def restore_state(self, state: dict[str, Any]) -> None:
        """`EnvError` when the environments cannot be saved, or the state is that of other ones."""
        if state["of"] != self._kind():
            raise other_environments(self._kind(), state["of"])
        for env, saved in zip(self._restorable(), state["envs"], strict=True):
            env.restore_state(saved)
        self._age_N[:], self._started = state["age_N"], state["started"]

    def _kind(self) -> tuple[str, int, int]:
        return self.spec.id, self.num_envs, self.spec.horizon

    def _restorable(self) -> list[Restorable]:
        if why := self.cannot_leave():
            raise EnvError(f"{self.spec.id} cannot be saved: {why}. Next: leave it where it is, or implement save_state() and restore_state().")
        return cast("list[Restorable]", self._envs)

    def render(self) -> NDArray[np.uint8] | None:
        return self._envs[0].render()

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def __repr__(self) -> str:
        return f"{self.spec.id} × {self.num_envs} (observation {self.spec.obs_size}, action {self.spec.action_size}, horizon {self.spec.horizon})"


def other_environments(mine: tuple[str, int, int], saved: tuple[str, int, int]) -> EnvError:
    """``mine``, ``saved``: id, number of environments and horizon."""
    (id, n, horizon), (saved_id, saved_n, saved_horizon) = mine, saved
    return EnvError(
        f"A state of {saved_id} × {saved_n} (horizon {saved_horizon}) is not one of {id} × {n} (horizon {horizon}). "
        f"Next: make_vec({saved_id!r}, {saved_n}, {saved_horizon}), then restore_state(...)."
    )


def checked_actions(spec: EnvSpec, num_envs: int, action_NA: NDArray, started: bool) -> NDArray:
    """Actions clipped to [-1, 1]. `EnvError` when the shape is wrong, a number is not finite, or `reset` was not called."""
    if not started:
        raise EnvError(f"{spec.id}: step() before reset(). Next: obs = env.reset(seed=0).")
    action_NA = np.asarray(action_NA)
    if action_NA.shape != (num_envs, spec.action_size):
        raise EnvError(f"{spec.id}: actions have shape {action_NA.shape}; {(num_envs, spec.action_size)} is needed.")
    if not np.isfinite(action_NA).all():
        raise EnvError(f"{spec.id}: an action is not finite: {action_NA[~np.isfinite(action_NA).all(axis=1)][0]}. Did the policy diverge?")
    return np.clip(action_NA, -1.0, 1.0)
