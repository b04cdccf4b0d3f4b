"""N stock scenes stepped through SAPIEN's own handles.

With observations, rewards and success computed for all of them at once.

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
from envs.maniskill.scene import FINGERS_REACH, Scene
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv import EnvSpec, checked_actions
from rlinf_lab.vecenv.loop import check_state, described

if TYPE_CHECKING:
    from envs.maniskill import ManiSkillEnv

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
        """As ManiSkill makes it."""
        self._started = True
        self._age_N[:] = 0
        obs = [env.reset(None if seed is None else seed + i) for i, env in enumerate(self._envs)]
        self._scenes = [Scene(env.stock, self._rule) for env in self._envs]  # it may have rebuilt them
        return np.stack(obs)

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
            obs_N[truncated_N] = self._begin(np.flatnonzero(truncated_N).tolist())
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

    def _advance(self, i: int, action_A: NDArray, target_J: list[float]) -> None:
        self._envs[i].record(action_A)
        self._scenes[i].advance(target_J, self._substeps)

    def _begin(self, which: list[int]) -> NDArray[np.float32]:
        """New episodes in these environments, the ones that ManiSkill would begin. In a fiftieth of its time."""
        for i in which:
            self._scenes[i].begin(self._envs[i].begins())
        return self._observe([self._scenes[i] for i in which], begun=True)[0]

    def _targets(self, scenes: Sequence[Scene], action_N: NDArray) -> list[list[float]]:
        """Joint positions to drive to. The arm's from where it is, both fingers to the last number of the action."""
        target_NJ = np.array([scene.robot.qpos for scene in scenes])
        target_NJ[:, :-2] += self._arm_middle + self._arm_half * action_N[:, :-1]
        target_NJ[:, -2:] = self._grip_middle + self._grip_half * action_N[:, -1:]
        targets: list[list[float]] = target_NJ.tolist()
        return targets

    def _look(self) -> tuple[NDArray, NDArray, NDArray]:
        """(observation_NO, reward_N, success_N) of the scenes as they are."""
        obs_N, state = self._observe(self._scenes)
        return obs_N, *self._rule.judge(state)

    def _observe(self, scenes: Sequence[Scene], begun: bool = False) -> tuple[NDArray, State]:
        """Observations of all scenes.

        ``begun``: contacts are still those of the last step of the episode before, and ManiSkill looks at them.
        """
        tcp_N7, cube_N7 = _poses([s.tcp.entity_pose for s in scenes]), _poses([s.cube.pose for s in scenes])
        grasped_N = np.zeros(len(scenes), bool)
        if self._rule.grasps:
            near_N = np.square(cube_N7[:, :3] - tcp_N7[:, :3]).sum(axis=1) <= FINGERS_REACH**2
            for i in range(len(scenes)) if begun else np.flatnonzero(near_N).tolist():
                grasped_N[i] = scenes[i].grasped()
        state = State(np.array([s.robot.qvel for s in scenes]), tcp_N7, cube_N7, np.array([s.goal_3 for s in scenes]), grasped_N)
        qpos_NJ = np.array([s.robot.qpos for s in scenes])
        return np.concatenate([qpos_NJ, state.qvel_NJ, *self._rule.observe(state)], axis=1, dtype=np.float32), state

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
    return np.concatenate([part for pose in poses for part in (pose.p, pose.q)]).reshape(-1, 7)
