"""panda-gym: a Franka Emika Panda on PyBullet, such as "panda/PandaReach-v3".

Observations are a dict of ``observation``, ``achieved_goal`` and ``desired_goal``; success is ``info["is_success"]``, which also ends an episode. panda-gym
seeds its goals anew from the system at every reset without a seed: here each environment draws those seeds from a generator of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from envs import gymnasium as single
from rlinf_lab.errors import MissingDependencyError
from rlinf_lab.vecenv import LoopVecEnv

NEEDS = "rlinf-lab[panda]"


def _registered() -> list[str]:
    try:
        import panda_gym  # noqa: F401  it registers its tasks
    except ImportError as error:
        raise MissingDependencyError.of("panda_gym", "panda", "An environment of panda-gym") from error
    return [task for task, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("panda_gym.")]


def tasks() -> list[str]:
    """Without those whose picture of a cube the package lacks (3.0.7: PandaFlip)."""
    registered = _registered()
    from panda_gym import assets

    has_cube = (Path(next(iter(assets.__path__))) / "colored_cube.png").exists()
    return [task for task in registered if has_cube or not task.startswith("PandaFlip")]


def has(task: str) -> bool:
    return task in _registered()


class Seeded(gymnasium.Wrapper):
    """A seed fixes the episode, whatever was done before, and those that follow, too."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._rng = np.random.default_rng()
        self._sim: Any = getattr(env.unwrapped, "sim")  # noqa: B009  gymnasium's types know no sim
        env.reset(seed=0)
        self._sim.step()  # Bullet restores the contacts that a state has, and leaves those that it does not know of
        self._untouched = self._sim.save_state()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._sim.restore_state(self._untouched)  # else Bullet remembers the contacts of the episode before
        return self.env.reset(seed=int(self._rng.integers(2**31)), options=options)


def make(task: str, num_envs: int, max_episode_steps: int | None = None, **options: Any) -> LoopVecEnv:
    """``options``: of gymnasium.make, such as reward_type and control_type."""
    _registered()

    def one() -> gymnasium.Env:
        return Seeded(gymnasium.make(task, **{"max_episode_steps": max_episode_steps, "render_mode": "rgb_array", "disable_env_checker": True, **options}))

    return single.from_maker(f"panda/{task}", one, num_envs=num_envs, max_episode_steps=max_episode_steps)
