"""gymnasium-robotics: arms and hands with goals, such as "robotics/FetchPickAndPlace-v4".

Observations of goal tasks are a dict of ``observation``, ``achieved_goal`` and ``desired_goal``; success is ``info["is_success"]`` or ``info["success"]``.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import gymnasium

from envs import gymnasium as single
from rlinf_lab.errors import MissingDependencyError
from rlinf_lab.vecenv import VecEnv

NEEDS = "rlinf-lab[robotics]"


def _registered() -> list[str]:
    """Of gymnasium's registry, those on MuJoCo's own bindings: not on mujoco-py, which also the walkers need that gymnasium gave away."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it greets
            import gymnasium_robotics
    except ImportError as error:
        raise MissingDependencyError.of("gymnasium_robotics", "robotics", "An environment of gymnasium-robotics") from error
    if "FetchReach-v4" not in gymnasium.registry:
        gymnasium.register_envs(gymnasium_robotics)
    points = {task: str(spec.entry_point) for task, spec in gymnasium.registry.items()}
    old = "MujocoPy", "gymnasium_robotics.envs.mujoco."
    return [task for task, point in points.items() if point.startswith("gymnasium_robotics.") and not any(mark in point for mark in old)]


def tasks() -> list[str]:
    """The newest version of each."""
    newest: dict[str, str] = {}
    for task in _registered():
        name, _, version = task.rpartition("-v")
        if name not in newest or int(version) > int(newest[name].rpartition("-v")[2]):
            newest[name] = task
    return list(newest.values())


def has(task: str) -> bool:
    return task in _registered()


def make(task: str, num_envs: int, max_episode_steps: int | None = None, **options: Any) -> VecEnv:
    """``options``: of gymnasium.make, such as reward_type."""
    _registered()
    return single.from_spec(f"robotics/{task}", gymnasium.spec(task), num_envs=num_envs, max_episode_steps=max_episode_steps, **options)
