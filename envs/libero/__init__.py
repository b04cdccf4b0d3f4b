"""LIBERO: 130 tabletop tasks with instructions for a Franka arm on robosuite, such as "libero/libero_goal-3".

Observations are a dict of two cameras (uint8) and proprioception (joint and gripper positions); an instruction is ``LiberoEnv.task.language``. The simulator
is a package (``pip install hf-libero``, in an environment of its own: it pins other versions); its meshes are files that it does not bring: where they are
missing the error says which, from where, and into which folder. Two of its habits are closed: a question at its import, and a download that begins by itself.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.rendering import choose_renderer
from rlinf_lab.errors import EnvError, MissingDependencyError, said
from rlinf_lab.vecenv import EnvSpec, LoopVecEnv, Outcome

NEEDS = "pip install hf-libero, in an environment of its own, and LIBERO's assets"
SUITES = {"libero_spatial": 10, "libero_object": 10, "libero_goal": 10, "libero_90": 90, "libero_10": 10}
LIMITS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_90": 400, "libero_10": 520}
"""steps of an episode, as OpenVLA-OFT and SimpleVLA-RL count them"""
PROPRIOCEPTION = ("robot0_joint_pos", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
SETTLING = 10  # steps without action: objects fall for a moment after a reset
NO_ACTION = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)


def tasks() -> list[str]:
    _simulator()
    return [f"{suite}-{i}" for suite, count in SUITES.items() for i in range(count)]


def has(task: str) -> bool:
    suite, _, number = task.rpartition("-")
    return suite in SUITES and number.isdigit() and int(number) < SUITES[suite]


def cannot_leave(task: str) -> str:
    return "robosuite keeps parts of a state in objects of its own"


def _simulator() -> Any:
    choose_renderer()
    try:
        _answer_its_question()
        from libero.libero import benchmark
    except ImportError as error:
        raise MissingDependencyError(
            f"A LIBERO environment needs a package that is not here ({error}). Next: pip install hf-libero in an environment of its own, then fetch its "
            f"assets (envs/libero/README.md)."
        ) from error
    return benchmark


def _package() -> Path:
    found = find_spec("libero")
    if found is None or not found.submodule_search_locations:
        raise ImportError("No module named 'libero'")
    return Path(next(iter(found.submodule_search_locations))) / "libero"


def _answer_its_question() -> None:
    """Write the settings that its import would ask for.

    It asks where data sets shall lie, unless there is a file of settings: the one that it writes itself when one
    answers "N".
    """
    folder = Path(os.environ.get("LIBERO_CONFIG_PATH", Path.home() / ".libero"))
    if not (folder / "config.yaml").exists():
        package = _package()
        paths = {"benchmark_root": "", "bddl_files": "bddl_files", "init_states": "init_files", "datasets": "../datasets", "assets": "assets"}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(json.dumps({name: str(package / path) for name, path in paths.items()}))  # YAML too


def _check_assets() -> None:
    """`EnvError` where its meshes are in neither of the folders in which it looks."""
    here = [_package() / "assets", Path.home() / ".cache" / "libero" / "assets"]
    if not any((folder / "stable_scanned_objects").is_dir() for folder in here):
        raise EnvError(
            f"libero: its meshes are missing, {here[0]} is not there and {here[1]} neither. Next: hf download lerobot/libero-assets --repo-type dataset "
            f"--local-dir {here[1]}"
        )


class LiberoEnv:
    """One environment. Every episode begins in one of the task's 50 saved states."""

    def __init__(self, suite: str, number: int, pixels: int) -> None:
        benchmark = _simulator()
        self._suite = benchmark.get_benchmark_dict()[suite]()
        self.task = self._suite.get_task(number)
        _check_assets()
        from libero.libero import get_libero_path
        from libero.libero.envs import OffScreenRenderEnv

        bddl = Path(get_libero_path("bddl_files")) / self.task.problem_folder / self.task.bddl_file
        try:
            self._env = OffScreenRenderEnv(bddl_file_name=str(bddl), camera_heights=pixels, camera_widths=pixels)
            self._states = self._suite.get_task_init_states(number)
        except (FileNotFoundError, AssertionError) as error:
            raise EnvError(f"libero/{suite}-{number}: {said(error)}. Next: fetch what is missing (envs/libero/README.md).") from error
        self._rng = np.random.default_rng()
        self._picture: NDArray[np.uint8] | None = None

    def reset(self, seed: int | None) -> dict[str, NDArray]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
            self._env.seed(seed)
        self._env.reset()
        observation = self._env.set_init_state(self._states[self._rng.integers(len(self._states))])
        for _ in range(SETTLING):
            observation, *_ = self._env.step(list(NO_ACTION))
        return self._seen(observation)

    def step(self, action: NDArray) -> Outcome:
        observation, reward, done, _ = self._env.step(action.tolist())
        return Outcome(self._seen(observation), float(reward), bool(done), False, done)

    def _seen(self, observation: dict[str, NDArray]) -> dict[str, NDArray]:
        self._picture = np.ascontiguousarray(observation["agentview_image"][::-1])
        return {
            "agentview": self._picture, "wrist": np.ascontiguousarray(observation["robot0_eye_in_hand_image"][::-1]),
            "state": np.concatenate([observation[name] for name in PROPRIOCEPTION]).astype(np.float32),
        }  # fmt: skip

    def render(self) -> NDArray[np.uint8] | None:
        return self._picture

    def close(self) -> None:
        self._env.close()


def spec(task: str, max_episode_steps: int | None = None, pixels: int = 128) -> EnvSpec:
    suite = task.rpartition("-")[0]
    camera = spaces.Box(0, 255, (pixels, pixels, 3), np.uint8)
    observation = spaces.Dict({"agentview": camera, "wrist": camera, "state": spaces.Box(-np.inf, np.inf, (16,), np.float32)})
    limit = min(max_episode_steps or LIMITS[suite], LIMITS[suite])
    return EnvSpec(f"libero/{task}", observation, spaces.Box(-1.0, 1.0, (7,), np.float32), limit, "the goal of the task's BDDL file holds", renders=True)


def make(task: str, num_envs: int, max_episode_steps: int | None = None, *, pixels: int = 128) -> LoopVecEnv:
    """``pixels``: of each camera's side."""
    suite, _, number = task.rpartition("-")
    envs = [LiberoEnv(suite, int(number), pixels) for _ in range(num_envs)]
    return LoopVecEnv(envs, spec(task, max_episode_steps, pixels))
