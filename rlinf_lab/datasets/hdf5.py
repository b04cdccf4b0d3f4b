"""Demonstrations in HDF5 as others have them: robomimic's and LIBERO's files, ManiSkill's, D4RL's.

    robomimic, LIBERO   data/demo_0/{actions, rewards, dones, obs/…, next_obs/…}; mask/<split>: names of demonstrations
    ManiSkill           traj_0/{actions, obs (T+1), terminated, truncated, success, rewards}; beside it a .json with environment and seeds
    D4RL                observations, actions, rewards, terminals, timeouts, next_observations: one long row of steps

Sources: robomimic's documentation of its datasets, ``mani_skill.utils.wrappers.RecordEpisode``, D4RL's ``qlearning_dataset``. Read only.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.datasets.arrays import from_arrays, space_of
from rlinf_lab.datasets.episodes import DataSpec, Episode, EpisodeSource
from rlinf_lab.errors import ConfigError, MissingDependencyError, UnknownNameError, said
from rlinf_lab.trees import Tree, leaves, map_tree

SUFFIXES = (".hdf5", ".h5")
NO_OBS = {
    "robomimic": "robomimic's dataset_states_to_obs.py adds them",
    "ManiSkill": "python -m mani_skill.trajectory.replay_trajectory --traj-path FILE --save-traj -o state adds them",
}


def read_hdf5(path: str | os.PathLike[str], split: str | None = None) -> EpisodeSource:
    """The demonstrations of an HDF5 file: robomimic's (and LIBERO's), ManiSkill's or D4RL's layout.

    Each is read when it is asked for, but D4RL's, which are one row of steps, at once. ``split``: of robomimic's masks, such as "train". Rewards that
    were not recorded are zeros. Such files say no bounds of actions: where they are not in [-1, 1], ``data.with_spec(action_space=Box(low, high))``.

    Raises `ConfigError` for a file of none of these layouts or without observations, `UnknownNameError` for a split that there is not,
    `MissingDependencyError` without h5py.
    """
    where = Path(path)
    with _opened(where) as file:
        layout = _layout(where, file)
        if split is not None and (layout != "robomimic" or split not in file.get("mask", {})):
            raise UnknownNameError.of("split", split, list(file.get("mask", {})), f"Of {where}.")
        return _d4rl(where, file) if layout == "D4RL" else Hdf5Data(where, split)


def _opened(path: Path) -> Any:
    """For a moment: who holds it open keeps others from writing it."""
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError.of("h5py", "minari", "An HDF5 file") from error
    if not path.is_file():
        raise ConfigError(f"read_hdf5({os.fspath(path)!r}): there is no such file.")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ConfigError(f"read_hdf5({os.fspath(path)!r}): no HDF5 file that can be read: {said(error)}.") from error


class Hdf5Data(EpisodeSource):
    """See `read_hdf5`; pickles as its path."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        self.path, self.split = path, split
        about = _about(path)
        with _opened(path) as file:
            self.layout = _layout(path, file)
            demos = _demos(file, self.layout)
            names = [name for name in demos if "actions" in demos[name]]
            if split is not None:
                names = [name.decode() if isinstance(name, bytes) else str(name) for name in file["mask"][split][()]]
            self._names = sorted(names, key=_number)
            if missing := [name for name in names if name not in demos]:
                raise ConfigError(f"{path}: the mask {split!r} speaks of {missing[0]!r}, which is not there.")
            if not names:
                raise ConfigError(f"{path}: there is no demonstration in it.")
            first = demos[self._names[0]]
            if "obs" not in first:
                raise ConfigError(f"{path}: {self._names[0]} has no observations ('obs'). Next: {NO_OBS[self.layout]}.")
            known = about.get("env_info") or {}
            env, limit = known.get("env_id"), known.get("max_episode_steps")
            self.spec = DataSpec(
                space_of(_head(first["obs"])), space_of(_head(first["actions"])), f"maniskill/{env}" if env else None, None if limit is None else int(limit),
                by=str(about.get("source_type") or self.layout),
            )  # fmt: skip
            self._lengths_E = np.array([len(leaves(_lazy(demos[name]["actions"]))[0]) for name in self._names], np.int64)
            self._task = _instruction(file) or self.spec.env or ""
        self._seeds = {f"traj_{e['episode_id']}": e["episode_seed"] for e in about.get("episodes") or [] if isinstance(e.get("episode_seed"), int)}

    def __reduce__(self) -> Any:
        return Hdf5Data, (self.path, self.split)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def lengths_E(self) -> NDArray[np.int64]:
        return self._lengths_E

    def read(self, index: int) -> Episode:
        name = self._names[index]
        with _opened(self.path) as file:
            demo = _demos(file, self.layout)[name]
            has = {key: _read(demo[key]) for key in ("obs", "actions", "rewards", "dones", "terminated", "truncated", "success") if key in demo}
            final = map_tree(lambda leaf: leaf[-1], _lazy(demo["next_obs"])) if "next_obs" in demo else None
        obs_T, T = has["obs"], len(leaves(has["actions"])[0])
        if all(len(leaf) == T + 1 for leaf in leaves(obs_T)):
            obs_T, final = map_tree(lambda leaf: leaf[:T], obs_T), map_tree(lambda leaf: leaf[T], obs_T)
        ends = has.get("terminated", has.get("dones", np.zeros(1))), has.get("truncated", np.zeros(1))
        terminated, truncated = (bool(len(end) and end[-1]) for end in ends)
        reward_T = np.asarray(has.get("rewards", np.zeros(T)), np.float32).reshape(-1)
        success_T = np.asarray(has["success"], bool).reshape(-1) if "success" in has else None
        try:
            return Episode(obs_T, has["actions"], reward_T, terminated, truncated, success_T, final, self._seeds.get(name), self._task)
        except ConfigError as error:
            raise ConfigError(f"{self.path}, {name}: {error}") from error

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self.layout}'s {self.path.name})"


def _demos(file: Any, layout: str) -> Any:
    return file["data"] if layout == "robomimic" else file


def _instruction(file: Any) -> str:
    """LIBERO's; "" where there is none."""
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        return str(json.loads(file["data"].attrs["problem_info"])["language_instruction"])
    return ""


def _d4rl(path: Path, file: Any) -> EpisodeSource:
    names = {"terminated": "terminals", "truncated": "timeouts", "next_obs": "next_observations", "reward": "rewards"}
    given = {ours: file[theirs][()] for ours, theirs in names.items() if theirs in file}
    try:
        return from_arrays(file["observations"][()], file["actions"][()], **given)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _layout(path: Path, file: Any) -> str:
    if "observations" in file and "actions" in file:
        return "D4RL"
    if "data" in file and any("actions" in group for group in _groups(file["data"])):
        return "robomimic"
    if any(name.startswith("traj_") for name in file):
        return "ManiSkill"
    raise ConfigError(
        f"{path}: it has {sorted(file)[:8]}, and neither data/demo_0/actions (robomimic, LIBERO), traj_0/actions (ManiSkill) nor observations and actions "
        "(D4RL). Next: lab.datasets.from_arrays(obs, action, ...) takes arrays of any file."
    )


def _groups(group: Any) -> list[Any]:
    return [group[name] for name in group if hasattr(group[name], "keys")] if hasattr(group, "keys") else []


def _about(path: Path) -> dict[str, Any]:
    """What ManiSkill writes beside the file. {} where there is nothing of that kind."""
    with suppress(OSError, ValueError):
        told = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return told if isinstance(told, dict) else {}
    return {}


def _number(name: str) -> tuple[int, str]:
    """demo_10 after demo_9."""
    found = re.search(r"(\d+)$", name)
    return (int(found[1]) if found else -1, name)


def _lazy(node: Any) -> Tree:
    return {key: _lazy(node[key]) for key in node} if hasattr(node, "keys") else node


def _read(node: Any) -> Tree:
    return map_tree(lambda leaf: leaf[()], _lazy(node))


def _head(node: Any) -> Tree:
    """A row of each leaf, which says the spaces."""
    return map_tree(lambda leaf: leaf[:1], _lazy(node))
