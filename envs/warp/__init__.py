"""Tasks of a robot arm on MuJoCo Warp, on one GPU.

Thousands of environments: "warp/ArmReach-v0", "warp/ArmPush-v0", "warp/ArmLift-v0".

Observations, rewards and resets are torch tensors that never leave the GPU (``env.spec.device``); a step is one CUDA graph. The same tasks run on MuJoCo
in C, on cores, with numpy arrays (``engine="mujoco"``): the rules are the same lines, so what is learnt about a task there holds. The default is Warp where
there is a GPU that torch and Warp can use, else MuJoCo. Warp runs on cores too (``engine="warp", device="cpu"``), after half a minute of compilation and
slowly: for tests.

Actions: six joint targets, moved by 0.08 rad at most, and the gripper. 40 ms an action, 50 actions an episode.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box

from envs.rendering import choose_renderer
from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.vecenv import EnvSpec

if TYPE_CHECKING:
    from envs.warp.vector import ArmVecEnv

NEEDS = "make env-warp: an environment of its own, for its MuJoCo is newer than metaworld's"
LIMIT = 50  # steps of an episode
OBSERVED = {"ArmReach-v0": 38, "ArmPush-v0": 54, "ArmLift-v0": 54}
ENGINES = ("warp", "mujoco")


def tasks() -> list[str]:
    """Raises `MissingDependencyError` where simulator or arm are not installed."""
    from envs.warp.arm import description
    from envs.warp.physics import libraries

    libraries()
    description()
    return list(OBSERVED)


def has(task: str) -> bool:
    return task in OBSERVED


def runners(task: str, options: dict[str, Any]) -> dict[str, bool]:
    """The engine, see `vecenv.registry.Adapter`. It is no matter of speed alone, for one of them hands over tensors."""
    engine = _engine(options.get("engine"), options.get("device"))
    return {engine: engine == "mujoco"}


def cannot_leave(task: str) -> str:
    return ""


def spec(task: str, max_episode_steps: int | None = None, engine: str | None = None, device: str | None = None) -> EnvSpec:
    """Without a simulator."""
    on = _device(device) if _engine(engine, device) == "warp" else None
    observation, action = Box(-10.0, 10.0, (OBSERVED[task],), np.float32), Box(-1.0, 1.0, (7,), np.float32)
    return EnvSpec(f"warp/{task}", observation, action, max_episode_steps or LIMIT, "within 3 cm of the goal", device=on)


def make(
    task: str, num_envs: int, max_episode_steps: int | None = None, *, engine: str | None = None, device: str | None = None, cores: int = 1
) -> ArmVecEnv:
    """``engine``: "warp" or "mujoco". ``device``: of Warp, "cuda:0" or "cpu". ``cores``: threads of MuJoCo."""
    from dataclasses import replace

    from envs.warp.arm import model
    from envs.warp.physics import MujocoPhysics, Physics, WarpPhysics
    from envs.warp.rules import TASKS
    from envs.warp.vector import ArmVecEnv

    late = "mujoco" in sys.modules and not any(map(os.environ.get, ("MUJOCO_GL", "DISPLAY")))  # it looks when it is imported
    draws = choose_renderer() is not None and not late
    told, rules = spec(task, max_episode_steps, engine, device), TASKS[task]()
    made = model(rules.has_cube, rules.grips)
    physics: Physics = MujocoPhysics(made, num_envs, cores) if told.device is None else WarpPhysics(made, num_envs, told.device, rules.contacts)
    return ArmVecEnv(replace(told, renders=draws), rules, physics, made, num_envs)


def _engine(engine: str | None, device: str | None) -> str:
    if engine is None:
        return "warp" if device is not None or _gpu() is not None else "mujoco"
    if engine not in ENGINES:
        raise UnknownNameError.of("engine of warp", engine, ENGINES)
    if engine == "mujoco" and device not in (None, "cpu"):
        raise ConfigError(f"make_vec('warp/...', engine='mujoco', device={shown(device)}): MuJoCo runs on cores. Next: leave device out, or engine='warp'.")
    return engine


def _device(device: str | None) -> str:
    if device is not None and device != "cpu" and not device.startswith("cuda"):
        raise ConfigError(f"make_vec('warp/...', device={shown(device)}): 'cpu', 'cuda' or 'cuda:0'.")
    found = device or _gpu() or "cpu"
    return "cuda:0" if found == "cuda" else found


def _gpu() -> str | None:
    """The first GPU that torch can use."""
    import torch

    return "cuda:0" if torch.cuda.is_available() else None
