"""What gymnasium's MuJoCo tasks (version 5) look at and reward.

For all environments of a batch at once.

Each rule repeats the operations of gymnasium's class in their order and types; parameters are read from an environment of that class.

Legend: N environments, O numbers of an observation, A of an action.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Judgement(NamedTuple):
    obs_N: NDArray
    reward_N: NDArray
    terminated_N: NDArray[np.bool_] | None
    """None: the task never ends an episode"""


class Batch(Protocol):
    """What a rule may ask: see `mujoco_batch.MujocoVecEnv`."""

    num_envs: int
    model: Any

    @property
    def task(self) -> Any: ...
    def gather(self, name: str) -> NDArray[np.float64]: ...


class Rule(Protocol):
    forces: bool
    """whether it looks at ``cfrc_ext``, which costs a pass of its own"""

    def place(self, batch: Batch) -> NDArray:
        """Where each environment is, of which a reward takes the difference."""
        ...

    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement: ...


def _control_cost(task: Any, action_NA: NDArray) -> NDArray:
    return task._ctrl_cost_weight * np.sum(np.square(action_NA), axis=1)


def _between(low: float, value: NDArray, high: float) -> NDArray[np.bool_]:
    return (low < value) & (value < high)


class HalfCheetah:
    forces = False
    skipped = 1

    def place(self, batch: Batch) -> NDArray:
        return batch.gather("qpos")[:, 0]

    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement:
        task = batch.task
        velocity_N = (after_N - before_N) / task.dt
        reward_N = task._forward_reward_weight * velocity_N - _control_cost(task, action_NA)
        return Judgement(self.observed(batch, batch.gather("qpos"), batch.gather("qvel")), reward_N, None)

    def observed(self, batch: Batch, position_NQ: NDArray, velocity_NV: NDArray) -> NDArray:
        if batch.task._exclude_current_positions_from_observation:
            position_NQ = position_NQ[:, self.skipped :]
        return np.concatenate((position_NQ, velocity_NV), axis=1)


class Swimmer(HalfCheetah):
    skipped = 2


class Hopper(HalfCheetah):
    """Also Walker2d: they differ in what counts as healthy."""

    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement:
        task, position_NQ, velocity_NV = batch.task, batch.gather("qpos"), batch.gather("qvel")
        forward_N = task._forward_reward_weight * ((after_N - before_N) / task.dt)
        healthy_N = self.healthy(task, position_NQ, velocity_NV)
        reward_N = (forward_N + healthy_N * task._healthy_reward) - _control_cost(task, action_NA)
        obs_NO = self.observed(batch, position_NQ, np.clip(velocity_NV, -10, 10))
        return Judgement(obs_NO, reward_N, ~healthy_N & task._terminate_when_unhealthy)

    def healthy(self, task: Any, position_NQ: NDArray, velocity_NV: NDArray) -> NDArray[np.bool_]:
        low, high = task._healthy_state_range
        state_N = np.concatenate((position_NQ[:, 2:], velocity_NV), axis=1)
        return _between(low, state_N, high).all(axis=1) & _upright(task, position_NQ)


class Walker2d(Hopper):
    def healthy(self, task: Any, position_NQ: NDArray, velocity_NV: NDArray) -> NDArray[np.bool_]:
        return _upright(task, position_NQ)


def _upright(task: Any, position_NQ: NDArray) -> NDArray[np.bool_]:
    (low, high), (left, right) = task._healthy_z_range, task._healthy_angle_range
    return _between(low, position_NQ[:, 1], high) & _between(left, position_NQ[:, 2], right)


class Ant:
    forces = True

    def place(self, batch: Batch) -> NDArray:
        body = batch.task.data.body(batch.task._main_body).id
        return batch.gather("xpos")[:, 3 * body]

    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement:
        task, position_NQ, velocity_NV = batch.task, batch.gather("qpos"), batch.gather("qvel")
        low, high = task._healthy_z_range
        height_N = position_NQ[:, 2]
        healthy_N = np.isfinite(position_NQ).all(axis=1) & np.isfinite(velocity_NV).all(axis=1) & (low <= height_N) & (height_N <= high)
        force_NF = np.clip(batch.gather("cfrc_ext"), *task._contact_force_range)
        forward_N = (after_N - before_N) / task.dt * task._forward_reward_weight
        cost_N = _control_cost(task, action_NA) + task._contact_cost_weight * np.sum(np.square(force_NF), axis=1)
        reward_N = forward_N + healthy_N * task._healthy_reward - cost_N
        if task._exclude_current_positions_from_observation:
            position_NQ = position_NQ[:, 2:]
        parts = [position_NQ, velocity_NV, *([force_NF[:, 6:]] if task._include_cfrc_ext_in_observation else [])]
        return Judgement(np.concatenate(parts, axis=1), reward_N, ~healthy_N & task._terminate_when_unhealthy)


class Humanoid:
    forces = True

    def place(self, batch: Batch) -> NDArray:
        """The centre of mass along x."""
        mass_B = batch.model.body_mass
        return np.sum(mass_B * batch.gather("xipos")[:, ::3], axis=1) / np.sum(mass_B)

    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement:
        task = batch.task
        healthy_N = _between(task._healthy_z_range[0], batch.gather("qpos")[:, 2], task._healthy_z_range[1])
        forward_N = task._forward_reward_weight * ((after_N - before_N) / task.dt)
        contact_N = np.clip(task._contact_cost_weight * np.sum(np.square(batch.gather("cfrc_ext")), axis=1), *task._contact_cost_range)
        cost_N = task._ctrl_cost_weight * np.sum(np.square(batch.gather("ctrl")), axis=1) + contact_N
        reward_N = forward_N + healthy_N * task._healthy_reward - cost_N
        return Judgement(_whole_body(batch), reward_N, ~healthy_N & task._terminate_when_unhealthy)


def _whole_body(batch: Batch) -> NDArray:
    task, position_NQ = batch.task, batch.gather("qpos")
    parts = [position_NQ[:, 2:] if task._exclude_current_positions_from_observation else position_NQ, batch.gather("qvel")]
    for wanted, name, first in (
        (task._include_cinert_in_observation, "cinert", 10), (task._include_cvel_in_observation, "cvel", 6),
        (task._include_qfrc_actuator_in_observation, "qfrc_actuator", 6), (task._include_cfrc_ext_in_observation, "cfrc_ext", 6),
    ):  # fmt: skip
        if wanted is True:
            parts.append(batch.gather(name)[:, first:])
    return np.concatenate(parts, axis=1)


class HumanoidStandup(Humanoid):
    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement:
        task = batch.task
        up_N = (batch.gather("qpos")[:, 2] - 0) / batch.model.opt.timestep
        control_N = task._ctrl_cost_weight * np.square(batch.gather("ctrl")).sum(axis=1)
        impact_N = np.clip(task._impact_cost_weight * np.square(batch.gather("cfrc_ext")).sum(axis=1), *task._impact_cost_range)
        return Judgement(_whole_body(batch), up_N - control_N - impact_N + 1, None)


class InvertedPendulum:
    forces = False

    def place(self, batch: Batch) -> NDArray:
        return np.zeros(batch.num_envs)

    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement:
        obs_NO = np.concatenate((batch.gather("qpos"), batch.gather("qvel")), axis=1)
        terminated_N = ~np.isfinite(obs_NO).all(axis=1) | (np.abs(obs_NO[:, 1]) > 0.2)
        return Judgement(obs_NO, (~terminated_N).astype(float), terminated_N)


class InvertedDoublePendulum(InvertedPendulum):
    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement:
        position_NQ, velocity_NV, tip_N3 = batch.gather("qpos"), batch.gather("qvel"), batch.gather("site_xpos")
        x_N, y_N = tip_N3[:, 0], tip_N3[:, 2]
        terminated_N = y_N <= 1
        distance_N = 0.01 * x_N**2 + (y_N - 2) ** 2
        turning_N = 1e-3 * velocity_NV[:, 1] ** 2 + 5e-3 * velocity_NV[:, 2] ** 2
        reward_N = batch.task._healthy_reward * ~terminated_N - distance_N - turning_N
        angle_N2 = position_NQ[:, 1:]
        force_N1 = np.clip(batch.gather("qfrc_constraint"), -10, 10)[:, :1]
        parts = (position_NQ[:, :1], np.sin(angle_N2), np.cos(angle_N2), np.clip(velocity_NV, -10, 10), force_N1)
        return Judgement(np.concatenate(parts, axis=1), reward_N, terminated_N)


class Reacher(InvertedPendulum):
    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement:
        task, position_NQ, velocity_NV = batch.task, batch.gather("qpos"), batch.gather("qvel")
        away_N3 = _body(batch, "fingertip") - _body(batch, "target")
        reward_N = _length(away_N3) * -task._reward_dist_weight - np.square(action_NA).sum(axis=1) * task._reward_control_weight
        angle_N2 = position_NQ[:, :2]
        parts = (np.cos(angle_N2), np.sin(angle_N2), position_NQ[:, 2:], velocity_NV[:, :2], away_N3[:, :2])
        return Judgement(np.concatenate(parts, axis=1), reward_N, None)


class Pusher(InvertedPendulum):
    def judge(self, batch: Batch, action_NA: NDArray, before_N: NDArray, after_N: NDArray) -> Judgement:
        task, thing_N3, tips_N3, goal_N3 = batch.task, _body(batch, "object"), _body(batch, "tips_arm"), _body(batch, "goal")
        near_N = -_length(thing_N3 - tips_N3) * task._reward_near_weight
        distance_N = -_length(thing_N3 - goal_N3) * task._reward_dist_weight
        reward_N = distance_N - np.square(action_NA).sum(axis=1) * task._reward_control_weight + near_N
        parts = (batch.gather("qpos")[:, :7], batch.gather("qvel")[:, :7], tips_N3, thing_N3, goal_N3)
        return Judgement(np.concatenate(parts, axis=1), reward_N, None)


def _body(batch: Batch, name: str) -> NDArray:
    first = 3 * batch.task.data.body(name).id
    return batch.gather("xpos")[:, first : first + 3]


def _length(vector_N3: NDArray) -> NDArray:
    return np.linalg.norm(vector_N3, axis=1)


RULES: dict[str, Rule] = {
    "Ant-v5": Ant(), "HalfCheetah-v5": HalfCheetah(), "Hopper-v5": Hopper(), "Humanoid-v5": Humanoid(), "HumanoidStandup-v5": HumanoidStandup(),
    "InvertedDoublePendulum-v5": InvertedDoublePendulum(), "InvertedPendulum-v5": InvertedPendulum(), "Pusher-v5": Pusher(),
    "Reacher-v5": Reacher(), "Swimmer-v5": Swimmer(), "Walker2d-v5": Walker2d(),
}  # fmt: skip
