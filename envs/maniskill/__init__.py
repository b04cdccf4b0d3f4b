"""ManiSkill 3 on the CPU with state observations: a Panda arm on SAPIEN's physics.

Observation: joint positions and velocities and the task's own state (PushCube-v1: 35 numbers). Action: joint displacements and gripper
in [-1, 1] (``pd_joint_delta_pos``, PushCube-v1: 8 numbers). Reward: dense, normalised to [0, 1] a step. Success is the task's own
signal; an episode goes on after it, to its limit of steps. Works without a Vulkan device (see `headless`); pictures need one. The cube tasks
(`rules.RULES`) are stepped as a batch (see `batched`), all others by stock environments in a loop: same numbers, three times slower.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import io
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from envs.maniskill import gpu
from envs.maniskill.batched import BatchedVecEnv
from envs.maniskill.headless import do_without_vulkan, has_vulkan
from envs.maniskill.rules import RULES
from rlinf_lab.errors import EnvError, MissingDependencyError
from rlinf_lab.vecenv import EnvSpec, LoopVecEnv, Outcome, VecEnv

NEEDS = "rlinf-lab[maniskill]"
CONTROL = "pd_joint_delta_pos"
OWN_LIMIT = 1_000_000  # the vector's limit ends an episode, not the simulator's

# Building and resetting use what a process has only one of: standard output, the prompt, torch's generator (seeded by each reset). The
# ranks of a local executor are threads, so one at a time.
_ALONE = threading.Lock()


@contextlib.contextmanager
def _unattended() -> Iterator[io.StringIO]:
    """Nobody answers at the prompt, and what is printed is collected instead."""

    def no_answer(prompt: object = "") -> str:
        raise EOFError("asked at the prompt")

    said, prompt = io.StringIO(), builtins.input
    builtins.input = no_answer
    try:
        with contextlib.redirect_stdout(said):
            yield said
    finally:
        builtins.input = prompt


def _simulator() -> tuple[Any, dict[str, Any]]:
    """gymnasium and ManiSkill's table of tasks. Imported so that a missing rendering device does no harm."""
    try:
        import sapien  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError.of("mani-skill", "maniskill", "A ManiSkill environment") from error
    if not has_vulkan():
        do_without_vulkan()
    try:
        import gymnasium
        import mani_skill.envs  # noqa: F401
        from mani_skill.utils.registration import REGISTERED_ENVS
    except ImportError as error:
        raise MissingDependencyError.of("mani-skill", "maniskill", "A ManiSkill environment") from error
    return gymnasium, REGISTERED_ENVS


def tasks() -> list[str]:
    """Names of all registered tasks but the empty scene.

    That one resets nothing; some need assets that ManiSkill downloads.
    """
    return sorted(set(_simulator()[1]) - {"Empty-v1"})


def runners(task: str, options: dict[str, Any]) -> dict[str, bool]:
    """See `vecenv.registry.Adapter`."""
    if options.get("device") is not None:
        return {"gpu": False}
    return {"batched" if _is_batched(task, options.get("control", CONTROL), options.get("batched", True)) else "loop": False}


def _is_batched(task: str, control: str, batched: bool) -> bool:
    return batched and control == CONTROL and task in RULES


def has(task: str) -> bool:
    return task in _simulator()[1]


class ManiSkillEnv:
    """One stock environment (the CPU backend steps one at a time).

    What PhysX remembers of contacts cannot be read or written, so the state that is saved is how it came about: the number that the episode was begun
    with, and its actions, which are done again. ``record`` takes those of a batch, which steps the scene itself.
    """

    def __init__(self, task: str, control: str, draws: bool) -> None:
        import torch

        torch.set_num_threads(1)
        gymnasium, _ = _simulator()
        with _ALONE, _unattended() as said:
            try:
                self._env = gymnasium.make(
                    task, num_envs=1, obs_mode="state", control_mode=control, sim_backend="physx_cpu", max_episode_steps=OWN_LIMIT,
                    render_backend="gpu" if draws else "none", render_mode="rgb_array" if draws else None,
                )  # fmt: skip
            except (SystemExit, EOFError, FileNotFoundError) as error:  # it asks at the prompt, then leaves the interpreter
                reason = said.getvalue().strip().partition("\n")[0] or str(error)
                raise EnvError(
                    f"maniskill/{task} needs assets that are not on this machine: {reason}. Next: python -m mani_skill.utils.download_asset {task}"
                ) from error
            except RuntimeError as error:
                if draws or "rendering device" not in str(error):
                    raise
                raise EnvError(
                    f"maniskill/{task} loads its scene through the renderer, and this machine has no Vulkan device: {error}. "
                    f"Next: a machine with one (lab.doctor() says), or a task that is built without, such as maniskill/PickCube-v1."
                ) from error
        self._draws = draws
        self._rng = np.random.default_rng()
        self._began = -1  # with this number, once it has
        self._actions: list[NDArray] = []  # of the episode

    @property
    def stock(self) -> Any:
        """ManiSkill's own environment, without gymnasium's wrappers."""
        return self._env.unwrapped

    @property
    def sizes(self) -> tuple[int, int]:
        return int(np.prod(self._env.observation_space.shape)), int(np.prod(self._env.action_space.shape))

    def reset(self, seed: int | None) -> NDArray:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        return self._begin(self.begins())

    def begins(self) -> int:
        """The seed of a new episode, whoever makes it. Without one the simulator would draw from a generator that all environments of the process share."""
        self._began, self._actions = int(self._rng.integers(2**31)), []
        return self._began

    def _begin(self, number: int) -> NDArray:
        with _ALONE:
            observation, _ = self._env.reset(seed=number)
        return _row(observation)

    def save_state(self) -> dict[str, Any]:
        """See `vecenv.Restorable`."""
        return {"rng": copy.deepcopy(self._rng), "began": self._began, "actions": list(self._actions)}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Takes as long as the episode did so far."""
        for action_A in self.begin_again(state):
            self.step(action_A)

    def begin_again(self, state: dict[str, Any]) -> list[NDArray]:
        """At the beginning of the saved episode; the actions that are still to be done."""
        self._rng = copy.deepcopy(state["rng"])
        self._began, self._actions = state["began"], []
        if self._began >= 0:
            self._begin(self._began)
        actions: list[NDArray] = state["actions"]
        return actions

    def record(self, action_A: NDArray) -> None:
        """Kept as it is: nobody may write to it afterwards."""
        self._actions.append(action_A)

    def step(self, action_A: NDArray) -> Outcome:
        action_A = action_A.astype(np.float32)  # a copy
        self.record(action_A)
        observation, reward, _, _, info = self._env.step(action_A)
        return Outcome(_row(observation), float(reward), False, False, info.get("success"))

    def render(self) -> NDArray[np.uint8] | None:
        return _row(self._env.render()) if self._draws else None

    def close(self) -> None:
        self._env.close()


def _row(batched: Any) -> NDArray:
    """The only row of a batch of one, as numpy."""
    array = batched.cpu().numpy() if hasattr(batched, "cpu") else np.asarray(batched)
    return array[0]


def make(
    task: str, num_envs: int, max_episode_steps: int | None = None, *, control: str = CONTROL, batched: bool = True, device: str | None = None
) -> VecEnv:
    """``num_envs`` environments of one task. ``control``: ManiSkill's name of the controller, which fixes the action's size.

    ``batched=False`` steps the stock environments even where `batched` could; with another controller it cannot. ``device``: a GPU, for ManiSkill's own
    batched mode there (see `gpu`); None: cores. `MissingDependencyError` names the file that it lacks.
    """
    if device is not None:
        gpu.check(task, device)
        build, registered = _simulator()
        return gpu.make(build.make, task, num_envs, max_episode_steps or registered[task].max_episode_steps or 50, control, device)
    draws = has_vulkan()
    envs = [ManiSkillEnv(task, control, draws) for _ in range(num_envs)]
    obs_size, action_size = envs[0].sizes
    limit = _simulator()[1][task].max_episode_steps or 50
    observation, action = Box(-np.inf, np.inf, (obs_size,), np.float32), Box(-1.0, 1.0, (action_size,), np.float32)
    spec = EnvSpec(f"maniskill/{task}", observation, action, max_episode_steps or limit, "info['success'] of the task", renders=draws)
    if _is_batched(task, control, batched):
        return BatchedVecEnv(envs, spec, RULES[task])
    return LoopVecEnv(envs, spec)
