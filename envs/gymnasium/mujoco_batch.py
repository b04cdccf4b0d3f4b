"""Gymnasium's MuJoCo tasks as a batch.

One model, a state for each environment, observations and rewards of all at once.

An environment of gymnasium is made once; its parameters, its model and its way of beginning an episode are used as they are. What is left out
is what a step costs in Python (wrappers, a record of details for each environment) and forces that a task does not look at. Physics
is MuJoCo's own ``mj_step``, so numbers are those of gymnasium to the last bit.

Legend: N environments, Q positions, V velocities, A numbers of an action.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from envs.gymnasium.mujoco_rules import RULES, Judgement, Rule
from rlinf_lab.errors import MissingDependencyError
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv import EnvSpec, checked_actions
from rlinf_lab.vecenv.loop import check_state, described
from rlinf_lab.vecenv.spaces import Native, presented_action, presented_observation

_NEVER = np.iinfo(np.int64).max


class MujocoVecEnv:
    """See `vecenv.VecEnv` for the contract. ``make`` makes one environment of gymnasium; ``cores``: threads that share the physics."""

    def __init__(self, id: str, make: Callable[[], gymnasium.Env], num_envs: int, max_episode_steps: int | None, cores: int = 1) -> None:
        try:
            import mujoco
        except ImportError as error:
            raise MissingDependencyError.of("mujoco", "metaworld", f"{id}") from error
        self._mujoco = mujoco
        self._outer = make()
        env: Any = self._outer.unwrapped
        self._env = env
        self._rule: Rule = RULES[id.partition("/")[2]]
        self.model = env.model
        self._first = env.data  # which the renderer draws
        self._data = [self._first, *(mujoco.MjData(self.model) for _ in range(num_envs - 1))]
        self._rngs = [np.random.default_rng() for _ in range(num_envs)]
        self._views: dict[str, list[NDArray]] = {}
        observation, action = presented_observation(self._env.observation_space, id), presented_action(self._env.action_space, id)
        self._native = Native(self._env.action_space)
        limit = max_episode_steps or (self._outer.spec.max_episode_steps if self._outer.spec else None)
        draws, native = bool(self._env.render_mode), self._env.action_space
        self.num_envs, self.spec = num_envs, EnvSpec(id, observation, action, limit, None, renders=draws, native_action_space=native)
        self._limit = limit or _NEVER
        self._age_N = np.zeros(num_envs, np.int64)
        self._place_N: NDArray = np.zeros(num_envs)
        self._started = False
        self.cores = max(1, min(cores, num_envs))
        self._threads = ThreadPoolExecutor(self.cores, "physics") if self.cores > 1 else None
        self._shares = [self._data[k :: self.cores] for k in range(self.cores)]

    # --- what a rule asks ---------------------------------------------------------------------------------------------------
    @property
    def task(self) -> Any:
        """The environment of gymnasium, for its parameters."""
        return self._env

    def gather(self, name: str) -> NDArray[np.float64]:
        """A field of all states, N rows."""
        views = self._views.get(name)
        if views is None:
            views = self._views[name] = [getattr(data, name).reshape(-1) for data in self._data]
        return np.concatenate(views).reshape(self.num_envs, -1)

    # --- the contract -------------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | None = None) -> NDArray[np.float32]:
        if seed is not None:
            self._rngs = [np.random.default_rng(seed + i) for i in range(self.num_envs)]
        self._started = True
        obs_N = np.stack([self._begin(i) for i in range(self.num_envs)]).astype(np.float32)
        self._place_N = self._rule.place(self)
        return obs_N

    def step(self, action_N: NDArray) -> EnvStep:
        action_N = self._native(checked_actions(self.spec, self.num_envs, action_N, self._started))
        before_N = self._place_N
        self._advance(action_N)
        after_N = self._place_N = self._rule.place(self)
        judged: Judgement = self._rule.judge(self, action_N, before_N, after_N)
        self._age_N += 1
        truncated_N = self._age_N >= self._limit
        terminated_N = np.zeros(self.num_envs, bool) if judged.terminated_N is None else judged.terminated_N
        truncated_N &= ~terminated_N
        final_N = judged.obs_N.astype(np.float32)
        obs_N = final_N
        done_N = truncated_N | terminated_N
        if done_N.any():
            obs_N = final_N.copy()
            for i in np.flatnonzero(done_N).tolist():
                obs_N[i] = self._begin(i)
            self._place_N = self._rule.place(self)
        return EnvStep(obs_N, np.asarray(judged.reward_N, np.float32), terminated_N, truncated_N, None, final_N)

    def _advance(self, action_N: NDArray) -> None:
        for ctrl, action in zip(self._controls(), action_N, strict=True):
            ctrl[:] = action
        if self._threads is None:
            self._physics(self._data)
        else:
            list(self._threads.map(self._physics, self._shares))

    def _physics(self, share: list[Any]) -> None:
        step, post, model, frames = self._mujoco.mj_step, self._mujoco.mj_rnePostConstraint, self.model, self._env.frame_skip
        for data in share:
            step(model, data, frames)
            if self._rule.forces:
                post(model, data)

    def _controls(self) -> list[NDArray]:
        if "ctrl" not in self._views:
            self._views["ctrl"] = [data.ctrl for data in self._data]
        return self._views["ctrl"]

    def _begin(self, i: int) -> NDArray:
        """A new episode of environment ``i``, begun by gymnasium's own class."""
        self._env.data, self._env._np_random = self._data[i], self._rngs[i]
        self._age_N[i] = 0
        try:
            return self._env.reset()[0]
        finally:
            self._env.data = self._first

    # --- leaving ------------------------------------------------------------------------------------------------------------
    def _kind(self) -> tuple[str, int, int | None]:
        return self.spec.id, self.num_envs, self.spec.max_episode_steps

    def save_state(self) -> dict[str, Any]:
        """See `vecenv.Restorable`."""
        mujoco, signature = self._mujoco, self._mujoco.mjtState.mjSTATE_INTEGRATION
        state_NS = np.empty((self.num_envs, mujoco.mj_stateSize(self.model, signature)))
        for data, state_S in zip(self._data, state_NS, strict=True):
            mujoco.mj_getState(self.model, data, state_S, signature)
        held = {"rngs": self._rngs, "age_N": self._age_N, "place_N": self._place_N, "started": self._started}
        return {"of": self._kind(), "runner": "mujoco", "state_NS": state_NS, **copy.deepcopy(held)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """`EnvError` when the state is that of other environments."""
        check_state(state, self._kind(), "mujoco")
        held, signature = copy.deepcopy(state), self._mujoco.mjtState.mjSTATE_INTEGRATION
        for data, state_S in zip(self._data, held["state_NS"], strict=True):
            self._mujoco.mj_setState(self.model, data, state_S, signature)
        self._rngs, self._place_N, self._started = held["rngs"], held["place_N"], held["started"]
        self._age_N[:] = held["age_N"]

    def render(self) -> NDArray[np.uint8] | None:
        """The first environment."""
        picture = self._env.render() if self.spec.renders else None
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        self._outer.close()

    def __repr__(self) -> str:
        threads = "" if self.cores == 1 else f", {self.cores} threads"
        return described(self.spec, self.num_envs, f", a batch on MuJoCo{threads}")
