"""Minibatches of observations and the chunks of actions that followed.

From more data than memory holds.

    episodes in random order ──> window of at most ``memory`` bytes ──> rows drawn from it with replacement

While all episodes fit, the window holds all of them and every row is equally likely. Else it moves over the data, laid out row after row in the random
order, over and over: by as many rows as were drawn. So R rows drawn are R rows read, each episode stays as long as any other, and what a window
holds follows from the seed and how many rows were drawn before.

Legend: B rows, K actions of a chunk, T steps, E episodes.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.datasets.episodes import Episode, EpisodeSource
from rlinf_lab.errors import ConfigError, counted, shown
from rlinf_lab.trees import Tree, map_tree

MEMORY = 1 << 30
MOVES = 8
"""Moves of the window until all of it is another: fewer would read in larger pieces, more would draw in smaller ones."""


class ChunkSampler:
    """Draws rows (observation, the next ``chunk_size`` actions). Actions beyond an episode's end repeat its last one.

    ``chunk_size=None``: single actions, without an axis for the chunk. ``memory``: bytes that the window may hold, one episode at least.
    ``seed``: of the order of the episodes. ``drawn``: rows that an earlier sampler drew, from which this one goes on. Raises `ConfigError` for data
    without episodes.
    """

    def __init__(self, source: EpisodeSource, chunk_size: int | None, seed: int, memory: int = MEMORY, drawn: int = 0) -> None:
        if not len(source):
            raise ConfigError(f"{source!r} has nothing to learn from. Next: lab.collect(env, policy, episodes=10).")
        if not isinstance(memory, (int, np.integer)) or memory < 1:
            raise ConfigError(f"memory={shown(memory)}: bytes, a whole number of at least 1.")
        self.source, self.chunk_size, self.memory, self.drawn = source, chunk_size, int(memory), int(drawn)
        first = source.read(0)
        self._row_bytes = first.nbytes / len(first)
        self._rows = source.steps
        self._window: deque[Episode] = deque()
        self._is_whole = self._rows * self._row_bytes <= self.memory
        if self._is_whole:
            self._window.extend(source)
            return
        self._order_E = np.random.default_rng(seed).permutation(len(source))
        lengths_E = np.asarray(source.lengths_E)[self._order_E]
        self._starts_E = np.cumsum(lengths_E) - lengths_E
        self._span = max(1, int(self.memory / self._row_bytes) - int(lengths_E.max()) + 1)
        """The window has the episodes that begin within so many rows: then all of them fit into ``memory``."""
        self._stride = max(1, self._span // MOVES)
        self._place = range(0)
        self._move()

    def _begun(self, row: int) -> int:
        """How many episodes begin up to that row of the endless sequence."""
        passes, row = divmod(row, self._rows)
        return passes * len(self._order_E) + int(np.searchsorted(self._starts_E, row, side="right"))

    def _move(self) -> None:
        """To where the window is after ``drawn`` rows; what is new in it is read."""
        last = self._span - 1 + self.drawn // self._stride * self._stride
        stop = self._begun(last)
        place = range(min(self._begun(last - self._span), stop - 1), stop)
        for _ in range(min(place.start - self._place.start, len(self._window))):
            self._window.popleft()
        for number in range(max(self._place.stop, place.start), stop):
            self._window.append(self.source.read(int(self._order_E[number % len(self._order_E)])))
        self._place = place

    def draw(self, rows: int, rng: np.random.Generator) -> tuple[Tree, Tree]:
        """(obs_B, action_B or action_BK) of so many rows.

        They depend on ``rng`` and on how many were drawn before; while the window holds all episodes on ``rng`` alone.
        """
        obs: list[Tree] = []
        actions: list[Tree] = []
        orders: list[NDArray] = []
        first = self.drawn
        while (left := first + rows - self.drawn) > 0:
            if not self._is_whole:
                self._move()
                left = min(left, self._stride - self.drawn % self._stride)
            orders.append(self.drawn - first + self._take(left, rng, obs, actions))
            self.drawn += left
        place = np.argsort(np.concatenate(orders), kind="stable")
        return tuple(map_tree(lambda *parts: np.concatenate(parts)[place], *trees) for trees in (obs, actions))

    def _take(self, rows: int, rng: np.random.Generator, obs: list[Tree], actions: list[Tree]) -> NDArray:
        """Rows of the window, appended episode by episode. Returns the place of each among those drawn."""
        episodes = list(self._window)
        ends_E = np.cumsum([len(e) for e in episodes])
        flat_B = rng.integers(ends_E[-1], size=rows)
        order = np.argsort(flat_B, kind="stable")
        flat_B = flat_B[order]
        bounds = np.searchsorted(flat_B, np.concatenate([[0], ends_E]))
        for e in np.flatnonzero(np.diff(bounds)).tolist():
            step = flat_B[bounds[e] : bounds[e + 1]] - (ends_E[e] - len(episodes[e]))
            obs.append(map_tree(lambda leaf, step=step: np.asarray(leaf)[step], episodes[e].obs_T))
            actions.append(map_tree(lambda leaf, step=step: self._chunks(np.asarray(leaf), step), episodes[e].action_T))
        return order

    def _chunks(self, action_T: NDArray, step: NDArray) -> NDArray:
        if self.chunk_size is None:
            return action_T[step]
        return action_T[np.minimum(step[:, None] + np.arange(self.chunk_size), len(action_T) - 1)]

    def __repr__(self) -> str:
        held = sum(e.nbytes for e in self._window) / 2**20
        return f"ChunkSampler({len(self._window)} of {counted(len(self.source), 'episode')} in memory, {held:.3g} MiB)"
