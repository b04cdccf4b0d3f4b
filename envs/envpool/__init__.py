"""EnvPool's environments: vectors in C++, such as "envpool/HalfCheetah-v5" or "envpool/MetaWorld/Reach-v3".

Three of its ways are closed here. Observations of Meta-World show the goal (its default hides it, and nothing can be learnt then). An episode
that ends is begun again within the same step, where EnvPool spends the next step on it. A seed may be given at every reset: a pool is made anew for it, for
EnvPool takes seeds when it is made only.

Seeds give other episodes than gymnasium's and metaworld's do, and states cannot be read: its vectors cannot leave a device.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, cast

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rlinf_lab.errors import ConfigError, MissingDependencyError, UnknownNameError
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree, assign, map_tree
from rlinf_lab.vecenv import EnvSpec, checked_actions
from rlinf_lab.vecenv.loop import described
from rlinf_lab.vecenv.registry import GROUP
from rlinf_lab.vecenv.spaces import Native, empty, presented_action, presented_observation, truths

NEEDS = "rlinf-lab[envpool]"
_OURS = ("num_envs", "batch_size", "num_threads", "seed", "env_seed", "max_episode_steps", "max_num_players")  # what the vector itself says


def _simulator() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise MissingDependencyError.of("envpool", "envpool", "An environment of EnvPool") from error
    return envpool


def tasks() -> list[str]:
    """Without those of several players and those whose data must be fetched first."""
    return [task for task in _simulator().list_all_envs() if not task.startswith(("gfootball", "Procgen"))]


def runners(task: str, options: dict[str, Any]) -> dict[str, bool]:
    """See `vecenv.registry.Adapter`."""
    return {"envpool": True}


def has(task: str) -> bool:
    return task in _simulator().list_all_envs()


def cannot_leave(task: str) -> str:
    return "EnvPool keeps its states to itself"


class EnvPoolVecEnv:
    """See `vecenv.VecEnv` for the contract. ``cores``: threads that share the environments."""

    def __init__(self, task: str, num_envs: int, max_episode_steps: int | None, cores: int, options: dict[str, Any]) -> None:
        self._envpool, self._task = _simulator(), task
        self.num_envs, self.cores = num_envs, cores
        self._options = {**options, "num_envs": num_envs, "num_threads": cores}
        if max_episode_steps is not None:
            self._options["max_episode_steps"] = max_episode_steps
        self.spec, self._native = _described(task, self._options)
        self._pool: Any = None
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None) -> Tree:
        if self._pool is None or seed is not None:
            self._make(int(self._rng.integers(2**30)) if seed is None else seed)
        return self._kept(self._pool.reset()[0])

    def step(self, action_N: Tree) -> EnvStep:
        action_N = self._native(checked_actions(self.spec, self.num_envs, action_N, self._pool is not None))
        obs, reward_N, terminated_N, truncated_N, info = self._pool.step(action_N)
        final_N = self._kept(obs)
        truncated_N = truncated_N & ~terminated_N
        obs_N, ends_N = final_N, truncated_N | terminated_N
        if ends_N.any():
            ended = np.flatnonzero(ends_N)
            first, told = self._pool.reset(ended)
            obs_N = map_tree(np.copy, final_N)
            assign(obs_N, told["env_id"], first)  # in an order of its own
        success_N = truths(info["success"], f"{self.spec.id}: info['success']") if "success" in info else None
        return EnvStep(obs_N, reward_N.astype(np.float32), terminated_N, truncated_N, success_N, final_N)

    def _make(self, seed: int) -> None:
        self.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bounds in float64
            self._pool = self._envpool.make_gymnasium(self._task, seed=seed, **self._options)

    def _kept(self, obs: Any) -> Tree:
        """In the types of the spec."""
        space = self.spec.observation_space
        if isinstance(space, Box) and isinstance(obs, np.ndarray):
            return obs.astype(space.dtype)  # always a copy
        kept = empty(space, self.num_envs)
        assign(kept, slice(None), obs)
        return kept

    def render(self) -> NDArray[np.uint8] | None:
        """The first environment."""
        picture = self._pool.render(0) if self._pool is not None and self.spec.renders else None
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __repr__(self) -> str:
        return described(self.spec, self.num_envs, f", EnvPool with {self.cores} thread{'s' if self.cores > 1 else ''}")


def _described(task: str, options: dict[str, Any]) -> tuple[EnvSpec, Native]:
    """What is true of its environments, without making one. Maps actions to its own, too."""
    id = f"envpool/{task}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = _simulator().make_spec(task, **options)
    observation, action = presented_observation(known.gymnasium_observation_space, id), presented_action(known.gymnasium_action_space, id)
    success = "info['success'] of the task" if task.startswith("MetaWorld/") else None
    native = known.gymnasium_action_space
    return EnvSpec(id, observation, action, int(known.config.max_episode_steps), success, native_action_space=native), Native(native)


def _checked_options(task: str, options: dict[str, Any]) -> dict[str, Any]:
    known = _simulator().make_spec(task).config._fields
    for name in options:
        if name in _OURS:
            raise ConfigError(f"envpool/{task}: {name} is said by make_vec(id, num_envs, max_episode_steps, cores=...) and reset(seed=...).")
        if name not in known:
            raise UnknownNameError.of("option", name, [n for n in known if n not in _OURS], whose=f"envpool/{task}")
    return {**({"partially_observable": False} if "partially_observable" in known else {}), **options}


def spec(task: str, max_episode_steps: int | None = None) -> EnvSpec:
    limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
    return _described(task, limit)[0]


def make(task: str, num_envs: int, max_episode_steps: int | None = None, *, cores: int = 1, **options: Any) -> EnvPoolVecEnv:
    """``cores``: threads. ``options``: of envpool.make, such as frame_skip."""
    if max_episode_steps is not None and "CliffWalking" in task:
        raise ConfigError(f"envpool/{task}: EnvPool cuts its episodes nowhere, max_episode_steps={max_episode_steps} would do nothing. Next: gymnasium's.")
    return EnvPoolVecEnv(task, num_envs, max_episode_steps, cores, _checked_options(task, options))


def expert(task: str) -> Callable[[NDArray], NDArray] | None:
    """Of Meta-World's tasks their scripted policy, where metaworld is installed too; else None."""
    family, _, name = task.partition("/")
    if family != "MetaWorld":
        return None
    point = next((p for p in entry_points(group=GROUP) if p.name == "metaworld"), None)
    parts = re.sub(r"([a-z])([A-Z])", r"\1-\2", name).lower()
    return None if point is None else cast("Callable[[NDArray], NDArray] | None", point.load().expert(parts))
