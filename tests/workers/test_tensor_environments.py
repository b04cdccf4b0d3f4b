"""A simulator that hands over torch tensors, against the same one in numpy: equal trajectories, equal learning, observations not copied to the host."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, EnvError
from rlinf_lab.experiments.evaluation import Told, play
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.records import Action, EnvStep
from rlinf_lab.runtime.run.run import run
from rlinf_lab.trees import map_tree
from rlinf_lab.vecenv import make_vec
from rlinf_lab.vecenv.stepping.on_host import on_host
from rlinf_lab.workers import SimulatorWorker
from rlinf_lab.workers.environments import EnvGroup
from rlinf_lab.workers.tensors.environments import TensorEnvGroup

N, T, LIMIT = 6, 9, 5


def tensors(tree: Any) -> Any:
    return None if tree is None else map_tree(torch.from_numpy, tree)


class Tensors:
    """The arm of numpy, as if it were simulated on a device. ``breaks``: (step, environment) whose reward is not finite."""

    def __init__(self, num_envs: int, max_episode_steps: int | None = None, breaks: tuple[int, int] | None = None) -> None:
        self.env, self.num_envs, self.breaks, self.steps = make_vec("numpy/ReachArm-v0", num_envs, max_episode_steps or LIMIT), num_envs, breaks, 0
        self.spec = replace(self.env.spec, device="cpu")
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None) -> Any:
        return tensors(self.env.reset(seed=seed))

    def step(self, action_N: Any) -> EnvStep:
        self.taken.append(action_N)
        step = self.env.step(np.asarray(action_N))
        if self.breaks is not None and self.steps == self.breaks[0]:
            step.reward_N[self.breaks[1]] = np.nan
        self.steps += 1
        return EnvStep(*(tensors(getattr(step, field.name)) for field in fields(step)))

    def render(self) -> None:
        return None

    def close(self) -> None:
        self.env.close()


def test_trajectories_are_those_of_arrays() -> None:
    plain = EnvGroup(make_vec("numpy/ReachArm-v0", N, LIMIT), 0, 3, seed=1)
    there = TensorEnvGroup(on_host(Tensors(N)), 0, 3, seed=1)
    rng = np.random.default_rng(0)
    for iteration in range(4):
        for group in (plain, there):
            group.begin(T)
        for _ in range(T):
            action_N, log_prob_N = rng.uniform(-1, 1, (N, 2)).astype(np.float32), rng.normal(size=N).astype(np.float32)
            assert np.array_equal(plain.observation().obs_N, there.observation().obs_N) and plain.observation().step == there.observation().step
            plain.record(Action(0, action_N, log_prob_N, iteration))
            there.record(Action(0, torch.from_numpy(action_N), torch.from_numpy(log_prob_N), iteration))
        one, two = plain.finish(), there.finish()
        for field in fields(one):
            assert np.array_equal(getattr(one, field.name), getattr(two, field.name), equal_nan=field.name.startswith("end_success")), field.name
        assert isinstance(two.obs_TN, torch.Tensor) and isinstance(two.end_obs_E, torch.Tensor) and isinstance(two.action_TN, torch.Tensor)
        if iteration == 1:  # an evaluation gives up what is under way
            for group in (plain, there):
                group.restart(77)
                while not group.each_has_ended():
                    assert isinstance(group.observation().obs_N, np.ndarray)
                    group.step(np.zeros((N, 2), np.float32))
                group.forget()
            assert plain.first_outcomes() == there.first_outcomes()


def test_what_is_not_finite_stops_it_before_anybody_learns() -> None:
    group = TensorEnvGroup(on_host(Tensors(N, breaks=(6, 2))), 0, 3, seed=1)
    group.begin(T)
    for _ in range(T):
        group.record(Action(0, torch.zeros(N, 2), torch.zeros(N), 0))
    with pytest.raises(EnvError, match=r"numpy/ReachArm-v0, environment 5, step 2 of its episode \(6 steps in training before\): the reward is nan"):
        group.finish()


def losses(env: Any, sub_batches: int) -> list[dict[str, float]]:
    config = PPOConfig(env, num_envs=N, n_steps=T, batch_size=27, n_epochs=2, iterations=3, normalize_reward=True, max_episode_steps=LIMIT, seed=2)
    flow = build(config)
    plan = ExecutionPlan.temporal(flow, ["cpu:0"], sub_batches={"simulator": sub_batches})
    done = run(flow, plan, 3, executor="local").wait()
    return [dict(result) for result in done]


@pytest.mark.parametrize("sub_batches", [1, 2])
def test_ppo_learns_the_same(sub_batches: int) -> None:
    """Up to rounding: acting is in torch there, and in numpy here. Halves of the environments, as a plan may divide them, change nothing."""
    plain, there = losses("numpy/ReachArm-v0", 1), losses(Tensors, sub_batches)
    for one, two in zip(plain, there, strict=True):
        assert one.keys() == two.keys()
        for name, value in one.items():
            assert two[name] == pytest.approx(value, rel=2e-3, abs=2e-4), name


def test_actions_stay_where_the_policy_made_them() -> None:
    made: list[Tensors] = []

    def make(num_envs: int) -> Tensors:
        made.append(Tensors(num_envs))
        return made[-1]

    flow = build(PPOConfig(make, num_envs=N, n_steps=4, batch_size=8, iterations=1, normalize_obs=False))
    run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), 1, executor="local").wait()
    assert made[-1].taken and all(isinstance(action_N, torch.Tensor) for action_N in made[-1].taken)


def test_whoever_only_looks_gets_arrays() -> None:
    found = play(lambda n: Tensors(n), lambda obs_N: np.zeros((len(np.asarray(obs_N)), 2), np.float32), 5, 0, Told(0, 0))
    assert found["length"] == LIMIT and found["episodes"] == 5
    with pytest.raises(ConfigError, match="single steps"):
        worker = SimulatorWorker(Tensors, num_envs=2, n_steps=4, chunk_size=2)
        worker._env_group(worker._made(2), 0, 0)


def test_simulator_and_policy_as_one_unit_learn_the_same() -> None:
    """Under the front door's own plan, where both share a device."""
    settings = {"num_envs": N, "n_steps": T, "batch_size": 27, "n_epochs": 2, "iterations": 2, "max_episode_steps": LIMIT, "seed": 2}

    def arrays(num_envs: int, max_episode_steps: int | None = None) -> Any:  # no id, which has settings of its own
        return make_vec("numpy/ReachArm-v0", num_envs, max_episode_steps)

    plain, there = (lab.train("ppo", env, plan=None, folder=False, progress=False, **settings).wait().metrics for env in (arrays, Tensors))
    for name in ("return", "policy_loss", "value_loss", "entropy"):
        assert there[name].tolist() == pytest.approx(plain[name].tolist(), rel=2e-3, abs=2e-4), name
