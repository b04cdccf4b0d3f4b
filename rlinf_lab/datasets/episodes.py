"""Recorded episodes: one, and a set of them in memory or on disk.

Legend: T steps of an episode; leading axis of every leaf.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from rlinf_lab.errors import ConfigError, UnknownNameError, counted, shown
from rlinf_lab.trees import Tree, leaves, map_tree, named_leaves

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode, a row for each step. Row ``t`` holds an observation, the action taken on it and what came of it."""

    obs_T: Tree
    """what was acted on"""
    action_T: Tree
    """in the units of `DataSpec.action_space`"""
    reward_T: NDArray[np.float32]
    terminated: bool
    """the task ended with the last step"""
    truncated: bool
    """the limit of steps was reached"""
    success_T: NDArray[np.bool_] | None = None
    """the task's own signal after each step; None where it gives none"""
    final_obs: Tree = None
    """the observation after the last step, without a leading axis; None where it was not kept"""
    seed: int | None = None
    """of the environment at the episode's beginning; None: not known, so it cannot be replayed"""
    task: str = ""
    """what was to be done, in words"""

    def __post_init__(self) -> None:
        count = len(self.reward_T)
        for name, tree in (("obs", self.obs_T), ("action", self.action_T), ("success", self.success_T)):
            for leaf, array in named_leaves(tree) if tree is not None else ():
                if np.ndim(array) < 1 or len(array) != count:
                    raise ConfigError(
                        f"Episode: {name}{leaf} has the shape {np.shape(array)}, and there are {count} rewards. Next: a row for each step; the last "
                        "observation is final_obs."
                    )
        if not count:
            raise ConfigError("Episode: it has no steps.")

    def __len__(self) -> int:
        return len(self.reward_T)

    @property
    def return_(self) -> float:
        """Sum of the rewards."""
        return float(np.sum(self.reward_T, dtype=np.float64))

    @property
    def success(self) -> bool | None:
        """Whether the task succeeded in any step; None where it gave no signal."""
        return None if self.success_T is None else bool(np.any(self.success_T))

    @property
    def nbytes(self) -> int:
        return sum(np.asarray(leaf).nbytes for tree in (self.obs_T, self.action_T) for leaf in leaves(tree)) + self.reward_T.nbytes

    def differences(self, other: Episode) -> str:
        """Where another episode differs from this one, bit by bit; "" where nowhere.

        Of single and double precision, which Minari's may have, in single precision.
        """
        if len(self) != len(other):
            return f"{len(self)} steps against {len(other)}"
        pairs = [("obs", self.obs_T, other.obs_T), ("action", self.action_T, other.action_T), ("reward", self.reward_T, other.reward_T)]
        if self.final_obs is not None and other.final_obs is not None:
            pairs.append(("final_obs", map_tree(lambda x: np.asarray(x)[None], self.final_obs), map_tree(lambda x: np.asarray(x)[None], other.final_obs)))
        for name, mine, theirs in pairs:
            for (leaf, a), (_, b) in zip(named_leaves(mine), named_leaves(theirs), strict=True):
                a, b = _alike(np.asarray(a), np.asarray(b))
                unequal_T = np.any(a != b, axis=tuple(range(1, np.ndim(a))))
                if unequal_T.any():
                    return f"{name}{leaf} from step {int(np.argmax(unequal_T))} on"
        ends = (self.terminated, self.truncated), (other.terminated, other.truncated)
        return "" if ends[0] == ends[1] else f"(terminated, truncated) {ends[0]} against {ends[1]}"

    def __repr__(self) -> str:
        end = "terminated" if self.terminated else "truncated" if self.truncated else "cut"
        success = "" if self.success is None else f", {'success' if self.success else 'no success'}"
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"Episode({counted(len(self), 'step')}, {end}, return {self.return_:.4g}{success}{seed})"


@dataclass(frozen=True)
class DataSpec:
    """What is true of all episodes of a data set."""

    observation_space: Space
    """of one observation"""
    action_space: Space
    """of one action, in the environment's own units, such as Box(-2, 2); `presenting` makes of it what a policy sees, Box(-1, 1)"""
    env: str | None = None
    """id of the environment; None: not known, or no simulator's"""
    max_episode_steps: int | None = None
    """the limit under which they were recorded"""
    fps: float = 10.0
    """steps a second, for data of robots and for films"""
    by: str = ""
    """who acted"""

    def __repr__(self) -> str:
        of = "" if self.env is None else f" of {self.env}"
        return f"DataSpec(observation {self.observation_space}, action {self.action_space}{of})"


class EpisodeSource(ABC, Sequence[Episode]):
    """Episodes one after another, read when they are asked for.

    ``data[3]`` reads the fourth, ``data[:10]`` is the first ten of them.

    Raises `IndexError` beyond the end, as a list does. Pickles as what it is made of: a folder's name, not its contents.
    """

    spec: DataSpec

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> Episode:
        """The episode of that number, from 0."""

    @property
    @abstractmethod
    def lengths_E(self) -> NDArray[np.int64]:
        """Steps of each episode, without reading them."""

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> EpisodeSource: ...
    def __getitem__(self, index: int | slice) -> Episode | EpisodeSource:
        if isinstance(index, slice):
            return EpisodeSlice(self, tuple(range(len(self))[index]))
        return self.read(range(len(self))[index])

    def __iter__(self) -> Iterator[Episode]:
        return (self.read(i) for i in range(len(self)))

    @property
    def steps(self) -> int:
        """Of all episodes together."""
        return int(self.lengths_E.sum())

    def where(self, wanted: Any) -> EpisodeSource:
        """Those for which ``wanted(episode)`` is true, such as ``lambda e: e.success``. Each is read once now."""
        if not callable(wanted):
            raise ConfigError(f"where({shown(wanted)}): a function of an Episode. Next: data.where(lambda episode: episode.success).")
        return EpisodeSlice(self, tuple(i for i, episode in enumerate(self) if wanted(episode)))

    def with_spec(self, **changes: Any) -> EpisodeSource:
        """The same episodes, of which something else is said.

        Such as ``action_space=Box(low, high)`` where a LeRobotDataset says no bounds, or ``env=``. Reads and changes none.
        """
        known = [f.name for f in fields(DataSpec)]
        for name in changes:
            if name not in known:
                raise UnknownNameError.of("field of DataSpec", name, known)
        return EpisodeSlice(self, tuple(range(len(self))), replace(self.spec, **changes))

    def to_pandas(self) -> pd.DataFrame:
        """A row for each episode; reads all of them.

        Columns: ``length``, ``return``, ``success`` (None where there is no signal), ``seed``, ``task``.
        """
        import pandas as pd

        rows = [{"length": len(e), "return": e.return_, "success": e.success, "seed": e.seed, "task": e.task} for e in self]
        return pd.DataFrame(rows, columns=["length", "return", "success", "seed", "task"])

    def replay(self, index: int, env: Any = None) -> Episode:
        """Play the actions of an episode again, from its seed.

        ``env``: again, where it was no id but an object.

        ``data.replay(3).differences(data[3])`` is "" where the simulator does the same twice. Raises `ConfigError` where the environment or the seed is
        not known.
        """
        from rlinf_lab.datasets.replaying import replayed

        return replayed(self[index], self.spec, env)

    def __add__(self, other: EpisodeSource) -> EpisodeList:
        """Both, one after another, in memory. `ConfigError` where spaces or ``fps`` differ.

        Environment, limit of steps and who acted are those of both; where they differ they are not known of the whole.
        """
        mine, theirs = self.spec, other.spec
        if (mine.observation_space, mine.action_space, mine.fps) != (theirs.observation_space, theirs.action_space, theirs.fps):
            raise ConfigError(f"These data sets have different spaces or steps a second: {mine!r}, {mine.fps:g} fps, and {theirs!r}, {theirs.fps:g} fps.")
        is_one = mine.env == theirs.env
        spec = replace(
            mine, env=mine.env if is_one else None, by=mine.by if mine.by == theirs.by else "",
            max_episode_steps=mine.max_episode_steps if is_one and mine.max_episode_steps == theirs.max_episode_steps else None,
        )  # fmt: skip
        return EpisodeList(spec, [*self, *other])

    def __repr__(self) -> str:
        of = self.spec.env or "no environment"
        by = f", by {self.spec.by}" if self.spec.by else ""
        return f"{type(self).__name__}({counted(len(self), 'episode')}, {counted(self.steps, 'step')} of {of}{by})"


@dataclass(frozen=True, eq=False, repr=False)
class EpisodeList(EpisodeSource):
    """Episodes in memory."""

    spec: DataSpec
    episodes: Sequence[Episode] = field(default=())

    def __post_init__(self) -> None:
        for i, episode in enumerate(self.episodes):
            if not isinstance(episode, Episode):
                raise ConfigError(f"EpisodeList: number {i} is {shown(episode)}, and no Episode.")

    def __len__(self) -> int:
        return len(self.episodes)

    def read(self, index: int) -> Episode:
        return self.episodes[index]

    @property
    def lengths_E(self) -> NDArray[np.int64]:
        return np.array([len(e) for e in self.episodes], np.int64)


def _alike(a: NDArray, b: NDArray) -> tuple[NDArray, NDArray]:
    """Both in the lesser precision of the two, where they are no whole numbers."""
    if a.dtype.kind == b.dtype.kind == "f":
        kind = min(a.dtype, b.dtype, key=lambda dtype: dtype.itemsize)
        return a.astype(kind, copy=False), b.astype(kind, copy=False)
    return a, b


class EpisodeSlice(EpisodeSource):
    """Some episodes of another source. ``spec``: what is said of them; None: the same."""

    def __init__(self, source: EpisodeSource, indices: tuple[int, ...], spec: DataSpec | None = None) -> None:
        self.source, self.indices, self.spec = source, indices, spec or source.spec

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> Episode:
        return self.source.read(self.indices[index])

    @property
    def lengths_E(self) -> NDArray[np.int64]:
        return self.source.lengths_E[list(self.indices)]
