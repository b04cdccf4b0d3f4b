"""Meta-World's manipulation tasks (MT1, version 3).

A Sawyer arm on MuJoCo, state observations of 39 numbers.

Observation: hand position and gripper opening, object positions and quaternions, of this and the last step, and the goal. Action: hand
displacement and gripper effort in [-1, 1]. Every episode draws one of the task's 50 object and goal positions. Success is the
task's own signal; an episode goes on after it, because ending on success with value zero teaches the arm not to finish.
"""

from __future__ import annotations

import copy
import functools
import os
import warnings
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from envs import saving
from envs.metaworld.quick import quick
from envs.rendering import choose_renderer
from rlinf_lab.errors import MissingDependencyError
from rlinf_lab.vecenv import EnvSpec, LoopVecEnv, Outcome

NEEDS = "rlinf-lab[metaworld]"
OBSERVATION, ACTION = Box(-np.inf, np.inf, (39,), np.float32), Box(-1.0, 1.0, (4,), np.float32)
LIMIT = 500  # steps, the simulator's own
CAMERA = "corner"
AXES = ("forward, x", "right, y", "up, z", "gripper")  # of the hand, as that camera sees it


def _simulator() -> tuple[Any, dict[str, Any]]:
    choose_renderer()
    try:
        import metaworld
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    except ImportError as error:
        raise MissingDependencyError.of("metaworld", "metaworld", "A Meta-World environment") from error
    return metaworld, ALL_V3_ENVIRONMENTS


def tasks() -> list[str]:
    """Names of all tasks, such as "button-press-v3"."""
    return list(_simulator()[1])


def has(task: str) -> bool:
    return task in _simulator()[1]


class MetaWorldEnv:
    """One environment. ``shared_tasks``: the object and goal positions to draw from."""

    def __init__(self, cls: Any, shared_tasks: tuple[Any, ...], draws: bool) -> None:
        self._env = cls(render_mode="rgb_array" if draws else None, camera_name=CAMERA if draws else None, width=320, height=240)
        if os.environ.get("MUJOCO_GL") == "osmesa":
            # In software, shadows and four samples a pixel make a picture seven times slower (118 ms against 16 ms).
            quality = self._env.model.vis.quality
            quality.shadowsize = quality.offsamples = 0
        self._tasks, self._draws = shared_tasks, draws
        self._rng = np.random.default_rng()

    def reset(self, seed: int | None) -> NDArray:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._env.set_task(self._tasks[self._rng.integers(len(self._tasks))])
        # The simulator's own generator draws too; it is given a number of ours, so that a seed fixes all of the episode.
        observation, _ = self._env.reset(seed=int(self._rng.integers(2**31)))
        return observation

    def step(self, action_A: NDArray) -> Outcome:
        # The simulator refuses to step beyond its own limit of 500; the vector's limit is what ends an episode.
        observation, reward, _, truncated, info = self._env.step(action_A)
        return Outcome(observation, float(reward), False, bool(truncated), info["success"])

    def render(self) -> NDArray[np.uint8] | None:
        return np.ascontiguousarray(self._env.render()[::-1]) if self._draws else None

    def save_state(self) -> tuple[Any, dict[str, Any]]:
        """See `vecenv.Restorable`."""
        return copy.deepcopy(self._rng), saving.save(self._env)

    def restore_state(self, state: tuple[Any, dict[str, Any]]) -> None:
        rng, env = state
        self._rng = copy.deepcopy(rng)
        saving.restore(self._env, env)

    def close(self) -> None:
        self._env.close()


@functools.cache
def _positions(task: str, seed: int) -> tuple[Any, ...]:
    """Positions of objects and goals, drawn once.

    That takes longer than making an environment, and a simulator that returns to its device makes them anew.
    """
    metaworld, _ = _simulator()
    return tuple(metaworld.MT1(task, seed=seed).train_tasks)


def make(task: str, num_envs: int, max_episode_steps: int | None = None, *, task_seed: int = 0, stock: bool = False) -> LoopVecEnv:
    """``num_envs`` environments of one task. ``task_seed`` fixes the 50 object and goal positions; max_episode_steps: at most 500.

    ``stock``: metaworld's own classes, as they are, instead of those derived from them, which give the same numbers in half the time (see `quick`).
    """
    _, classes = _simulator()
    if (max_episode_steps or 0) > LIMIT:
        warnings.warn(f"metaworld/{task}: max_episode_steps={max_episode_steps} will not be reached, the simulator stops after {LIMIT} steps.", stacklevel=2)
    positions = _positions(task, task_seed)
    draws = choose_renderer() is not None
    cls = classes[task] if stock else quick(classes[task])
    envs = [MetaWorldEnv(cls, positions, draws) for _ in range(num_envs)]
    return LoopVecEnv(envs, spec(task, max_episode_steps, draws))


def spec(task: str, max_episode_steps: int | None = None, draws: bool = False) -> EnvSpec:
    """All tasks have the same spaces."""
    return EnvSpec(
        f"metaworld/{task}", OBSERVATION, ACTION, min(max_episode_steps or LIMIT, LIMIT), "info['success'] of the task", renders=draws, action_names=AXES,
    )  # fmt: skip


class Expert:
    """Meta-World's own scripted policy of a task.

    From observations (N, 39) to actions (N, 4) in [-1, 1]; it keeps nothing between steps.
    """

    def __init__(self, task: str) -> None:
        from metaworld.policies import ENV_POLICY_MAP

        # It warns of actions beyond the Box, which are clipped here as the environment would do.
        warnings.filterwarnings("ignore", r"Constant\(s\) may be too high", module=r"metaworld\.policies")
        self.task, self._policy = task, ENV_POLICY_MAP[task]()  # type: ignore[abstract]  # metaworld types its table of experts by their base

    def __call__(self, obs_NX: NDArray) -> NDArray[np.float32]:
        action_NA = np.stack([self._policy.get_action(obs_X) for obs_X in np.asarray(obs_NX, np.float64)])
        return np.clip(action_NA, -1.0, 1.0).astype(np.float32)

    def __repr__(self) -> str:
        return f"scripted policy of {self.task}"


def expert(task: str) -> Expert | None:
    """The scripted policy of ``task``; None where Meta-World has none."""
    _simulator()
    from metaworld.policies import ENV_POLICY_MAP

    return Expert(task) if task in ENV_POLICY_MAP else None
