"""mjlab's tasks on MuJoCo Warp, such as "mjlab/Mjlab-Lift-Cube-Yam".

What its registry has, with torch tensors on the GPU.

Observations are what mjlab shows to its policies (all groups but "critic"), as it disturbs them. An episode that ends is begun again within the step, and
its last observation is kept, which mjlab itself throws away. Success is the command's own signal where the task has one.

One of mjlab's ways is closed: it draws from the generators of the whole process. Here each vector has a state of its own for them, so that two vectors do not
change each other's numbers; environments of one vector share it, so what an environment does depends on how many there are beside it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.rendering import choose_renderer
from rlinf_lab.errors import ConfigError, EnvError, MissingDependencyError, shown
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import map_tree
from rlinf_lab.vecenv import EnvSpec
from rlinf_lab.vecenv.loop import described

NEEDS = "make env-warp: an environment of its own, for its MuJoCo is newer than metaworld's"
HIDDEN = "critic"


def _registry() -> Any:
    choose_renderer()
    try:
        import mjlab.tasks  # noqa: F401  # registers
        from mjlab.tasks import registry
    except ImportError as error:
        raise MissingDependencyError(
            f"An environment of mjlab needs a package that is not installed here ({error}). Next: make env-warp (an environment of its own)."
        ) from error
    return registry


def tasks() -> list[str]:
    return list(_registry().list_tasks())


def has(task: str) -> bool:
    return task in tasks()


def runners(task: str, options: dict[str, Any]) -> dict[str, bool]:
    """See `vecenv.registry.Adapter`."""
    return {"warp": False}


def cannot_leave(task: str) -> str:
    return "mjlab keeps parts of a state in objects of its own"


class MjlabVecEnv:
    """See `vecenv.VecEnv` for the contract; tensors on ``spec.device``."""

    def __init__(self, task: str, num_envs: int, max_episode_steps: int | None, device: str) -> None:
        from mjlab.envs import ManagerBasedRlEnv

        self._generators: Any = None
        config = _registry().load_env_cfg(task)
        config.scene.num_envs, config.auto_reset, config.seed = num_envs, False, 0
        with self._own_generators(device):
            self._env: Any = ManagerBasedRlEnv(cfg=config, device=device)
        if max_episode_steps is not None:
            self._env.cfg.episode_length_s = max_episode_steps * self._env.step_dt
        self._device, self.num_envs = device, num_envs
        actions = spaces.Box(-np.inf, np.inf, (self._env.action_manager.total_action_dim,), np.float32)
        limit = int(self._env.max_episode_length)
        self.spec = EnvSpec(f"mjlab/{task}", _space_of(self.reset(seed=0)), actions, limit, _success_of(self._env), device=device)
        self._started = False

    # --- the contract -------------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | None = None) -> Any:
        with self._own_generators(self._device):
            obs, _ = self._env.reset(seed=seed)
        self._started = True
        return self._kept(obs)

    def step(self, action_N: Any) -> EnvStep:
        import torch

        if not self._started:
            raise EnvError(f"{self.spec.id}: step() before reset(). Next: obs = env.reset(seed=0).")
        action_NA = torch.as_tensor(action_N, dtype=torch.float32, device=self._device)
        wanted = (self.num_envs, *(self.spec.action_space.shape or ()))
        if action_NA.shape != wanted:
            raise EnvError(f"{self.spec.id}: actions have shape {tuple(action_NA.shape)}; {wanted} is needed.")
        if self._device == "cpu" and not bool(torch.isfinite(action_NA).all()):  # elsewhere it would wait for the device
            raise EnvError(f"{self.spec.id}: an action is not finite: {shown(action_NA)}. Did the policy diverge?")
        with self._own_generators(self._device):
            obs, reward_N, terminated_N, truncated_N, _ = self._env.step(action_NA)
            final_N, success_N = self._kept(obs), self._success()
            reward_N, terminated_N, truncated_N = reward_N.clone(), terminated_N.clone(), truncated_N & ~terminated_N
            ended = (terminated_N | truncated_N).nonzero(as_tuple=False).squeeze(-1)
            obs_N = final_N
            if len(ended):
                first, _ = self._env.reset(env_ids=ended)
                obs_N = map_tree(lambda last, new: last.index_copy(0, ended, new[ended].to(last.dtype)), final_N, _shown(first))
        return EnvStep(obs_N, reward_N.float(), terminated_N, truncated_N, success_N, final_N)

    def _kept(self, obs: Any) -> Any:
        """A copy of what policies are shown: mjlab writes to its tensors again."""
        return map_tree(lambda leaf: leaf.float().clone(), _shown(obs))

    def _success(self) -> Any:
        if self.spec.success is None:
            return None
        return _judge(self._env).compute_success().clone()

    @contextlib.contextmanager
    def _own_generators(self, device: str) -> Iterator[None]:
        """Those of the process are as this vector left them, and afterwards as they were."""
        others = _states(device)
        if self._generators is not None:
            _set(self._generators, device)
        try:
            yield
        finally:
            self._generators = _states(device)
            _set(others, device)

    def render(self) -> NDArray[np.uint8] | None:
        return None

    def close(self) -> None:
        self._env.close()

    def __repr__(self) -> str:
        return described(self.spec, self.num_envs, f", mjlab on {self._device}")


def make(task: str, num_envs: int, max_episode_steps: int | None = None, *, device: str | None = None) -> MjlabVecEnv:
    """``device``: "cuda:0" or "cpu"; None: the first GPU, else cores."""
    import torch

    if device is not None and device != "cpu" and not device.startswith("cuda"):
        raise ConfigError(f"make_vec('mjlab/{task}', device={shown(device)}): 'cpu' or 'cuda:0'.")
    return MjlabVecEnv(task, num_envs, max_episode_steps, device or ("cuda:0" if torch.cuda.is_available() else "cpu"))


def _judge(env: Any) -> Any:
    """The command that knows what success is; None where there is none."""
    manager = env.command_manager
    terms = [manager.get_term(name) for name in getattr(manager, "active_terms", ())]
    return next((term for term in terms if hasattr(term, "compute_success")), None)


def _success_of(env: Any) -> str | None:
    return None if _judge(env) is None else "compute_success() of the task's command"


def _shown(obs: dict[str, Any]) -> Any:
    """All groups but what only a critic may see; one alone without its name."""
    groups = {name: group for name, group in obs.items() if name != HIDDEN}
    return groups if len(groups) > 1 else next(iter(groups.values()))


def _space_of(obs: Any) -> spaces.Space:
    """Of an observation of all environments: numbers, or a dict of them."""
    if isinstance(obs, dict):
        return spaces.Dict({key: _space_of(part) for key, part in obs.items()})
    return spaces.Box(-np.inf, np.inf, tuple(obs.shape[1:]), np.float32)


def _states(device: str) -> tuple[Any, ...]:
    import torch

    return random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.cuda.get_rng_state(device) if device != "cpu" else None


def _set(states: tuple[Any, ...], device: str) -> None:
    import torch

    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3] is not None:
        torch.cuda.set_rng_state(states[3], device)
