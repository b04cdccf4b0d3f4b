"""Recorded episodes as a buffer to draw from. Legend: T steps of an episode."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.replay.buffer import ReplayBuffer
from rlinf_lab.replay.flat import Tree
from rlinf_lab.trees import length, map_tree, rows

NEEDED = {"obs", "action", "reward", "next_obs", "terminated"}


@runtime_checkable
class Recorded(Protocol):
    """An episode: row t of its arrays holds an observation, the action taken on it and its reward."""

    obs_T: Any
    action_T: Any
    reward_T: NDArray
    terminated: bool
    final_obs: Any
    """after the last step, without a leading axis; None where it was not kept"""


def demonstrations(data: Any) -> ReplayBuffer:
    """A buffer with the transitions of ``data``: itself a `ReplayBuffer`, the file of one, or episodes (`Recorded`).

    Of an episode without its final observation the last step is left out, unless the task ended with it. Raises
    `ConfigError` for what holds no transitions, `FileNotFoundError`.
    """
    if isinstance(data, (str, os.PathLike)):
        return _checked(ReplayBuffer.load(_file(Path(data))), data)
    if isinstance(data, ReplayBuffer):
        return _checked(data, data)
    if isinstance(data, Recorded):
        data = [data]
    if not isinstance(data, Iterable):
        raise ConfigError(f"data={shown(data)}: a ReplayBuffer, the path of one, or episodes. Next: data=lab.collect(...).")
    parts = list(_episodes(data))
    if not parts:
        raise ConfigError(f"data={shown(data)} has no transition. Next: record some episodes.")
    buffer = ReplayBuffer(sum(len(part["reward"]) for part in parts))
    for part in parts:
        buffer.add(part)
    return buffer


def _file(path: Path) -> Path:
    if path.is_dir():
        raise ConfigError(f"data={str(path)!r} is a folder: the file of a ReplayBuffer is asked for. Next: read the data set, and give its episodes.")
    return path


def _checked(buffer: ReplayBuffer, given: Any) -> ReplayBuffer:
    """Whether it has what a learner draws."""
    if not len(buffer):
        raise ConfigError(f"data={shown(given)} has no transition. Next: add() some.")
    found = buffer.rows(buffer.order[:1])
    missing = sorted(NEEDED - found.keys()) if isinstance(found, dict) else sorted(NEEDED)
    if missing:
        raise ConfigError(f"data={shown(given)} lacks {', '.join(missing)}. Next: transitions with {', '.join(sorted(NEEDED))}.")
    return buffer


def _episodes(data: Iterable[Any]) -> Iterator[dict[str, Tree]]:
    for number, episode in enumerate(data):
        if not isinstance(episode, Recorded):
            raise ConfigError(f"data: number {number} is {shown(episode)}, and no recorded episode. Next: objects with obs_T, action_T, reward_T, …")
        if (found := _transitions(episode)) is not None:
            yield found


def _transitions(episode: Recorded) -> dict[str, Tree] | None:
    count, final = length(episode.obs_T), episode.final_obs
    if final is None:
        if not episode.terminated:
            count -= 1  # what came of the last step is not known
        final = rows(episode.obs_T, -1)  # of a step that ended the task it counts for nothing
    if count < 1:
        return None

    def following(obs_T: NDArray, last: NDArray) -> NDArray:
        return np.concatenate([obs_T[1:], np.asarray(last)[None]])[:count]

    terminated_T = np.zeros(count, bool)
    terminated_T[-1] = episode.terminated and count == length(episode.obs_T)
    made = {
        "obs": rows(episode.obs_T, slice(count)), "action": rows(episode.action_T, slice(count)), "reward": np.asarray(episode.reward_T)[:count],
        "next_obs": map_tree(following, episode.obs_T, final), "terminated": terminated_T,
    }  # fmt: skip
    return map_tree(lambda leaf: np.asarray(leaf, np.float32) if np.asarray(leaf).dtype == np.float64 else np.asarray(leaf), made)
