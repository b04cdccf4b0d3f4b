"""From the words of `train` to a recipe's configuration: unknown ones suggest the nearest, old ones name the new."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

from rlinf_lab.errors import ConfigError, UnknownNameError, shown
from rlinf_lab.experiments.recipe import Recipe
from rlinf_lab.experiments.storage.folder import RunFolder, tuples

#: Words of earlier versions and of other libraries, and what they are called here; the first of the new ones that the recipe has.
OLD_WORDS = {
    "lam": ("gae_lambda",), "horizon": ("max_episode_steps",), "steps": ("n_steps",), "rollout": ("n_steps",), "minibatch": ("batch_size",),
    "minibatch_size": ("batch_size",), "epochs": ("n_epochs",), "clip": ("clip_range",), "clip_eps": ("clip_range",),
    "value_coefficient": ("vf_coef",), "entropy_coefficient": ("ent_coef",), "lr": ("learning_rate",), "hidden": ("net_arch",),
    "log_std": ("log_std_init",), "num_envs": ("n_envs",), "n_envs": ("num_envs",), "env": ("env_id",), "discount": ("gamma",),
}  # fmt: skip


def configured(recipe: Recipe, env: Any, total_timesteps: int | None, given: Mapping[str, Any]) -> Any:
    """The configuration for ``env``: a preset of the recipe where it has one, changed by ``given``.

    Raises `UnknownNameError` for a setting that the recipe does not have, `ConfigError` for a value that cannot work.
    """
    check_names(recipe, given)
    config = _constructed(recipe, env, given)
    return with_timesteps(recipe, config, total_timesteps)


def with_timesteps(recipe: Recipe, config: Any, total_timesteps: int | None) -> Any:
    """The configuration with as many iterations as give so many environment steps."""
    if total_timesteps is None:
        return config
    if not isinstance(total_timesteps, numbers.Integral) or isinstance(total_timesteps, bool) or total_timesteps < 1:
        raise ConfigError(f"train(total_timesteps={shown(total_timesteps)}): environment steps over all environments, a whole number of at least 1.")
    return dataclasses.replace(config, iterations=max(1, -(-int(total_timesteps) // config.env_steps)))


def _constructed(recipe: Recipe, env: Any, given: Mapping[str, Any]) -> Any:
    preset = getattr(recipe.config, "preset", None)
    if preset is not None and isinstance(env, str):
        with contextlib.suppress(UnknownNameError):  # the names of settings have been checked: it is the environment that has none
            return preset(env, **given)
    return recipe.config(env, **given)


def check_names(recipe: Recipe, given: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> None:
    """Raises `UnknownNameError`: with the new word for an old one, with the nearest for others. ``own``: what `train` takes besides."""
    for name in given:
        if name in recipe.fields:
            continue
        new = next((word for word in OLD_WORDS.get(name, ()) if word in recipe.fields), None)
        if new is not None:
            raise UnknownNameError(f"{name!r} is called {new!r} here. Next: {new}={shown(given[name])}.")
        raise UnknownNameError.of(f"setting of {recipe.name!r}", name, [*recipe.fields, *(own or {})], f"All of them: help({recipe.config.__name__}).")


def configured_again(recipe: Recipe, kept: RunFolder, env: Any, total_timesteps: int | None, given: Mapping[str, Any]) -> Any:
    """The configuration of a run's folder, changed by ``given``."""
    plain = kept.read_json("config.json") | ({} if env is None else {"env_id": env}) | dict(given)
    for name, value in plain.items():
        if name not in recipe.fields:
            raise UnknownNameError.of(f"setting of {recipe.name!r}", name, recipe.fields)
        if isinstance(value, dict) and set(value) == {"object"}:
            word = "env" if name == "env_id" else name
            raise ConfigError(
                f"{word} of the run in {str(kept.path)!r} was an object of its program, {value['object']}, which a file does not hold. "
                f"Next: give it again, {word}={value['object']}."
            )
    return with_timesteps(recipe, recipe.config(**{name: tuples(value) for name, value in plain.items()}), total_timesteps)
