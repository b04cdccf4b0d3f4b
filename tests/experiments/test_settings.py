"""Words that somebody brings along, and what is said of them."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.experiments.recipe import HOMES, find
from rlinf_lab.experiments.settings import check_names


@pytest.mark.parametrize(("given", "said"), [
    ({"device": "cuda"}, "Next: devices=['cpu:0'] or devices=['cuda:0']."), ({"verbose": 1}, "Next: progress=True."),
    ({"n_envs": 2}, "Next: num_envs=2."), ({"callback": print}, "Next: on_iteration="), ({"tensorboard_log": "x"}, "Next: loggers=['tensorboard']."),
    ({"gama": 0.9}, "ppo has no setting 'gama'. Did you mean 'gamma'? Known: gamma, "), ({"Gamma": 0.9}, "Did you mean 'gamma'?"),
    ({"gama": 0.9}, "from rlinf_lab.recipes.ppo import PPOConfig; help(PPOConfig)"),
])  # fmt: skip
def test_a_word_from_elsewhere_is_answered_with_ours(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownNameError) as raised:
        lab.train("ppo", "CartPole-v1", folder=False, **given)
    assert said in str(raised.value)


def test_nothing_is_meant_by_a_word_that_is_far_from_all() -> None:
    with pytest.raises(UnknownNameError, match=r"'optimizer_class'\. Known: ") as raised:
        lab.train("ppo", "CartPole-v1", folder=False, optimizer_class="Adam")
    assert "Did you mean" not in str(raised.value)


def test_a_run_that_goes_on_takes_a_plan_and_no_devices() -> None:
    with pytest.raises(UnknownNameError, match="'devices': .*Next: plan="):
        check_names(find("ppo"), {"devices": ["cpu:0"]}, {})


@pytest.mark.parametrize("name", HOMES)
def test_the_settings_can_be_imported_as_it_is_said(name: str) -> None:
    kind = find(name).config
    assert getattr(importlib.import_module(kind.__module__), kind.__name__) is kind


def test_names_differ_by_more_than_their_case() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'ppo'"):
        find("PPO")


def test_a_policy_class_of_another_library_is_answered() -> None:
    with pytest.raises(ConfigError, match="'MlpPolicy': the spaces of the environment choose the network"):
        lab.train("ppo", "CartPole-v1", folder=False, policy="MlpPolicy")


def test_who_begins_with_networks_of_its_own_names_those_that_go_on_from_a_policy() -> None:
    with pytest.raises(UnknownNameError) as raised:
        lab.train("sac", "Pendulum-v1", folder=False, policy="runs/mine")
    assert str(raised.value) == (
        "sac has no setting 'policy': it begins with networks of its own. Those that go on from a policy: clone, grpo, ppo. "
        "Next: leave it out; lab.resume(folder) goes on with a run."
    )
    with pytest.raises(ConfigError, match="'MlpPolicy': the spaces of the environment choose the network"):
        lab.train("sac", "Pendulum-v1", folder=False, policy="MlpPolicy")


@pytest.mark.parametrize("task", ["reasoning/sorting", "problems.jsonl"])
def test_what_trains_on_environments_names_what_learns_tasks(task: str) -> None:
    with pytest.raises(ConfigError, match=rf"sac trains on environments.*lab\.train\('grpo', '{task}'\)"):
        lab.train("sac", task, folder=False)


def test_an_expert_that_is_misspelt_is_no_folder() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'expert'"):
        lab.collect("CartPole-v1", "expret", episodes=1)
