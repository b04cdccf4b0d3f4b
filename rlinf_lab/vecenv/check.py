"""The conformance check of the `VecEnv` contract, for authors of adapters."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import cast

import numpy as np

from rlinf_lab.errors import ConfigError, EnvError, said, shown
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree, leaves, named_leaves, rows
from rlinf_lab.vecenv.base import EnvSpec, Restorable, VecEnv, cannot_leave
from rlinf_lab.vecenv.spaces import empty, is_finite, sampled


def check_env(make: Callable[[], VecEnv], steps: int | None = None, seed: int = 0) -> None:
    """Run two vectors from ``make()`` side by side and raise `EnvError` naming the first rule that is broken.

    Checked: shapes and types, finite numbers, an episode that ends at its limit of steps and is reset in the same step with its
    final observation kept, the same seed giving the same episode, and different environments beginning differently. Of environments that can leave a
    device (`cannot_leave` says "") also that they go on from a saved state to the last bit, in a new vector and in one that was used.
    ``steps``: how many to take (default: one episode and two more).
    """
    if not callable(make):
        raise ConfigError(f"check_env({shown(make)}): a function that makes a vector. Next: check_env(lambda: lab.make_vec('numpy/ReachArm-v0', 4)).")
    first, second = make(), make()
    try:
        _check(first, second, steps or (first.spec.max_episode_steps or 1000) + 2, seed)
        if not cannot_leave(first):
            _check_leaving(first, second, make, steps or (first.spec.max_episode_steps or 1000) + 2, seed)
    finally:
        first.close()
        second.close()


def _check(env: VecEnv, twin: VecEnv, steps: int, seed: int) -> None:
    spec, rng = env.spec, np.random.default_rng(seed)
    obs, obs_twin = env.reset(seed=seed), twin.reset(seed=seed)
    _check_tree(spec, obs, env.num_envs, "reset()")
    _require(spec.id, equal(obs, obs_twin), "the same seed gives another first observation")
    if env.num_envs > 1:
        _require(spec.id, not equal(rows(obs, 0), rows(obs, 1)), "environments 0 and 1 begin alike: seeds must differ")
    ended = False
    for t in range(steps):
        action_N = sampled(spec.action_space, rng, env.num_envs)
        step, other = env.step(action_N), twin.step(action_N)
        _check_step(spec, step, env.num_envs, t)
        _require(spec.id, equal(step.obs_N, other.obs_N), f"the same seed and actions give another observation at step {t}")
        _require(spec.id, np.array_equal(step.reward_N, other.reward_N), f"the same seed and actions give another reward at step {t}")
        done = step.terminated_N | step.truncated_N
        if done.any():
            ended = True
            same = equal(rows(step.final_obs_N, done), rows(step.obs_N, done))
            _require(spec.id, not same, f"step {t} ended an episode, but obs_N is still its last observation: reset in the same step")
        running = ~done
        _require(spec.id, equal(rows(step.final_obs_N, running), rows(step.obs_N, running)), f"step {t}: final_obs_N differs without an end")
    limit = spec.max_episode_steps
    _require(spec.id, ended or limit is None or steps < limit, f"no episode ended in {steps} steps, max_episode_steps is {limit}")


def _check_leaving(env: VecEnv, used: VecEnv, make: Callable[[], VecEnv], steps: int, seed: int) -> None:
    """Saved in the middle of an episode; ``used`` is in the middle of another one."""
    id, rng = env.spec.id, np.random.default_rng(seed + 1)
    actions = [sampled(env.spec.action_space, rng, env.num_envs) for _ in range(steps + 3)]
    env.reset(seed=seed + 1)
    for action_N in actions[:3]:
        env.step(action_N)
    try:
        state = pickle.loads(pickle.dumps(cast(Restorable, env).save_state()))
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(f"{id} breaks the VecEnv contract: its state does not pickle: {type(error).__name__}: {said(error)}.") from error
    expected = [env.step(action_N) for action_N in actions[3:]]
    fresh = make()
    try:
        for name, other in (("new", fresh), ("used", used)):
            cast(Restorable, other).restore_state(state)
            for t, (action_N, step) in enumerate(zip(actions[3:], expected, strict=True)):
                found = other.step(action_N)
                for field in dataclasses.fields(step):
                    same = equal(getattr(found, field.name), getattr(step, field.name))
                    _require(id, same, f"restored in a {name} vector, step {t} gives another {field.name}")
    finally:
        fresh.close()


def _check_step(spec: EnvSpec, step: EnvStep, n: int, t: int) -> None:
    for name in ("obs_N", "final_obs_N"):
        _check_tree(spec, getattr(step, name), n, f"step {t}: {name}")
    for name in ("reward_N", "terminated_N", "truncated_N", "success_N"):
        array = getattr(step, name)
        if array is None and name == "success_N":
            continue
        _require(spec.id, array.shape == (n,), f"step {t}: {name} has shape {array.shape}, not {(n,)}")
        _require(spec.id, bool(np.isfinite(array).all()), f"step {t}: {name} is not finite")
        _require(spec.id, array.dtype == bool or name == "reward_N", f"step {t}: {name} is {array.dtype}, not bool")
    _require(spec.id, not (step.terminated_N & step.truncated_N).any(), f"step {t}: an episode is both terminated and truncated")


def _check_tree(spec: EnvSpec, tree: Tree, n: int, what: str) -> None:
    expected = dict(named_leaves(empty(spec.observation_space, n)))
    found = dict(named_leaves(tree))
    _require(spec.id, found.keys() == expected.keys(), f"{what} has the parts {sorted(found)}, the space has {sorted(expected)}")
    for name, leaf in found.items():
        like = expected[name]
        _require(spec.id, leaf.shape == like.shape, f"{what}{name} has shape {leaf.shape}, the space says {like.shape}")
        _require(spec.id, is_finite(leaf), f"{what}{name} is not finite")


def equal(a: Tree, b: Tree) -> bool:
    """Whether all leaves are."""
    return all(np.array_equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def _require(id: str, holds: bool, problem: str) -> None:
    if not holds:
        raise EnvError(f"{id} breaks the VecEnv contract: {problem}.")
