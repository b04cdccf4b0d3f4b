"""Minibatches against the episodes that they come from. Legend: B rows, K actions of a chunk."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from made_episodes import made

from rlinf_lab.datasets import ChunkSampler, DataSpec, Episode, EpisodeList, EpisodeSource
from rlinf_lab.errors import ConfigError

NUMBER = spaces.Box(-np.inf, np.inf, (1,), np.float32)


class Numbered(EpisodeSource):
    """Row t of episode e is the number 100 e + t, its action the negative of that; counts what is read."""

    spec = DataSpec(NUMBER, NUMBER)

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.reads = lengths, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def lengths_E(self) -> np.ndarray:
        return np.array(self.lengths)

    def read(self, index: int) -> Episode:
        self.reads.append(index)
        row = (100 * index + np.arange(self.lengths[index], dtype=np.float32))[:, None]
        return Episode(row, -row, row[:, 0], False, True)


def test_a_row_is_an_observation_and_the_actions_that_followed() -> None:
    lengths = [3, 7, 1]
    obs_B, action_BK = ChunkSampler(Numbered(lengths), 4, 0).draw(500, np.random.default_rng(0))
    assert sorted({float(x) for x in obs_B[:, 0]}) == [100.0 * e + t for e, T in enumerate(lengths) for t in range(T)]
    for obs, chunk in zip(obs_B[:, 0], action_BK[..., 0], strict=True):
        e, t = divmod(int(obs), 100)
        np.testing.assert_array_equal(chunk, [-(100 * e + min(t + k, lengths[e] - 1)) for k in range(4)])


def test_every_row_is_equally_likely() -> None:
    obs_B, _ = ChunkSampler(Numbered([1, 9]), None, 0).draw(20_000, np.random.default_rng(1))
    assert abs((obs_B < 100).mean() - 0.1) < 0.01  # five standard deviations of a share of a tenth


def test_more_data_than_memory_holds_is_streamed_pass_by_pass() -> None:
    source = Numbered([8] * 30)
    sampler = ChunkSampler(source, None, 0, memory=5 * source.read(0).nbytes)
    source.reads.clear()
    rng = np.random.default_rng(0)
    seen = {int(x) // 100 for _ in range(120) for x in sampler.draw(64, rng)[0][:, 0]}
    assert seen == set(range(30)) and len(sampler._window) == 5
    assert all(abs(source.reads.count(e) - 4) <= 1 for e in range(30)), "120 draws are four passes"
    again = ChunkSampler(Numbered([8] * 30), None, 0)
    assert len(again._window) == 30


def test_draws_depend_on_the_generator_alone_while_all_fits() -> None:
    data = made()
    first, second = ChunkSampler(data, 2, 0), ChunkSampler(data, 2, 9)
    second.draw(10, np.random.default_rng(5))
    np.testing.assert_array_equal(first.draw(30, np.random.default_rng(3))[0], second.draw(30, np.random.default_rng(3))[0])


def test_nothing_to_learn_from_is_said() -> None:
    with pytest.raises(ConfigError, match="has nothing to learn from. Next: lab.collect"):
        ChunkSampler(EpisodeList(made().spec), None, 0)
    with pytest.raises(ConfigError, match="memory=0"):
        ChunkSampler(made(), None, 0, memory=0)
