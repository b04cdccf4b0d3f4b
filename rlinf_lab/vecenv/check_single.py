"""Single environments as they are. Before the socket has copied and converted what they hand over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from rlinf_lab.errors import EnvError, shown
from rlinf_lab.trees import rows
from rlinf_lab.vecenv.loop import LoopVecEnv, Outcome, SingleEnv
from rlinf_lab.vecenv.spaces import sampled

STEPS = 20


def check_singles(vector: LoopVecEnv, seed: int) -> None:
    """`EnvError` for arrays that are written again, and for wrong ones.

    Those of types and shapes that are not the space's own.
    """
    env, rng, id = vector.envs[0], np.random.default_rng(seed), vector.spec.id
    space = getattr(getattr(env, "env", None), "observation_space", vector.spec.observation_space)  # gymnasium's own, where it is one
    is_gymnasium = hasattr(env, "env")
    obs = env.reset(seed)
    kept = _checked(id, space, obs, "reset()", is_gymnasium)
    for t, outcome in enumerate(_steps(vector, env, rng)):
        for name, given, copy in kept:
            if not np.array_equal(given, copy):
                raise EnvError(
                    f"{id}: its observation{name} is one array that is used again: step {t} changed what had been handed over before. "
                    f"Next: return a copy, such as self.state.copy()."
                )
        if np.ndim(outcome.reward) or not np.isfinite(outcome.reward):
            raise EnvError(f"{id}: step {t} gave the reward {shown(outcome.reward)}; one finite number is needed. reward is not finite.")
        kept = _checked(id, space, outcome.obs, f"step {t}", is_gymnasium)
        if outcome.terminated or outcome.truncated:
            kept = _checked(id, space, env.reset(None), "reset()", is_gymnasium)


def _steps(vector: LoopVecEnv, env: SingleEnv, rng: np.random.Generator) -> Iterator[Outcome]:
    for _ in range(min(STEPS, vector.spec.max_episode_steps or STEPS)):
        yield env.step(rows(vector.native(sampled(vector.spec.action_space, rng, 1)), 0))


def _checked(id: str, space: Any, obs: Any, when: str, strictly: bool, name: str = "") -> list[tuple[str, Any, Any]]:
    """Its arrays, with copies. ``strictly``: their types must be those of the space, which the environment's author wrote."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inner = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
        parts = [_checked(id, part, _part(id, obs, key, when, name), when, strictly, f"{name}[{key!r}]") for key, part in inner]
        return [each for part in parts for each in part]
    if np.shape(obs) != space.shape:
        raise EnvError(f"{id}: {when} gave an observation{name} of the shape {np.shape(obs)}, its space says {space.shape}.")
    array = np.asarray(obs)
    if isinstance(space, spaces.Box):
        if strictly and array.dtype != space.dtype:
            raise EnvError(
                f"{id}: {when} gave an observation{name} of {array.dtype}, its space says {space.dtype}. "
                f"Next: another dtype in the space, or observations of {space.dtype}."
            )
    elif not np.issubdtype(array.dtype, np.integer) or not space.contains(array.astype(space.dtype) if array.ndim else space.dtype.type(array)):
        raise EnvError(f"{id}: {when} gave the observation{name} {shown(obs)}, which is not in {space}.")
    return [(name, obs, np.copy(array))] if isinstance(obs, np.ndarray) else []


def _part(id: str, obs: Any, key: Any, when: str, name: str) -> Any:
    try:
        return obs[key]
    except (KeyError, IndexError, TypeError) as error:
        raise EnvError(f"{id}: {when} gave {shown(obs)} as observation{name}, which has no {key!r}; its space has.") from error
