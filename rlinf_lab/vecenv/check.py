"""The conformance check of the `VecEnv` contract, for authors of adapters."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import cast

import numpy as np

from rlinf_lab.errors import ConfigError, EnvError, said, shown
from rlinf_lab.records import EnvStep
from rlinf_lab.vecenv.base import Restorable, VecEnv, cannot_leave


def check_env(make: Callable[[], VecEnv], steps: int | None = None, seed: int = 0) -> None:
    """Run two vectors from ``make()`` side by side and raise `EnvError` naming the first rule that is broken.

    Checked: shapes and types, finite numbers, an episode that ends at the horizon and is reset in the same step with its
    final observation kept, the same seed giving the same episode, and different environments beginning differently. Of environments that can leave a
    device (`cannot_leave` says "") also that they go on from a saved state to the last bit, in a new vector and in one that was used.
    ``steps``: how many to take (default: one horizon and two more).
    """
    if not callable(make):
        raise ConfigError(f"check_env({shown(make)}): a function that makes a vector. Next: check_env(lambda: lab.make_vec('numpy/ReachArm-v0', 4)).")
    first, second = make(), make()
    try:
        _check(first, second, steps or first.spec.horizon + 2, seed)
        if not cannot_leave(first):
            _check_leaving(first, second, make, steps or first.spec.horizon + 2, seed)
    finally:
        first.close()
        second.close()


def _check(env: VecEnv, twin: VecEnv, steps: int, seed: int) -> None:
    spec, rng = env.spec, np.random.default_rng(seed)
    obs, obs_twin = env.reset(seed=seed), twin.reset(seed=seed)
    _require(spec.id, obs.shape == (env.num_envs, spec.obs_size), f"reset() gives shape {obs.shape}, spec says {spec.obs_size} numbers")
    _require(spec.id, obs.dtype == np.float32, f"reset() gives {obs.dtype}, float32 is needed")
    _require(spec.id, np.array_equal(obs, obs_twin), "the same seed gives another first observation")
    if env.num_envs > 1:
        _require(spec.id, not np.array_equal(obs[0], obs[1]), "environments 0 and 1 begin alike: seeds must differ")
    ended = False
    for t in range(steps):
        action = rng.uniform(-1, 1, (env.num_envs, spec.action_size)).astype(np.float32)
        step, other = env.step(action), twin.step(action)
        _check_step(spec.id, step, env.num_envs, spec.obs_size, t)
        _require(spec.id, np.array_equal(step.obs_NO, other.obs_NO), f"the same seed and actions give another observation at step {t}")
        done = step.terminated_N | step.truncated_N
        if done.any():
            ended = True
            same = np.array_equal(step.final_obs_NO[done], step.obs_NO[done])
            _require(spec.id, not same, f"step {t} ended an episode, but obs_NO is still its last observation: reset in the same step")
        running = ~done
        _require(spec.id, np.array_equal(step.final_obs_NO[running], step.obs_NO[running]), f"step {t}: final_obs_NO differs without an end")
    _require(spec.id, ended or steps < spec.horizon, f"no episode ended in {steps} steps, the horizon is {spec.horizon}")


def _check_leaving(env: VecEnv, used: VecEnv, make: Callable[[], VecEnv], steps: int, seed: int) -> None:
    """Saved in the middle of an episode; ``used`` is in the middle of another one."""
    id, rng = env.spec.id, np.random.default_rng(seed + 1)
    actions_TNA = rng.uniform(-1, 1, (steps + 3, env.num_envs, env.spec.action_size)).astype(np.float32)
    env.reset(seed=seed + 1)
    for action_NA in actions_TNA[:3]:
        env.step(action_NA)
    try:
        state = pickle.loads(pickle.dumps(cast(Restorable, env).save_state()))
    except EnvError:
        raise
    except Exception as error:
        raise EnvError(f"{id} breaks the VecEnv contract: its state does not pickle: {type(error).__name__}: {said(error)}.") from error
    expected = [env.step(action_NA) for action_NA in actions_TNA[3:]]
    fresh = make()
    try:
        for name, other in (("new", fresh), ("used", used)):
            cast(Restorable, other).restore_state(state)
            for t, (action_NA, step) in enumerate(zip(actions_TNA[3:], expected, strict=True)):
                found = other.step(action_NA)
                for field in dataclasses.fields(step):
                    same = np.array_equal(getattr(found, field.name), getattr(step, field.name))
                    _require(id, same, f"restored in a {name} vector, step {t} gives another {field.name}")
    finally:
        fresh.close()


def _check_step(id: str, step: EnvStep, n: int, size: int, t: int) -> None:
    shapes = {"obs_NO": (n, size), "final_obs_NO": (n, size), "reward_N": (n,), "terminated_N": (n,), "truncated_N": (n,), "success_N": (n,)}
    for name, shape in shapes.items():
        array = getattr(step, name)
        _require(id, array.shape == shape, f"step {t}: {name} has shape {array.shape}, not {shape}")
        _require(id, bool(np.isfinite(array).all()), f"step {t}: {name} is not finite")
    for name in ("terminated_N", "truncated_N", "success_N"):
        _require(id, getattr(step, name).dtype == bool, f"step {t}: {name} is {getattr(step, name).dtype}, not bool")
    _require(id, not (step.terminated_N & step.truncated_N).any(), f"step {t}: an episode is both terminated and truncated")


def _require(id: str, holds: bool, problem: str) -> None:
    if not holds:
        raise EnvError(f"{id} breaks the VecEnv contract: {problem}.")
