"""Recorded episodes as a buffer to draw from. Legend: T steps of an episode."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.replay.buffer import ReplayBuffer
from rlinf_lab.replay.flat import Tree
from rlinf_lab.replay.n_step import over_n_steps
from rlinf_lab.trees import length, map_tree, rows

NEEDED = {"obs", "action", "reward", "next_obs", "terminated"}


@runtime_checkable
class Recorded(Protocol):
    """An episode, a row for each step. Row t holds an observation, the action taken on it and its reward."""

    obs_T: Any
    action_T: Any
    reward_T: NDArray
    terminated: bool
    final_obs: Any
    """after the last step, without a leading axis; None where it was not kept"""


@dataclass(eq=False)
class _Played:
    obs_T: Any
    action_T: Any
    reward_T: NDArray
    terminated: bool
    final_obs: Any


def demonstrations(data: Any, *, reward: str = "environment", over: tuple[int, float] | None = None) -> ReplayBuffer:
    """A buffer with the transitions of ``data``.

    That is a `ReplayBuffer`, the file of one, or episodes (`Recorded`), whose actions are as policies choose them.

    Of an episode without its final observation the last step is left out, unless the task ended with it. ``reward="success"``: of episodes that tell
    (``success_T``) the reward is 1 in the step in which the task first succeeds, which ends them, and 0 before; a buffer's stay as they are. ``over``: (n, gamma) of episodes' transitions over n steps,
    see `NStep`; a buffer's stay as they are. Raises
    `ConfigError` for what holds no transitions or tells nothing about success, `FileNotFoundError`.
    """
    if isinstance(data, str) or (isinstance(data, os.PathLike) and not isinstance(data, Iterable)):  # which a data set on disk is, too
        return _checked(ReplayBuffer.load(_file(Path(data))), data)
    if isinstance(data, ReplayBuffer):
        return _checked(data, data)
    if isinstance(data, Recorded):
        data = [data]
    if not isinstance(data, Iterable):
        raise ConfigError(f"data={shown(data)}: a ReplayBuffer, the path of one, or episodes. Next: data=lab.collect(...).")
    space = getattr(getattr(data, "spec", None), "action_space", None)
    if _has_own_units(space):
        raise ConfigError(
            f"data={shown(data)} has actions in its environment's own units, {space}, and a buffer holds what policies choose, in [-1, 1]. "
            "Next: lab.train('rlpd', env, data=...) with the episodes themselves, or lab.datasets.presenting.presented(data, env)."
        )
    parts = list(_episodes(data, reward == "success"))
    if over is not None:
        parts = [_over(part, *over) for part in parts]
    if not parts:
        raise ConfigError(f"data={shown(data)} has no transition. Next: record some episodes.")
    buffer = ReplayBuffer(sum(len(part["reward"]) for part in parts))
    for part in parts:
        buffer.add(part)
    return buffer


def _has_own_units(space: Any) -> bool:
    """Whether a Box in it is bounded by other numbers than -1 and 1."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return any(map(_has_own_units, space.values() if isinstance(space, spaces.Dict) else space))
    return isinstance(space, spaces.Box) and space.is_bounded() and not ((space.low == -1).all() and (space.high == 1).all())


def _file(path: Path) -> Path:
    if path.is_dir():
        raise ConfigError(f"data={str(path)!r} is a folder: the file of a ReplayBuffer is asked for. Next: lab.datasets.read_lerobot({str(path)!r}), where it is a LeRobotDataset.")
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


def _episodes(data: Iterable[Any], of_success: bool) -> Iterator[dict[str, Tree]]:
    for number, episode in enumerate(data):
        if not isinstance(episode, Recorded):
            raise ConfigError(f"data: number {number} is {shown(episode)}, and no recorded episode. Next: objects with obs_T, action_T, reward_T, …")
        if (found := _transitions(_until_success(episode, number) if of_success else episode)) is not None:
            yield found


def _over(part: dict[str, Tree], n: int, gamma: float) -> dict[str, Tree]:
    steps = map_tree(lambda leaf: leaf[:, None], part) | {"truncated": np.zeros((len(part["reward"]), 1), bool)}
    return map_tree(lambda leaf: leaf[:, 0], over_n_steps(steps, n, gamma))


def _until_success(episode: Recorded, number: int) -> Recorded:
    """The episode as an environment that is rewarded for success alone would have given it."""
    success_T = getattr(episode, "success_T", None)
    if success_T is None:
        raise ConfigError(f"data: episode {number} says nothing about success, which is what is rewarded. Next: reward='environment'.")
    count = length(episode.obs_T)
    if not np.any(success_T):
        return _Played(episode.obs_T, episode.action_T, np.zeros(count, np.float32), episode.terminated, episode.final_obs)
    steps = int(np.argmax(success_T)) + 1
    reward_T = np.zeros(steps, np.float32)
    reward_T[-1] = 1.0
    final = rows(episode.obs_T, steps) if steps < count else episode.final_obs
    return _Played(rows(episode.obs_T, slice(steps)), rows(episode.action_T, slice(steps)), reward_T, True, final)


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
