"""Any gymnasium environment with flat continuous observations and actions, such as "gymnasium/Pendulum-v1"."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from envs import saving
from rlinf_lab.errors import EnvError, MissingDependencyError, said
from rlinf_lab.vecenv import EnvSpec, LoopVecEnv, Outcome

TRIED = 8  # steps before an environment is saved, and half of those afterwards


def tasks() -> list[str]:
    """Gymnasium's own tasks that can be made here. What other packages register when they are imported can be made by name."""
    return [task for task, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium.envs.") and _can_be_made(task)]


def has(task: str) -> bool:
    return task in gymnasium.registry


def cannot_leave(task: str) -> str:
    """Why its environments cannot leave a device; "" when they can. Tried out, once for each task."""
    return _cannot_leave(f"gymnasium/{task}", task)


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
        self._id, self._task = id, task
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

    def cannot_leave(self) -> str:
        """Tried out, once for each task: whether all that an environment depends on can be copied is known to itself only."""
        return _cannot_leave(self._id, self._task)

    def save_state(self) -> dict[str, Any]:
        """See `vecenv.Restorable`. `EnvError` when an attribute does not pickle."""
        try:
            return saving.save(self.env)
        except Exception as error:
            raise EnvError(f"{self._id} cannot be saved: {type(error).__name__}: {said(error)}. Next: leave it where it is (lab.check_env).") from error

    def restore_state(self, state: dict[str, Any]) -> None:
        saving.restore(self.env, state)

    def close(self) -> None:
        self.env.close()


@functools.cache
def _cannot_leave(id: str, task: str) -> str:
    """Two environments are made for it: the second shall go on where the first was, through the beginning of an episode."""
    first, second = GymnasiumEnv(id, task), GymnasiumEnv(id, task)
    space = first.env.action_space
    actions_TA = np.random.default_rng(0).uniform(-1, 1, (3 * TRIED, *(space.shape or ())))
    try:
        first.reset(0)
        _walk(first, actions_TA[:TRIED])
        state = first.save_state()
        expected = _walk(first, actions_TA[TRIED:])
        second.reset(1)
        second.restore_state(state)
        found = _walk(second, actions_TA[TRIED:])
    except Exception as error:  # of the environment: what it is, only it knows
        return said(error).partition(" Next: ")[0].rstrip(".")
    finally:
        first.close()
        second.close()
    same = all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
    return "" if same else f"an environment that was given a copy of all that {task} holds in Python went on differently (its simulator keeps more)"


def _walk(env: GymnasiumEnv, actions_TA: NDArray) -> list[NDArray]:
    """What the steps give; a new episode in the middle and where one ends."""
    seen = []
    for t, action_A in enumerate(actions_TA):
        outcome = env.step(action_A)
        seen.append(np.append(outcome.obs_O, [outcome.reward, outcome.terminated, outcome.truncated, outcome.success]))
        if outcome.terminated or outcome.truncated or t == len(actions_TA) // 2:
            seen.append(env.reset(None))
    return seen


def make(task: str, num_envs: int, horizon: int | None = None) -> LoopVecEnv:
    id = f"gymnasium/{task}"
    envs = [GymnasiumEnv(id, task) for _ in range(num_envs)]
    space, action = envs[0].env.observation_space, envs[0].env.action_space
    limit = gymnasium.spec(task).max_episode_steps or 1000
    spec = EnvSpec(id, int(np.prod(space.shape or (1,))), int(np.prod(action.shape or (1,))), min(horizon or limit, limit))
    return LoopVecEnv(envs, spec)
