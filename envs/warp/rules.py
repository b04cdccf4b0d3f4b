"""What the arm shall do: how episodes begin, what is shown, what is rewarded. Tensors in, tensors out, on any device: the same lines for Warp and for C MuJoCo.

    reach   bring the point between the fingertips to a place in the air
    push    shift a cube 12 cm away from the base along the floor
    lift    take a cube and hold it at a place in the air

Success, in the step at hand: within 3 cm of the goal. Nothing ends an episode but its limit of steps, for ending on success with value zero teaches the arm
not to finish.

Legend: N environments, Q positions, V velocities, A numbers of an action, O of an observation, K numbers at random.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from envs.warp.arm import CUBE_M, HOME, JOINTS

ACTIONS = JOINTS + 1
POSITIONS, VELOCITIES = JOINTS + 2, JOINTS + 2  # of the arm itself; those of the cube follow
CUBE, CUBE_TURN, CUBE_SPEED = slice(POSITIONS, POSITIONS + 3), slice(POSITIONS + 3, POSITIONS + 7), slice(VELOCITIES, VELOCITIES + 6)
NEAR_M = 0.03  # to the goal: success
AROUND_HOME = 0.05  # rad: how far from home each joint begins at most
STEP_RAD, LEAD_RAD = 0.08, 0.3  # an action moves targets by so much at most; a target is never further from its joint
SCALE, JERK = 0.2, 0.005  # of the reward; of its price for changing the action
BOUND = 10.0  # of every number that is shown
RANDOM = JOINTS + 6  # K


@dataclass
class State:
    """What tasks look at. Tensors of N rows; the first two may lie in the simulator's memory."""

    qpos_NQ: Tensor
    """joint angles (rad), fingers (m); cube: place (m), quaternion"""
    qvel_NV: Tensor
    """the same, a second; of the cube: place, then rotation"""
    hand_N3: Tensor
    """the point between the fingertips, m"""
    goal_N3: Tensor
    """m"""
    target_NJ: Tensor
    """where the joints are told to be, rad"""
    last_NA: Tensor
    """the action before"""


class Reach:
    """Bring the hand to the goal."""

    has_cube: ClassVar[bool] = False
    grips: ClassVar[bool] = False
    observed: ClassVar[int] = POSITIONS + VELOCITIES + 3 + 3 + JOINTS + ACTIONS + 3
    """numbers of an observation"""
    contacts: ClassVar[tuple[int, int]] = (8, 24)
    """contacts and rows of constraints that an environment may have at once"""

    def begin(self, random_NK: Tensor) -> tuple[Tensor, Tensor]:
        """Of numbers in [0, 1): positions (N, Q) and goals (N, 3) of new episodes."""
        home_NQ = torch.tensor(HOME, device=random_NK.device).repeat(len(random_NK), 1)
        home_NQ[:, :JOINTS] += AROUND_HOME * (2 * random_NK[:, :JOINTS] - 1)
        return self._placed(home_NQ, random_NK[:, JOINTS:])

    def _placed(self, home_NQ: Tensor, random_NK: Tensor) -> tuple[Tensor, Tensor]:
        x, y, z = random_NK[:, :3].unbind(1)
        return home_NQ, torch.stack([0.2 + 0.25 * x, 0.5 * y - 0.25, 0.05 + 0.3 * z], 1)

    def observe(self, state: State) -> Tensor:
        """The observations, (N, O).

        The arm, its hand, the goal, how far targets are ahead, the action before, and what the task adds.
        """
        arm_N = state.qpos_NQ[:, :POSITIONS], 0.1 * state.qvel_NV[:, :VELOCITIES]
        ahead_NJ = state.target_NJ - state.qpos_NQ[:, :JOINTS]
        return torch.cat([*arm_N, state.hand_N3, state.goal_N3, ahead_NJ, state.last_NA, *self._shown(state)], 1).clamp(-BOUND, BOUND)

    def _shown(self, state: State) -> list[Tensor]:
        return [state.goal_N3 - state.hand_N3]

    def judge(self, state: State, action_NA: Tensor) -> tuple[Tensor, Tensor]:
        """Reward (N) and success (N, bool) of the state that the action led to."""
        reward_N, far_N = self._progress(state)
        success_N = far_N < NEAR_M
        price_N = JERK * (action_NA - state.last_NA).square().sum(1)
        return SCALE * (reward_N + success_N.float() - price_N), success_N

    def _progress(self, state: State) -> tuple[Tensor, Tensor]:
        """What is earned on the way, and the distance to the goal in m."""
        far_N = (state.goal_N3 - state.hand_N3).norm(dim=1)
        return 1 - torch.tanh(5 * far_N), far_N


class Push(Reach):
    """Shift the cube to the goal."""

    has_cube = True
    observed = Reach.observed - 3 + 3 + 4 + 3 + 3 + 6
    contacts = (40, 200)

    def _placed(self, home_NQ: Tensor, random_NK: Tensor) -> tuple[Tensor, Tensor]:
        place_N3, positions_NQ = self._with_cube(home_NQ, random_NK)
        return positions_NQ, place_N3 + torch.tensor([0.12, 0.0, 0.0], device=place_N3.device)

    def _with_cube(self, home_NQ: Tensor, random_NK: Tensor) -> tuple[Tensor, Tensor]:
        """Where the cube lies, turned at random, and all positions."""
        x, y, turn = random_NK[:, :3].unbind(1)
        height_N, half_N = torch.full_like(x, CUBE_M), math.pi * (turn - 0.5)
        none_N = torch.zeros_like(x)
        place_N3 = torch.stack([0.25 + 0.12 * x, 0.24 * y - 0.12, height_N], 1)
        quaternion_N4 = torch.stack([torch.cos(half_N), none_N, none_N, torch.sin(half_N)], 1)
        return place_N3, torch.cat([home_NQ, place_N3, quaternion_N4], 1)

    def _shown(self, state: State) -> list[Tensor]:
        cube_N3 = state.qpos_NQ[:, CUBE]
        return [cube_N3, state.qpos_NQ[:, CUBE_TURN], cube_N3 - state.hand_N3, state.goal_N3 - cube_N3, 0.1 * state.qvel_NV[:, CUBE_SPEED]]

    def _distances(self, state: State) -> tuple[Tensor, Tensor]:
        """Cube to hand, and to goal, m."""
        cube_N3 = state.qpos_NQ[:, CUBE]
        return (cube_N3 - state.hand_N3).norm(dim=1), (state.goal_N3 - cube_N3).norm(dim=1)

    def _progress(self, state: State) -> tuple[Tensor, Tensor]:
        near_N, far_N = self._distances(state)
        return 0.5 * (1 - torch.tanh(6 * near_N)) + 1.5 * (1 - torch.tanh(8 * far_N)), far_N


class Lift(Push):
    """Take the cube and hold it at the goal."""

    grips = True

    def _placed(self, home_NQ: Tensor, random_NK: Tensor) -> tuple[Tensor, Tensor]:
        _, positions_NQ = self._with_cube(home_NQ, random_NK)
        x, y, z = random_NK[:, 3:6].unbind(1)
        return positions_NQ, torch.stack([0.25 + 0.12 * x, 0.24 * y - 0.12, 0.08 + 0.15 * z], 1)

    def _progress(self, state: State) -> tuple[Tensor, Tensor]:
        near_N, far_N = self._distances(state)
        height_N = state.qpos_NQ[:, CUBE.start + 2] - CUBE_M
        held_N = ((near_N < 0.03) & (height_N > 0.01)).float()
        lifted_N = (height_N / 0.06).clamp(0, 1) * (near_N < 0.05)
        return 1 - torch.tanh(6 * near_N) + held_N + lifted_N + 3 * held_N * (1 - torch.tanh(6 * far_N)), far_N


TASKS: dict[str, type[Reach]] = {"ArmReach-v0": Reach, "ArmPush-v0": Push, "ArmLift-v0": Lift}
