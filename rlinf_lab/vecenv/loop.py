"""A vector made of N single environments stepped one after another in this process.

For simulators whose step costs tens of microseconds or more a loop beats every pool of processes on one core; cores are used by
giving the simulator worker more ranks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import EnvError
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree, map_tree, rows
from rlinf_lab.vecenv.base import EnvSpec, Restorable, cannot_leave
from rlinf_lab.vecenv.spaces import checked_batch, checked_box, empty, truth, write_one


class Outcome(NamedTuple):
    """What a single environment gives for one step."""

    obs: Any
    """of the form of the observation space"""
    reward: float
    terminated: bool
    truncated: bool
    success: Any = None
    """the task's own signal, a truth value or a number (`spaces.truths`); None where it gives none"""


class SingleEnv(Protocol):
    """One environment, as an adapter provides it. Steps are counted by `LoopVecEnv`, which also copies what it hands over.

    If it also has what `base.Restorable` has, for itself, the vector can leave its device.
    """

    def reset(self, seed: int | None) -> Any: ...
    def step(self, action: Any) -> Outcome: ...
    def render(self) -> NDArray[np.uint8] | None: ...
    def close(self) -> None: ...


class LoopVecEnv:
    """See `base.VecEnv` for the contract. ``native``: from checked actions of the batch to what the environments' `step` takes, such as `spaces.Native`."""

    def __init__(self, envs: Sequence[SingleEnv], spec: EnvSpec, native: Callable[[Tree], Tree] | None = None) -> None:
        self.num_envs, self.spec = len(envs), spec
        self._envs, self._native = list(envs), native
        self._age_N = np.zeros(len(envs), np.int64)
        self._limit = math.inf if spec.max_episode_steps is None else spec.max_episode_steps
        self._started = False
        self.stepping = np.array([-1])
        """the environment that is being stepped or reset now; who steps it for others has them see this (`processes`)"""

    @property
    def envs(self) -> tuple[SingleEnv, ...]:
        """The single environments."""
        return tuple(self._envs)

    def native(self, action_N: Tree) -> Tree:
        """What the environments' `step` takes, of checked actions."""
        return action_N if self._native is None else self._native(action_N)

    def reset(self, *, seed: int | None = None) -> Tree:
        self._age_N[:] = 0
        self._started = True
        obs_N = empty(self.spec.observation_space, self.num_envs)
        try:
            for i, env in enumerate(self._envs):
                self.stepping[0] = i
                self._write(obs_N, i, env.reset(None if seed is None else seed + i))
        except (Exception, SystemExit) as error:
            self._tell_which(error)
            raise
        self.stepping[0] = -1
        return obs_N

    def step(self, action_N: Tree) -> EnvStep:
        n = self.num_envs
        action_N = checked_actions(self.spec, n, action_N, self._started)
        action_N = self.native(action_N)
        final_N = empty(self.spec.observation_space, n)
        reward_N = np.empty(n, np.float32)
        terminated_N, truncated_N, success_N = np.zeros((3, n), bool)
        self._age_N += 1
        is_told, ended = False, []
        try:
            for i, env in enumerate(self._envs):
                self.stepping[0] = i
                obs, reward_N[i], terminated, truncated, success = env.step(rows(action_N, i))
                self._write(final_N, i, obs)
                if success is not None:
                    is_told, success_N[i] = True, success if isinstance(success, bool) else truth(success, f"{self.spec.id}: its success")
                if terminated:
                    terminated_N[i] = True
                    ended.append(i)
                elif truncated or self._age_N[i] >= self._limit:
                    truncated_N[i] = True
                    ended.append(i)
            obs_N = self._after(final_N, ended) if ended else final_N
        except (Exception, SystemExit) as error:
            self._tell_which(error)
            raise
        self.stepping[0] = -1
        if is_told and self.spec.success is None:
            self.spec = dataclasses.replace(self.spec, success="reported by the task")
        return EnvStep(obs_N, reward_N, terminated_N, truncated_N, success_N if is_told else None, final_N)

    def _after(self, final_N: Tree, ended: list[int]) -> Tree:
        """The observations to act on. Of environments that ended the first one of a new episode."""
        obs_N = map_tree(np.copy, final_N)
        for i in ended:
            self.stepping[0] = i
            self._write(obs_N, i, self._envs[i].reset(None))
            self._age_N[i] = 0
        return obs_N

    def _tell_which(self, error: BaseException) -> None:
        """Which environment it was, as a note. One that leaves the whole program is an `EnvError` instead."""
        id, i = self.spec.id, int(self.stepping[0])
        if isinstance(error, SystemExit):
            raise EnvError(f"{id}: environment {i} called exit({error.code!r}). Next: what it said before tells why.") from error
        error.add_note(f"It was raised by environment {i} of {id}.")

    def _write(self, target: Tree, i: int, obs: Any) -> None:
        write_one(target, i, obs, self.spec.id, self.spec.observation_space)

    def cannot_leave(self) -> str:
        """See `base.cannot_leave`: its environments are all alike."""
        return cannot_leave(self._envs[0])

    def save_state(self) -> dict[str, Any]:
        """See `base.Restorable`. `EnvError` when the environments cannot be saved."""
        envs = [env.save_state() for env in self._restorable()]
        return {"of": self._kind(), "runner": "loop", "age_N": self._age_N.copy(), "started": self._started, "envs": envs}

    def restore_state(self, state: dict[str, Any]) -> None:
        """`EnvError` when the environments cannot be saved, or the state is that of other ones."""
        check_state(state, self._kind(), "loop")
        for env, saved in zip(self._restorable(), state["envs"], strict=True):
            env.restore_state(saved)
        self._age_N[:], self._started = state["age_N"], state["started"]

    def _kind(self) -> tuple[str, int, int | None]:
        return self.spec.id, self.num_envs, self.spec.max_episode_steps

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
        return described(self.spec, self.num_envs)


def described(spec: EnvSpec, num_envs: int, how: str = "") -> str:
    """One line for the repr of a vector."""
    limit = "no limit of steps" if spec.max_episode_steps is None else f"at most {spec.max_episode_steps} steps"
    runner = f", runner {spec.runner.brief}" if spec.runner else ""
    return f"{spec.id} × {num_envs}{how}{runner} (observation {spec.observation_space}, action {spec.action_space}, {limit})"


def check_state(state: dict[str, Any], mine: tuple[str, int, int | None], runner: str) -> None:
    """`EnvError` for a state that is of other environments. Also for one of these in another runner."""
    if state["of"] != mine:
        raise other_environments(mine, state["of"])
    if state["runner"] != runner:
        raise EnvError(f"{mine[0]}: a state of runner {state['runner']!r} cannot go on in {runner!r}. Next: make_vec(..., runner={state['runner']!r}).")


def other_environments(mine: tuple[str, int, int | None], saved: tuple[str, int, int | None]) -> EnvError:
    """``mine``, ``saved``: id, number of environments and limit of steps."""
    (id, n, limit), (saved_id, saved_n, saved_limit) = mine, saved
    return EnvError(
        f"A state of {saved_id} × {saved_n} (max_episode_steps={saved_limit}) is not one of {id} × {n} (max_episode_steps={limit}). "
        f"Next: make_vec({saved_id!r}, {saved_n}, {saved_limit}), then restore_state(...)."
    )


def checked_actions(spec: EnvSpec, num_envs: int, action_N: Tree, started: bool) -> Tree:
    """Actions, new arrays, clipped to the bounds of a Box. `EnvError` when shape or type is wrong, a number is not finite, or `reset` was not called."""
    if not started:
        raise EnvError(f"{spec.id}: step() before reset(). Next: obs = env.reset(seed=0).")
    if spec.action_bounds is not None:
        return checked_box(spec.action_space, spec.action_bounds, num_envs, np.asarray(action_N), spec.id)
    return checked_batch(spec.action_space, num_envs, action_N, spec.id)
