"""Simulator and policy as one worker learn, bit by bit, what they learn as two; plans that have them apart are left as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlinf_lab.experiments import train
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes import ppo, sac, td3
from rlinf_lab.recipes.ppo import PPOConfig, build, fuse
from rlinf_lab.runtime.run.run import run

CORES = ["cpu:0", "cpu:1"]


def learnt(flow: Any, plan: ExecutionPlan) -> dict[str, np.ndarray]:
    *_, last = run(flow, plan, None, "local", ["train", "train", "checkpoint"], emulate=True).wait()
    state = last["state"]
    return (state[0] if isinstance(state, list) else state)["weights"].arrays


def on_policy(env: str) -> tuple[Any, Any]:
    return ppo, PPOConfig.preset(env, num_envs=8, n_steps=32, batch_size=64, n_epochs=2, iterations=3)


def off_policy(recipe: Any, config: type[Any]) -> tuple[Any, Any]:
    """Some of whose steps are random, and some of whose iterations learn."""
    settings = {"num_envs": 8, "train_freq": 8, "batch_size": 16, "gradient_steps": 4, "learning_starts": 100, "iterations": 3, "net_arch": (8, 8)}
    return recipe, config("numpy/ReachArm-v0", normalize_obs=True, **settings)


@pytest.mark.parametrize(
    ("recipe", "config"),
    [on_policy("CartPole-v1"), on_policy("numpy/ReachArm-v0"), off_policy(sac, sac.SACConfig), off_policy(td3, td3.TD3Config)],
    ids=["ppo-CartPole", "ppo-ReachArm", "sac", "td3"],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_learnt_is_the_same_to_the_last_bit(recipe: Any, config: Any, ranks: int) -> None:
    flow = recipe.build(config)
    plan = ExecutionPlan.fused_cells(flow, CORES, {"simulator": 2}) if ranks == 2 else ExecutionPlan.temporal(flow, CORES[:1])
    made = recipe.fuse(config, plan)
    assert made is not None
    one, apart = learnt(*made), learnt(recipe.build(config), plan)
    assert set(made[1].placements) == {"rollout", "learner"} and made[1].ranks("rollout") == ranks
    assert all(np.array_equal(one[name], apart[name]) for name in apart)


def test_plans_that_have_them_apart_or_say_more_stay() -> None:
    config = PPOConfig.preset("numpy/ReachArm-v0", num_envs=8, iterations=2)
    flow = build(config)
    assert fuse(config, ExecutionPlan.spatial(flow, CORES, {"simulator": [0], "policy": [1], "learner": [1]})) is None
    assert fuse(config, ExecutionPlan.temporal(flow, CORES, {"simulator": 2})) is None, "one policy answers two simulators"
    assert fuse(config, ExecutionPlan.temporal(flow, CORES[:1], device_memory=1 << 30)) is None
    on_gpu = ExecutionPlan.temporal(flow, ["cuda:0"])
    assert fuse(config, on_gpu) is None, "environments are stepped on cores"


def test_the_front_door_fuses_plans_of_its_own_and_no_others(tmp_path: Any) -> None:
    settings: dict[str, Any] = {"num_envs": 8, "n_steps": 20, "batch_size": 80, "iterations": 2, "progress": False}
    own = train("ppo", "numpy/ReachArm-v0", plan=None, folder=tmp_path / "own", **settings).wait()
    given = train("ppo", "numpy/ReachArm-v0", plan=lambda flow: ExecutionPlan.temporal(flow, CORES[:1]), folder=False, **settings).wait()
    assert set(own.plan.placements) == {"rollout", "learner"} and set(given.plan.placements) == {"simulator", "policy", "learner"}
    again = train("ppo", "numpy/ReachArm-v0", plan=own.plan, folder=False, **settings).wait()
    assert again.plan == own.plan, "the plan of one run is one for another"
    a, b = own.policy().module.weights().arrays, given.policy().module.weights().arrays
    assert all(np.array_equal(a[name], b[name]) for name in a)
