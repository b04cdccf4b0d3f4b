"""The cube tasks' rules over the rows of N scenes, in numpy.

Observations, rewards and success, and how their episodes begin.

The same formulas as ManiSkill 3.0.1's tasks (`mani_skill/envs/tasks/tabletop/`), in the same order and in float32; what is drawn comes from the same
generators in the same order. A test holds both to the stock environments. Legend: N environments; a pose is position and quaternion (7 numbers),
lengths are metres.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
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


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where things are when an episode begins."""

    qpos_J: NDArray
    """joint positions, rad (the two fingers, last: m)"""
    cube_7: NDArray
    goal_7: NDArray


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

    def begin(self, number: int) -> Beginning:
        """Of the episode that the stock environment begins with this seed."""
        ...


class PushCube:
    """Push the cube forwards into a circle. Success: its centre within the circle, the cube on the table."""

    cube, goal, grasps = "obj", "goal_region", False

    def __init__(self, stock: Any) -> None:
        self._half, self._radius = stock.cube_half_size, stock.goal_radius
        self._behind_3 = np.array([-self._half - 0.005, 0, 0], np.float32)
        self._place = _InFront(stock, stock.goal_radius + 0.1)

    def begin(self, number: int) -> Beginning:
        return self._place.begin(number)

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
        self._place = _InFront(stock, -(stock.goal_radius + 0.1))

    def begin(self, number: int) -> Beginning:
        return self._place.begin(number)

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
        self._stock = stock

    def begin(self, number: int) -> Beginning:
        stock, draws = self._stock, _Draws(number)
        half, (middle_x, middle_y) = stock.cube_spawn_half_size, stock.cube_spawn_center
        cube_7, goal_7 = (np.zeros(7, np.float32) for _ in range(2))
        for pose_7 in (cube_7, goal_7):
            pose_7[:2] = draws.uniform(2) * half * 2 - half
            pose_7[0] += middle_x
            pose_7[1] += middle_y
            if pose_7 is cube_7:
                cube_7[2] = stock.cube_half_size
                cube_7[3:] = upright(draws.tensor(1, 3)[0, 2] * (2 * np.pi))
        goal_7[2] = (draws.uniform(1) * stock.max_goal_height + cube_7[2])[0]
        goal_7[3] = 1
        return Beginning(_arm_at_rest(stock, number), cube_7, goal_7)

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


class _InFront:
    """The cube somewhere on the table, the goal so many metres in front of it."""

    def __init__(self, stock: Any, metres: float) -> None:
        self._stock = stock
        self._ahead_3 = np.array([metres, 0, 0], np.float32)

    def begin(self, number: int) -> Beginning:
        cube_7, goal_7 = np.array([0, 0, self._stock.cube_half_size, 1, 0, 0, 0], np.float32), np.zeros(7, np.float32)
        cube_7[:2] = _Draws(number).uniform(2) * 0.2 - 0.1
        goal_7[:3] = cube_7[:3] + self._ahead_3
        goal_7[2] = 1e-3
        goal_7[3:] = np.cos(np.pi / 4), 0, np.sin(np.pi / 4), 0  # lying: a quarter turn around y
        return Beginning(_arm_at_rest(self._stock, number), cube_7, goal_7)


class _Draws:
    """What ManiSkill draws from torch's generator after seeding it. From a generator of our own."""

    def __init__(self, number: int) -> None:
        self._generator = torch.Generator().manual_seed(number)

    def tensor(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self._generator)

    def uniform(self, count: int) -> NDArray:
        return self.tensor(1, count).numpy()[0]


REST_J = np.array([0.0, np.pi / 8, 0, -np.pi * 5 / 8, 0, np.pi * 3 / 4, np.pi / 4, 0.04, 0.04])  # of the scene with a table


def _arm_at_rest(stock: Any, number: int) -> NDArray:
    """The Panda at rest with some noise, the fingers open."""
    qpos_J: NDArray = np.random.RandomState(number).normal(0, stock.robot_init_qpos_noise, len(REST_J)) + REST_J
    qpos_J[-2:] = REST_J[-2:]
    return qpos_J


def upright(angle: torch.Tensor) -> NDArray[np.float32]:
    """The quaternion of a turn around z.

    With the roundings of ManiSkill's way from angles to a matrix to a quaternion (its better of two formulas).
    """
    cosine, twice_sine, one = torch.cos(angle).numpy()[()], (2 * torch.sin(angle)).numpy(), np.float32(1)
    square_2 = torch.tensor([one + cosine + cosine + one, one - cosine - cosine + one])
    real, along_z = torch.sqrt(square_2).numpy()  # numpy rounds the last bit otherwise
    parts = (real * real, 0, 0, twice_sine) if real >= along_z else (twice_sine, 0, 0, along_z * along_z)
    quaternion_4: NDArray[np.float32] = np.array(parts, np.float32) / (2 * max(real, along_z))
    return -quaternion_4 if quaternion_4[0] < 0 else quaternion_4


RULES: dict[str, type[Rule]] = {"PickCube-v1": PickCube, "PullCube-v1": PullCube, "PushCube-v1": PushCube}


def _length(vector_NX: NDArray) -> NDArray:
    return np.sqrt(np.square(vector_NX).sum(axis=1))


def _near(distance_N: NDArray) -> NDArray:
    """1 at distance zero, falling to 0."""
    return 1 - np.tanh(5 * distance_N)
