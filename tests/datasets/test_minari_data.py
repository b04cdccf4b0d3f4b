"""Minari's data sets, written and read through minari itself."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from made_episodes import ARM, RICH, STATE, made

from rlinf_lab.datasets import EpisodeList, minari_data, read_minari, write_minari
from rlinf_lab.errors import ConfigError, UnknownNameError

minari = pytest.importorskip("minari")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


@pytest.mark.parametrize("block", [1, 2**30])
@pytest.mark.parametrize(("observation", "action"), [(STATE, ARM), (RICH, ARM), (STATE, spaces.Discrete(3))])
def test_what_is_written_is_read_back_by_minari_and_by_us(
    observation: spaces.Space, action: spaces.Space, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minari_data, "BLOCK", block)
    data = made(observation, action)
    assert write_minari(data, "made/some-v0") == "made/some-v0"
    theirs = minari.load_dataset("made/some-v0")
    assert theirs.total_episodes == 5 and theirs.total_steps == data.steps and theirs.observation_space == observation
    np.testing.assert_array_equal(theirs[2].rewards, data[2].reward_T)
    assert theirs[1].terminations[-1] and not theirs[1].truncations[-1]
    back = read_minari("made/some-v0")
    assert back.spec == data.spec and back.lengths_E.tolist() == data.lengths_E.tolist()
    for mine, again in zip(data, back, strict=True):
        assert mine.differences(again) == "" and mine.seed == again.seed
        np.testing.assert_array_equal(mine.success_T, again.success_T)
    assert pickle.loads(pickle.dumps(back))[3].differences(data[3]) == ""


def test_what_minari_has_made_is_read() -> None:
    from minari.data_collector import EpisodeBuffer

    buffer = EpisodeBuffer(id=0, observations=np.zeros((6, 3), np.float32), actions=np.ones((5, 2), np.float32), rewards=[1.0] * 5,
                           terminations=[False] * 5, truncations=[False] * 4 + [True], infos={})  # fmt: skip
    minari.create_dataset_from_buffers("theirs/some-v0", [buffer], observation_space=STATE, action_space=ARM)
    (episode,) = read_minari("theirs/some-v0")
    assert len(episode) == 5 and episode.truncated and episode.return_ == 5 and episode.success_T is None and episode.final_obs.shape == (3,)


@pytest.mark.parametrize("block", [1, 2**30])
def test_nothing_is_left_of_what_could_not_be_written(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minari_data, "BLOCK", block)
    good = made()
    odd = dataclasses.replace(good[0], action_T=np.full((len(good[0]), 5), "no number"))
    with pytest.raises((ConfigError, TypeError)):
        write_minari(EpisodeList(good.spec, [*good, odd]), "made/some-v0")
    assert minari.list_local_datasets() == {}
    assert write_minari(good, "made/some-v0")


def test_names_are_checked() -> None:
    data = made(count=1)
    write_minari(data, "made/some-v0")
    with pytest.raises(ConfigError, match="there is one of that name. Next: another version"):
        write_minari(data, "made/some-v0")
    with pytest.raises(UnknownNameError, match="Did you mean 'made/some-v0'"):
        read_minari("made/sone-v0")
    with pytest.raises(ConfigError, match="write_minari"):
        write_minari(data, "no name at all")
    assert list(minari.list_local_datasets()) == ["made/some-v0"]
