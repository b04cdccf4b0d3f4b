"""Minibatches of observations and the chunks of actions that followed.

From more data than memory holds.

    episodes in random order ──> window of at most ``memory`` bytes ──> rows drawn from it with replacement

While all episodes fit, the window holds all of them and every row is equally likely. Else the oldest of the window give way
to the next ones, some after each draw, so that a pass over the disk is one pass over the data.

Legend: B rows, K actions of a chunk, T steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.datasets.episodes import Episode, EpisodeSource
from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.trees import Tree, map_tree

MEMORY = 1 << 30


class ChunkSampler:
    """Draws rows (observation, the next ``chunk_size`` actions). Actions beyond an episode's end repeat its last one.

    ``chunk_size=None``: single actions, without an axis for the chunk. ``memory``: bytes that the window may hold, one episode at least.
    ``seed``: of the order of the episodes. Raises `ConfigError` for data without episodes.
    """

    def __init__(self, source: EpisodeSource, chunk_size: int | None, seed: int, memory: int = MEMORY) -> None:
        if not len(source):
            raise ConfigError(f"{source!r} has nothing to learn from. Next: lab.collect(env, policy, episodes=10).")
        if not isinstance(memory, (int, np.integer)) or memory < 1:
            raise ConfigError(f"memory={shown(memory)}: bytes, a whole number of at least 1.")
        self.source, self.chunk_size, self.memory = source, chunk_size, int(memory)
        self._rng = np.random.default_rng(seed)
        self._window: deque[Episode] = deque()
        self._held = 0
        self._order: Iterator[int] = iter(())
        self._is_whole = False
        self._fill()

    def _next(self) -> Episode:
        index = next(self._order, None)
        if index is None:
            self._order = iter(self._rng.permutation(len(self.source)).tolist())
            index = next(self._order)
        return self.source.read(index)

    def _fill(self) -> None:
        """At the beginning: all that fits."""
        while len(self._window) < len(self.source):
            episode = self._next()
            if self._window and self._held + episode.nbytes > self.memory:
                self._take(episode)
                return
            self._take(episode)
        self._is_whole = True
        self._window = deque(self.source)  # in their own order: what is drawn shall not depend on how often others were drawn before

    def _take(self, episode: Episode) -> None:
        self._window.append(episode)
        self._held += episode.nbytes
        while self._held > self.memory and len(self._window) > 1:
            self._held -= self._window.popleft().nbytes

    def draw(self, rows: int, rng: np.random.Generator) -> tuple[Tree, Tree]:
        """(obs_B, action_B or action_BK) of so many rows. While the window holds all episodes they depend on ``rng`` alone."""
        episodes = list(self._window)
        ends_E = np.cumsum([len(e) for e in episodes])
        flat_B = rng.integers(ends_E[-1], size=rows)
        episode_B = np.searchsorted(ends_E, flat_B, side="right")
        step_B = flat_B - np.concatenate([[0], ends_E[:-1]])[episode_B]
        order = np.argsort(episode_B, kind="stable")
        obs, actions = [], []
        for e in np.unique(episode_B):
            step = step_B[order[episode_B[order] == e]]
            obs.append(map_tree(lambda leaf, step=step: np.asarray(leaf)[step], episodes[e].obs_T))
            actions.append(map_tree(lambda leaf, step=step: self._chunks(np.asarray(leaf), step), episodes[e].action_T))
        place = np.argsort(order, kind="stable")
        if not self._is_whole:
            self._take(self._next())
        return tuple(map_tree(lambda *parts: np.concatenate(parts)[place], *trees) for trees in (obs, actions))

    def _chunks(self, action_T: NDArray, step: NDArray) -> NDArray:
        if self.chunk_size is None:
            return action_T[step]
        return action_T[np.minimum(step[:, None] + np.arange(self.chunk_size), len(action_T) - 1)]

    def __repr__(self) -> str:
        return f"ChunkSampler({len(self._window)} of {len(self.source)} episodes in memory, {self._held / 2**20:.3g} MiB)"
