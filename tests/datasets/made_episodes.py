"""Episodes for tests: every kind of leaf, lengths and ends that differ."""

from __future__ import annotations

import dataclasses

import numpy as np
from gymnasium import spaces

from rlinf_lab.datasets import DataSpec, Episode, EpisodeList

STATE, ARM = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)
RICH = spaces.Dict({
    "camera": spaces.Box(0, 255, (12, 16, 3), np.uint8), "state": STATE, "mode": spaces.Discrete(4, start=2), "one": spaces.Box(0, 1, (1,), np.float64),
    "grid": spaces.Box(-5, 5, (2, 3), np.float32), "pair": spaces.Tuple([spaces.MultiBinary(3), spaces.MultiDiscrete([2, 5])]),
})  # fmt: skip


def sample(space: spaces.Space, rng: np.random.Generator, rows: int) -> object:
    if isinstance(space, spaces.Dict):
        return {key: sample(part, rng, rows) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample(part, rng, rows) for part in space.spaces)
    if isinstance(space, spaces.Box) and space.dtype == np.uint8:
        return rng.integers(0, 256, (rows, *space.shape), dtype=np.uint8)
    if isinstance(space, spaces.Box):
        return rng.uniform(-1, 1, (rows, *space.shape)).astype(space.dtype)
    space.seed(int(rng.integers(2**31)))
    return np.stack([space.sample() for _ in range(rows)])


def made(observation: spaces.Space = STATE, action: spaces.Space = ARM, count: int = 5, seed: int = 0) -> EpisodeList:
    rng = np.random.default_rng(seed)
    episodes = []
    for i in range(count):
        T = int(rng.integers(1, 9))
        row = sample(observation, rng, 1)
        final = {k: v[0] if not isinstance(v, tuple) else tuple(x[0] for x in v) for k, v in row.items()} if isinstance(row, dict) else row[0]  # type: ignore[index]
        episodes.append(Episode(
            sample(observation, rng, T), sample(action, rng, T), rng.normal(size=T).astype(np.float32), bool(i % 2), not i % 2,
            rng.random(T) < 0.3, final, seed=100 + i, task=["push the cube", "lift it"][i % 2],
        ))  # fmt: skip
    return EpisodeList(DataSpec(observation, action, "metaworld/push-v3", 8, 20.0, "somebody"), episodes)


FILMED = spaces.Dict({"camera": spaces.Box(0, 255, (32, 48, 3), np.uint8), "state": STATE})


def filmed(count: int = 4, seed: int = 0) -> EpisodeList:
    """Pictures as cameras see them: smooth, each one shade lighter than the one before."""
    data = made(FILMED, ARM, count, seed)
    slope = np.linspace(0, 60, 48)[:, None] * [1.0, 0.5, 0.8]
    episodes = []
    for i, episode in enumerate(data):
        shade = 20 + 30 * i + 8 * np.arange(len(episode))
        obs = {**episode.obs_T, "camera": (shade[:, None, None, None] + np.broadcast_to(slope, (32, 48, 3))).round().astype(np.uint8)}
        episodes.append(dataclasses.replace(episode, obs_T=obs))
    return EpisodeList(data.spec, episodes)
