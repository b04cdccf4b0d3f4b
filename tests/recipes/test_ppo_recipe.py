"""The PPO recipe: configuration, graph, and the same learning under every plan."""

from __future__ import annotations

import dataclasses
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from rlinf_lab.errors import ConfigError, RenamedError, UnknownNameError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.policies import Flow
from rlinf_lab.policies.transformer import make_chunk_transformer
from rlinf_lab.recipes.clone import CloneConfig
from rlinf_lab.recipes.config import pooled
from rlinf_lab.recipes.ppo import OLD_NAMES, PRESETS, PPOConfig, build
from rlinf_lab.recipes.schedules import linear
from rlinf_lab.recipes.starting_policy import StartingPolicy
from rlinf_lab.records import Episodes
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.session.session import Session

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
from line_env import LineEnv

DEVICES = ["cpu:0", "cpu:1"]
SMALL = PPOConfig(LineEnv, max_episode_steps=5, num_envs=4, n_steps=10, iterations=10, batch_size=10, n_epochs=2)


@pytest.mark.parametrize("env_id", PRESETS)
def test_presets_are_valid(env_id):
    config = PPOConfig.preset(env_id, seed=3)
    assert config.seed == 3 and all(getattr(config, name) == value for name, value in PRESETS[env_id].items())


@pytest.mark.parametrize(("field", "value", "limit"), [
    ("gamma", 1.2, "a number between 0 and 1, or a schedule"), ("num_envs", 0, "a whole number of at least 1"), ("seed", -1, "a whole number of at least 0"),
    ("learning_rate", 0.0, "a number greater than 0"), ("batch_size", 801, "at most num_envs × n_steps = 800"),
    ("log_std_init", 9.0, "a number between -5 and 2"), ("max_episode_steps", 0, "a whole number of at least 1, or None"),
    ("ent_coef", -0.1, "a number of at least 0"), ("num_envs", "8", "a whole number of at least 1"), ("num_envs", True, "a whole number of at least 1"),
    ("n_steps", 2.5, "a whole number of at least 1"), ("max_episode_steps", 2.5, "a whole number of at least 1, or None"),
    ("batch_size", 1, "a whole number of at least 2"), ("net_arch", 64, "a tuple of whole numbers"), ("net_arch", (64, 0), "a tuple of whole numbers"),
    ("gamma", float("nan"), "a number between 0 and 1"), ("gamma", "0.9", "a number between 0 and 1"),
    ("learning_rate", float("inf"), "a number greater than 0"), ("learning_rate", linear(1e-3, -1e-3), "a number greater than 0 everywhere"),
    ("save_to", 3, "a path, or None"), ("policy", torch.nn.Linear(2, 2), "a function that makes a torch module"),
    ("total_timesteps", 1000, "None where total_timesteps is given"), ("chunk_size", 0, "a whole number of at least 1, or None"),
    ("chunk_size", 7, "a multiple of the chunk's size, 7"), ("chunk_size", 50, "at most num_envs × n_steps / chunk_size = 16"),
    ("per_action", True, "False where single actions are chosen"), ("reward", "sparse", "'environment' or 'success'"),
    ("target_kl", 0, "a number greater than 0, or None"),
])  # fmt: skip
def test_a_bad_value_is_named_with_its_limit(field, value, limit):
    with pytest.raises(ConfigError) as error:
        PPOConfig(**{"env": "metaworld/button-press-v3", **PRESETS["metaworld/button-press-v3"], field: value})
    named = {("total_timesteps", 1000): "iterations", ("chunk_size", 7): "n_steps", ("chunk_size", 50): "batch_size"}.get((field, value), field)
    assert f"PPOConfig.{named} is " in str(error.value) and f"it must be {limit}" in str(error.value)


@pytest.mark.parametrize(("changes", "size"), [
    ({"num_envs": 1}, 128), ({"n_steps": 16}, 128), ({"num_envs": 1, "n_steps": 32, "chunk_size": 4}, 8), ({}, 256), ({"num_envs": 2}, 256),
])  # fmt: skip
def test_the_usual_batch_is_at_most_what_an_iteration_has(changes, size):
    assert PPOConfig.preset("CartPole-v1", **changes).batch_size == size


def test_a_batch_that_was_asked_for_stays_and_the_largest_one_is_said():
    with pytest.raises(ConfigError, match=r"batch_size is 256; it must be at most .* = 128\. Next: batch_size=128"):
        PPOConfig.preset("CartPole-v1", num_envs=1, batch_size=256)
    with pytest.raises(ConfigError, match="n_steps is 1; it must be such that num_envs × n_steps, which is 1, is at least 2"):
        PPOConfig.preset("CartPole-v1", num_envs=1, n_steps=1)
    with pytest.raises(ConfigError, match="num_envs is '1'"):
        PPOConfig.preset("CartPole-v1", num_envs="1")


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_name_says_the_new_one_in_one_line(old):
    for attempt in (lambda: PPOConfig(env="CartPole-v1", **{old: 1}), lambda: PPOConfig.preset("CartPole-v1", **{old: 1}), lambda: getattr(SMALL, old)):
        with pytest.raises(RenamedError, match=rf"^PPOConfig: '{old}' is (called|gone).* Next: .*$"):
            attempt()


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
            for name, value in theirs.items():
                assert ours[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


@pytest.mark.parametrize("per_action", [False, True])
def test_chunks_of_one_action_are_single_actions(per_action):
    """The learner of chunks against that of actions: the same noise, the same curve."""
    single, chunks = (run(dataclasses.replace(SMALL, **more), PLANS["fused"]) for more in ({}, {"chunk_size": 1, "per_action": per_action}))
    for ours, theirs in zip([*chunks[0], *chunks[1:]], [*single[0], *single[1:]], strict=True):
        for name, value in theirs.items():
            assert ours[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(("policy", "shape"), [
    (None, (4, 5)), (partial(make_chunk_transformer, chunk=5, width=8, heads=2, depth=1), (4, 5)),
    (StartingPolicy("clone", CloneConfig(LineEnv, max_episode_steps=5, chunk_size=5)), (4, 5)),
    (StartingPolicy("clone", CloneConfig(LineEnv, max_episode_steps=5, chunk_size=5, flow=Flow())), (4, 5)),
    (StartingPolicy("clone", CloneConfig(LineEnv, max_episode_steps=5, chunk_size=5, flow=Flow(noisy_steps=2))), (4,)),
], ids=["own", "transformer", "clone", "flow", "flow of two noisy steps"])  # fmt: skip
def test_log_probabilities_of_a_chunk_are_those_of_its_actions(policy, shape):
    """Where they do not depend on one another: so the last of an episode's chunk can be left out, also by what goes on from a clone."""
    made = dataclasses.replace(SMALL, chunk_size=5, batch_size=4, policy=policy).make_policy()()
    obs = np.zeros((4, 2), np.float32)
    action, log_prob = made.act(obs, made.draw_noise(np.random.default_rng(0), 4))
    assert log_prob.shape == shape
    np.testing.assert_allclose(made.evaluate_actions(obs, action)[0].detach(), log_prob, atol=1e-3)


def test_the_same_learning_of_chunks_under_every_plan():
    config = dataclasses.replace(SMALL, chunk_size=5, batch_size=4, reward="success", critic_warmup=1, target_kl=0.1)
    results = {name: run(config, plan) for name, plan in PLANS.items()}
    reference = results.pop("temporal")
    for rows, score, after in results.values():
        for ours, theirs in zip([*rows, score, after], [*reference[0], *reference[1:]], strict=True):
            for name, value in theirs.items():
                assert ours[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


def test_an_advantage_and_a_loss_of_ones_own_are_used_by_name():
    """Registered as copies of what is there they learn the same; turned round they do not."""
    from rlinf_lab import algorithms

    algorithms.advantage("mine", of="steps")(lambda *arrays, gamma, lam: algorithms.gae(*arrays, gamma=gamma, lam=lam))
    algorithms.loss("mine")(lambda log_prob, old, advantage, mask=None, **options: algorithms.policy_loss(log_prob, old, advantage, mask, **options))
    algorithms.loss("against")(lambda log_prob, old, advantage, mask=None, **options: algorithms.policy_loss(log_prob, old, -advantage, mask, **options))
    plain, mine, against = (
        run(dataclasses.replace(SMALL, **more), PLANS["fused"])[0] for more in ({}, {"advantage": "mine", "loss": "mine"}, {"loss": "against"})
    )
    for ours, theirs in zip(mine, plain, strict=True):  # not to the last bit: gradients of the usual loss are written out
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4)
    assert against[1]["return"] != plain[1]["return"]
    with pytest.raises(UnknownNameError, match="'grpo' is of group; here one of steps is needed"):
        dataclasses.replace(SMALL, advantage="grpo")
    with pytest.raises(UnknownNameError, match="Did you mean 'against'"):
        dataclasses.replace(SMALL, loss="againts")


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
    def of(*returns):
        return Episodes(np.array(returns), np.ones(len(returns), int), *np.full((2, len(returns)), np.nan))

    score = pooled([of(3.0), of(7.0, 7.0, 7.0)])
    assert score["episodes"] == 4 and score["return"] == 6.0 and score == pooled(of(3.0, 7.0, 7.0, 7.0)) and "success_rate" not in score


def test_an_iteration_of_an_unknown_request_is_refused():
    """A typo trained in silence."""
    flow = build(PPOConfig.preset("CartPole-v1"))
    executor = LocalExecutor(flow, ExecutionPlan.temporal(flow, ["cpu:0"]))
    executor.start()
    try:
        with pytest.raises(UnknownNameError, match=r"request of an iteration.*'eval'.*evaluate"):
            Session(executor).step("eval")
    finally:
        executor.stop()
