"""SAC, TD3 and RLPD as workflows: the same learning under every plan, and what the front door does with them."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import psutil
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.experiments.storage.folder import RunFolder
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes import off_policy, sac, td3
from rlinf_lab.recipes.sac import SACConfig
from rlinf_lab.recipes.schedules import linear
from rlinf_lab.recipes.td3 import TD3Config
from rlinf_lab.replay import ReplayBuffer
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
from reach_line import ReachLine

DEVICES = ["cpu:0", "cpu:1"]
SMALL = {
    "env": ReachLine, "max_episode_steps": 5, "num_envs": 4, "train_freq": 6, "iterations": 10, "batch_size": 16, "net_arch": (8,), "learning_starts": 30,
    "learning_rate": 1e-2, "learners": 2,
}  # fmt: skip
ON = {"simulator": [0], "policy": [0], "learner": [1]}
PLANS = {
    "temporal": lambda flow: ExecutionPlan.temporal(flow, DEVICES),
    "temporal, two simulators": lambda flow: ExecutionPlan.temporal(flow, DEVICES, {"simulator": 2, "policy": 2}),
    "fused": lambda flow: ExecutionPlan.fused_cells(flow, DEVICES, {"simulator": 2}),
    "spatial": lambda flow: ExecutionPlan.spatial(flow, DEVICES, ON, sub_batches={"simulator": 2}),
    "two learners": lambda flow: ExecutionPlan.temporal(flow, DEVICES, {"learner": 2}),
}


def run(build, config, plan, iterations=4, state=None):
    flow = build(config, state)
    executor = LocalExecutor(flow, plan(flow))
    executor.start()
    try:
        session = Session(executor)
        rows = [session.step() for _ in range(iterations)]
        return rows, session.step("checkpoint")["state"]
    finally:
        executor.stop()


@pytest.mark.parametrize(("build", "config", "plans"), [
    (sac.build, SACConfig(**SMALL), PLANS), (td3.build, TD3Config(**SMALL), ("temporal", "fused")),
    (sac.build, SACConfig(**SMALL, n_steps=3), ("temporal", "spatial", "two learners")),
], ids=["sac", "td3", "sac over three steps"])  # fmt: skip
def test_the_same_learning_under_every_plan(build, config, plans):
    results = {name: run(build, config, PLANS[name]) for name in plans}
    reference, state = results.pop("temporal")
    assert reference[-1]["env_steps"] == 4 * 24 and reference[-1]["gradient_steps"] == 3 * 24
    for name, (rows, other) in results.items():
        for ours, theirs in zip(rows, reference, strict=True):
            assert ours.keys() == theirs.keys()
            for key, value in theirs.items():
                assert ours[key] == pytest.approx(value, rel=1e-3, abs=1e-4), (name, key)
        other, mine = (s[0] if isinstance(s, list) else s for s in (other, state))
        for key, array in mine["replay"]["rows"].items():
            np.testing.assert_allclose(other["replay"]["rows"][key], array, rtol=1e-3, atol=1e-4, err_msg=f"{name}, {key}")


def test_the_same_seed_and_plan_give_the_same_curve_bit_for_bit():
    curves = [run(sac.build, SACConfig(**SMALL, seed=seed), PLANS["fused"])[0] for seed in (3, 3, 4)]
    assert curves[0] == curves[1] != curves[2]


@pytest.mark.parametrize("n_steps", [1, 3])
def test_asynchronous_collecting_acts_with_weights_of_a_bounded_age(n_steps):
    plan = partial(ExecutionPlan.spatial, devices=DEVICES, on=ON, staleness=1)
    flow = sac.build(SACConfig(**SMALL, n_steps=n_steps))
    executor = LocalExecutor(flow, plan(flow))
    executor.start()
    try:
        session = Session(executor)
        handles = [session.submit() for _ in range(6)]
        session.finish()
        rows = [handle.wait() for handle in handles]
        kept = session.step("state")["replay"]["rows"]
    finally:
        executor.stop()
    assert len(kept["reward"]) == 24 * 6 - 4 * (n_steps - 1)
    led = kept["next_obs"][: -4 * n_steps]  # to the observation of that environment's row n_steps later, where no episode has ended
    goes_on = (kept.get("discount", np.full(len(kept["reward"]), 0.99))[: -4 * n_steps] > 0.99**n_steps - 1e-4) & (led[:, 1] < 5) & (np.abs(led[:, 0]) >= 0.5)
    assert goes_on.sum() > 10 and (led[goes_on] == kept["obs"][4 * n_steps :][goes_on]).all()
    assert [row["env_steps"] for row in rows] == [24.0 * i for i in range(1, 7)]
    assert all(0 <= row["staleness"] <= 1 for row in rows)  # the newest weights that are there, and never older than the plan allows


@pytest.mark.parametrize(("config", "field", "value", "limit"), [
    (SACConfig, "gamma", 1.2, "a number between 0 and 1, or a schedule"), (SACConfig, "tau", linear(0.5, 2.0), "a number between 0 and 1 everywhere"),
    (SACConfig, "train_freq", 0, "a whole number of at least 1"), (SACConfig, "gradient_steps", 0, "at least 1, or -1 and below"),
    (SACConfig, "ent_coef", "auto_x", "'auto', 'auto_'"), (SACConfig, "ent_coef", -1.0, "a number of at least 0"),
    (SACConfig, "target_entropy", "low", "a number, or 'auto'"), (SACConfig, "precision", "float16", "'float32' or 'bfloat16'"),
    (SACConfig, "learners", 17, "at most batch_size = 16"), (SACConfig, "staleness", -1, "at least 0"), (TD3Config, "action_noise", 0.0, "greater than 0"),
    (TD3Config, "target_noise_clip", -0.1, "a number of at least 0"), (SACConfig, "net_arch", 64, "a tuple of whole numbers"),
    (SACConfig, "n_steps", 0, "a whole number of at least 1"), (SACConfig, "total_timesteps", 100, "None where total_timesteps is given"),
])  # fmt: skip
def test_a_bad_value_is_named_with_its_limit(config, field, value, limit):
    with pytest.raises(ConfigError) as error:
        config(**{**SMALL, field: value})
    named = "iterations" if field == "total_timesteps" else field
    assert f"{config.__name__}.{named} is " in str(error.value) and limit in str(error.value)


def test_actions_must_lie_in_a_bounded_box():
    with pytest.raises(ConfigError, match="SAC and TD3 act in a Box"):
        sac.build(SACConfig("CartPole-v1"))
    with pytest.raises(UnknownNameError, match="Did you mean 'learning_starts'"):
        SACConfig.preset("Pendulum-v1", learning_start=3)


SHORT = {"max_episode_steps": 5, "num_envs": 4, "train_freq": 6, "batch_size": 16, "net_arch": (8,), "learning_starts": 30, "progress": False, "plan": None}


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_the_front_door(algorithm, tmp_path):
    run = lab.train(algorithm, "Pendulum-v1", total_timesteps=96, folder=tmp_path / "run", eval_every=48, eval_episodes=2, **SHORT).wait()
    rows = run.metrics
    assert rows["env_steps"].tolist() == [24, 48, 72, 96] and rows["eval_return"].notna().sum() == 2
    again = lab.resume(tmp_path / "run", total_timesteps=144, progress=False).wait()
    assert again.metrics["env_steps"].tolist() == [24, 48, 72, 96, 120, 144]
    assert again.metrics["gradient_steps"].iloc[-1] == 144 - 24  # the buffer was there: nothing had to be filled first
    obs = np.zeros((2, 3), np.float32)
    policy = lab.load_policy(tmp_path / "run")
    np.testing.assert_array_equal(policy.act(obs), again.policy().act(obs))
    assert policy.version == 6 and again.evaluate(episodes=2)["episodes"] == 2
    assert run.export(tmp_path / "policy.pt2").exists()


def test_a_run_that_ends_before_learning_starts_is_warned():
    with pytest.warns(UserWarning, match="learning_starts=97: the run has 96 steps in all, and so takes no gradient step"):
        run = lab.train("sac", "Pendulum-v1", total_timesteps=96, folder=False, **{**SHORT, "learning_starts": 97}).wait()
    assert run.metrics["gradient_steps"].iloc[-1] == 0


def test_a_state_that_is_kept_holds_the_buffer(tmp_path):
    lab.train("sac", "Pendulum-v1", total_timesteps=48, folder=tmp_path / "run", **SHORT).wait()
    replay = RunFolder(tmp_path / "run").state().state["replay"]
    assert sum(leaf.nbytes for leaf in replay["rows"].values()) == 48 * SACConfig(env="Pendulum-v1").transition_bytes
    assert len(replay["rows"]["reward"]) == 48 and replay["state"]["capacity"] == 1_000_000


class Sees(gymnasium.Env):
    """A picture, and numbers in double precision."""

    observation_space = gymnasium.spaces.Dict(eye=gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8), arm=gymnasium.spaces.Box(-9, 9, (3,), np.float64))
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)


GIB = 2**30


@pytest.mark.parametrize("config", [SACConfig, TD3Config])
@pytest.mark.parametrize(
    ("settings", "total", "free", "said"),
    [
        # 24.6 kB a transition
        ({"total_timesteps": 10**6}, 64, 32, None),
        ({"total_timesteps": 10**6}, 64, 16, "warning"),  # 22.9 GiB
        ({"total_timesteps": 10**6}, 20, 16, "error"),
        ({"total_timesteps": 10**5}, 20, 16, None),  # 2.3 GiB by the end
        ({"total_timesteps": 10**5}, 20, 2, "warning"),
        ({"total_timesteps": 10**5}, 8, 7, "error"),  # the array of pictures, of 11.4 GiB, cannot be had
        ({"total_timesteps": 10**6, "buffer_size": 100_000}, 8, 7, None),
        ({"total_timesteps": 10**6, "buffer_size": 100_000}, 2, 1, "error"),
    ],
)
def test_a_buffer_that_does_not_fit_is_said_before_the_run(config, settings, total, free, said, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=total * GIB, available=free * GIB))
    made = config(env=Sees, **settings)
    assert made.transition_bytes == 2 * (64 * 64 * 3 + 3 * 4) + 2 * 4 + 5
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            made.require_memory()
            found = str(told[0].message) if told else None
        except ConfigError as error:
            assert said == "error"
            found = str(error)
            made.require_memory(elsewhere=True)
            assert str(told[0].message) == found
    assert (found is None) == (said is None)
    if found is not None:
        fits = int(re.search(r"Next: buffer_size=([\d_]+), which fits\.$", found)[1])
        for part in (f"{config.__name__}.buffer_size={made.buffer_size:,}", f"{total}.0 GiB of memory, {free}.0 GiB of it free", "24,613 bytes a transition"):
            assert part in found
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            replace(made, buffer_size=fits).require_memory()
        assert fits == made.total_timesteps or fits * made.transition_bytes > 0.85 * free * GIB


def test_train_and_resume_ask_for_the_memory_of_a_buffer(tmp_path, monkeypatch):
    lab.train("sac", "Pendulum-v1", total_timesteps=48, folder=tmp_path / "run", **SHORT).wait()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=10**6, available=10**6))
    for start in (partial(lab.train, "td3", "Pendulum-v1", total_timesteps=10**6, folder=False), partial(lab.resume, tmp_path / "run", total_timesteps=10**6)):
        with pytest.raises(ConfigError, match=r"Config\.buffer_size=1,000,000: of 33 bytes a transition of gymnasium/Pendulum-v1"):
            start()


def over(rows, n, gamma, limit, envs):
    """Single steps of episodes of ``limit`` steps as transitions over ``n``: next observation, reward and discount of each that is complete."""
    reward, following = rows["reward"].reshape(-1, envs), rows["next_obs"].reshape(-1, envs, rows["next_obs"].shape[1])
    found = []
    for t in range(len(reward) - n + 1):
        k = min(n, limit - t % limit)
        found += [(following[t + k - 1, e], sum(gamma**i * reward[t + i, e] for i in range(k)), gamma**k) for e in range(envs)]
    return (np.array(column, np.float32) for column in zip(*found, strict=True))


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_returns_over_several_steps_reach_the_buffer_and_go_on(algorithm, tmp_path):
    """Of the same steps, whose actions are drawn before anything is learnt; 12 steps an environment, episodes of 5. A time limit is no end of the task."""
    settings = {**SHORT, "learning_starts": 48, "train_freq": 2}
    for n, folder in ((1, "one"), (3, "three")):
        lab.train(algorithm, "Pendulum-v1", total_timesteps=48, folder=tmp_path / folder, n_steps=n, **settings).wait()
    one, three = (RunFolder(tmp_path / folder).state().state["replay"]["rows"] for folder in ("one", "three"))
    assert len(one["reward"]) == 48 and "discount" not in one and len(three["reward"]) == 40
    assert sum(leaf.nbytes for leaf in three.values()) == 40 * SACConfig(env="Pendulum-v1", n_steps=3).transition_bytes
    following, reward, discount = over(one, 3, 0.99, 5, 4)
    np.testing.assert_array_equal(three["next_obs"], following)
    np.testing.assert_allclose(three["reward"], reward, rtol=1e-5)
    np.testing.assert_allclose(three["discount"], discount, rtol=1e-6)
    np.testing.assert_array_equal(three["obs"], one["obs"][:40])
    again = lab.resume(tmp_path / "three", total_timesteps=96, progress=False).wait()
    assert again.metrics["gradient_steps"].iloc[-1] == 96 - 40 and again.metrics["critic_loss"].notna().any()
    assert len(RunFolder(tmp_path / "three").state().state["replay"]["rows"]["reward"]) == 96 - 8
    with pytest.raises(ConfigError, match=r"n_steps=2, gamma=0.99; the replay buffer to go on with was filled with n_steps=3, gamma=0.99\. Next: n_steps=3"):
        lab.resume(tmp_path / "three", total_timesteps=144, n_steps=2, progress=False)


def test_what_was_summed_has_one_discount():
    with pytest.raises(ConfigError, match="gamma is .*; it must be a number where n_steps = 3: discounts are kept"):
        SACConfig(**SMALL, n_steps=3, gamma=linear(0.9, 0.99))
    with pytest.raises(UnknownNameError, match="'steps' is called 'train_freq' here"):
        lab.train("sac", "Pendulum-v1", steps=8, folder=False)


def swung(obs_NX):
    return np.clip(-obs_NX[:, 2:] / 8, -1, 1)


def test_rlpd_takes_the_folder_that_a_clone_takes(tmp_path):
    data = lab.collect("Pendulum-v1", swung, episodes=3, max_episode_steps=5)
    lab.datasets.write_lerobot(data, tmp_path / "swings")
    runs = [
        lab.train("rlpd", "Pendulum-v1", data=given, total_timesteps=72, folder=False, gradient_steps=-1, policy_delay=2, n_critics=2, **SHORT).wait()
        for given in (data, str(tmp_path / "swings"), lab.datasets.read_lerobot(tmp_path / "swings"))
    ]
    losses = [run.metrics["critic_loss"].dropna().tolist() for run in runs]
    assert losses[0] == losses[1] == losses[2] and losses[0]


@pytest.mark.parametrize("algorithm", ["rlpd", "clone"])
def test_a_data_set_of_minari_is_read_by_its_own_reader(algorithm):
    with pytest.raises(ConfigError, match=r"data='pend/scripted-v0': there is no such folder\. Next: data=lab\.datasets\.read_minari\('pend/scripted-v0'\) reads"):
        lab.train(algorithm, "Pendulum-v1", data="pend/scripted-v0", folder=False)
    with pytest.raises(ConfigError, match=r"data='none': there is no such folder\. Next: recorded episodes"):
        lab.train(algorithm, "Pendulum-v1", data="none", folder=False)


class Succeeding(gymnasium.Env):
    """From the third step on, without an end."""

    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 0.0, False, False, {"success": self.t >= 3}


def test_who_goes_on_counts_the_actions_taken_not_the_rows_that_came():
    """Under reward="success" what follows the success of an episode is no row."""
    config = SACConfig(**{**SMALL, "env": Succeeding, "max_episode_steps": 8, "learners": 1}, reward="success")
    _, state = run(sac.build, config, PLANS["temporal"], 3)  # and the checkpoint's
    assert state["env_steps"] < 4 * 6 * 4 and off_policy._collecting(config, state)[0]["taken"] == 4 * 6


def test_rlpd_learns_from_demonstrations_too(tmp_path):
    lab.train("sac", "Pendulum-v1", total_timesteps=48, folder=tmp_path / "expert", **SHORT).wait()
    kept = RunFolder(tmp_path / "expert").state().state["replay"]
    expert = ReplayBuffer(48)
    expert.load_state_dict(kept | {"state": kept["state"] | {"capacity": 48}})
    expert.save(tmp_path / "expert.safetensors")
    settings = {**SHORT, "gradient_steps": -2, "policy_delay": 2, "n_critics": 3}
    run = lab.train("rlpd", "Pendulum-v1", data=tmp_path / "expert.safetensors", total_timesteps=72, folder=tmp_path / "run", **settings).wait()
    assert run.metrics["gradient_steps"].tolist() == [0, 48, 96] and run.metrics["actor_loss"].notna().sum() == 2
    again = lab.resume(tmp_path / "run", total_timesteps=96, progress=False).wait()
    assert again.metrics["gradient_steps"].iloc[-1] == 144
    with pytest.raises(ConfigError, match="data is None; it must be demonstrations"):
        lab.train("rlpd", "Pendulum-v1")
    with pytest.raises(ConfigError, match="prioritized_replay is True; it must be False: demonstrations are drawn uniformly"):
        lab.train("rlpd", "Pendulum-v1", data=expert, prioritized_replay=True, **SHORT)
    several = ReplayBuffer(48)
    several.add({**expert.rows(expert.order), "discount": np.full(48, 0.9, np.float32)})
    with pytest.raises(ConfigError, match="data holds a discount, as transitions over several steps do"):
        lab.train("rlpd", "Pendulum-v1", data=several, folder=False, **SHORT)
    with pytest.raises(ConfigError, match=r"data is a buffer of single steps, and n_steps is 3\. Next: episodes, transitions of replay.NStep\(3, 0.99\)"):
        lab.train("rlpd", "Pendulum-v1", data=expert, n_steps=3, folder=False, **SHORT)
    over_three = lab.train("rlpd", "Pendulum-v1", data=several, n_steps=3, total_timesteps=72, folder=False, **settings).wait()
    assert over_three.metrics["critic_loss"].notna().sum() == 2
    with pytest.raises(ConfigError, match="has obs of shapes"):
        lab.train("rlpd", ReachLine, data=expert, max_episode_steps=5, folder=False)
