"""Episodes become the transitions that an environment would have given; what is none is named."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.datasets.presenting import presented
from rlinf_lab.errors import ConfigError
from rlinf_lab.replay import ReplayBuffer, demonstrations
from rlinf_lab.vecenv import environment


def episode(first, steps, *, terminated=False, final=True):
    obs = first + np.arange(steps + 1, dtype=np.float64)[:, None]
    return SimpleNamespace(
        obs_T={"x": obs[:-1]}, action_T=-obs[:-1], reward_T=obs[:-1, 0], terminated=terminated, final_obs={"x": obs[-1]} if final else None
    )


def test_rows_lead_from_each_observation_to_the_next():
    found = demonstrations([episode(0, 3, terminated=True), episode(10, 2), episode(20, 3, final=False), episode(30, 1, final=False)])
    rows = found.rows(found.order)
    assert rows["obs"]["x"][:, 0].tolist() == [0, 1, 2, 10, 11, 20, 21]
    assert (rows["next_obs"]["x"] == rows["obs"]["x"] + 1).all() and rows["obs"]["x"].dtype == np.float32
    assert rows["terminated"].tolist() == [False, False, True, False, False, False, False]
    assert (rows["action"] == -rows["obs"]["x"]).all() and (rows["reward"] == rows["obs"]["x"][:, 0]).all()
    ended = demonstrations([episode(0, 2, terminated=True, final=False)])
    assert len(ended) == 2 and ended.rows(ended.order)["terminated"].tolist() == [False, True]


def test_a_buffer_and_its_file_are_taken_as_they_are(tmp_path):
    buffer = demonstrations([episode(0, 4)])
    buffer.save(tmp_path / "expert.safetensors")
    assert demonstrations(buffer) is buffer and len(demonstrations(str(tmp_path / "expert.safetensors"))) == 4


def test_what_holds_no_transitions_is_named(tmp_path):
    other = ReplayBuffer(3)
    other.add({"obs": np.zeros((1, 2)), "reward": np.zeros(1)})
    for data, said in (
        (other, "lacks action, next_obs, terminated"), (ReplayBuffer(3), "no transition"), (3, "a ReplayBuffer, the path of one, or episodes"),
        ([1], "number 0 is 1"), ([episode(0, 1, final=False)], "no transition"), (tmp_path, "is a folder"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            demonstrations(data)
    with pytest.raises(FileNotFoundError):
        demonstrations(tmp_path / "none.safetensors")


def test_rewarded_for_success_an_episode_ends_where_the_task_first_succeeds():
    def told(first, steps, *successes):
        found = episode(first, steps)
        found.success_T = np.isin(np.arange(steps), successes)
        return found

    buffer = demonstrations([told(0, 4, 1, 3), told(10, 2), told(20, 2, 1)], reward="success")
    rows = buffer.rows(buffer.order)
    assert rows["obs"]["x"][:, 0].tolist() == [0, 1, 10, 11, 20, 21] and (rows["next_obs"]["x"] == rows["obs"]["x"] + 1).all()
    assert rows["reward"].tolist() == [0, 1, 0, 0, 0, 1] and rows["terminated"].tolist() == [False, True, False, False, False, True]
    with pytest.raises(ConfigError, match="episode 0 says nothing about success"):
        demonstrations([episode(0, 3)], reward="success")


def test_a_buffer_holds_what_policies_choose() -> None:
    """A data set is in the environment's own units, and a buffer says nothing of them."""
    data = lab.collect("Pendulum-v1", lambda obs_N: np.full((len(obs_N), 1), 0.5, np.float32), episodes=2, max_episode_steps=5)
    with pytest.raises(ConfigError, match=r"own units, Box\(-2.0, 2.0, .* holds what policies choose, in \[-1, 1\]. Next: "):
        demonstrations(data)
    buffer = demonstrations(presented(data, environment("Pendulum-v1").spec()))
    assert (buffer.rows(buffer.order)["action"] == 0.5).all() and len(buffer) == 10
