"""The cube tasks' observations, rewards and success over the rows of N scenes, in numpy.

The same formulas as ManiSkill 3.0.1's tasks (`mani_skill/envs/tasks/tabletop/`), in the same order and in float32; a test holds them to the
stock environments. Legend: N environments; a pose is position and quaternion (7 numbers), lengths are metres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class State:
    """What a rule may look at, float32."""

    qvel_NJ: NDArray
    """joint velocities, rad/s (the two fingers, last: m/s)"""
    tcp_N7: NDArray
    """pose of the point between the fingertips"""
    cube_N7: NDArray
    goal_N3: NDArray
    """position, fixed during an episode"""
    grasped_N: NDArray[np.bool_]
    """both fingers press on the cube; all False for a rule that does not ask (``grasps`` is False)"""


class Rule(Protocol):
    """One task. Constructed from its stock environment, whose constants it takes over."""

    cube: str
    """the stock environment's attribute that holds the cube"""
    goal: str
    """and the one that holds the goal"""
    grasps: bool
    """whether the task asks if the cube is grasped, which needs the scene's contacts"""

    def __init__(self, stock: Any) -> None: ...

    def observe(self, state: State) -> list[NDArray]:
        """The columns that follow joint positions and velocities."""
        ...

    def judge(self, state: State) -> tuple[NDArray, NDArray[np.bool_]]:
        """(reward_N in [0, 1], success_N)."""
        ...


class PushCube:
    """Push the cube forwards into a circle. Success: its centre within the circle, the cube on the table."""

    cube, goal, grasps = "obj", "goal_region", False

    def __init__(self, stock: Any) -> None:
        self._half, self._radius = stock.cube_half_size, stock.goal_radius
        self._behind_3 = np.array([-self._half - 0.005, 0, 0], np.float32)

    def observe(self, state: State) -> list[NDArray]:
        return [state.tcp_N7, state.goal_N3, state.cube_N7]

    def judge(self, state: State) -> tuple[NDArray, NDArray[np.bool_]]:
        place_N3 = state.cube_N7[:, :3]
        far_N = _length(place_N3[:, :2] - state.goal_N3[:, :2])
        success_N = (far_N < self._radius) & (place_N3[:, 2] < self._half + 5e-3)
        reach_N = _length(place_N3 + self._behind_3 - state.tcp_N7[:, :3])
        behind_N, placed_N = reach_N < 0.01, _near(far_N)
        reward_N = _near(reach_N) + placed_N * behind_N + placed_N * _near(np.abs(place_N3[:, 2] - self._half)) * behind_N
        return np.where(success_N, np.float32(4), reward_N) / 4, success_N


class PullCube:
    """Pull the cube backwards into a circle. Success: its centre within the circle."""

    cube, goal, grasps = "obj", "goal_region", False

    def __init__(self, stock: Any) -> None:
        self._radius = stock.goal_radius
        self._beyond_3 = np.array([stock.cube_half_size + 2 * 0.005, 0, 0], np.float32)

    def observe(self, state: State) -> list[NDArray]:
        return [state.tcp_N7, state.goal_N3, state.cube_N7]

    def judge(self, state: State) -> tuple[NDArray, NDArray[np.bool_]]:
        place_N3 = state.cube_N7[:, :3]
        far_N = _length(place_N3[:, :2] - state.goal_N3[:, :2])
        success_N = far_N < self._radius
        reach_N = _length(place_N3 + self._beyond_3 - state.tcp_N7[:, :3])
        reward_N = _near(reach_N) + _near(far_N) * (reach_N < 0.01)
        return np.where(success_N, np.float32(3), reward_N) / 3, success_N


class PickCube:
    """Grasp the cube and hold it at a point above the table. Success: there, and the arm at rest."""

    cube, goal, grasps = "cube", "goal_site", True
    STILL = 0.2  # rad/s

    def __init__(self, stock: Any) -> None:
        self._near_enough = stock.goal_thresh

    def observe(self, state: State) -> list[NDArray]:
        place_N3 = state.cube_N7[:, :3]
        to_cube_N3, to_goal_N3 = place_N3 - state.tcp_N7[:, :3], state.goal_N3 - place_N3
        return [state.grasped_N[:, None], state.tcp_N7, state.goal_N3, state.cube_N7, to_cube_N3, to_goal_N3]

    def judge(self, state: State) -> tuple[NDArray, NDArray[np.bool_]]:
        place_N3, arm_NJ = state.cube_N7[:, :3], state.qvel_NJ[:, :-2]
        far_N = _length(state.goal_N3 - place_N3)
        there_N = far_N <= self._near_enough
        success_N = there_N & (np.abs(arm_NJ).max(axis=1) <= self.STILL)
        reward_N = _near(_length(place_N3 - state.tcp_N7[:, :3])) + state.grasped_N
        reward_N = reward_N + _near(far_N) * state.grasped_N + _near(_length(arm_NJ)) * there_N
        return np.where(success_N, np.float32(5), reward_N) / 5, success_N


RULES: dict[str, type[Rule]] = {"PickCube-v1": PickCube, "PullCube-v1": PullCube, "PushCube-v1": PushCube}


def _length(vector_NX: NDArray) -> NDArray:
    return np.sqrt(np.square(vector_NX).sum(axis=1))


def _near(distance_N: NDArray) -> NDArray:
    """1 at distance zero, falling to 0."""
    return 1 - np.tanh(5 * distance_N)
