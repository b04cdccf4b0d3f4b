"""ManiSkill's own batched mode, in one PhysX scene on a GPU.

All environments; observations, rewards and ends as tensors that stay there.

Needs a file that no wheel brings: `missing_library` names it. Actions are in [-1, 1]; an episode goes on after success, to its limit of steps, as on
cores. ManiSkill draws the beginnings of all environments from one generator: a beginning depends on the seeds of the others, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from rlinf_lab.errors import ConfigError, EnvError, MissingDependencyError, shown
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv import EnvSpec
from rlinf_lab.vecenv.loop import described

LIBRARY = "libPhysXGpu_64.so"


def missing_library() -> str:
    """Where SAPIEN misses PhysX's GPU part; "" where it is there. Where it looks for it, and where that is from."""
    from sapien import physx

    path = Path.home() / ".sapien" / "physx" / physx.version() / LIBRARY
    url = f"https://github.com/sapien-sim/physx-precompiled/releases/download/{physx.version()}/linux-so.zip"
    return "" if path.exists() else f"{path} (from {url})"


def check(task: str, device: Any) -> None:
    """`ConfigError` for a device that is none; a missing file is named.

    `MissingDependencyError` for one that SAPIEN would try to fetch.
    """
    import torch

    if not isinstance(device, str) or not device.startswith("cuda"):
        raise ConfigError(f"make_vec('maniskill/{task}', device={shown(device)}): 'cuda:0', or None for cores.")
    if missing := missing_library():
        raise MissingDependencyError(
            f"make_vec('maniskill/{task}', device={device!r}): ManiSkill's GPU mode needs {missing}, which no package brings. "
            f"Next: unzip it there; or leave device out, which steps on cores."
        )
    if not torch.cuda.is_available():
        raise ConfigError(f"make_vec('maniskill/{task}', device={device!r}): torch can use no GPU here. Next: lab.doctor() says why.")


class BatchedGpuVecEnv:
    """See `vecenv.VecEnv` for the contract; tensors on ``spec.device``. ``env``: ManiSkill's, of all environments, made by `gymnasium.make`."""

    def __init__(self, env: Any, task: str, num_envs: int, limit: int, device: str) -> None:
        import torch as imported

        torch: Any = imported
        self._env, self._torch, self.num_envs, self._limit = env, torch, num_envs, limit
        observation = Box(-np.inf, np.inf, env.unwrapped.single_observation_space.shape, np.float32)
        action = Box(-1.0, 1.0, env.unwrapped.single_action_space.shape, np.float32)
        self.spec = EnvSpec(f"maniskill/{task}", observation, action, limit, "info['success'] of the task", device=device)
        self._age_N: Any = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._never_N: Any = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._started = False

    def reset(self, *, seed: int | None = None) -> Any:
        seeds = None if seed is None else [seed + i for i in range(self.num_envs)]
        obs_NO, _ = self._env.reset(seed=seeds)
        self._age_N.zero_()
        self._started = True
        return obs_NO.float().clone()

    def step(self, action_N: Any) -> EnvStep:
        torch, device = self._torch, self.spec.device
        if not self._started:
            raise EnvError(f"{self.spec.id}: step() before reset(). Next: obs = env.reset(seed=0).")
        action_NA = torch.as_tensor(action_N, dtype=torch.float32, device=device)
        wanted = (self.num_envs, *(self.spec.action_space.shape or ()))
        if tuple(action_NA.shape) != wanted:
            raise EnvError(f"{self.spec.id}: actions have shape {tuple(action_NA.shape)}; {wanted} is needed.")
        obs_NO, reward_N, _, _, info = self._env.step(action_NA.clamp(-1, 1))
        final_NO, reward_N = obs_NO.float().clone(), reward_N.float().clone()  # ManiSkill writes to its tensors again
        success_N = info["success"].clone() if "success" in info else None
        self._age_N += 1
        truncated_N = self._age_N >= self._limit
        obs_N = final_NO
        if bool(truncated_N.any()):  # waits for the GPU, once a step
            first_NO, _ = self._env.reset(options={"env_idx": truncated_N.nonzero().squeeze(-1)})
            obs_N = torch.where(truncated_N[:, None], first_NO.float(), final_NO)
            self._age_N[truncated_N] = 0
        return EnvStep(obs_N, reward_N, self._never_N.clone(), truncated_N, success_N, final_NO)

    def render(self) -> NDArray[np.uint8] | None:
        return None

    def close(self) -> None:
        self._env.close()

    def __repr__(self) -> str:
        return described(self.spec, self.num_envs, f", batched on {self.spec.device}")


def make(build: Callable[..., Any], task: str, num_envs: int, limit: int, control: str, device: str) -> BatchedGpuVecEnv:
    """``build``: `gymnasium.make`, after ManiSkill has registered its tasks."""
    check(task, device)
    backend = f"physx_cuda{device.removeprefix('cuda')}"
    env = build(
        task, num_envs=num_envs, obs_mode="state", control_mode=control, sim_backend=backend, render_backend="none", max_episode_steps=1_000_000
    )  # fmt: skip
    return BatchedGpuVecEnv(env, task, num_envs, limit, device)
