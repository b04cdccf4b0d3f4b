"""What the actions of gymnasium's own tasks are called.

From its documentation: its spaces do not say so.
"""

from __future__ import annotations

import re
from typing import Any

import gymnasium

NAMES: dict[str, tuple[str, ...]] = {
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "none", "right"),
    "MountainCarContinuous": ("push",),
    "Acrobot": ("torque left", "none", "torque right"),
    "Pendulum": ("torque",),
    "LunarLander": ("none", "left engine", "main engine", "right engine"),
    "BipedalWalker": ("hip 1", "knee 1", "hip 2", "knee 2"),
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "Taxi": ("down", "up", "right", "left", "pick up", "drop"),
    "Blackjack": ("stick", "hit"),
}


def action_names(id: str, env: gymnasium.Env) -> tuple[str, ...] | None:
    """By the table, or by its own ``get_action_meanings()``, as Atari's have it. None: not known."""
    names = _meanings(env.unwrapped)
    if names is None:
        names = NAMES.get(re.sub(r"-v\d+$", "", id.rpartition("/")[2]))
    return names if names is not None and len(names) == _count(env.action_space) else None


def _meanings(env: Any) -> tuple[str, ...] | None:
    """What it says itself. Somebody's own method of that name may want arguments, or give something else."""
    try:
        told = env.get_action_meanings()
    except Exception:  # nobody is hindered from training by names
        return None
    return tuple(str(name).lower() for name in told) if isinstance(told, (list, tuple)) else None


def _count(space: Any) -> int | None:
    """Names that a space has room for; None where it has no names."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    return int(space.shape[0]) if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 else None
