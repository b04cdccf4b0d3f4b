"""The PPO recipe: configuration, graph, and the same learning under every plan."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.policies import Weights
from rlinf_lab.recipes.ppo import PRESETS, PPOConfig, build, build_evaluation, pooled
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
from line_env import LineEnv

DEVICES = ["cpu:0", "cpu:1"]
SMALL = PPOConfig(LineEnv, 2, 1, horizon=5, num_envs=4, steps=10, iterations=10, minibatch=10, epochs=2)


@pytest.mark.parametrize("env_id", PRESETS)
def test_presets_are_valid(env_id):
    assert PPOConfig.preset(env_id, seed=3).seed == 3


@pytest.mark.parametrize(("field", "value", "limit"), [
    ("gamma", 1.2, "a number between 0 and 1"), ("num_envs", 0, "a whole number of at least 1"), ("seed", -1, "a whole number of at least 0"),
    ("learning_rate", 0.0, "a number greater than 0"), ("minibatch", 801, "at most num_envs × steps = 800"), ("log_std", 9.0, "a number between -5 and 2"),
    ("horizon", 0, "a whole number of at least 1, or None"), ("entropy_coefficient", -0.1, "a number of at least 0"),
    ("num_envs", "8", "a whole number of at least 1"), ("num_envs", True, "a whole number of at least 1"), ("steps", 2.5, "a whole number of at least 1"),
    ("horizon", 2.5, "a whole number of at least 1, or None"), ("minibatch", 1, "a whole number of at least 2"), ("hidden", 64, "a tuple of whole numbers"),
    ("hidden", (64, 0), "a tuple of whole numbers"), ("gamma", float("nan"), "a number between 0 and 1"), ("gamma", "0.9", "a number between 0 and 1"),
    ("learning_rate", float("inf"), "a number greater than 0"), ("env_id", 3, "an id, 'simulator/task'"), ("save_to", 3, "a path, or None"),
])  # fmt: skip
def test_a_bad_value_is_named_with_its_limit(field, value, limit):
    with pytest.raises(ConfigError) as error:
        PPOConfig(**{"env_id": "metaworld/button-press-v3", **PRESETS["metaworld/button-press-v3"], field: value})
    assert f"PPOConfig.{field} is {value!r}; it must be {limit}" in str(error.value)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UnknownNameError, match="Did you mean 'learning_rate'"):
        PPOConfig.preset("metaworld/button-press-v3", learning_rat=1.0)
    with pytest.raises(UnknownNameError, match="Did you mean 'metaworld/button-press-v3'"):
        PPOConfig.preset("metaworld/button-pres")


def test_graph_has_one_cell_and_needs_no_simulator_to_be_drawn():
    graph = build(PPOConfig.preset("metaworld/button-press-v3")).graph
    assert [set(cell) for cell in graph.cells] == [{"simulator", "policy"}]
    assert set(graph.workers) == {"simulator", "policy", "learner"}


def run(config, plan, iterations=3):
    flow = build(config)
    executor = LocalExecutor(flow, plan(flow))
    executor.start()
    try:
        session = Session(executor)
        rows = [session.step() for _ in range(iterations)]
        return rows, session.step("evaluate"), session.step()
    finally:
        executor.stop()


PLANS = {
    "temporal": lambda flow: ExecutionPlan.temporal(flow, DEVICES),
    "temporal, two simulators": lambda flow: ExecutionPlan.temporal(flow, DEVICES, {"simulator": 2}),
    "temporal, two simulators, two policies": lambda flow: ExecutionPlan.temporal(flow, DEVICES, {"simulator": 2, "policy": 2}),
    "fused": lambda flow: ExecutionPlan.fused_cells(flow, DEVICES, {"simulator": 2, "policy": 2}),
    "spatial, double buffering": lambda flow: ExecutionPlan.spatial(
        flow, DEVICES, on={"simulator": [0], "policy": [1], "learner": [1]}, sub_batches={"simulator": 2}
    ),
}


def test_the_same_learning_under_every_plan():
    results = {name: run(SMALL, plan) for name, plan in PLANS.items()}
    reference = results.pop("temporal")
    assert reference[0][-1]["env_steps"] == 3 * 40
    for rows, score, after in results.values():
        for ours, theirs in zip([*rows, score, after], [*reference[0], *reference[1:]], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)


def test_saved_weights_are_evaluated_by_a_workflow_of_their_own(tmp_path):
    path = tmp_path / "policy.safetensors"
    config = PPOConfig(LineEnv, 2, 1, horizon=5, num_envs=4, steps=10, minibatch=10, save_to=str(path))
    run(config, PLANS["temporal"], 1)
    weights = Weights.load(path)
    assert weights.version == 2
    flow = build_evaluation(config, weights, episodes=8)
    executor = LocalExecutor(flow, ExecutionPlan.temporal(flow, DEVICES))
    executor.start()
    try:
        score = Session(executor).step()
    finally:
        executor.stop()
    assert score["episodes"] == 8 and np.isfinite(score["return"])


def test_a_run_goes_on_where_another_stopped():
    flow = build(SMALL)
    executor = LocalExecutor(flow, ExecutionPlan.temporal(flow, DEVICES))
    executor.start()
    try:
        session = Session(executor)
        session.step()
        state, score = session.step("state"), session.step("evaluate")
    finally:
        executor.stop()
    flow = build(SMALL, state)
    assert flow.graph  # tracing runs the body, which must not use the state up
    executor = LocalExecutor(flow, ExecutionPlan.temporal(flow, DEVICES))
    executor.start()
    try:
        session = Session(executor)
        assert session.step("evaluate") == score
        assert session.step()["env_steps"] == 2 * SMALL.env_steps
    finally:
        executor.stop()


def test_pooling_ranks_weights_by_episodes():
    assert pooled([{"episodes": 1.0, "return": 3.0}, {"episodes": 3.0, "return": 7.0}]) == {"episodes": 4.0, "return": 6.0}
    assert pooled({"episodes": 2.0}) == {"episodes": 2.0}
