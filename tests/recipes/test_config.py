"""What all recipes have in common: their fields, what an iteration answers, half precision and torch.compile."""

from __future__ import annotations

import dataclasses
import html
import pydoc
import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.experiments.options import Options
from rlinf_lab.experiments.recipe import HOMES, find
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.recipes.described import default_of, field_docs

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))
from reach_line import ReachLine

QUIET = {"folder": False, "progress": False, "plan": None}
ACTS = {"max_episode_steps": 6, "num_envs": 4, "net_arch": (8,), "batch_size": 8, "iterations": 3}
OFF_POLICY = {"max_episode_steps": 6, "net_arch": (8,), "batch_size": 8, "num_envs": 2, "train_freq": 4, "learning_starts": 8, "iterations": 3}


def expert(obs_NX):
    """Halves the way to the middle."""
    return (-0.5 * obs_NX[:, :1]).astype(np.float32)


def demonstrated():
    return lab.collect(ReachLine, expert, episodes=4, max_episode_steps=6)


SETTINGS = {
    "ppo": lambda: {**ACTS, "n_steps": 6, "n_epochs": 1},
    "embodied_grpo": lambda: {**ACTS, "n_epochs": 1, "reward": "environment"},
    "dagger": lambda: {**ACTS, "n_steps": 6, "expert": expert, "steps_per_iteration": 3},
    "clone": lambda: {"data": demonstrated(), "net_arch": (8,), "batch_size": 8, "gradient_steps": 9, "steps_per_iteration": 3},
    "td3_bc": lambda: {"data": demonstrated(), "net_arch": (8,), "batch_size": 8, "gradient_steps": 9, "steps_per_iteration": 3},
    "sac": lambda: {**OFF_POLICY},
    "td3": lambda: {**OFF_POLICY},
    "rlpd": lambda: {**OFF_POLICY, "data": demonstrated(), "gradient_steps": -1, "n_critics": 3, "policy_delay": 1},
}


def test_every_recipe_of_environments_is_tried_here():
    assert set(SETTINGS) == set(HOMES) - {"grpo"}


def test_a_whole_float_is_a_number_of_steps():
    preset = partial(find("ppo").config.preset, ReachLine, iterations=None)
    assert repr(preset(total_timesteps=1e4).total_timesteps) == "10000"
    with pytest.raises(ConfigError, match="total_timesteps is 0.5"):
        preset(total_timesteps=0.5)


@pytest.mark.parametrize("settings", [*(find(name).config for name in HOMES), Options], ids=lambda settings: settings.__name__)
def test_every_field_is_explained_in_help_and_in_a_notebook(settings):
    read = " ".join(line.strip(" |") for line in pydoc.render_doc(settings, renderer=pydoc.plaintext).split("\n"))
    docs = field_docs(settings)
    one = settings.preset(ReachLine) if settings.__name__ == "PPOConfig" else Options() if settings is Options else None
    for field in dataclasses.fields(settings):
        assert docs[field.name] and f"{field.name} ({default_of(field)}): {docs[field.name]}" in read
        if one is not None:
            cells = [f"<code>{field.name}</code>", html.escape(default_of(field)), html.escape(docs[field.name])]
            assert all(cell in one._repr_html_() for cell in cells)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_recipe_has_these_fields(name):
    recipe, settings = find(name), SETTINGS[name]()
    config = recipe.config.preset(ReachLine, **settings, learners=2, precision="bfloat16", compile=True)
    assert recipe.shares(config)["learner"] == 2
    for field, value in (("precision", "float16"), ("compile", 1), ("learners", 0), ("learners", 9), ("seed", -1), ("seed", 2**63), ("iterations", 0), ("save_to", 3)):
        with pytest.raises(ConfigError, match=rf"{recipe.config.__name__}\.{field} is {value!r}"):
            recipe.config.preset(ReachLine, **{**settings, field: value})
    with pytest.raises(UnknownNameError, match=r"precission.*Did you mean 'precision'"):
        recipe.config.preset(ReachLine, **settings, precission="bfloat16")


@pytest.mark.parametrize("name", SETTINGS)
def test_a_typo_in_a_request_is_refused(name):
    recipe = find(name)
    flow = recipe.build(recipe.config.preset(ReachLine, **SETTINGS[name]()))
    with pytest.raises(UnknownNameError, match=r"'trian'.*Did you mean 'train'"):
        lab.run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), inputs=["trian"], executor="local").wait()


def weights_of(name: str, **more) -> dict[str, np.ndarray]:
    run = lab.train(name, ReachLine, **SETTINGS[name](), **QUIET, **more).wait()
    return {key: tensor.detach().numpy().copy() for key, tensor in run.policy().module.state_dict().items()}


@cache
def usual_weights_of(name: str) -> dict[str, np.ndarray]:
    return weights_of(name)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_seed_learns_the_same_to_the_last_bit(name):
    once, again, other = usual_weights_of(name), weights_of(name), weights_of(name, seed=1)
    for key, array in once.items():
        np.testing.assert_array_equal(again[key], array, err_msg=key)
    assert any(not np.array_equal(other[key], array) for key, array in once.items())


def learnt_by(name: str, learners: int, **more) -> np.ndarray:
    """The numbers of the second iteration."""
    recipe = find(name)
    flow = recipe.build(recipe.config.preset(ReachLine, **SETTINGS[name](), learners=learners, **more))
    if learners == 1:
        plan = ExecutionPlan.temporal(flow, ["cpu:0"])
    else:
        plan = ExecutionPlan.spatial(flow, devices=["cpu:0", "cpu:1"], on={w: [0, 1] if w == "learner" else [0] for w in flow.graph.workers})
    run = lab.run(flow, plan, iterations=2, executor="local", dashboard=False)
    run.wait()
    return run.metrics.drop(columns=["seconds"], errors="ignore").iloc[-1]


SHARDED = ("ppo", "embodied_grpo", "dagger", "clone")


@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in SETTINGS), *((name, {"parallel": "fsdp"}) for name in SHARDED)])
def test_two_learners_learn_what_one_learns(name, more):
    one, two = learnt_by(name, 1), learnt_by(name, 2, **more)
    losses = [column for column in one.index if "loss" in column or column in ("action_error", "return", "kl")]
    assert losses
    np.testing.assert_allclose(two[losses].to_numpy(float), one[losses].to_numpy(float), rtol=1e-3, atol=1e-4, err_msg=str(losses))


@pytest.mark.parametrize("name", SETTINGS)
def test_half_precision_learns_nearly_the_same(name):
    single, half = usual_weights_of(name), weights_of(name, precision="bfloat16")
    moved = [np.abs(half[key] - single[key]).max() for key in single if single[key].dtype.kind == "f" and single[key].size]
    assert 0 < max(moved) < 0.05, "it is computed otherwise, and not very otherwise"
    assert {array.dtype for array in half.values()} == {array.dtype for array in single.values()}


@pytest.mark.slow  # the compiler takes its time
@pytest.mark.parametrize("name", SETTINGS)
def test_compiled_learns_the_same(name):
    plain, compiled = usual_weights_of(name), weights_of(name, compile=True)
    for key, array in plain.items():
        np.testing.assert_allclose(compiled[key], array, rtol=1e-3, atol=1e-4, err_msg=key)
