"""From the words of `train` to a recipe's configuration. Unknown words suggest the nearest, old ones name the new."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, replace
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.experiments.recipe import ELSEWHERE, HOMES, Recipe, find, name_of
from rlinf_lab.experiments.storage.folder import RunFolder, from_plain
from rlinf_lab.notebook import in_notebook
from rlinf_lab.recipes.starting_policy import StartingPolicy
from rlinf_lab.vecenv import Runner

#: Words of earlier versions and of other libraries, and what they are called here; the first of the new ones that the
#: recipe has.
OLD_WORDS = {
    "lam": ("gae_lambda",), "horizon": ("max_episode_steps",), "steps": ("train_freq", "n_steps"),
    "rollout": ("train_freq", "n_steps"),
    "minibatch": ("batch_size",),
    "minibatch_size": ("batch_size",), "epochs": ("n_epochs",), "clip": ("clip_range",), "clip_eps": ("clip_range",),
    "value_coefficient": ("vf_coef",), "entropy_coefficient": ("ent_coef",), "lr": ("learning_rate",),
    "hidden": ("net_arch",),
    "log_std": ("log_std_init",), "n_envs": ("num_envs",), "env_id": ("env",), "discount": ("gamma",),
    "n_iterations": ("iterations",), "policy_kwargs": ("net_arch",), "num_epochs": ("n_epochs",),
    "num_steps": ("train_freq", "n_steps"), "n_step": ("n_steps",), "clip_coef": ("clip_range",),
    "num_generations": ("group_size",),
}  # fmt: skip

#: Of Stable-Baselines3 and others, what `train` itself is told: the word here, and what to write.
WORDS_OF_TRAIN = {
    "device": ("devices", "devices=['cpu:0'] or devices=['cuda:0']"), "verbose": ("progress", "progress=True"),
    "progress_bar": ("progress", "progress=True"), "tensorboard_log": ("loggers", "loggers=['tensorboard']"),
    "callback": ("on_iteration", "on_iteration=function_of_metrics"), "eval_freq": ("eval_every", "eval_every=5_000"),
    "n_eval_episodes": ("eval_episodes", "eval_episodes=20"),
    "timesteps": ("total_timesteps", "total_timesteps=100_000"),
    "log_dir": ("folder", "folder='runs/mine'"), "output_dir": ("folder", "folder='runs/mine'"),
}  # fmt: skip
POLICIES_OF_SB3 = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy")


def configured(recipe: Recipe, env: Any, total_timesteps: int | None, given: Mapping[str, Any]) -> Any:
    """The configuration for ``env``, changed by ``given``.

    A preset of the recipe where it has one.

    Raises `UnknownNameError` for a setting that the recipe does not have, `ConfigError` for a value that cannot work.
    """
    check_names(recipe, given)
    if env is None and given.get("data") is None:
        raise ConfigError(
            f"train({recipe.name!r}): there is no environment to train on. Next: lab.train({recipe.name!r}, "
            "'CartPole-v1')."
        )
    if given.get("policy") is not None and "policy" in recipe.fields:
        given = {**given, "policy": gone_on_from(given["policy"])}
    settings = dict(given) if total_timesteps is None else {**given, "total_timesteps": total_timesteps}
    if isinstance(env, VectorEnv) and "num_envs" in recipe.fields:
        settings.setdefault("num_envs", env.num_envs)
    if "render" in recipe.fields:  # where nobody looks nothing is drawn
        settings.setdefault("render", in_notebook())
    return recipe.configured(env, **settings)


def with_runner(config: Any, executor: str | None = None) -> tuple[Any, Runner | None]:
    """The configuration with the name of what steps its environments, and what that is. (as it is, None) where a recipe
    has no such field.

    Chosen once for a run, and kept in its folder: runners differ in the last digits of their numbers, and which one is
    fastest differs from day to day. `MissingDependencyError` for a simulator that is not installed; with ``executor``
    "ray" it may be where the workers will live.
    """
    if not hasattr(config, "runner"):
        return config, None
    runner = config.factory.for_run(config.num_envs, config.max_episode_steps, elsewhere=executor == "ray").runner
    return (config, None) if runner is None else (replace(config, runner=runner.name), runner)


def check_memory(config: Any, executor: str | None) -> None:
    """Says beforehand what will not fit into memory, where a recipe knows. With "ray" workers may live elsewhere."""
    if hasattr(config, "require_memory"):
        config.require_memory(elsewhere=executor == "ray")


def check_names(recipe: Recipe, given: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> None:
    """Raises `UnknownNameError`: with the new word for an old one, with the nearest for others. ``own``: what `train`
    takes besides.
    """
    for name in given:
        if name in recipe.fields:
            continue
        new = next((word for word in OLD_WORDS.get(name, ()) if word in recipe.fields), None)
        if new is not None:
            raise UnknownNameError(f"{name!r} is called {new!r} here. Next: {new}={shown(given[name])}.")
        if own is not None and name == "devices":  # of `resume`, for `train` takes them
            raise UnknownNameError("'devices': a run goes on under the plan that it had. Next: plan=, for another one.")
        if own is not None and name in WORDS_OF_TRAIN:
            word, example = WORDS_OF_TRAIN[name]
            raise UnknownNameError(f"{name!r} is called {word!r} here. Next: {example}.")
        if name == "policy":
            _refuse_policy_class(given[name])
            raise UnknownNameError(
                f"{recipe.name} has no setting 'policy': it begins with networks of its own. Those that go on from a "
                f"policy: {', '.join(_going_on())}. Next: leave it out; lab.resume(folder) goes on with a run."
            )
        kind = recipe.config
        raise UnknownNameError.of(
            "setting",
            name,
            [*recipe.fields, *(own or {})],
            f"All of them: from {kind.__module__} import {kind.__name__}; help({kind.__name__}).",
            alike=0.6,
            whose=recipe.name,
        )


def _going_on() -> list[str]:
    """Algorithms that take ``policy=``, as `train` calls them."""
    told = {here: name for name, here in ELSEWHERE.items()}
    return sorted(told.get(name, name) for name in HOMES if "policy" in find(name).fields)


def _refuse_policy_class(given: Any) -> None:
    """`ConfigError` for the name of a network of Stable-Baselines3."""
    if isinstance(given, str) and given in POLICIES_OF_SB3 and not Path(given).exists():
        raise ConfigError(
            f"policy={given!r}: the spaces of the environment choose the network here, and policy= takes a run, or a "
            "run's folder, to go on from. Next: leave it out; net_arch=(64, 64) changes the network."
        )


def configured_again(
    recipe: Recipe, kept: RunFolder, env: Any, total_timesteps: int | None, given: Mapping[str, Any],
    only_acts: bool = False,
) -> Any:  # fmt: skip
    """The configuration of a run's folder, changed by ``given``. ``only_acts``: without what only training needs."""
    plain = kept.read_json("config.json") | ({} if env is None else {"env": env}) | dict(given)
    if "policy" in plain:
        plain["policy"] = gone_on_from(plain["policy"], env)
    if total_timesteps is not None:
        plain |= {"total_timesteps": total_timesteps, "iterations": None}
    call = f"lab.{'load_policy' if only_acts else 'resume'}({str(kept.path)!r}, "
    return _of_plain(recipe, plain, f"the run in {str(kept.path)!r}", only_acts, call)


def _of_plain(
    recipe: Recipe, given: Mapping[str, Any], whose: str, only_acts: bool = True, call: str = "lab.train(..., "
) -> Any:
    """The configuration that settings of a file make. `ConfigError` for what is missing or was changed by hand.

    ``call``: to which what is missing can be given.
    """
    plain = {name: value for name, value in given.items() if not (only_acts and _is_spare(recipe, name, value))}
    for name, value in plain.items():
        if name not in recipe.fields:
            raise UnknownNameError.of("setting", name, recipe.fields, whose=recipe.name)
        for part in filter(_is_object, value if isinstance(value, list) else [value]):
            raise ConfigError(
                f"{name} of {whose} was an object of its program, {part['object']}, which a file does not hold. "
                f"Next: give such a one again, in Python: {call}{name}={part.get('again') or f'the_{name}'})."
            )
    for name, field in recipe.fields.items():
        if name not in plain and field.default is MISSING and field.default_factory is MISSING:
            raise ConfigError(
                f"The settings of {whose} have no {name!r}: config.json was changed. "
                f"Next: give it again, {name}=..., or write it into the file."
            )
    return recipe.config(**{name: from_plain(value) for name, value in plain.items()})


def _is_object(value: Any) -> bool:
    """Whether a file's value stands for an object that no file holds."""
    return isinstance(value, dict) and {"object"} <= set(value) <= {"object", "again"}


def _is_spare(recipe: Recipe, name: str, value: Any) -> bool:
    """What cannot be had here, and nobody needs to act.

    An object that no file holds, or the name of one that is not registered.
    """
    about = recipe.fields[name].metadata if name in recipe.fields else {}
    is_unknown = isinstance(value, str) and value not in about.get("known", [value])
    return (_is_object(value) or is_unknown) and not about.get("needed_to_act", True)


def gone_on_from(given: Any, env: Any = None) -> Any:
    """A run, a loaded policy or a run's folder as `StartingPolicy`. Also one from a file; what makes a module stays as
    it is.

    ``env``: of the run that goes on, where the other one's was an object. `ConfigError` for a policy of which nobody
    knows how it is made.
    """
    if isinstance(given, dict) and set(given) == {"policy_of"}:
        of = given["policy_of"]
        if not isinstance(of, dict) or not isinstance(of.get("config"), dict):
            raise ConfigError(f"policy={shown(given)}: config.json was changed by hand. Next: give it again, policy=.")
        recipe, plain = find(str(of.get("algorithm"))), dict(of["config"])
        if isinstance(plain.get("env"), dict):
            plain["env"] = env
        plain["policy"] = gone_on_from(plain.get("policy"), env)
        return StartingPolicy(recipe.name, _of_plain(recipe, plain, "the policy that a run went on from"))
    _refuse_policy_class(given)
    if isinstance(given, (str, os.PathLike)):
        kept = RunFolder(given)
        recipe = kept.recipe()
        config = configured_again(recipe, kept, env, None, {}, only_acts=True)
        return StartingPolicy(recipe.name, config, kept.weights())
    if hasattr(given, "recipe") and hasattr(given, "policy"):  # a run
        return StartingPolicy(given.recipe.name, given.config, given.policy().module.weights())
    if hasattr(given, "module") and hasattr(given, "config"):  # a loaded policy
        return StartingPolicy(name_of(given.config), given.config, given.module.weights())
    return given
