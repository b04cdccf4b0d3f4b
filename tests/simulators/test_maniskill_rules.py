"""Success of ManiSkill's cube tasks where it hangs on one condition alone. The rules are numpy and need no simulator."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from envs.maniskill.rules import PickCube, PushCube, State


def state(cube=(0.0, 0.0, 0.02), goal=(0.0, 0.0, 0.02), speed=()) -> State:
    pose = np.array([[*cube, 1, 0, 0, 0]], np.float32)
    velocity = np.zeros((1, 9), np.float32)
    for joint, value in speed:
        velocity[0, joint] = value
    return State(velocity, pose.copy(), pose, np.array([goal], np.float32), np.array([True]))


@pytest.mark.parametrize(("height", "done"), [(0.02, True), (0.024, True), (0.026, False), (0.3, False)])
def test_a_cube_above_the_circle_is_not_pushed_into_it(height: float, done: bool) -> None:
    rule = PushCube(SimpleNamespace(cube_half_size=0.02, goal_radius=0.1))
    assert rule.judge(state(cube=(0.05, 0.0, height)))[1].tolist() == [done]


@pytest.mark.parametrize(("speed", "done"), [((), True), (((7, 1.0), (8, -1.0)), True), (((0, 0.3),), False), (((6, -0.21),), False)])
def test_the_arm_must_be_still_at_the_goal_and_the_fingers_need_not(speed, done: bool) -> None:
    assert PickCube(SimpleNamespace(goal_thresh=0.025)).judge(state(speed=speed))[1].tolist() == [done]
