"""DeepMind's Control Suite, such as "dm_control/cheetah-run".

MuJoCo bodies, rewards in [0, 1] a step, episodes of 1,000 steps that nothing ends early.

Observations are a dict of the task's own parts (positions, velocities, touch ...); pictures come from its first camera.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.rendering import choose_renderer
from rlinf_lab.errors import MissingDependencyError
from rlinf_lab.vecenv import EnvSpec, LoopVecEnv, Outcome
from rlinf_lab.vecenv.spaces import Native, presented_action

NEEDS = "rlinf-lab[dm-control]"
UNLIMITED = float("inf")


def _simulator() -> Any:
    choose_renderer()
    try:
        from dm_control import suite
    except ImportError as error:
        raise MissingDependencyError.of("dm_control", "dm-control", "An environment of the Control Suite") from error
    if not hasattr(np, "in1d"):
        suite.quadruped.np = _OlderNumpy()
    return suite


class _OlderNumpy:
    """numpy, with what 2.4 has dropped and the quadruped of version 1.0.28 calls."""

    in1d = staticmethod(np.isin)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def tasks() -> list[str]:
    """ "domain-task" of the whole suite."""
    return [f"{domain}-{task}" for domain, task in _simulator().ALL_TASKS]


def has(task: str) -> bool:
    return task in tasks()


class ControlEnv:
    """One environment."""

    def __init__(self, task: str, draws: bool, options: dict[str, Any]) -> None:
        domain, _, name = task.partition("-")
        # lqr draws its masses and springs when it is made: the same ones in all environments
        given = {**options, "task_kwargs": {"random": 0, **(options.get("task_kwargs") or {})}}
        self._env = _simulator().load(domain, name, environment_kwargs={"flat_observation": False}, **given)
        self._draws = draws
        action = self._env.action_spec()
        self.native_space = spaces.Box(
            np.broadcast_to(action.minimum, action.shape).astype(np.float64), np.broadcast_to(action.maximum, action.shape).astype(np.float64), dtype=np.float64
        )
        self.observation_space = spaces.Dict(
            {name: spaces.Box(-np.inf, np.inf, part.shape, np.float32) for name, part in self._env.observation_spec().items()}
        )
        self.limit = None if self._env._step_limit == UNLIMITED else int(self._env._step_limit)

    def reset(self, seed: int | None) -> dict[str, Any]:
        if seed is not None:
            self._env.task._random = np.random.RandomState(seed)
        return dict(self._env.reset().observation)

    def step(self, action: NDArray) -> Outcome:
        told = self._env.step(action)
        ended = told.last()
        return Outcome(dict(told.observation), float(told.reward or 0.0), ended and told.discount == 0.0, ended and told.discount != 0.0, None)

    def render(self) -> NDArray[np.uint8] | None:
        return np.asarray(self._env.physics.render(240, 320, camera_id=0)) if self._draws else None

    def close(self) -> None:
        self._env.close()


def cannot_leave(task: str) -> str:
    return "dm_control keeps parts of a state in objects of its own"


def spec(task: str, max_episode_steps: int | None = None) -> EnvSpec:
    env = ControlEnv(task, False, {})
    try:
        return _spec(task, env, max_episode_steps)
    finally:
        env.close()


def _spec(task: str, env: ControlEnv, max_episode_steps: int | None, draws: bool = False) -> EnvSpec:
    id = f"dm_control/{task}"
    limits = [limit for limit in (max_episode_steps, env.limit) if limit is not None]
    action, limit = presented_action(env.native_space, id), min(limits) if limits else None
    return EnvSpec(id, env.observation_space, action, limit, None, renders=draws, native_action_space=env.native_space)


def make(task: str, num_envs: int, max_episode_steps: int | None = None, **options: Any) -> LoopVecEnv:
    """``options``: of dm_control.suite.load, such as task_kwargs."""
    draws = choose_renderer() is not None
    envs = [ControlEnv(task, draws, copy.deepcopy(options)) for _ in range(num_envs)]
    return LoopVecEnv(envs, _spec(task, envs[0], max_episode_steps, draws), Native(envs[0].native_space))
