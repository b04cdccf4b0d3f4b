"""Any gymnasium environment with flat continuous observations and actions, such as "gymnasium/Pendulum-v1"."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rlinf_lab.errors import EnvError, MissingDependencyError
from rlinf_lab.vecenv import EnvSpec, LoopVecEnv, Outcome


def tasks() -> list[str]:
    """Gymnasium's own tasks that can be made here. What other packages register when they are imported can be made by name."""
    return [task for task, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium.envs.") and _can_be_made(task)]


def has(task: str) -> bool:
    return task in gymnasium.registry


def _can_be_made(task: str) -> bool:
    """Tried out: what it needs and which spaces it has is known to itself only. Some milliseconds each."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions that are out of date
            GymnasiumEnv(f"gymnasium/{task}", task).close()
    except (EnvError, MissingDependencyError):
        return False
    return True


class GymnasiumEnv:
    """One environment; actions in [-1, 1] are mapped linearly to its own range."""

    def __init__(self, id: str, task: str) -> None:
        try:
            self.env = gymnasium.make(task, render_mode="rgb_array")
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise MissingDependencyError(f"{id} needs a package of its own: {error}. Next: install that, or choose from lab.list_envs('gymnasium').") from error
        space, action = self.env.observation_space, self.env.action_space
        for what, found in (("observation", space), ("action", action)):
            if not isinstance(found, Box) or len(found.shape) != 1:
                raise EnvError(f"{id}: its {what} space is {found}; a flat Box is needed. Next: wrap it, then lab.register_env(...).")
        assert isinstance(action, Box)
        self._middle, self._half = (action.high + action.low) / 2, (action.high - action.low) / 2
        if not np.isfinite(self._half).all():
            raise EnvError(f"{id}: its action range is not finite: {action}. Next: wrap it with gymnasium.wrappers.RescaleAction.")

    def reset(self, seed: int | None) -> NDArray:
        return self.env.reset(seed=seed)[0]

    def step(self, action_A: NDArray) -> Outcome:
        action = (self._middle + self._half * action_A).astype(self.env.action_space.dtype)
        observation, reward, terminated, truncated, info = self.env.step(action)
        return Outcome(observation, float(reward), bool(terminated), bool(truncated), bool(info.get("is_success", info.get("success", False))))

    def render(self) -> NDArray[np.uint8] | None:
        try:
            picture = self.env.render()
        except gymnasium.error.DependencyNotInstalled:  # a toolkit for drawing is an extra of gymnasium
            return None
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        self.env.close()


def make(task: str, num_envs: int, horizon: int | None = None) -> LoopVecEnv:
    id = f"gymnasium/{task}"
    envs = [GymnasiumEnv(id, task) for _ in range(num_envs)]
    space, action = envs[0].env.observation_space, envs[0].env.action_space
    limit = gymnasium.spec(task).max_episode_steps or 1000
    spec = EnvSpec(id, int(np.prod(space.shape or (1,))), int(np.prod(action.shape or (1,))), min(horizon or limit, limit))
    return LoopVecEnv(envs, spec)
