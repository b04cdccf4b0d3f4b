"""`collect`: whole episodes as data to learn from. Of a policy, or of a scripted expert."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from rlinf_lab.datasets import DataSpec, Episode, EpisodeList
from rlinf_lab.datasets.playing import play_once
from rlinf_lab.errors import ConfigError, EnvError, counted, said, shown
from rlinf_lab.experiments.acting import TrainedPolicy
from rlinf_lab.experiments.evaluation import AT_ONCE, check_counts
from rlinf_lab.experiments.starting import load_policy
from rlinf_lab.trees import Tree, named_leaves
from rlinf_lab.vecenv import VecEnv, environment
from rlinf_lab.vecenv.spaces import Native, checked_batch, empty
from rlinf_lab.vecenv.stepping import is_chunk
from rlinf_lab.workers.seeds import Purpose, environment_seed

ROUNDING = 1e-6  # by which an action may leave a Box unsaid
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
    Actions outside of a Box are clipped to it, as the environment does (gymnasium's `ClipAction`); a function of yours
    that gives such is warned of once. Actions are recorded in the environment's own units (``spec.action_space`` says
    which), as its simulator and other libraries take them; whoever learns from them here sees them as policies act.
    ``only_success``: keep those episodes in which the task succeeded. ``task``: what is to be done, in words; None of
    them: the environment's id. Episode i begins from a seed of its own, so `EpisodeSource.replay` plays it again; seeds
    are never those of training or of an evaluation.

    Raises `ConfigError` for an environment without an expert, for bad numbers and for a function that does not act on
    observations of several environments, `EnvError` where too few episodes
    succeed.
    """
    check_counts("collect", episodes, seed)
    if max_episode_steps is not None and not (isinstance(max_episode_steps, Integral) and max_episode_steps >= 1):
        raise ConfigError(
            f"collect(max_episode_steps={shown(max_episode_steps)}): a whole number of steps of at least 1, or None."
        )
    factory = environment(env)
    act, by, is_own = acting(policy, factory)
    kept: list[Episode] = []
    first = environment_seed(seed, Purpose.DEMONSTRATIONS)
    vector = factory(factory.size or min(episodes, AT_ONCE), max_episode_steps)
    spec = vector.spec
    act = _Acting(act, by, vector, is_own)
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
    known = DataSpec(spec.observation_space, spec.action_space, id_of(env, spec.id), spec.max_episode_steps, by=by)
    data = EpisodeList(known, kept[:episodes])
    return data if spec.native_action_space is None else in_own_units(data, spec.native_action_space)


def in_own_units(data: EpisodeList, space: Space) -> EpisodeList:
    """Actions as the simulator got them, in its own ``space``."""
    native = Native(space)
    return EpisodeList(
        replace(data.spec, action_space=space), [replace(e, action_T=native(e.action_T)) for e in data.episodes]
    )


def acting(policy: Any, factory: Any, given: str = "collect(policy") -> tuple[Callable[[Any], Any], str, bool]:
    """(function from obs_N to action_N, who that is, whether the user wrote it). ``given``: as errors name it."""
    if isinstance(policy, str) and policy == "expert":
        expert = factory.expert()
        return expert, repr(expert), False
    if isinstance(policy, str) and not Path(policy).exists() and get_close_matches(policy.lower(), ["expert"]):
        raise ConfigError(f"{given}={policy!r}): no run's folder. Did you mean 'expert'? Next: policy='expert'.")
    if isinstance(policy, (str, os.PathLike)):
        policy = load_policy(policy, env=factory.given)
    if hasattr(policy, "policy") and callable(policy.policy):  # a run
        policy = policy.policy()
    if hasattr(policy, "act"):
        return policy.act, repr(policy), not isinstance(policy, TrainedPolicy)
    if callable(policy):
        return policy, getattr(policy, "__name__", type(policy).__name__), True
    raise ConfigError(f"{given}={shown(policy)}): {WAYS}.")


class _Acting:
    """Actions of somebody as the environments take them: of each one, and in their Box."""

    def __init__(self, act: Callable[[Tree], Tree], by: str, env: VecEnv, is_own: bool) -> None:
        self.act, self.by, self.spec, self.num_envs, self._is_own = act, by, env.spec, env.num_envs, is_own

    def __call__(self, obs_N: Tree) -> Tree:
        try:
            chosen = self.act(obs_N)
        except Exception as error:  # whatever a function of somebody's raises
            if not self._is_own:
                raise
            raise ConfigError(self._needs_batches(obs_N, f"raised {type(error).__name__}: {said(error)}")) from error
        space = self.spec.action_space
        if is_chunk(space, chosen):
            return np.stack([self._taken(action_N) for action_N in np.swapaxes(chosen, 0, 1)], axis=1)
        both = empty(space, self.num_envs), chosen
        wanted, given = ({name: np.shape(leaf) for name, leaf in named_leaves(tree)} for tree in both)
        if self._is_own and given != wanted:
            given, wanted = (shapes.get("", shapes) for shapes in (given, wanted))
            raise ConfigError(self._needs_batches(obs_N, f"gave actions of the shape {given}, and {wanted} is needed"))
        return self._taken(chosen)

    def _needs_batches(self, obs_N: Tree, problem: str) -> str:
        """It is asked for all environments at once, unlike a function of a single observation."""
        rows = f"np.stack([{self.by if self.by.isidentifier() else 'policy'}(obs) for obs in obs_N])"
        advice = f"; one for a single observation becomes one: lambda obs_N: {rows}" if hasattr(obs_N, "shape") else ""
        return (
            f"collect(policy={self.by}): on a batch, the observations of {counted(self.num_envs, 'environment')} at "
            f"once, it {problem}. Next: a function from such a batch to an action for each of its rows{advice}."
        )

    def _taken(self, action_N: Tree) -> Tree:
        taken = checked_batch(self.spec.action_space, self.num_envs, action_N, self.spec.id)
        given = dict(named_leaves(action_N))
        for name, theirs in named_leaves(taken) if self._is_own else ():
            mine = np.asarray(given[name])
            outside = np.argwhere(np.abs(mine - theirs) > ROUNDING)
            if len(outside):
                self._is_own = False  # said once
                place = tuple(outside[0])
                warnings.warn(
                    f"collect(policy={self.by}): the action{name} {mine[place]:.4g} is outside of "
                    f"{self.spec.action_space}. The environment takes {theirs[place]:.4g}, and that is what is "
                    "recorded, in its own units: actions outside of a Box are clipped, as gymnasium's ClipAction does. "
                    "Next: nothing, if that is meant; else actions within it (a bounded Box is [-1, 1] here, mapped to "
                    f"the environment's own {self.spec.native_action_space or 'range'}).",
                    stacklevel=5,
                )
        return taken


def id_of(env: Any, id: str) -> str | None:
    """By which another program finds the environment; None for an object of this one."""
    return id if isinstance(env, str) else None
