"""Recorded episodes in the spaces in which an environment's policies see and act."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from rlinf_lab.datasets.episodes import Episode, EpisodeSource
from rlinf_lab.datasets.space_json import at, leaf_spaces, typed
from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.trees import Tree
from rlinf_lab.vecenv import EnvSpec
from rlinf_lab.vecenv.spaces import Presented, is_finite


def presented(data: EpisodeSource, env: EnvSpec) -> EpisodeSource:
    """The same episodes with observations and actions as ``env`` has them.

    Actions in the simulator's own range are rescaled to [-1, 1]; what lies beyond bounds is cut to them, as the socket does. Of actions without bounds a
    warning says what is taken for granted. `ConfigError` where the data is of other spaces.
    """
    has = data.spec.observation_space
    if not same(has, env.observation_space, bounds=False):
        raise ConfigError(f"The data has the observation_space {has}, and {env.id} has {env.observation_space}. Next: data that was recorded there.")
    return _Presented(data, env, acted(data.spec.action_space, env))


def acted(has: Space, env: EnvSpec) -> Callable[[Tree], Tree]:
    """From recorded actions, of the space ``has``, to a policy's; see `presented`."""
    wanted, native = env.action_space, env.native_action_space
    if native is not None and same(has, native):
        return Presented(native)
    if same(has, wanted):  # as data of ours had it before the simulator's own units were recorded
        return _as_they_are
    own = "" if native is None else f" (the simulator's own: {native})"
    if not same(has, wanted, bounds=False) or _is_bounded(has):
        raise ConfigError(
            f"The data has the action_space {has}, and {env.id} has {wanted}{own}. Next: data that was recorded there, or, where the data says it wrongly, "
            "data.with_spec(action_space=...)."
        )
    warnings.warn(
        f"The data says no bounds of its actions: they are taken as a policy of {env.id} acts, in {wanted}{own}. Next: where they are in other units, "
        "data.with_spec(action_space=Box(low, high)), with the bounds that the simulator has.", stacklevel=3,
    )  # fmt: skip
    return _as_they_are


def _as_they_are(action: Tree) -> Tree:
    return action


def same(one: Space, other: Space, bounds: bool = True) -> bool:
    """Whether values of one are values of the other, in single or double precision."""
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], bounds) for key in one)
    if isinstance(one, spaces.Tuple) and isinstance(other, spaces.Tuple):
        return len(one) == len(other) and all(same(a, b, bounds) for a, b in zip(one, other, strict=True))
    if not (isinstance(one, spaces.Box) and isinstance(other, spaces.Box)):
        return bool(one == other)
    alike = one.shape == other.shape and np.dtype(one.dtype).kind == np.dtype(other.dtype).kind
    return alike and (not bounds or (np.allclose(one.low, other.low) and np.allclose(one.high, other.high)))


def _is_bounded(space: Space) -> bool:
    """Whether a Box has a bound that its type does not have anyway."""

    def bounded(box: spaces.Box) -> bool:
        kind: Any = np.dtype(box.dtype)
        lowest, highest = (np.iinfo(kind).min, np.iinfo(kind).max) if kind.kind in "iu" else (-np.inf, np.inf)
        return bool((box.low != lowest).any() or (box.high != highest).any())

    return any(bounded(leaf) for _, leaf in leaf_spaces(space) if isinstance(leaf, spaces.Box))


def _check(index: int, what: str, space: Space, tree_T: Tree) -> None:
    """`ConfigError` for what is no value of its space, naming episode and step. What is beyond a Box is cut."""
    for path, part in leaf_spaces(space):
        array, whose = np.asarray(at(tree_T, path)), f"The data: the {what}{''.join(f'[{key!r}]' for key in path)} of episode {index}"
        if array.shape[1:] != part.shape:
            raise ConfigError(f"{whose} has the shape {array.shape[1:]} in each step, and its space says {part.shape}. Next: data.with_spec(...), or record it anew.")
        if isinstance(part, spaces.Discrete):
            bad_T = (array < part.start) | (array >= part.start + part.n)
        else:
            bad_T = np.zeros(len(array), bool) if is_finite(array) else ~np.isfinite(array.reshape(len(array), -1)).all(1)
        if bad_T.any():
            step = int(bad_T.argmax())
            raise ConfigError(
                f"{whose}, step {step}, is {shown(array[step])}; its space is {part}. Next: mend it, or leave the episode out: "
                f"EpisodeList(data.spec, [e for i, e in enumerate(data) if i != {index}])."
            )


class _Presented(EpisodeSource):
    def __init__(self, source: EpisodeSource, env: EnvSpec, act: Callable[[Tree], Tree]) -> None:
        self.source, self._act, self._cut = source, act, _is_bounded(source.spec.action_space)
        self.spec = replace(source.spec, observation_space=env.observation_space, action_space=env.action_space)

    def __len__(self) -> int:
        return len(self.source)

    @property
    def lengths_E(self) -> NDArray[np.int64]:
        return self.source.lengths_E

    def read(self, index: int) -> Episode:
        episode, spec = self.source.read(index), self.spec
        for what, space, tree_T in (
            ("observation", self.source.spec.observation_space, episode.obs_T), ("action", self.source.spec.action_space, episode.action_T),
            ("reward", spaces.Box(-np.inf, np.inf, ()), episode.reward_T),
        ):  # fmt: skip
            _check(index, what, space, tree_T)
        final = None if episode.final_obs is None else typed(spec.observation_space, episode.final_obs)
        action_T = typed(spec.action_space, self._act(episode.action_T), self._cut)
        return replace(episode, obs_T=typed(spec.observation_space, episode.obs_T), action_T=action_T, final_obs=final)
