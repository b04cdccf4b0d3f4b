"""Minari's data sets, written and read through minari itself."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from made_episodes import ARM, RICH, STATE, made

import rlinf_lab as lab
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


def swung(obs_NX: np.ndarray) -> np.ndarray:
    """With all the torque that there is."""
    return np.clip(-obs_NX[:, 2:], -1, 1)


@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
def test_minari_itself_plays_what_was_collected_here() -> None:
    data = lab.collect("Pendulum-v1", swung, episodes=2, max_episode_steps=40)
    write_minari(data, "pendulum/swung-v0")
    theirs = minari.load_dataset("pendulum/swung-v0")
    env = theirs.recover_environment()
    assert theirs.action_space == env.action_space == spaces.Box(-2, 2, (1,)) and theirs.observation_space == env.observation_space
    for mine, episode in zip(data, theirs, strict=True):
        assert np.abs(episode.actions).max() == 2
        obs, _ = env.reset(seed=mine.seed)
        for t, action in enumerate(episode.actions):
            np.testing.assert_array_equal(obs, episode.observations[t])
            obs, reward, terminated, truncated, _ = env.step(action)
            assert np.float32(reward) == np.float32(episode.rewards[t])
            assert (terminated, truncated) == (episode.terminations[t], episode.truncations[t])
        np.testing.assert_array_equal(obs, episode.observations[-1])
        assert truncated


def test_minari_is_not_told_of_an_environment_that_takes_other_actions() -> None:
    """Data of an earlier version: as a policy acts, in [-1, 1]."""
    new = lab.collect("Pendulum-v1", swung, episodes=1, max_episode_steps=10)
    old = EpisodeList(dataclasses.replace(new.spec, action_space=spaces.Box(-1, 1, (1,))), [dataclasses.replace(new[0], action_T=new[0].action_T / 2)])
    with pytest.warns(UserWarning, match=r"has actions of Box\(-1\.0.*Pendulum-v1 takes Box\(-2\.0.*would play them wrongly\. Next: data of lab\.collect"):
        write_minari(old, "pendulum/old-v0")
    with pytest.raises(ValueError, match="env_spec is None"):
        minari.load_dataset("pendulum/old-v0").recover_environment()
    assert read_minari("pendulum/old-v0").replay(0).differences(old[0]) == ""


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
