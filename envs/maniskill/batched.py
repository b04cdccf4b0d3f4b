"""N stock scenes stepped through SAPIEN's own handles, with observations, rewards and success computed for all of them at once.

    stock environments (built and reset by ManiSkill) ──handles──> drive targets, physics, poses ──rows──> a `Rule` in numpy

Of a stock step 65 to 80 % is work on tensors of one row. Here physics is what remains. Observations are the stock environments' to the bit, rewards
up to rounding, also through contacts: the scaling of actions is repeated in float32, since a difference in the last bit grows there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.maniskill.rules import Rule, State
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv import EnvSpec, checked_actions
from rlinf_lab.vecenv.loop import check_state, described

if TYPE_CHECKING:
    from envs.maniskill import ManiSkillEnv

MIN_FORCE, MAX_ANGLE = 0.5, 85.0  # newton, degrees: what the stock Panda calls a grasp
FINGERS_REACH = 0.2  # metres from the point between the fingertips; the fingers themselves end within 0.1


class Scene:
    """The SAPIEN objects of one stock environment. Valid until ManiSkill rebuilds the scene."""

    def __init__(self, stock: Any, rule: Rule) -> None:
        self.physics, self.timestep = stock.scene.px, stock.scene.px.timestep
        self.robot = stock.agent.robot._objs[0]
        self.drives = [joint.set_drive_target for joint in self.robot.active_joints]
        self.tcp = stock.agent.tcp._objs[0]
        self.fingers = [stock.agent.finger1_link._objs[0], stock.agent.finger2_link._objs[0]]
        self.cube = getattr(stock, rule.cube)._objs[0]
        self.goal_3 = np.array(getattr(stock, rule.goal)._objs[0].pose.p, np.float32)

    def advance(self, target_J: NDArray, substeps: int) -> None:
        """Physics for one control step towards joint positions ``target_J``."""
        for drive, target in zip(self.drives, target_J.tolist(), strict=True):
            drive(target)
        for _ in range(substeps):
            self.physics.step()

    def grasped(self) -> bool:
        """Whether both fingers press on the cube, each against its opening direction."""
        if np.linalg.norm(self.cube.pose.p - self.tcp.entity_pose.p) > FINGERS_REACH:
            return False
        contacts = self.physics.get_contacts()
        return all(self._presses(contacts, finger, sign) for finger, sign in zip(self.fingers, (1, -1), strict=True))

    def _presses(self, contacts: Any, finger: Any, sign: int) -> bool:
        force_3 = (self._impulse(contacts, finger.entity) / self.timestep).astype(np.float32)
        size = float(np.linalg.norm(force_3))
        if size < MIN_FORCE:
            return False
        opening_3 = sign * finger.entity_pose.to_transformation_matrix()[:3, 1]
        cosine = float(np.clip(np.dot(opening_3 / np.linalg.norm(opening_3), force_3 / size), -1, 1))
        return bool(np.degrees(np.arccos(cosine)) <= MAX_ANGLE)

    def _impulse(self, contacts: Any, finger: Any) -> NDArray:
        """Sum of the contacts' impulses of finger on cube, in newton seconds."""
        total_3 = np.zeros(3)
        for contact in contacts:
            first, second = contact.bodies[0].entity, contact.bodies[1].entity
            if (first, second) == (finger, self.cube) or (first, second) == (self.cube, finger):
                impulse_3 = np.sum([point.impulse for point in contact.points], axis=0)
                total_3 += impulse_3 if first == finger else -impulse_3
        return total_3


class BatchedVecEnv:
    """See `vecenv.VecEnv` for the contract; ``rule``: the task's class in `rules.RULES`."""

    def __init__(self, envs: Sequence[ManiSkillEnv], spec: EnvSpec, rule: type[Rule]) -> None:
        self.num_envs, self.spec = len(envs), spec
        self._envs = list(envs)
        first = envs[0].stock
        self._rule, self._substeps = rule(first), first._sim_steps_per_control
        arm, gripper = (first.agent.controller.controllers[name] for name in ("arm", "gripper"))
        (self._arm_middle, self._arm_half), (self._grip_middle, self._grip_half) = _scale(arm), _scale(gripper)
        self._scenes = [Scene(env.stock, self._rule) for env in envs]
        self._age_N = np.zeros(len(envs), np.int64)
        self._started = False

    def reset(self, *, seed: int | None = None) -> NDArray[np.float32]:
        self._started = True
        self._age_N[:] = 0
        return np.stack([self._begin(i, None if seed is None else seed + i) for i in range(self.num_envs)])

    def step(self, action_N: NDArray) -> EnvStep:
        action_N = checked_actions(self.spec, self.num_envs, action_N, self._started).astype(np.float32)
        for i, target_J in enumerate(self._targets(self._scenes, action_N)):
            self._advance(i, action_N[i], target_J)
        final_N, reward_N, success_N = self._look()
        self._age_N += 1
        truncated_N = self._age_N >= (self.spec.max_episode_steps or np.inf)
        obs_N = final_N
        if truncated_N.any():
            obs_N = final_N.copy()
            for i in np.flatnonzero(truncated_N).tolist():
                obs_N[i] = self._begin(i, None)
            self._age_N[truncated_N] = 0
        return EnvStep(obs_N, reward_N, np.zeros(self.num_envs, bool), truncated_N, success_N, final_N)

    def save_state(self) -> dict[str, Any]:
        """See `vecenv.Restorable` and `ManiSkillEnv`."""
        return {"of": self._kind(), "runner": "batched", "age_N": self._age_N.copy(), "started": self._started, "envs": [env.save_state() for env in self._envs]}

    def restore_state(self, state: dict[str, Any]) -> None:
        """`EnvError` when the state is that of other environments."""
        check_state(state, self._kind(), "batched")
        for i, (env, saved) in enumerate(zip(self._envs, state["envs"], strict=True)):
            actions = env.begin_again(saved)
            self._scenes[i] = Scene(env.stock, self._rule)
            for action_A in actions:
                self._advance(i, action_A, self._targets([self._scenes[i]], action_A[None])[0])
        self._age_N[:], self._started = state["age_N"], state["started"]

    def _kind(self) -> tuple[str, int, int | None]:
        return self.spec.id, self.num_envs, self.spec.max_episode_steps

    def _advance(self, i: int, action_A: NDArray, target_J: NDArray) -> None:
        self._envs[i].record(action_A)
        self._scenes[i].advance(target_J, self._substeps)

    def _begin(self, i: int, seed: int | None) -> NDArray[np.float32]:
        """A new episode in environment ``i``, as ManiSkill makes it. The handles are taken anew: it may have rebuilt the scene."""
        obs_O = self._envs[i].reset(seed)
        self._scenes[i] = Scene(self._envs[i].stock, self._rule)
        return obs_O

    def _targets(self, scenes: Sequence[Scene], action_N: NDArray) -> NDArray:
        """Joint positions to drive to: the arm's from where it is, both fingers to the last number of the action."""
        target_NJ = np.stack([scene.robot.qpos for scene in scenes])
        target_NJ[:, :-2] += self._arm_middle + self._arm_half * action_N[:, :-1]
        target_NJ[:, -2:] = self._grip_middle + self._grip_half * action_N[:, -1:]
        return target_NJ

    def _look(self) -> tuple[NDArray, NDArray, NDArray]:
        """(observation_NO, reward_N, success_N) of the scenes as they are."""
        scenes = self._scenes
        qpos_NJ, qvel_NJ = np.stack([s.robot.qpos for s in scenes]), np.stack([s.robot.qvel for s in scenes])
        grasped = [s.grasped() for s in scenes] if self._rule.grasps else [False] * len(scenes)
        state = State(
            qvel_NJ, _poses([s.tcp.entity_pose for s in scenes]), _poses([s.cube.pose for s in scenes]),
            np.stack([s.goal_3 for s in scenes]), np.array(grasped),
        )  # fmt: skip
        obs_N = np.concatenate([qpos_NJ, qvel_NJ, *self._rule.observe(state)], axis=1, dtype=np.float32)
        return obs_N, *self._rule.judge(state)

    def render(self) -> NDArray[np.uint8] | None:
        return self._envs[0].render()

    def close(self) -> None:
        self._scenes = []
        for env in self._envs:
            env.close()

    def __repr__(self) -> str:
        return described(self.spec, self.num_envs, ", batched")


def _scale(controller: Any) -> tuple[NDArray, NDArray]:
    """(middle, half range) of a stock controller's targets, in its own float32 arithmetic."""
    low, high = controller.action_space_low.cpu().numpy(), controller.action_space_high.cpu().numpy()
    return 0.5 * (high + low), 0.5 * (high - low)


def _poses(poses: list[Any]) -> NDArray[np.float32]:
    return np.array([(*pose.p, *pose.q) for pose in poses], np.float32)
