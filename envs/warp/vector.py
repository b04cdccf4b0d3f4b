"""N arms as one vector: actions to controls, physics, reward, ends of episodes. Nothing here reads a number back from the device.

    action ──targets──> controls ──physics──> reward, success ──age──> ended ──where──> new episodes ──> observation

Legend: N environments, A numbers of an action, O of an observation, J joints.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.warp.arm import JOINTS, OPEN_M
from envs.warp.counted import uniform
from envs.warp.physics import Physics
from envs.warp.rules import ACTIONS, LEAD_RAD, RANDOM, STEP_RAD, Reach, State
from rlinf_lab.errors import EnvError
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv import EnvSpec, checked_actions
from rlinf_lab.vecenv.loop import check_state, described

_KEPT = ("seed_N", "episode_N", "age_N", "goal_N3", "target_NJ", "last_NA")
_SIMULATED = ("qpos_NQ", "qvel_NV", "ctrl_NU", "warmstart_NV")


class ArmVecEnv:
    """See `vecenv.VecEnv` for the contract.

    With ``spec.device`` it hands over torch tensors there and takes actions there (arrays, too); without, numpy arrays. A state of the simulator that is
    not finite ends its episode with reward 0: contacts of thousands of arms diverge now and then, and one of them shall not end a run.
    """

    def __init__(self, spec: EnvSpec, task: Reach, physics: Physics, model: Any, num_envs: int) -> None:
        self.num_envs, self.spec = num_envs, spec
        self._task, self._physics, self._model = task, physics, model
        self.cores = getattr(physics, "cores", 1)
        device = physics.device
        limits_J2 = torch.tensor(model.jnt_range[:JOINTS], dtype=torch.float32, device=device)
        self._low_J, self._high_J = limits_J2.unbind(1)
        self._limit = spec.max_episode_steps or torch.iinfo(torch.int64).max
        self.seed_N, self.episode_N, self.age_N = (torch.zeros(num_envs, dtype=torch.int64, device=device) for _ in range(3))
        self.goal_N3, self.target_NJ = torch.zeros(num_envs, 3, device=device), torch.zeros(num_envs, JOINTS, device=device)
        self.last_NA = torch.zeros(num_envs, ACTIONS, device=device)
        self._started = False
        self._renderer: Any = None

    # --- the contract -------------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | None = None) -> Any:
        if seed is None and not self._started:
            seed = int(np.random.default_rng().integers(2**31))
        if seed is not None:
            self.seed_N, self.episode_N = torch.arange(seed, seed + self.num_envs, device=self._physics.device), torch.zeros_like(self.episode_N)
        self._started = True
        self._begin(torch.ones_like(self.age_N, dtype=torch.bool))
        return self._given(self._observation())

    def step(self, action_N: Any) -> EnvStep:
        action_NA = self._checked(action_N)
        self._control(action_NA)
        self._physics.advance()
        lost_N = self._mended()
        reward_N, success_N = self._task.judge(self._state(), action_NA)
        reward_N = torch.where(lost_N, 0.0, reward_N)
        self.last_NA, self.age_N = action_NA, self.age_N + 1
        final_NO = self._observation()
        truncated_N = (self.age_N >= self._limit) | lost_N
        self._begin(truncated_N)
        obs_NO = torch.where(truncated_N[:, None], self._observation(), final_NO)
        given, never_N = self._given, torch.zeros_like(truncated_N)
        return EnvStep(given(obs_NO), given(reward_N), given(never_N), given(truncated_N), given(success_N & ~lost_N), given(final_NO))

    def _checked(self, action_N: Any) -> Tensor:
        """A new tensor on the device, clipped. Numbers that are not finite are told where that costs no waiting: on cores."""
        if not isinstance(action_N, Tensor) or self.spec.device is None or action_N.device.type == "cpu":
            return torch.as_tensor(checked_actions(self.spec, self.num_envs, action_N, self._started), dtype=torch.float32).to(self._physics.device)
        if not self._started or action_N.shape != self.last_NA.shape:
            raise EnvError(f"{self.spec.id}: actions of shape {tuple(action_N.shape)}; {tuple(self.last_NA.shape)} after reset() is needed.")
        return action_N.to(self._physics.device, torch.float32).clamp(-1, 1)

    def _control(self, action_NA: Tensor) -> None:
        """Tell joints and gripper where to move.

        Joints by a step, from where they were told to be; the gripper where to be.
        """
        angle_NJ = self._physics.qpos_NQ[:, :JOINTS]
        wanted_NJ = torch.minimum(torch.maximum(self.target_NJ + STEP_RAD * action_NA[:, :JOINTS], self._low_J), self._high_J)
        self.target_NJ = torch.minimum(torch.maximum(wanted_NJ, angle_NJ - LEAD_RAD), angle_NJ + LEAD_RAD)
        self._physics.ctrl_NU[:, :JOINTS] = self.target_NJ
        self._physics.ctrl_NU[:, JOINTS] = OPEN_M / 2 * (1 + action_NA[:, JOINTS])

    def _mended(self) -> Tensor:
        """Which states were not finite; they are, afterwards."""
        held = self._physics.qpos_NQ, self._physics.qvel_NV, self._physics.warmstart_NV
        lost_N = ~(torch.isfinite(held[0]).all(1) & torch.isfinite(held[1]).all(1))
        for tensor in (*held, self._physics.hand_N3):
            tensor.nan_to_num_(0.0, 0.0, 0.0)
        return lost_N

    def _begin(self, ended_N: Tensor) -> None:
        """New episodes where one ended, by `torch.where` over all. Which ones is known on the device only."""
        begun_NQ, goal_N3 = self._task.begin(uniform(self.seed_N, self.episode_N, RANDOM))
        ended_N1 = ended_N[:, None]
        physics = self._physics
        physics.qpos_NQ.copy_(torch.where(ended_N1, begun_NQ, physics.qpos_NQ))
        for speeds in (physics.qvel_NV, physics.warmstart_NV):
            speeds.masked_fill_(ended_N1, 0.0)
        self.goal_N3 = torch.where(ended_N1, goal_N3, self.goal_N3)
        self.target_NJ = torch.where(ended_N1, begun_NQ[:, :JOINTS], self.target_NJ)
        self.last_NA = self.last_NA.masked_fill(ended_N1, 0.0)
        self.age_N = self.age_N.masked_fill(ended_N, 0)
        self.episode_N = self.episode_N + ended_N
        physics.look()

    def _state(self) -> State:
        physics = self._physics
        return State(physics.qpos_NQ, physics.qvel_NV, physics.hand_N3, self.goal_N3, self.target_NJ, self.last_NA)

    def _observation(self) -> Tensor:
        return self._task.observe(self._state())

    def _given(self, tensor: Tensor) -> Any:
        return tensor if self.spec.device is not None else tensor.numpy()

    # --- leaving ------------------------------------------------------------------------------------------------------------
    def _kind(self) -> tuple[str, int, int | None]:
        return self.spec.id, self.num_envs, self.spec.max_episode_steps

    def _engine(self) -> str:
        return type(self._physics).__name__.removesuffix("Physics").lower()

    def save_state(self) -> dict[str, Any]:
        """See `vecenv.Restorable`. On a GPU the numbers go on up to rounding: there the order of a sum is nobody's."""
        held = {name: getattr(self, name).cpu().numpy().copy() for name in _KEPT}
        simulated = {name: getattr(self._physics, name).cpu().numpy().copy() for name in _SIMULATED}
        return {"of": self._kind(), "runner": self._engine(), "started": self._started, **held, **simulated}

    def restore_state(self, state: dict[str, Any]) -> None:
        """`EnvError` when the state is that of other environments."""
        check_state(state, self._kind(), self._engine())
        for name in _KEPT:
            setattr(self, name, torch.from_numpy(state[name].copy()).to(self._physics.device))
        for name in _SIMULATED:
            getattr(self._physics, name).copy_(torch.from_numpy(state[name]))
        self._started = state["started"]
        self._physics.look()

    # --- pictures -----------------------------------------------------------------------------------------------------------
    def render(self) -> NDArray[np.uint8] | None:
        """The first environment, its goal a green ball."""
        if not self.spec.renders:
            return None
        import mujoco

        if self._renderer is None:
            self._renderer = mujoco.Renderer(self._model, 240, 320), mujoco.MjData(self._model)
        renderer, data = self._renderer
        data.qpos[:] = self._physics.qpos_NQ[0].cpu().numpy()
        mujoco.mj_kinematics(self._model, data)
        renderer.update_scene(data, camera="front_cam")
        scene = renderer.scene
        if scene.ngeom < scene.maxgeom:
            place = self.goal_N3[0].double().cpu().numpy()
            mujoco.mjv_initGeom(
                scene.geoms[scene.ngeom], mujoco.mjtGeom.mjGEOM_SPHERE, np.full(3, 0.012), place, np.eye(3).ravel(), np.array([0.1, 0.7, 0.2, 1], np.float32)
            )
            scene.ngeom += 1
        return np.asarray(renderer.render())

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer[0].close()
        self._physics.close()

    def __repr__(self) -> str:
        return described(self.spec, self.num_envs, f", {self._engine()} on {self._physics.device}")
