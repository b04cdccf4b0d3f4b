"""One stock environment's scene through SAPIEN's own handles.

Stepped, looked at, and begun anew without ManiSkill's work on tensors of one row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.maniskill.rules import Rule

MIN_FORCE, MAX_ANGLE = 0.5, 85.0  # newton, degrees: what the stock Panda calls a grasp
FINGERS_REACH = 0.2  # metres from the point between the fingertips; the fingers themselves end within 0.1
BASE_3 = (-0.615, 0.0, 0.0)  # where the scene with a table puts the Panda


class Scene:
    """The SAPIEN objects of one stock environment. Valid until ManiSkill rebuilds the scene."""

    def __init__(self, stock: Any, rule: Rule) -> None:
        import sapien

        self._pose, self._rule = sapien.Pose, rule
        self.physics, self._timestep = stock.scene.px, stock.scene.px.timestep
        self.robot = stock.agent.robot._objs[0]
        self._drives = [joint.set_drive_target for joint in self.robot.active_joints]
        self.tcp = stock.agent.tcp._objs[0]
        self._fingers = [stock.agent.finger1_link._objs[0], stock.agent.finger2_link._objs[0]]
        self.cube, self._cube_body = getattr(stock, rule.cube)._objs[0], getattr(stock, rule.cube)._bodies[0]
        self._goal = getattr(stock, rule.goal)._objs[0]
        self.goal_3 = np.array(self._goal.pose.p, np.float32)
        self._table, self._table_pose = stock.table_scene.table._objs[0], stock.table_scene.table._objs[0].pose
        self._base, self._base_pose = stock.agent.robot.root._objs[0], sapien.Pose(BASE_3)  # it drifts by a rounding error, and is put back

    def advance(self, target_J: list[float], substeps: int) -> None:
        """Physics for one control step towards joint positions ``target_J``."""
        for drive, target in zip(self._drives, target_J, strict=True):
            drive(target)
        step = self.physics.step
        for _ in range(substeps):
            step()

    def begin(self, number: int) -> None:
        """A new episode, as the stock environment begins with seed ``number``. Its calls of SAPIEN, in its order."""
        beginning, robot, still_J = self._rule.begin(number), self.robot, np.zeros(len(self._drives), np.float32)
        body, none_3 = self._cube_body, np.zeros(3, np.float32)
        body.linear_velocity = body.angular_velocity = none_3
        robot.qvel = still_J
        robot.set_root_linear_velocity(none_3)
        robot.set_root_angular_velocity(none_3)
        robot.qf = still_J
        self._table.pose = self._table_pose
        robot.qpos = beginning.qpos_J
        robot.qvel = still_J
        robot.qf = still_J
        self._base.pose = self._base_pose
        self.cube.pose = self._pose(*_split(beginning.cube_7))
        self._goal.pose = self._pose(*_split(beginning.goal_7))
        self.goal_3 = beginning.goal_7[:3]

    def grasped(self) -> bool:
        """Whether both fingers press on the cube, each against its opening direction."""
        touching = self._touching()
        return all(self._presses(touching[k], finger, sign) for k, (finger, sign) in enumerate(zip(self._fingers, (1, -1), strict=True)))

    def _touching(self) -> tuple[list[NDArray], list[NDArray]]:
        """Impulses of each finger's contacts with the cube on the cube, in newton seconds."""
        found: tuple[list[NDArray], list[NDArray]] = ([], [])
        cube, (left, right) = self._cube_body, self._fingers
        for contact in self.physics.get_contacts():
            first, second = contact.bodies
            if first is cube:
                finger, sign = second, -1
            elif second is cube:
                finger, sign = first, 1
            else:
                continue
            if finger is left or finger is right:
                impulse_3 = np.sum([point.impulse for point in contact.points], axis=0)
                found[finger is right].append(sign * impulse_3)
        return found

    def _presses(self, impulses: list[NDArray], finger: Any, sign: int) -> bool:
        if not impulses:
            return False
        total_3 = np.zeros(3)
        for impulse_3 in impulses:
            total_3 += impulse_3
        force_3 = (total_3 / self._timestep).astype(np.float32)
        size = float(np.linalg.norm(force_3))
        if size < MIN_FORCE:
            return False
        opening_3 = sign * finger.entity_pose.to_transformation_matrix()[:3, 1]
        cosine = float(np.clip(np.dot(opening_3 / np.linalg.norm(opening_3), force_3 / size), -1, 1))
        return bool(np.degrees(np.arccos(cosine)) <= MAX_ANGLE)


def _split(pose_7: NDArray) -> tuple[NDArray, NDArray]:
    return pose_7[:3], pose_7[3:]
