"""gymnasium-robotics: arms and hands with goals, such as "robotics/FetchPickAndPlace-v4".

Observations of goal tasks are a dict of ``observation``, ``achieved_goal`` and ``desired_goal``; success is ``info["is_success"]`` or ``info["success"]``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from typing import Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec

from envs import gymnasium as single
from rlinf_lab.errors import MissingDependencyError
from rlinf_lab.vecenv import VecEnv

NEEDS = "rlinf-lab[robotics]"


def _registered() -> list[str]:
    """Of gymnasium's registry, those on MuJoCo's own bindings.

    Not on mujoco-py, which also the walkers need that gymnasium gave away.
    """
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


class AsNew(gymnasium.Wrapper):
    """An episode begins with MuJoCo's data as new.

    The hands with objects keep controls and warm starts of the one before.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        import mujoco

        hand: Any = self.env.unwrapped
        mujoco.mj_resetData(hand.model, hand.data)
        return self.env.reset(seed=seed, options=options)


def make(task: str, num_envs: int, max_episode_steps: int | None = None, **options: Any) -> VecEnv:
    """``options``: of gymnasium.make, such as reward_type."""
    _registered()
    spec = gymnasium.spec(task)
    if task.startswith("HandManipulate"):
        spec = dataclasses.replace(spec, additional_wrappers=(*spec.additional_wrappers, WrapperSpec("AsNew", "envs.robotics:AsNew", {})))
    return single.from_spec(f"robotics/{task}", spec, num_envs=num_envs, max_episode_steps=max_episode_steps, **options)
