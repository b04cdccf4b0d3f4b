"""`collect`: whole episodes as data to learn from. Of a policy, or of a scripted expert."""

from __future__ import annotations

import os
from collections.abc import Callable
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any

from rlinf_lab.datasets import DataSpec, Episode, EpisodeList
from rlinf_lab.datasets.playing import play_once
from rlinf_lab.errors import ConfigError, EnvError, shown
from rlinf_lab.experiments.evaluation import AT_ONCE, check_counts
from rlinf_lab.experiments.starting import load_policy
from rlinf_lab.vecenv import environment
from rlinf_lab.workers.seeds import Purpose, environment_seed

TRIES = 20  # episodes for each one that is wanted, where only successful ones are kept
WAYS = (
    "'expert', a run, a loaded policy, a run's folder, or a function from observations of several environments to "
    "their actions"
)


def collect(
    env: Any,
    policy: Any = "expert",
    episodes: int = 10,
    *,
    seed: int = 0,
    max_episode_steps: int | None = None,
    only_success: bool = False,
    task: str = "",
) -> EpisodeList:
    """Play ``episodes`` whole episodes and keep them: observations, actions, rewards, successes, seeds.

    ``policy``: "expert" (the task's scripted policy, where its simulator has one: all of Meta-World), a run, a loaded
    policy, a run's folder, or a function from observations of several environments to their actions. It acts greedily.
    ``only_success``: keep those episodes in which the task succeeded. ``task``: what is to be done, in words; None of
    them: the environment's id. Episode i begins from a seed of its own, so `EpisodeSource.replay` plays it again; seeds
    are never those of training or of an evaluation.

    Raises `ConfigError` for an environment without an expert and for bad numbers, `EnvError` where too few episodes
    succeed.
    """
    check_counts("collect", episodes, seed)
    if max_episode_steps is not None and not (isinstance(max_episode_steps, Integral) and max_episode_steps >= 1):
        raise ConfigError(
            f"collect(max_episode_steps={shown(max_episode_steps)}): a whole number of steps of at least 1, or None."
        )
    factory = environment(env)
    act, by = acting(policy, factory)
    kept: list[Episode] = []
    first = environment_seed(seed, Purpose.DEMONSTRATIONS)
    vector = factory(factory.size or min(episodes, AT_ONCE), max_episode_steps)
    spec = vector.spec
    try:
        tried = 0
        while len(kept) < episodes and tried < TRIES * episodes:
            found = play_once(vector, act, first + tried, task or spec.id)
            tried += len(found)
            if only_success and any(e.success is None for e in found):
                raise EnvError(
                    f"{spec.id} says nothing about success, so collect(only_success=True) cannot choose. Next: "
                    "only_success=False."
                )
            kept += [e for e in found if e.success or not only_success]
    finally:
        vector.close()
    if len(kept) < episodes:
        raise EnvError(
            f"{spec.id}: {len(kept)} of {tried} episodes of {by} succeeded, {episodes} are wanted. Next: another "
            "policy, or only_success=False."
        )
    known = DataSpec(spec.observation_space, spec.action_space, _id_of(env, spec.id), spec.max_episode_steps, by=by)
    return EpisodeList(known, kept[:episodes])


def acting(policy: Any, factory: Any) -> tuple[Callable[[Any], Any], str]:
    """(function from obs_N to action_N, who that is). `ConfigError` for what cannot act."""
    if isinstance(policy, str) and policy == "expert":
        expert = factory.expert()
        return expert, repr(expert)
    if isinstance(policy, str) and not Path(policy).exists() and get_close_matches(policy.lower(), ["expert"]):
        raise ConfigError(f"collect(policy={policy!r}): no run's folder. Did you mean 'expert'? Next: policy='expert'.")
    if isinstance(policy, (str, os.PathLike)):
        policy = load_policy(policy)
    if hasattr(policy, "policy") and callable(policy.policy):  # a run
        policy = policy.policy()
    if hasattr(policy, "act"):
        return policy.act, repr(policy)
    if callable(policy):
        return policy, getattr(policy, "__name__", type(policy).__name__)
    raise ConfigError(f"collect(policy={shown(policy)}): {WAYS}.")


def _id_of(env: Any, id: str) -> str | None:
    """By which another program finds the environment; None for an object of this one."""
    return id if isinstance(env, str) else None
