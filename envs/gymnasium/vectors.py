"""A `gymnasium.vector.VectorEnv` in the socket.

Its own ways of beginning new episodes are converted, and final observations kept.

    SAME_STEP  obs is the new episode's first, infos["final_obs"] the old one's last
    DISABLED   reset(options={"reset_mask": ...}) for those that ended
    NEXT_STEP  the step after the end only resets: it is told apart (`EnvStep.reset_only_N`), for it is no transition

Legend: N environments.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from rlinf_lab.errors import EnvError, shown
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree, map_tree, rows
from rlinf_lab.vecenv import EnvSpec, checked_actions
from rlinf_lab.vecenv.loop import described
from rlinf_lab.vecenv.spaces import (
    Native,
    empty,
    presented_action,
    presented_observation,
    require_fit,
    truths,
    write_one,
)


class GymnasiumVector:
    """See `vecenv.VecEnv` for the contract."""

    def __init__(self, env: VectorEnv, spec: EnvSpec, mode: AutoresetMode) -> None:
        self.env, self.num_envs, self.spec, self.mode = env, env.num_envs, spec, mode
        self.begins_in_next_step = mode is AutoresetMode.NEXT_STEP
        self._native = Native(env.single_action_space)
        self._ended_N = np.zeros(env.num_envs, bool)  # in the last step, under NEXT_STEP
        self._started = False

    def reset(self, *, seed: int | None = None) -> Tree:
        self._started = True
        self._ended_N[:] = False
        return self._kept(self.env.reset(seed=seed)[0])

    def step(self, action_N: Tree) -> EnvStep:
        action_N = self._native(checked_actions(self.spec, self.num_envs, action_N, self._started))
        obs, reward, terminated, truncated, infos = self.env.step(action_N)
        obs_N = self._kept(obs)
        reward_N = np.array(reward, np.float32)
        terminated_N = np.array(terminated, bool)
        truncated_N = np.array(truncated, bool) & ~terminated_N
        done_N = terminated_N | truncated_N
        final_N, reset_only_N = obs_N, None
        success_N = self._success(infos, done_N)
        if self.mode is AutoresetMode.NEXT_STEP:
            reset_only_N = self._ended_N if self._ended_N.any() else None
            self._ended_N = done_N
        elif done_N.any():
            if self.mode is AutoresetMode.SAME_STEP:
                final_N = self._final(obs_N, infos, done_N)
            else:
                obs_N = self._kept(self.env.reset(options={"reset_mask": done_N})[0])
        return EnvStep(obs_N, reward_N, terminated_N, truncated_N, success_N, final_N, reset_only_N)

    def _kept(self, obs: Any) -> Tree:
        """A copy, in the types of the spec: the vector may use its arrays again."""
        kept = empty(self.spec.observation_space, self.num_envs)
        try:
            for space, target, given in _parts(self.spec.observation_space, kept, obs):
                if np.shape(given) != target.shape:
                    raise EnvError(f"{self.spec.id}: observations have the shape {np.shape(given)}; {target.shape} is needed for {self.num_envs} × {space}.")
                require_fit(np.asarray(given), target.dtype, f"{self.spec.id}: its observation")
                target[...] = given
        except (KeyError, TypeError, ValueError) as error:
            raise EnvError(f"{self.spec.id}: its observations {shown(obs)} are not of {self.spec.observation_space}: {error}.") from error
        return kept

    def _final(self, obs_N: Tree, infos: dict[str, Any], done_N: NDArray) -> Tree:
        given = infos.get("final_obs")
        if given is None:
            raise EnvError(
                f"{self.spec.id}: an episode ended and infos has no 'final_obs', without which nothing can be learnt from its last step. "
                f"Next: gymnasium's AutoresetMode.SAME_STEP gives it; DISABLED and NEXT_STEP need none."
            )
        final_N = map_tree(np.copy, obs_N)
        for i in np.flatnonzero(done_N).tolist():
            write_one(final_N, i, rows(given, i), self.spec.id, self.spec.observation_space, "final observation")
        return final_N

    def _success(self, infos: dict[str, Any], done_N: NDArray) -> NDArray[np.bool_] | None:
        """The signal of each environment; of one whose episode ended, that of its last step."""
        found = None
        for source in (infos, infos.get("final_info")):
            for name in ("success", "is_success"):  # the second counts where both are told
                if isinstance(source, dict) and name in source:
                    given = np.asarray(source[name])
                    told = np.asarray(source.get(f"_{name}", np.ones(self.num_envs, bool)), bool)
                    told = told & (done_N if source is not infos else True)
                    if given.dtype == object:
                        told &= np.array([value is not None for value in given])
                    found = np.zeros(self.num_envs, bool) if found is None else found
                    found[told] = truths(given[told].tolist(), f"{self.spec.id}: infos[{name!r}]")
        return found

    def render(self) -> NDArray[np.uint8] | None:
        picture: Any = self.env.render() if self.spec.renders else None
        if isinstance(picture, (tuple, list)) and picture:
            picture = picture[0]
        return picture if isinstance(picture, np.ndarray) else None

    def close(self) -> None:
        self.env.close()

    def __repr__(self) -> str:
        return described(self.spec, self.num_envs, f", {type(self.env).__name__} {self.mode.name}")


def _parts(space: spaces.Space, kept: Tree, obs: Any) -> Any:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _parts(part, kept[key], obs[key])
    elif isinstance(space, spaces.Tuple):
        for part, target, given in zip(space.spaces, kept, obs, strict=True):
            yield from _parts(part, target, given)
    else:
        yield space, kept, obs


def from_vector(id: str, env: VectorEnv, *, num_envs: int, max_episode_steps: int | None, **options: Any) -> GymnasiumVector:
    """``env`` as one of ours. `EnvError` where its way of resetting is not known, or its number is another one."""
    if options:
        raise EnvError(f"{id}: a VectorEnv that has been made takes no options, {sorted(options)}. Next: give the function that makes it.")
    if env.num_envs != num_envs:
        raise EnvError(
            f"{id}: this VectorEnv has {env.num_envs} environments, {num_envs} are needed. Next: num_envs={env.num_envs}, one rank and no sub-batches; or a "
            f"function that takes num_envs, such as functools.partial(gymnasium.make_vec, 'CartPole-v1')."
        )
    mode = _mode(id, env)
    limit = getattr(env.spec, "max_episode_steps", None)
    if max_episode_steps is not None and max_episode_steps != limit:
        warnings.warn(
            f"{id}: max_episode_steps={max_episode_steps} is not used, a VectorEnv cuts its episodes itself (here after {limit} steps). "
            f"Next: let the function that makes it take max_episode_steps.", stacklevel=2,
        )  # fmt: skip
    spec = EnvSpec(
        id, presented_observation(env.single_observation_space, id), presented_action(env.single_action_space, id), limit, None,
        renders=getattr(env, "render_mode", None) == "rgb_array", native_action_space=env.single_action_space,
    )  # fmt: skip
    return GymnasiumVector(env, spec, mode)


def _mode(id: str, env: VectorEnv) -> AutoresetMode:
    told = (env.metadata or {}).get("autoreset_mode")
    try:
        return told if isinstance(told, AutoresetMode) else AutoresetMode(told)
    except ValueError:
        raise EnvError(
            f"{id}: this VectorEnv does not say how it begins new episodes: metadata['autoreset_mode'] is {shown(told)}. "
            f"Next: env.metadata['autoreset_mode'] = gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED, whichever it does."
        ) from None
