"""Episodes of plain arrays, as recordings of one's own have them.

Legend: T steps of an episode, R rows of all episodes, leading axis of every leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from rlinf_lab.datasets.episodes import DataSpec, Episode, EpisodeList
from rlinf_lab.errors import ConfigError, counted, shown
from rlinf_lab.trees import Tree, leaves, map_tree, named_leaves
from rlinf_lab.vecenv import environment

PER_STEP = ("reward", "terminated", "truncated", "success")


def from_arrays(
    obs: Any, action: Any, *, lengths: Sequence[int] | None = None, reward: Any = None, terminated: Any = None, truncated: Any = None, success: Any = None,
    next_obs: Any = None, env: Any = None, observation_space: Space | None = None, action_space: Space | None = None, fps: float = 10.0, task: str = "",
) -> EpisodeList:  # fmt: skip
    """Episodes of arrays: long ones, or a list with one for each.

    ``obs`` and ``action``: arrays, or trees of them, of R rows; where an episode ends is said by ``terminated`` or ``truncated`` (R, as D4RL's terminals
    and timeouts), or by ``lengths``. Or lists, an element for each episode; then everything else is a list, too, and an element of ``obs`` may have one
    row more than there are actions: the last observation. ``reward`` (R): zeros, where there is none. ``success`` (R): the task's signal.
    ``next_obs``: of which the last one of each episode is kept.

    Spaces are those of ``env`` (an id, a class or a function), else as given, else as the arrays are: Boxes without bounds, pictures, choices.
    Raises `ConfigError` for what does not fit together, naming it.
    """
    columns = {"obs": obs, "action": action, "next_obs": next_obs, "reward": reward, "terminated": terminated, "truncated": truncated, "success": success}
    given = {name: column for name, column in columns.items() if column is not None}
    for name in ("obs", "action"):
        if name not in given:
            raise ConfigError(f"from_arrays({name}=None): arrays, or a list with one for each episode.")
    if isinstance(obs, list):
        if lengths is not None:
            raise ConfigError("from_arrays(lengths=...): a list of episodes says itself how long they are. Next: leave it out.")
        parts = _listed(given)
    else:
        parts = _cut(given, lengths)
    episodes = [_episode(number, part, task) for number, part in enumerate(parts)]
    if not episodes:
        raise ConfigError("from_arrays: there is no episode.")
    known = None if env is None else environment(env).spec()
    native = None if known is None else known.native_action_space or known.action_space
    observed = observation_space or (known.observation_space if known else space_of(episodes[0].obs_T))
    acted = action_space or native or space_of([e.action_T for e in episodes] if _is_choice(episodes[0].action_T) else episodes[0].action_T)
    limit = known.max_episode_steps if known else None
    return EpisodeList(DataSpec(observed, acted, known.id if known and isinstance(env, str) else None, limit, fps), episodes)


def space_of(tree: Any) -> Space:
    """The space of arrays with a leading axis of steps.

    As far as they say. A list: of several episodes, whose choices are counted together.
    """
    if isinstance(tree, dict):
        return spaces.Dict({key: space_of(part) for key, part in tree.items()})
    if isinstance(tree, tuple):
        return spaces.Tuple([space_of(part) for part in tree])
    if isinstance(tree, list):
        return spaces.Discrete(int(max(np.max(part) for part in tree)) + 1)
    shape, kind = tree.shape[1:], tree.dtype
    if kind.kind == "b" and not shape:
        return spaces.Discrete(2)
    if kind.kind == "b":
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)  # whose equality looks at how it was made
    if kind.kind in "iu":
        return spaces.Box(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind.type)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def _is_choice(tree: Any) -> bool:
    return isinstance(tree, np.ndarray) and tree.ndim == 1 and tree.dtype.kind in "iu" and bool((tree >= 0).all())


def _arrays(name: str, tree: Any) -> Tree:
    """`ConfigError` for what holds no numbers."""

    def array(leaf: Any) -> NDArray:
        try:
            made = np.atleast_1d(leaf) if name.startswith(("terminated", "truncated")) else np.asarray(leaf)
        except (TypeError, ValueError) as error:  # rows of several lengths
            raise ConfigError(f"from_arrays({name}={shown(leaf)}): an array with a row for each step is needed. {error}.") from error
        if made.dtype.kind not in "biuf" or made.ndim < 1:
            raise ConfigError(f"from_arrays({name}={shown(leaf)}): {made.dtype} of the shape {made.shape}; numbers with a row for each step are needed.")
        return made

    return map_tree(array, tree)


def _listed(given: dict[str, Any]) -> list[dict[str, Tree]]:
    count = len(given["obs"])
    for name, column in given.items():
        if not isinstance(column, list) or len(column) != count:
            has = counted(len(column), "element") if isinstance(column, list) else f"a {type(column).__name__}"
            raise ConfigError(f"from_arrays({name}=...): {has}, and obs is a list of {counted(count, 'episode')}. Next: a list with one for each.")
    return [{name: _arrays(f"{name}[{i}]", column[i]) for name, column in given.items()} for i in range(count)]


def _cut(given: dict[str, Any], lengths: Sequence[int] | None) -> list[dict[str, Tree]]:
    """Long arrays in pieces. What follows the last end is an episode that was cut."""
    arrays = {name: _arrays(name, column) for name, column in given.items()}
    count = len(leaves(arrays["action"])[0])
    for name, tree in arrays.items():
        for leaf, array in named_leaves(tree):
            if len(array) != count:
                raise ConfigError(f"from_arrays({name}{leaf}=...): {counted(len(array), 'row')}, and action has {count}. Next: a row for each step.")
    if lengths is not None:
        bad = [n for n in lengths if isinstance(n, bool) or not isinstance(n, Integral) or n < 1]
        if bad or sum(lengths) != count:
            why = f"{shown(bad[0])} is no number of steps" if bad else f"they are {sum(lengths)} steps together, and there are {count}"
            raise ConfigError(f"from_arrays(lengths={shown(list(lengths))}): {why}. Next: the steps of each episode.")
        ends = np.cumsum(lengths)
    elif "terminated" in arrays or "truncated" in arrays:
        over_R = np.zeros(count, bool)
        for name in ("terminated", "truncated"):
            over_R |= np.asarray(arrays.get(name, over_R), bool).reshape(count, -1)[:, 0]
        ends = np.flatnonzero(over_R) + 1
        ends = ends if count in ends else np.append(ends, count)
    else:
        raise ConfigError("from_arrays: nothing says where episodes end. Next: terminated=, truncated= or lengths=; or lists with an array for each episode.")
    starts = [0, *ends[:-1]]
    return [
        {name: map_tree(lambda leaf, a=a, b=b: leaf[a:b], tree) for name, tree in arrays.items()}
        for a, b in zip(starts, ends, strict=True)
    ]


def _episode(number: int, part: dict[str, Tree], task: str) -> Episode:
    count = len(leaves(part["action"])[0])
    obs_T, final = part["obs"], None
    if "next_obs" in part:
        final = map_tree(lambda leaf: leaf[-1], part["next_obs"])
    if all(len(leaf) == count + 1 for leaf in leaves(obs_T)):
        obs_T, final = map_tree(lambda leaf: leaf[:-1], obs_T), map_tree(lambda leaf: leaf[-1], obs_T)
    flat = {name: _flat(number, name, part[name], count) for name in PER_STEP if name in part}
    reward_T = flat.get("reward", np.zeros(count)).astype(np.float32)
    success_T = flat["success"].astype(bool) if "success" in flat else None
    terminated, truncated = (bool(flat[name][-1]) if name in flat else False for name in ("terminated", "truncated"))
    try:
        return Episode(obs_T, part["action"], reward_T, terminated, truncated, success_T, final, task=task)
    except ConfigError as error:
        raise ConfigError(f"from_arrays, episode {number}: {error}") from error


def _flat(number: int, name: str, array: Any, count: int) -> NDArray:
    """A number for each step; (T, 1) as well. One for the whole episode, of how it ended."""
    found = np.asarray(array)
    if found.size == 1 and name in ("terminated", "truncated"):
        found = np.repeat(found.reshape(1), count)
    if found.shape not in ((count,), (count, 1)):
        raise ConfigError(f"from_arrays({name}=...): episode {number} has the shape {found.shape}, and {counted(count, 'action')}. Next: one for each step.")
    return found.reshape(count)
