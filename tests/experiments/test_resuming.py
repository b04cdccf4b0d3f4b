"""A run that was interrupted and goes on against one that never was: the same numbers to the last bit where environments save their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.algorithms import policy_loss
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.experiments import TrainingRun
from rlinf_lab.experiments.storage.folder import RunFolder
from rlinf_lab.experiments.storage.snapshot import Snapshot
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.workers.standing import live, plain

ITERATIONS, HALF = 4, 2
PPO: dict[str, Any] = {"num_envs": 4, "n_steps": 24, "batch_size": 48, "n_epochs": 2, "normalize_reward": True}  # no episode ends with an iteration
SAC: dict[str, Any] = {"num_envs": 2, "train_freq": 16, "learning_starts": 32, "batch_size": 16, "gradient_steps": 4}


def two_slots(flow: Any) -> ExecutionPlan:
    return ExecutionPlan.temporal(flow, ["cpu:0"], sub_batches={"simulator": 2})


def trained(folder: Path, algorithm: str, env: Any, until: int, **settings: Any) -> TrainingRun:
    stops = {} if until == ITERATIONS else {"until": {"return": -1e9}, "eval_every": {"iterations": until}, "eval_episodes": 1}
    return lab.train(algorithm, env, iterations=ITERATIONS, folder=folder, progress=False, **settings, **stops).wait()


def learnt(run: TrainingRun) -> dict[str, np.ndarray]:
    return run.policy().module.weights().arrays


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        ("ppo", "numpy/ReachArm-v0", {**PPO, "plan": None}),
        ("ppo", "CartPole-v1", {**PPO, "plan": two_slots, "runner": "numpy"}),
        ("ppo", "HalfCheetah-v5", {**PPO, "plan": None, "runner": "mujoco", "max_episode_steps": 30}),
        ("sac", "Pendulum-v1", {**SAC, "plan": None, "runner": "numpy"}),
    ],
)
def test_an_interruption_changes_nothing(tmp_path: Path, algorithm: str, env: str, settings: dict[str, Any]) -> None:
    whole = trained(tmp_path / "whole", algorithm, env, ITERATIONS, **settings)
    half = trained(tmp_path / "half", algorithm, env, HALF, **settings)
    assert half.iteration == HALF
    more = lab.resume(tmp_path / "half", progress=False, until=None, eval_every=None).wait()
    assert f"went on after iteration {HALF} exactly where it was" in repr(more)
    columns = [name for name in whole.metrics if "seconds" not in name and name in more.metrics and whole.metrics[name].dtype == float]
    assert "return" in columns or "actor_loss" in columns
    later = slice(HALF, ITERATIONS)
    np.testing.assert_array_equal(more.metrics[columns].iloc[later].to_numpy(), whole.metrics[columns].iloc[later].to_numpy())
    assert all(np.array_equal(array, learnt(more)[name]) for name, array in learnt(whole).items())
    assert more.save(tmp_path / "copy") and half.evaluate(1, best=True)["return"] == more.evaluate(1, best=True)["return"]
    kept = [RunFolder(tmp_path / name).best() for name in ("half", "copy")]
    assert kept[0] and kept[1] and kept[0].about == kept[1].about
    np.testing.assert_equal(*(best.weights.arrays for best in kept if best))


class Single(gymnasium.Env[Any, Any]):
    """One that nobody can save: it has a lock, as environments with a connection do."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(2, self.t / 50, np.float32), 1.0, False, self.t == 50, {}


def test_what_begins_anew_is_said_with_the_reason(tmp_path: Path) -> None:
    trained(tmp_path / "loop", "ppo", Single, HALF, **{**PPO, "plan": None})
    again: dict[str, Any] = {"progress": False, "until": None, "eval_every": None}
    more = lab.resume(tmp_path / "loop", env=Single, **again).wait()
    assert "from the start of episodes (" in repr(more) and "Single" in repr(more), repr(more)
    trained(tmp_path / "arm", "ppo", "numpy/ReachArm-v0", HALF, **{**PPO, "plan": None})
    run = lab.resume(tmp_path / "arm", num_envs=8, **again).wait()
    assert "from the start of episodes (another num_envs)" in repr(run)


@pytest.mark.parametrize("other", [{"env": "Acrobot-v1"}, {"net_arch": (32, 32)}])
def test_weights_of_another_network_do_not_go_on(tmp_path: Path, other: dict[str, Any]) -> None:
    few: dict[str, Any] = {**PPO, "plan": None, "iterations": 1, "progress": False}
    lab.train("ppo", "CartPole-v1", folder=tmp_path / "run", **few).wait()
    with pytest.raises(ConfigError, match=r"These weights are of another policy than .* has: size mismatch .* Next: "):
        lab.resume(tmp_path / "run", iterations=2, progress=False, **other)
    assert lab.resume(tmp_path / "run", iterations=2, progress=False).wait().iteration == 2


def test_an_environment_that_gymnasium_made_is_kept_by_its_id(tmp_path: Path) -> None:
    """One with arguments of its own is asked for again, by no private name."""
    few: dict[str, Any] = {**PPO, "plan": None, "iterations": 1, "progress": False}
    run = lab.train("ppo", gymnasium.make("CartPole-v1", render_mode="rgb_array"), folder=tmp_path / "made", **few).wait()
    loaded = lab.load_policy(tmp_path / "made")
    assert loaded.config.env == "CartPole-v1" and loaded.evaluate(2)["return"] == run.evaluate(2)["return"]
    assert lab.resume(tmp_path / "made", iterations=2, progress=False).wait().iteration == 2
    short = gymnasium.make("CartPole-v1", max_episode_steps=7)
    lab.train("ppo", short, folder=tmp_path / "short", **few).wait()
    with pytest.raises(ConfigError, match=r"in Python: lab.load_policy\(.*short', env=gymnasium\.make\('CartPole-v1', \.\.\.\)\)"):
        lab.load_policy(tmp_path / "short")
    assert lab.load_policy(tmp_path / "short", env=short).evaluate(2)["length"] == 7


def test_a_generator_goes_through_a_file_and_draws_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rng.normal(size=5)
    state = plain({"rngs": [rng], "x": (np.arange(3), None, "a")})
    from rlinf_lab.policies.weights import PolicyWeights

    Snapshot(1, {"weights": PolicyWeights({"w": np.zeros(1, np.float32)}, 1), "standing": state}).save(tmp_path / "state")
    back = live(Snapshot.load(tmp_path / "state").state["standing"])
    assert np.array_equal(back["rngs"][0].normal(size=9), rng.normal(size=9)) and back["x"][1:] == (None, "a")
    with pytest.raises(TypeError, match=r"its state\['rngs'\]\[0\] is of type object"):
        plain({"rngs": [object()]})


def test_acting_needs_no_loss_of_ones_own_and_going_on_does(tmp_path) -> None:
    """As in a new process, where nobody has registered it."""
    losses = lab.algorithms.loss
    losses("of this test")(lambda log_prob, old, advantage, mask=None, **options: policy_loss(log_prob, old, advantage, mask, **options))
    run = lab.train("ppo", "CartPole-v1", loss="of this test", iterations=1, num_envs=2, n_steps=8, folder=tmp_path / "run", plan=None, progress=False)
    run.wait()
    action = run.policy().act(np.zeros(4))
    del losses._entries["of this test"]
    assert lab.load_policy(tmp_path / "run").act(np.zeros(4)) == action
    with pytest.raises(UnknownNameError, match="Unknown loss 'of this test'.*register yours"):
        lab.resume(tmp_path / "run", iterations=2)
