"""Minari's data sets, written and read by minari itself. Legend: T steps of an episode."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlinf_lab.datasets.episodes import DataSpec, Episode, EpisodeSource
from rlinf_lab.datasets.presenting import same
from rlinf_lab.datasets.space_json import built, leaf_spaces
from rlinf_lab.errors import ConfigError, MissingDependencyError, UnknownNameError
from rlinf_lab.trees import map_tree

TERMS = ("env", "max_episode_steps", "by", "fps")
PREFIX = "rlinf_lab_"
BLOCK = 256 << 20  # bytes of episodes that are written at once


def _minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise MissingDependencyError.of("minari", "minari", "A data set of Minari") from error
    return minari


def write_minari(data: EpisodeSource, name: str, *, description: str = "", author: str = "") -> str:
    """Write a data set that `minari.load_dataset` reads, such as "push/scripted-v0"; returns the name. Minari says where: MINARI_DATASETS_PATH.

    Rewards, both kinds of ends, successes (``infos["success"]``) and seeds are kept. An episode without a last observation, which Minari's has, gets its last
    one again. Where ``data.spec.env`` is an id of gymnasium's, and takes such actions, minari's `recover_environment` makes it; a warning where it takes others.
    Few episodes are in memory at a time; where one cannot be written the data set is not there. Raises `ConfigError` for a name that is taken or that Minari
    does not take.
    """
    minari = _minari()
    from minari.data_collector import EpisodeBuffer
    from minari.storage.datasets_root_dir import get_dataset_path

    if not len(data):
        raise ConfigError(f"write_minari({name!r}): {data!r} has nothing to write.")
    if name in minari.list_local_datasets():
        raise ConfigError(f"write_minari({name!r}): there is one of that name. Next: another version, -v1, or minari.delete_dataset({name!r}).")
    spec, made, env = data.spec, None, _environment(data.spec)
    folder = Path(get_dataset_path(name))
    is_new = not folder.exists()
    try:
        for block in _blocks(data):
            buffers = [_buffer(EpisodeBuffer, number, episode) for number, episode in block]
            if made is not None:
                made.update_dataset_from_buffer(buffers)
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of what it would like to know besides
                made = minari.create_dataset_from_buffers(
                    name, buffers, env=env, observation_space=spec.observation_space, action_space=spec.action_space, algorithm_name=spec.by or None,
                    author=author or None, description=description or None, jpeg_encoding=False,
                )  # fmt: skip
        about = {PREFIX + term: getattr(spec, term) for term in TERMS if getattr(spec, term) is not None}
        made.storage.update_metadata(about)  # type: ignore[union-attr]
    except BaseException as error:
        if is_new:  # of a name that it does not take Minari leaves a folder, too, and lists no data sets from then on
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, (ValueError, AssertionError)):
            raise ConfigError(f"write_minari({name!r}): {error}") from error
        raise
    finally:
        if env is not None:
            env.close()
    return name


def _environment(spec: DataSpec) -> gymnasium.Env | None:
    """gymnasium's environment that takes these actions. None where there is none of that id."""
    if spec.env is None:
        return None
    try:
        env = gymnasium.make(spec.env.removeprefix("gymnasium/"), max_episode_steps=spec.max_episode_steps)
    except (gymnasium.error.Error, ImportError):
        return None
    if same(spec.action_space, env.action_space):
        return env
    env.close()
    warnings.warn(
        f"The data has actions of {spec.action_space}, and {spec.env} takes {env.action_space}: minari's recover_environment() will not make it, for it would "
        "play them wrongly. Next: data of lab.collect, which records the environment's own units.", stacklevel=3,
    )  # fmt: skip
    return None


def _blocks(data: EpisodeSource) -> Iterator[list[tuple[int, Episode]]]:
    """Episodes with their numbers, at most `BLOCK` bytes at a time, one at least."""
    block: list[tuple[int, Episode]] = []
    for number, episode in enumerate(data):
        if block and sum(e.nbytes for _, e in block) + episode.nbytes > BLOCK:
            yield block
            block = []
        block.append((number, episode))
    yield block


def _buffer(kind: Any, number: int, episode: Episode) -> Any:
    final = map_tree(lambda leaf: leaf[-1], episode.obs_T) if episode.final_obs is None else episode.final_obs
    observations = map_tree(lambda leaf, last: np.concatenate([leaf, np.asarray(last)[None]]), episode.obs_T, final)
    T = len(episode)
    infos = {} if episode.success_T is None else {"success": np.concatenate([[False], episode.success_T])}
    ends = {"terminations": [False] * (T - 1) + [episode.terminated], "truncations": [False] * (T - 1) + [episode.truncated]}
    return kind(id=number, seed=episode.seed, observations=observations, actions=episode.action_T, rewards=episode.reward_T.tolist(), infos=infos, **ends)


class MinariData(EpisodeSource):
    """See `read_minari`; pickles as its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        metadata = self._dataset.storage.metadata
        known = {term: metadata.get(PREFIX + term) for term in TERMS}
        limit = known["max_episode_steps"]
        env = known["env"] or getattr(self._dataset.spec.env_spec, "id", None)
        self.spec = DataSpec(
            self._dataset.observation_space, self._dataset.action_space, None if env is None else str(env), None if limit is None else int(limit),
            float(known["fps"] or 10.0), str(known["by"] or metadata.get("algorithm_name") or ""),
        )  # fmt: skip

    def __reduce__(self) -> Any:
        return MinariData, (self.name,)

    @cached_property
    def _dataset(self) -> Any:
        minari = _minari()
        local = minari.list_local_datasets()
        if self.name not in local:
            raise UnknownNameError.of("data set of Minari", self.name, local, "Next: minari.download_dataset(name), where there is a network.")
        return minari.load_dataset(self.name)

    def __len__(self) -> int:
        return int(self._dataset.total_episodes)

    @cached_property
    def lengths_E(self) -> NDArray[np.int64]:
        metadata = self._dataset.storage.get_episode_metadata(self._dataset.episode_indices)
        return np.array([int(m["total_steps"]) for m in metadata], np.int64)

    def read(self, index: int) -> Episode:
        found = self._dataset[index]
        T = len(found.rewards)
        obs, actions = (_numpy(space, tree) for space, tree in ((self.spec.observation_space, found.observations), (self.spec.action_space, found.actions)))
        infos = found.infos or {}
        success = np.asarray(infos["success"], bool)[-T:] if isinstance(infos, dict) and "success" in infos else None
        (about,) = self._dataset.storage.get_episode_metadata([self._dataset.episode_indices[index]])
        seed = about.get("seed")
        return Episode(
            map_tree(lambda leaf: leaf[:T], obs), actions, np.asarray(found.rewards, np.float32), bool(found.terminations[-1]), bool(found.truncations[-1]),
            success, map_tree(lambda leaf: leaf[T], obs), None if seed is None else int(seed),
        )  # fmt: skip


def _numpy(space: Any, tree: Any) -> Any:
    """As arrays of the space's types; Minari gives lists for categories."""
    types = {path: leaf.dtype for path, leaf in leaf_spaces(space)}

    def leaf(path: tuple[str, ...]) -> NDArray:
        found = tree
        for key in path:
            found = found[int(key)] if isinstance(found, (tuple, list)) else found[key]
        return np.asarray(found, types[path])

    return built(space, leaf) if isinstance(space, (spaces.Dict, spaces.Tuple)) else np.asarray(tree, space.dtype)


def read_minari(name: str) -> MinariData:
    """The episodes of a Minari data set that is on this machine.

    They are read when they are asked for. `UnknownNameError` with the nearest name.
    """
    return MinariData(name)
