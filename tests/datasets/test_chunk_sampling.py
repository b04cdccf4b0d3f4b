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


LENGTHS = [np.full(30, 8), np.random.default_rng(0).integers(1, 13, 40), np.array([3, 50, 4, 1, 2, 9, 30])]


def streaming(lengths: np.ndarray, rows_held: int, drawn: int = 0) -> tuple[Numbered, ChunkSampler]:
    source = Numbered(lengths.tolist())
    sampler = ChunkSampler(source, 2, 0, rows_held * source.read(0).nbytes // int(lengths[0]), drawn)
    assert not sampler._is_whole
    return source, sampler


@pytest.mark.parametrize("rows_held", [40, 80])
@pytest.mark.parametrize("lengths", LENGTHS, ids=["equal", "unequal", "longer than memory"])
def test_as_many_rows_come_from_disk_as_are_drawn(lengths: np.ndarray, rows_held: int) -> None:
    """In draws of any size: each episode is read once a pass and drawn from as often as others; the window stays within its memory."""
    source, sampler = streaming(lengths, rows_held)
    source.reads.clear()
    rng, passes, drawn_E = np.random.default_rng(0), 50, np.zeros(len(lengths))
    left = passes * int(lengths.sum())
    while left:
        count = min(left, int(rng.integers(1, 200)))
        drawn_E += np.bincount(sampler.draw(count, rng)[0][:, 0].astype(int) // 100, minlength=len(lengths))
        left -= count
        held = [int(e.obs_T[0, 0]) // 100 for e in sampler._window]
        assert len(set(held)) == len(held) and (len(held) == 1 or lengths[held].sum() <= rows_held)
    assert all(abs(source.reads.count(e) - passes) <= 1 for e in range(len(lengths)))
    wanted_E = passes * lengths  # a row is drawn once a pass
    chance_E = 4 * np.sqrt(wanted_E) + 0.1 * wanted_E
    assert lengths.max() > rows_held / 4 or (abs(drawn_E - wanted_E) < chance_E).all()


@pytest.mark.parametrize("lengths", LENGTHS, ids=["equal", "unequal", "longer than memory"])
def test_a_stream_goes_on_where_another_stood(lengths: np.ndarray) -> None:
    """What was drawn before counts by its number alone, and is not read again."""
    for drawn in (1, 37, 500):
        _, whole = streaming(lengths, 40)
        for count in (drawn // 2, drawn - drawn // 2):
            whole.draw(count, np.random.default_rng(1)) if count else None
        source, rest = streaming(lengths, 40, drawn)
        assert len(source.reads) <= 1 + len(whole._window) + 2
        for one, other in zip(whole.draw(99, np.random.default_rng(2)), rest.draw(99, np.random.default_rng(2)), strict=True):
            np.testing.assert_array_equal(one, other)


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
