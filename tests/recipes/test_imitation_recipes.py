"""GRPO on whole episodes and DAgger, through the front door and under several plans."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, EnvError, UnknownNameError
from rlinf_lab.experiments.recipe import find
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.records import Observation
from rlinf_lab.workers.imitation.dagger import DAggerPolicy

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
from line_env import MAKE, LineEnv

DEVICES = ["cpu:0", "cpu:1"]
QUIET = {"folder": False, "progress": False}
GRPO = {"max_episode_steps": 6, "num_envs": 8, "batch_size": 16, "reward": "environment"}
DAGGER = {"max_episode_steps": 6, "num_envs": 4, "n_steps": 12, "net_arch": (32,), "steps_per_iteration": 100, "batch_size": 32, "learning_rate": 1e-2}


def expert(obs_NX):
    """Halves the way to the middle."""
    return (-0.5 * obs_NX[:, :1]).astype(np.float32)


PLANS = {
    "temporal": lambda flow: ExecutionPlan.temporal(flow, DEVICES[:1]),
    "two simulators": lambda flow: ExecutionPlan.temporal(flow, DEVICES, {"simulator": 2}),
    "spatial": lambda flow: ExecutionPlan.spatial(flow, DEVICES, on={"simulator": [0], "policy": [1], "learner": [1]}, sub_batches={"simulator": 2}),
}


@pytest.mark.parametrize(("algorithm", "settings"), [("grpo", GRPO), ("dagger", {**DAGGER, "expert": expert, "decay": 0.5})])
def test_the_same_learning_under_every_plan(algorithm, settings):
    found = {
        name: lab.train(algorithm, LineEnv, **settings, iterations=3, plan=plan, executor="local", **QUIET).wait().metrics for name, plan in PLANS.items()
    }
    reference = found.pop("temporal")
    for metrics in found.values():
        for name in set(reference) - {"seconds", "staleness"}:
            np.testing.assert_allclose(metrics[name], reference[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_what_is_trained_on_decides_which_grpo():
    assert find("grpo", LineEnv).name == find("grpo", "CartPole-v1").name == "embodied_grpo"
    assert find("grpo", "reasoning/remainder").name == find("grpo", "remainder").name == find("grpo").name == "grpo"


def test_an_episode_s_decisions_have_its_advantage():
    """Of an update of eight episodes: the sum over decisions of their advantages, by hand."""
    from rlinf_lab.recipes.embodied_grpo import EmbodiedGRPOConfig, build

    seen = []

    def centred(reward_PG):
        seen.append(reward_PG)
        return reward_PG - reward_PG.mean(1, keepdims=True)

    config = EmbodiedGRPOConfig(LineEnv, **{**GRPO, "batch_size": 48}, n_epochs=1, advantage=centred, iterations=1, normalize_obs=False)
    run = lab.train(lab_recipe(EmbodiedGRPOConfig, build), LineEnv, **{**GRPO, "batch_size": 48}, n_epochs=1, advantage=centred, iterations=1, plan=None, **QUIET)
    run.wait()
    returns = seen[-1]  # before it was tried on a few numbers
    assert returns.shape == (1, 8) and config.updates == 1 and config.env_steps == 48
    assert run.metrics["policy_loss"].iloc[0] == pytest.approx(-np.mean(returns - returns.mean()), abs=1e-4)
    assert run.metrics["return"].iloc[0] == pytest.approx(returns.mean(), rel=1e-5) and "value_loss" not in run.metrics


def lab_recipe(config, build):
    from rlinf_lab.experiments import Recipe

    return Recipe("mine", config, build)


def test_grpo_goes_on_from_a_clone_and_learns():
    data = lab.collect(LineEnv, lambda obs: -0.3 * obs[:, :1], episodes=8, max_episode_steps=6)
    clone = lab.train("clone", LineEnv, data=data, net_arch=(16,), gradient_steps=200, std=0.5, plan=None, **QUIET).wait()
    run = lab.train("grpo", LineEnv, policy=clone, **{**GRPO, "num_envs": 32, "batch_size": 96}, iterations=25, plan=None, **QUIET).wait()
    assert run.evaluate(32)["return"] > clone.evaluate(32)["return"] + 1.0  # of about -14: the ways left after each step
    assert run.policy().version == 25


def test_dagger_learns_what_the_expert_does_where_the_learner_goes(tmp_path):
    run = lab.train("dagger", LineEnv, expert=expert, **DAGGER, iterations=4, plan=None, progress=False, folder=tmp_path / "run").wait()
    assert run.metrics["samples"].tolist() == [48, 96, 144, 192] and run.metrics["gradient_steps"].tolist() == [100, 200, 300, 400]
    obs = np.array([[x, 1.0] for x in np.linspace(-3, 6, 10)], np.float32)
    assert np.abs(run.policy().act(obs) - expert(obs)).max() < 0.3
    with pytest.raises(ConfigError, match=r"expert of the run in .* was an object"):
        lab.resume(tmp_path / "run", env=LineEnv, total_timesteps=240)
    more = lab.resume(tmp_path / "run", env=LineEnv, expert=expert, total_timesteps=240, progress=False).wait()
    assert more.metrics["samples"].tolist()[-1] == 240


def test_the_expert_acts_as_often_as_it_should_whoever_asks():
    policy = DAggerPolicy(MAKE, expert=lambda obs: np.full((len(obs), 1), 77.0, np.float32), decay=0.5, seed=0)
    policy.policy = MAKE()
    shares = []
    for version in range(3):
        policy.policy.version = version
        tokens = [Observation(0, 0, step, np.zeros((500, 2), np.float32)) for step in range(2)]
        whole = np.concatenate([policy.choose(t.obs_N, policy._draw([t]), [t])[0] for t in tokens]) == 77.0
        parts = [Observation(0, n, step, np.zeros((250, 2), np.float32)) for step in range(2) for n in (0, 250)]
        together = policy.choose(np.concatenate([p.obs_N for p in parts]), policy._draw(parts), parts)[0] == 77.0
        np.testing.assert_array_equal(whole, together)
        shares.append(whole.mean())
    np.testing.assert_allclose(shares, [1.0, 0.5, 0.25], atol=0.08)


class Quiet(gymnasium.Env):
    """A swing that says nothing of success."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    told: dict = {}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, self.told


class Telling(Quiet):
    """Says it in each step."""

    told = {"is_success": False}  # noqa: RUF012


def test_an_environment_that_tells_nothing_of_success_is_refused_before_the_run():
    settings = {"max_episode_steps": 4, "num_envs": 2, "iterations": 1, "plan": None, **QUIET}
    with pytest.raises(EnvError, match=r"Quiet says nothing about success.*Next: reward='environment', or an environment whose every step says it"):
        lab.train("grpo", Quiet, **settings)
    assert lab.train("grpo", Telling, **settings).wait().state == "finished"
    assert lab.train("grpo", Quiet, reward="environment", **settings).wait().state == "finished"


@pytest.mark.parametrize(("algorithm", "settings", "error", "said"), [
    ("grpo", {"num_envs": 1}, ConfigError, "EmbodiedGRPOConfig.num_envs is 1"), ("grpo", {"advantage": "gae"}, UnknownNameError, "gae"),
    ("grpo", {"max_episode_steps": None}, ConfigError, "limits no episode"), ("grpo", {"target_kl": 0}, ConfigError, "target_kl is 0"),
    ("dagger", {"expert": 3}, ConfigError, "DAggerConfig.expert is 3"), ("dagger", {"expert": "expert"}, ConfigError, "has no scripted expert"),
    ("dagger", {"decay": 2}, ConfigError, "decay=2"), ("dagger", {"std": 0}, ConfigError, "std is 0"),
])  # fmt: skip
def test_a_bad_value_is_said_before_anything_starts(algorithm, settings, error, said):
    with pytest.raises(error) as found:
        lab.train(algorithm, LineEnv, **{**(GRPO if algorithm == "grpo" else {**DAGGER, "expert": expert}), **settings}, plan=None, **QUIET)
    assert said in str(found.value)


@pytest.mark.parametrize(("algorithm", "settings"), [("dagger", {**DAGGER, "expert": expert}), ("grpo", GRPO)])
def test_an_iteration_of_an_unknown_request_of_theirs_is_refused(algorithm, settings):
    """A typo trained in silence."""
    recipe = find(algorithm, LineEnv)
    flow = recipe.build(recipe.config.preset(LineEnv, **settings))
    with (
        lab.session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])) as session,
        pytest.raises(UnknownNameError, match=r"request of an iteration.*'eval'.*evaluate"),
    ):
        session.step("eval")


def test_what_a_network_that_is_there_cannot_be_is_told_before_anything_starts() -> None:
    """The fields that make one, and an actor whose critics value actions instead of observations."""
    quiet = {"plan": None, **QUIET}
    actor = lab.train("sac", "Pendulum-v1", total_timesteps=8, net_arch=(8,), **quiet).wait()
    with pytest.raises(ConfigError, match="policy=StartingPolicy\\(sac on .*observations are valued. Next: a run of 'ppo'"):
        lab.train("ppo", "Pendulum-v1", policy=actor, iterations=1, **quiet)
    learnt = lab.train("ppo", "Pendulum-v1", iterations=1, num_envs=2, n_steps=8, **quiet).wait()
    with pytest.raises(ConfigError, match=r"net_arch=\(8,\): the network is that of policy=StartingPolicy\(ppo .* Next: leave net_arch out"):
        lab.train("ppo", "Pendulum-v1", policy=learnt, net_arch=(8,), iterations=1, **quiet)
