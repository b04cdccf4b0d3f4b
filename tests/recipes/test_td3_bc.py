"""TD3+BC: the loss by hand, learning from data alone, resuming, ranks, bad input."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlinf_lab as lab
from rlinf_lab.algorithms import td3_bc_actor_loss
from rlinf_lab.errors import ConfigError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes import td3_bc
from rlinf_lab.recipes.td3_bc import TD3BCConfig
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session

SMALL = {"net_arch": (16,), "batch_size": 32, "steps_per_iteration": 10, "learning_rate": 1e-2}


class Aim(gymnasium.Env):
    """One step: the reward is how near the action comes to twice the observation, so the data's best is to be found, not its mean."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Box(-4.0, 4.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.seen, {}

    def step(self, action):
        error = float(abs(action[0] - 2 * self.seen[0]))
        return self.seen, -error, True, False, {"success": error < 0.2}


def recorded(episodes: int = 400, seed: int = 0) -> lab.datasets.EpisodeList:
    rng = np.random.default_rng(seed)
    return lab.collect(Aim, lambda obs_N: rng.uniform(-1, 1, (len(obs_N), 1)), episodes=episodes, seed=seed)


def test_the_loss_by_hand():
    q_KB, mine_BA, data_BA = torch.tensor([[1.0, -3.0], [9.0, 9.0]]), torch.tensor([[0.5], [0.0]]), torch.tensor([[0.0], [1.0]])
    assert td3_bc_actor_loss(q_KB, mine_BA, data_BA, 2.5).item() == pytest.approx(-(2.5 / 2) * (-1) + (0.25 + 1) / 2)
    assert td3_bc_actor_loss(q_KB, mine_BA, data_BA, 0.0).item() == pytest.approx(0.625)
    q = torch.tensor([[2.0, 4.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(td3_bc_actor_loss(q, mine_BA, data_BA, 3.0), q)
    assert gradient.tolist() == [[pytest.approx(-0.5), pytest.approx(-0.5)]], "the scale has no gradient"
    assert torch.isfinite(td3_bc_actor_loss(torch.zeros(2, 2), mine_BA, data_BA, 2.5))


def test_it_finds_what_is_best_in_data_of_which_a_clone_learns_the_mean():
    data, shared = recorded(), {"plan": None, "folder": False, "progress": False, "seed": 0}
    clone = lab.train("clone", Aim, data=data, gradient_steps=300, net_arch=(32, 32), **shared).wait()
    offline = lab.train("td3_bc", Aim, data=data, gradient_steps=1500, net_arch=(32, 32), learning_rate=3e-3, **shared).wait()
    found, mean = offline.evaluate(episodes=100, seed=1), clone.evaluate(episodes=100, seed=1)
    assert found["return"] > -0.4 > 2 * -0.4 > mean["return"], (found, mean)
    assert offline.metrics["gradient_steps"].iloc[-1] == offline.metrics["env_steps"].iloc[-1] == 2000
    action = offline.policy().predict(np.array([0.5], np.float32))[0]
    assert Aim.action_space.contains(action) and abs(action[0] - 1.0) < 0.6


def updates(config: TD3BCConfig, count: int, state=None):
    flow = td3_bc.build(config, state)
    executor = LocalExecutor(flow, ExecutionPlan.temporal(flow, ["cpu:0"]))
    executor.start()
    try:
        session = Session(executor)
        rows = [session.step() for _ in range(count - 1)]
        done = session.step("checkpoint")
        return [*rows, done["metrics"]], done["state"]
    finally:
        executor.stop()


def test_a_run_that_goes_on_is_the_run_that_was_not_stopped():
    config = TD3BCConfig(Aim, data=recorded(60), gradient_steps=60, **SMALL)
    whole, end = updates(config, 6)
    first, state = updates(config, 3)
    rest, last = updates(config, 3, state)
    assert [*first, *rest] == whole
    for name, array in end["weights"].arrays.items():
        assert (last["weights"].arrays[name] == array).all(), name


def test_observations_are_normalised_by_the_data_and_a_policy_keeps_that(tmp_path: Path):
    data = recorded(100)
    run = lab.train("td3_bc", Aim, data=data, gradient_steps=10, plan=None, folder=tmp_path / "run", progress=False, **SMALL).wait()
    obs = np.concatenate([e.obs_T for e in data])
    mean = next(array for name, array in run.policy().module.weights().arrays.items() if name.endswith("mean"))
    assert mean == pytest.approx(obs.mean(0), abs=1e-5)
    again = lab.load_policy(tmp_path / "run", env=Aim)
    assert again.act(obs[:5]).tolist() == run.policy().act(obs[:5]).tolist()
    sparse = TD3BCConfig(Aim, data=data, reward="success").transitions
    assert sorted(np.unique(sparse.rows(sparse.order)["reward"])) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"data": None}, "'td3_bc' needs recorded episodes"), ({"alpha": -1.0}, "alpha is -1.0"), ({"reward": "more"}, "reward is 'more'"),
        ({"total_timesteps": 10}, "gradient_steps"), ({"gamma": 2.0}, "gamma is 2.0"), ({"data": [1, 2]}, "recorded episodes"), ({"n_critics": 0}, "n_critics is 0"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(settings, says):
    with pytest.raises(ConfigError, match=says):
        td3_bc.build(TD3BCConfig(Aim, **{"data": recorded(4), **settings}))


def test_choices_are_refused_before_anything_starts():
    data = lab.collect("CartPole-v1", lambda obs_N: np.zeros(len(obs_N), np.int64), episodes=2)
    with pytest.raises(ConfigError, match=r"Discrete\(2\)"):
        lab.train("td3_bc", data=data, plan=None, folder=False)
