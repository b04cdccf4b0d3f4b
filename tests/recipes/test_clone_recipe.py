"""Demonstrations, cloning, and what goes on from a clone, through the front door."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.datasets import DataSpec, Episode, EpisodeList
from rlinf_lab.errors import ConfigError, EnvError, UnknownNameError
from rlinf_lab.experiments.collecting import collect
from rlinf_lab.policies import Flow, make_chunk_transformer
from rlinf_lab.recipes.clone import CloneConfig
from rlinf_lab.recipes.rlpd import RLPDConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
from line_env import LineEnv

QUIET = {"plan": None, "folder": False, "progress": False}
SMALL = {"net_arch": (16,), "gradient_steps": 60, "steps_per_iteration": 20, "batch_size": 32}


def expert(obs_NX):
    """Halves the way to the middle."""
    return (-0.5 * obs_NX[:, :1]).astype(np.float32)


@pytest.fixture(scope="module")
def data():
    return collect(LineEnv, expert, episodes=20, max_episode_steps=6, seed=1)


def test_collected_episodes_are_whole_and_replay_bit_by_bit(data):
    assert len(data) == 20 and data.lengths_E.tolist() == [6] * 20 and data.spec.env is None and data.spec.by == "expert"
    assert [data.replay(i, LineEnv).differences(data[i]) for i in (0, 7, 19)] == ["", "", ""]
    np.testing.assert_allclose(data[3].obs_T[1:, 0], data[3].obs_T[:-1, 0] / 2)
    assert len({e.seed for e in data}) == 20 and data[0].truncated and data[0].final_obs[1] == 6
    other = collect(LineEnv, expert, episodes=1, max_episode_steps=6, seed=2)[0]
    assert data[0].differences(other)


def test_only_successful_episodes_where_they_are_asked_for():
    kept = collect(LineEnv, expert, episodes=8, max_episode_steps=3, only_success=True)
    assert all(e.success for e in kept) and len(kept) == 8
    assert not all(e.success for e in collect(LineEnv, expert, episodes=8, max_episode_steps=3))
    with pytest.raises(EnvError, match=r"test/Line-v0: 0 of \d+ episodes of away succeeded, 2 are wanted"):
        collect(LineEnv, (away := lambda obs: np.full((len(obs), 1), 9.0)) and _named(away, "away"), episodes=2, max_episode_steps=2, only_success=True)


def _named(function, name):
    function.__name__ = name
    return function


@pytest.mark.parametrize(("arguments", "said"), [
    ({"policy": "expert"}, "has no scripted expert"), ({"policy": 3}, "collect(policy=3)"), ({"episodes": 0}, "episodes=0"),
    ({"max_episode_steps": 0}, "max_episode_steps=0"),
])  # fmt: skip
def test_collect_says_what_it_cannot_do(arguments, said):
    with pytest.raises(ConfigError) as error:
        collect(LineEnv, **{"policy": expert, "max_episode_steps": 4, **arguments})
    assert said in str(error.value)


def turned(obs_NX):
    """Pendulum's own torque, of up to 2, which a policy here gives in [-1, 1]."""
    return np.where(obs_NX[:, 2:] > 0, -2.0, 0.5).astype(np.float32)


def test_an_action_outside_of_its_box_is_recorded_as_the_environment_took_it_and_said_once():
    with pytest.warns(UserWarning) as told:
        data = collect("Pendulum-v1", turned, episodes=3, max_episode_steps=20)
    assert [str(w.message) for w in told if "turned" in str(w.message)] == [
        "collect(policy=turned): the action -2 is outside of Box(-1.0, 1.0, (1,), float32). The environment takes -1, and that is what is recorded, in its own units: actions "
        "outside of a Box are clipped, as gymnasium's ClipAction does. Next: nothing, if that is meant; else actions within it (a bounded Box is [-1, 1] here, "
        "mapped to the environment's own Box(-2.0, 2.0, (1,), float32))."
    ]
    assert told[0].filename == __file__
    taken = np.concatenate([e.action_T for e in data])
    assert set(taken.ravel().tolist()) == {-2.0, 1.0} and data.replay(1).differences(data[1]) == ""


def test_chunks_of_actions_are_clipped_like_single_ones(recwarn):
    data = collect("Pendulum-v1", lambda obs_NX: np.stack([turned(obs_NX)] * 2, axis=1) - 0.25, episodes=1, max_episode_steps=20)
    assert set(data[0].action_T.ravel().tolist()) == {-2.0, 0.5}
    assert len([w for w in recwarn if "the action -2.25 is outside" in str(w.message)]) == 1


def of_one(obs):
    _cosine, _sine, speed = obs
    return np.array([-speed / 8])


@pytest.mark.parametrize(("policy", "said"), [
    (of_one, "collect(policy=of_one): on a batch, the observations of 2 environments at once, it raised ValueError: not enough values to unpack "
     "(expected 3, got 2). Next: a function from such a batch to an action for each of its rows; one for a single observation becomes one: "
     "lambda obs_N: np.stack([of_one(obs) for obs in obs_N])."),
    (lambda obs: [0.5], "gave actions of the shape (1,), and (2, 1) is needed. Next: a function from such a batch to an action for each of its rows; one for a "
     "single observation becomes one: lambda obs_N: np.stack([policy(obs) for obs in obs_N])."),
])  # fmt: skip
def test_a_policy_that_was_made_for_one_observation_is_told_of_batches(policy, said):
    with pytest.raises(ConfigError) as error:
        collect("Pendulum-v1", policy, episodes=2, max_episode_steps=4)
    assert said in str(error.value)
    assert len(collect("Pendulum-v1", lambda obs_N: np.stack([of_one(obs) for obs in obs_N]), episodes=2, max_episode_steps=4)) == 2


def test_no_more_gradient_steps_are_taken_than_were_asked_for(data):
    run = lab.train("clone", LineEnv, data=data, **{**SMALL, "gradient_steps": 7}, **QUIET).wait()
    assert run.config.steps_per_iteration == 7 and len(run.metrics) == 1


@pytest.mark.parametrize("more", [{}, {"chunk_size": 3}, {"chunk_size": 3, "flow": Flow(steps=2)}], ids=["actions", "chunks", "flow"])
def test_a_clone_does_what_the_expert_did(data, more):
    run = lab.train("clone", LineEnv, data=data, **{**SMALL, "gradient_steps": 400, "net_arch": (32,), "learning_rate": lab.linear(1e-2, 1e-4)}, **more, **QUIET)
    run.wait()
    obs = data[4].obs_T
    wanted = data[4].action_T if not more else np.stack([data[4].action_T[t : t + 3] for t in range(4)])
    assert np.abs(run.policy().act(obs[: len(wanted)]) - wanted).max() < 0.5  # of actions up to 3.5
    assert run.metrics["action_error"].iloc[-1] < 0.3 * run.metrics["action_error"].iloc[0]
    assert run.evaluate(8)["length"] == 6 and run.config.max_episode_steps == 6
    if "flow" not in more:
        np.testing.assert_allclose(run.policy().module.weights().arrays["head.log_std"], np.log(0.25), rtol=1e-6)


def pushed(torque=1.0):
    """As gymnasium has it: torques of Pendulum lie between -2 and 2."""
    env = gymnasium.make("Pendulum-v1")
    rng = np.random.default_rng(0)
    episodes = [
        Episode(rng.uniform(-1, 1, (50, 3)).astype(np.float32), np.full((50, 1), torque, np.float32), np.zeros(50, np.float32), False, True, final_obs=np.zeros(3, np.float32))
        for _ in range(3)
    ]  # fmt: skip
    return EpisodeList(DataSpec(env.observation_space, env.action_space, "Pendulum-v1", 200), episodes)


@pytest.mark.parametrize("env", ["Pendulum-v1", None])
def test_a_clone_does_what_was_done_in_the_simulators_own_units(env):
    data = pushed().with_spec(env=env)
    run = lab.train("clone", data=data, **{**SMALL, "gradient_steps": 200, "learning_rate": 1e-2}, **QUIET).wait()
    obs = data[0].obs_T
    assert run.policy().predict(obs)[0] == pytest.approx(1.0, abs=0.2) and run.policy().act(obs) == pytest.approx(0.5, abs=0.1)


def test_demonstrations_of_rlpd_are_in_the_policys_units():
    def offline(data):
        buffer = RLPDConfig("Pendulum-v1", data=data)._offline
        return buffer.rows(buffer.order)["action"]

    assert (offline(pushed()) == 0.5).all() and (offline(pushed(2.0)) == 1.0).all()
    with pytest.warns(UserWarning, match=r"is a list, which says nothing of its actions' range.*own: Box\(-2.0, 2.0"):
        assert (offline(list(pushed())) == 1.0).all()
    with pytest.raises(ConfigError, match=r"RLPDConfig.data has actions from 2 to 2, and a policy of gymnasium/Pendulum-v1 acts in Box\(-1.0, 1.0"):
        offline(list(pushed(2.0)))


def test_a_transformer_of_chunks_is_cloned_like_any_policy(data):
    make = partial(make_chunk_transformer, chunk=2, width=8, heads=2, depth=1)
    run = lab.train("clone", LineEnv, data=data, policy=make, chunk_size=2, **SMALL, **QUIET).wait()
    assert run.policy().act(data[0].obs_T).shape == (6, 2, 1)
    with pytest.raises(ConfigError, match=r"a policy of actions of the shape \(2, 1\), and chunk_size=None asks for \(1,\)"):
        lab.train("clone", LineEnv, data=data, policy=make, **SMALL, **QUIET)


def test_ppo_goes_on_from_a_clone(data, tmp_path):
    """While the value net alone is taught the policy is the clone, normalisation included; what was trained on is kept and loaded."""
    clone = lab.train("clone", LineEnv, data=data, chunk_size=3, **SMALL, **QUIET).wait()
    ppo = {"policy": clone, "max_episode_steps": 6, "num_envs": 4, "n_steps": 12, "batch_size": 8, "iterations": 2}
    kept = lab.train("ppo", LineEnv, **ppo, critic_warmup=2, plan=None, progress=False, folder=tmp_path / "kept").wait()
    obs = data[4].obs_T
    np.testing.assert_array_equal(kept.policy().act(obs), clone.policy().act(obs))
    assert kept.config.chunk == 3 and kept.policy().version == 2
    module = kept.policy().module
    assert np.abs(module.values(obs)).max() > 0, "the value net was taught"
    moved = lab.train("ppo", LineEnv, **ppo, plan=None, progress=False, folder=tmp_path / "moved").wait()
    assert np.abs(moved.policy().act(obs) - clone.policy().act(obs)).max() > 0
    loaded = lab.load_policy(tmp_path / "moved", env=LineEnv)
    np.testing.assert_array_equal(loaded.act(obs), moved.policy().act(obs))
    further = lab.train("ppo", LineEnv, **{**ppo, "policy": loaded}, critic_warmup=2, **QUIET).wait()
    np.testing.assert_array_equal(further.policy().act(obs), loaded.act(obs))


def test_a_clone_that_was_stopped_goes_on_as_if_it_had_not(data, tmp_path):
    whole = lab.train("clone", LineEnv, data=data, **SMALL, **QUIET).wait()
    lab.train("clone", LineEnv, data=data, **{**SMALL, "gradient_steps": 20}, plan=None, progress=False, folder=tmp_path / "run").wait()
    with pytest.raises(ConfigError, match=r"data of the run in .* was an object"):
        lab.resume(tmp_path / "run", env=LineEnv, gradient_steps=60, progress=False)
    rest = lab.resume(tmp_path / "run", env=LineEnv, data=data, gradient_steps=60, progress=False).wait()
    assert rest.iteration == 3
    for name, array in whole.policy().module.weights().arrays.items():
        np.testing.assert_array_equal(array, rest.policy().module.weights().arrays[name], err_msg=name)


@pytest.mark.parametrize(("field", "value", "limit"), [
    ("data", 3, "recorded episodes"), ("gradient_steps", 0, "a whole number of at least 1"), ("std", 0, "a number greater than 0"),
    ("chunk_size", 0, "a whole number"), ("total_timesteps", 9, "None: what learns from data is counted in gradient_steps"), ("flow", 4, "a Flow"),
    ("learning_rate", -1, "a number greater than 0, or a schedule"), ("memory", 0, "a whole number of at least 1"),
])  # fmt: skip
def test_a_bad_value_is_named_with_its_limit(field, value, limit):
    with pytest.raises(ConfigError) as error:
        CloneConfig(LineEnv, **{field: value})
    assert f"CloneConfig.{field} is " in str(error.value) and limit in str(error.value)


def test_what_does_not_fit_is_said_before_anything_starts(data):
    with pytest.raises(ConfigError, match="The data has the observation_space"):
        lab.train("clone", "CartPole-v1", data=data, **QUIET)
    with pytest.raises(ConfigError, match="there is no environment to train on"):
        lab.train("ppo", **QUIET)
    with pytest.raises(UnknownNameError, match="gradient_steps"):
        lab.train("clone", LineEnv, data=data, gradient_step=3, **QUIET)
    run = lab.train("clone", data=data, **SMALL, **QUIET).wait()
    with pytest.raises(ConfigError, match="The data says no environment"):
        run.evaluate(2)
