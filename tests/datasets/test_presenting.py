"""Data in a simulator's own units: rescaled as the socket does it backwards, refused, or taken with a warning."""

from __future__ import annotations

import dataclasses
import json
import pickle
import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from made_episodes import made

import rlinf_lab as lab
from rlinf_lab.datasets import DataSpec, Episode, EpisodeList, read_lerobot, read_minari, write_lerobot
from rlinf_lab.datasets.lerobot import layout
from rlinf_lab.datasets.presenting import presented
from rlinf_lab.datasets.space_json import leaf_spaces
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.vecenv import EnvSpec, environment
from rlinf_lab.vecenv.spaces import Native, Presented, presented_action, sampled

OBSERVED = spaces.Box(-np.inf, np.inf, (3,), np.float32)
SKEW = spaces.Box(np.array([-0.3, 0.0, -2.0, 5.0], np.float32), np.array([0.7, 1.0, 2.0, 5.0], np.float32))
OWN = [
    SKEW, spaces.Box(-0.4, 0.4, (3,), np.float32), spaces.Box(-3, 1, (2,), np.float64), spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(4, start=2),
    spaces.Dict({"arm": spaces.Box(-2, 2, (2,), np.float32), "grip": spaces.Tuple([spaces.MultiBinary(2), SKEW])}),
]  # fmt: skip


def leaves(tree: Any) -> list[np.ndarray]:
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple) else None
    return [np.asarray(tree)] if parts is None else [leaf for part in parts for leaf in leaves(part)]


@pytest.mark.parametrize("own", OWN, ids=str)
def test_what_is_presented_is_executed_as_it_was_recorded(own: spaces.Space) -> None:
    """The socket's map after its inverse changes no bit of single precision, and what a policy sees is in its space."""
    action_T = sampled(own, np.random.default_rng(0), 500)
    for before, after in zip(leaves(action_T), leaves(Native(own)(Presented(own)(action_T))), strict=True):
        if before.dtype == np.float64:
            np.testing.assert_allclose(after, before, rtol=1e-14, atol=1e-14)
        else:
            np.testing.assert_array_equal(after, before)
    env = EnvSpec("made/Own-v0", OBSERVED, presented_action(own, "made/Own-v0"), native_action_space=own)
    row_T = np.zeros((500, 3))  # double precision
    data = EpisodeList(DataSpec(spaces.Box(-np.inf, np.inf, (3,), np.float64), own), [Episode(row_T, action_T, np.zeros(500, np.float32), True, False)])
    (shown,) = presented(data, env)
    rows = [tuple(leaf[t] for leaf in leaves(shown.action_T)) for t in range(500)]
    space = [part for _, part in leaf_spaces(env.action_space)]
    assert all(part.contains(leaf) for row in rows for part, leaf in zip(space, row, strict=True))
    assert shown.obs_T.dtype == np.float32


class Weighs(gymnasium.Env):
    """Shows the bytes of the action that it got; an episode is 12 steps."""

    def __init__(self, own: spaces.Box) -> None:
        self.action_space, self.observation_space = own, spaces.Box(0, 255, (own.shape[0] * own.dtype.itemsize,), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(self.observation_space.shape, np.uint8), {}

    def step(self, action: np.ndarray) -> Any:
        self.t += 1
        return np.frombuffer(action.tobytes(), np.uint8).copy(), 0.0, False, self.t == 12, {}


BOXES = [
    SKEW, *OWN[1:3], spaces.Box(-1, 1e-4, (30,), np.float32), spaces.Box(5, 5.1, (30,), np.float32), spaces.Box(-1e-3, 700, (30,), np.float64),
    spaces.Box(-1, 1, (30,), np.float32),
]  # fmt: skip


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("own", BOXES, ids=str)
def test_what_is_collected_is_what_the_simulator_got_and_is_played_again(own: spaces.Box, kind: type) -> None:
    rng = np.random.default_rng(0)

    def tried(obs_N: np.ndarray) -> np.ndarray:
        action_N = rng.uniform(-1, 1, (len(obs_N), *own.shape)) * rng.choice([1, 1e-4], (len(obs_N), 1))
        action_N[0, :2] = -1, 1
        given.append(action_N.astype(kind))
        return given[-1]

    given: list[np.ndarray] = []
    data = lab.collect(partial(Weighs, own), tried, episodes=3)
    assert data.spec.action_space == own
    env = environment(partial(Weighs, own))
    for i, episode in enumerate(data):
        assert all(own.contains(action) for action in episode.action_T)
        seen_T = np.concatenate([episode.obs_T[1:], episode.final_obs[None]])
        np.testing.assert_array_equal(seen_T.reshape(-1), np.frombuffer(episode.action_T.tobytes(), np.uint8))
        assert data.replay(i, env).differences(episode) == ""
        shown = presented(data, env.spec())[i].action_T
        np.testing.assert_allclose(shown, np.where(own.low == own.high, 0, [action_N[i] for action_N in given]), atol=2e-5)
        assert shown.dtype == np.float32


@pytest.mark.parametrize(
    ("own", "change", "said"),
    [
        (OBSERVED, {"obs_T": np.where(np.arange(60).reshape(20, 3) == 3 * 17 + 1, np.nan, 0)}, "the observation of episode 1, step 17, is array([ 0., nan,  0.]"),
        (OBSERVED, {"obs_T": np.zeros((20, 2))}, "the observation of episode 1 has the shape (2,) in each step, and its space says (3,)"),
        (OBSERVED, {"reward_T": np.where(np.arange(20) < 19, 0, np.inf)}, "the reward of episode 1, step 19, is"),
        (SKEW, {"action_T": np.full((20, 4), -np.inf)}, "the action of episode 1, step 0, is array([-inf"),
        (spaces.Discrete(4, start=2), {"action_T": np.arange(20) // 4 + 2}, "the action of episode 1, step 16, is"),
        (OWN[-1], {"action_T": {"arm": np.zeros((20, 2)), "grip": (np.zeros((20, 2)), np.full((20, 4), np.nan))}}, "the action['grip']['1'] of episode 1, step 0, is"),
    ],
)  # fmt: skip
def test_what_is_no_value_of_its_space_is_named_by_episode_and_step(own: spaces.Space, change: dict[str, Any], said: str) -> None:
    space = SKEW if own is OBSERVED else own
    good = Episode(np.zeros((20, 3)), sampled(space, np.random.default_rng(0), 20), np.zeros(20, np.float32), True, False)
    data = EpisodeList(DataSpec(OBSERVED, space), [good, dataclasses.replace(good, **change)])
    env = EnvSpec("made/Own-v0", OBSERVED, presented_action(space, "made/Own-v0"), native_action_space=space)
    with pytest.raises(ConfigError, match=re.escape(said)):
        list(presented(data, env))
    assert len(list(presented(EpisodeList(data.spec, [e for i, e in enumerate(data) if i != 1]), env))) == 1


def swings(seed: int = 0) -> Episode:
    """As gymnasium itself plays it, with torques up to 2."""
    env, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(seed)
    obs, rows, over = env.reset(seed=seed)[0], [], False
    while not over:
        torque = rng.uniform(-2, 2, 1).astype(np.float32)
        after, reward, _, over, _ = env.step(torque)
        rows.append((obs, torque, reward))
        obs = after
    parts = [np.array(part) for part in zip(*rows, strict=True)]
    return Episode(parts[0], parts[1], parts[2].astype(np.float32), False, True, final_obs=obs, seed=seed)


OWN_UNITS = DataSpec(gymnasium.make("Pendulum-v1").observation_space, gymnasium.make("Pendulum-v1").action_space, "Pendulum-v1")


def test_an_episode_in_the_simulators_own_units_is_played_again_bit_by_bit() -> None:
    data = EpisodeList(OWN_UNITS, [swings(0), swings(1)])
    assert [data.replay(i).differences(data[i]) for i in (0, 1)] == ["", ""]
    halved = dataclasses.replace(data[0], action_T=data[0].action_T / 2)
    assert EpisodeList(OWN_UNITS, [halved]).replay(0).differences(data[0])


def test_a_minari_data_set_of_others_is_in_units_of_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    played = [swings(0), swings(1)]
    buffers = [
        EpisodeBuffer(id=i, seed=e.seed, observations=np.concatenate([e.obs_T, e.final_obs[None]]), actions=e.action_T, rewards=e.reward_T.tolist(),
                      terminations=[False] * len(e), truncations=[False] * (len(e) - 1) + [True], infos={}) for i, e in enumerate(played)
    ]  # fmt: skip
    minari.create_dataset_from_buffers("pendulum/others-v0", buffers, env=gymnasium.make("Pendulum-v1"), algorithm_name="somebody")
    data = read_minari("pendulum/others-v0")
    assert data.spec.env == "Pendulum-v1" and data.replay(1).differences(data[1]) == ""
    shown = presented(data, environment("Pendulum-v1").spec())
    np.testing.assert_array_equal(shown[1].action_T, played[1].action_T / 2)
    assert pickle.loads(pickle.dumps(shown))[0].differences(shown[0]) == "" and len(pickle.dumps(shown)) < 3000


def pushed(obs_NX: np.ndarray) -> np.ndarray:
    return np.clip(-obs_NX[:, 2:] / 3, -1, 1)


def test_a_policy_sees_what_was_collected_as_it_acted() -> None:
    data, env = lab.collect("Pendulum-v1", pushed, episodes=2, max_episode_steps=30), environment("Pendulum-v1").spec()
    assert data.spec.action_space == env.native_action_space and np.abs(data[0].action_T).max() > 1
    for episode in presented(data, env):
        np.testing.assert_array_equal(episode.action_T, pushed(episode.obs_T))
    cloned = lab.train("clone", data=data, gradient_steps=600, learning_rate=3e-3, folder=False, progress=False, plan=None).wait()
    away_T = cloned.policy().act(data[0].obs_T) - pushed(data[0].obs_T)
    assert np.abs(away_T).mean() < 0.1


def test_data_that_was_recorded_as_a_policy_acts_stays_as_it_is() -> None:
    new, env = lab.collect("Pendulum-v1", pushed, episodes=2, max_episode_steps=30), environment("Pendulum-v1").spec()
    old = EpisodeList(
        dataclasses.replace(new.spec, action_space=env.action_space), [dataclasses.replace(e, action_T=e.action_T / 2) for e in new]
    )
    for i, episode in enumerate(old):
        assert old.replay(i).differences(episode) == ""
        assert presented(old, env)[i].differences(presented(new, env)[i]) == ""
    with pytest.raises(ConfigError, match="different spaces"):
        new + old


def test_actions_of_another_range_are_refused_by_name() -> None:
    env = environment("Pendulum-v1").spec()
    for has in (spaces.Box(-1.5, 1.5, (1,)), spaces.Box(-2, 2, (2,)), spaces.Box(-2, 2, (1,), np.int64), spaces.Discrete(3)):
        with pytest.raises(ConfigError) as error:
            presented(EpisodeList(dataclasses.replace(OWN_UNITS, action_space=has)), env)
        assert all(str(part) in str(error.value) for part in ("The data has the action_space", has, env.action_space, env.native_action_space))
    with pytest.raises(ConfigError, match="The data has the observation_space"):
        presented(EpisodeList(dataclasses.replace(OWN_UNITS, observation_space=spaces.Box(0, 255, (3,), np.uint8))), env)


def test_of_actions_without_bounds_it_is_said_what_is_assumed(tmp_path: Path) -> None:
    own, env = EpisodeList(OWN_UNITS, [swings()]), environment("Pendulum-v1").spec()
    folder = write_lerobot(own, tmp_path / "data")
    info = json.loads((folder / layout.INFO).read_text())
    del info["rlinf_lab"]
    (folder / layout.INFO).write_text(json.dumps(info))
    foreign = read_lerobot(folder)
    with pytest.warns(UserWarning, match=r"says no bounds.*taken as a policy of gymnasium/Pendulum-v1 acts, in Box\(-1.0, 1.0.*own: Box\(-2.0, 2.0"):
        np.testing.assert_array_equal(presented(foreign, env)[0].action_T, own[0].action_T)
    told = foreign.with_spec(action_space=OWN_UNITS.action_space)
    np.testing.assert_array_equal(presented(told, env)[0].action_T, own[0].action_T / 2)
    with pytest.raises(UnknownNameError, match="Did you mean 'action_space'"):
        foreign.with_spec(action_spaces=OWN_UNITS.action_space)
    assert made().with_spec(env="x").spec == dataclasses.replace(made().spec, env="x")
