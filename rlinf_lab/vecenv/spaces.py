"""What spaces mean in the socket.

How observations and actions are laid out, checked, and mapped to the simulator's own.

    simulator's space ──presented──> space of the spec, in which policies see and act
    float Box           float32 Box
    bounded float Box   Box(-1, 1) of actions; `Native` maps them back, `Presented` recorded ones here
    bounds from ±1e30   infinite ones of actions: the range between them is no float32
    others              the same, int64 (MultiBinary: int8)

Legend: N environments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlinf_lab.errors import EnvError, article, shown
from rlinf_lab.trees import Tree, map_tree, named_leaves

UNBOUNDED = 1e30
"""From here on a bound of actions is none: it stands for "no bound", and the range between two of them is no float32."""
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of those"


# --- which spaces there are -----------------------------------------------------------------------------------------------
def presented_observation(space: Any, id: str) -> spaces.Space:
    """The space of what the socket hands over for a simulator's observations. `EnvError` naming the part that has no place here."""
    return _presented(space, id, "observation_space", _observed_box)


def presented_action(space: Any, id: str) -> spaces.Space:
    """The space in which a policy acts.

    A Box whose bounds are all finite is Box(-1, 1), see `Native`. `EnvError` naming the part that has no place here.
    """
    return _presented(space, id, "action_space", _acted_box)


def _presented(space: Any, id: str, name: str, box: Callable[[spaces.Box], spaces.Box]) -> spaces.Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _presented(part, id, f"{name}[{key!r}]", box) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_presented(part, id, f"{name}[{i}]", box) for i, part in enumerate(space.spaces)])
    if isinstance(space, spaces.Box):
        return box(space)
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec, start=space.start)
    if isinstance(space, spaces.MultiBinary):
        return space
    what = f"gymnasium's {type(space).__name__}" if isinstance(space, spaces.Space) else f"{article(type(space).__name__)}, no gymnasium space"
    raise EnvError(
        f"{id}: its {name} is {shown(space)} ({what}); what fits is {SUPPORTED}. Next: wrap it, for example with "
        f"gymnasium.wrappers.{'TransformAction' if name.startswith('action') else 'TransformObservation'}, and give the function that makes it."
    )


def _observed_box(space: spaces.Box) -> spaces.Box:
    if space.dtype is None or not np.issubdtype(space.dtype, np.floating) or space.dtype == np.float32:
        return space
    with np.errstate(over="ignore"):  # bounds beyond float32 are none
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)


def _acted_box(space: spaces.Box) -> spaces.Box:
    if _is_scaled(space):
        return spaces.Box(-1.0, 1.0, space.shape, np.float32)
    if not np.issubdtype(space.dtype, np.floating):
        return space
    low, high = np.where(space.low <= -UNBOUNDED, -np.inf, space.low), np.where(space.high >= UNBOUNDED, np.inf, space.high)
    return spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def _is_scaled(space: spaces.Box) -> bool:
    return np.issubdtype(space.dtype, np.floating) and bool(np.all(space.low > -UNBOUNDED) and np.all(space.high < UNBOUNDED))


# --- arrays ---------------------------------------------------------------------------------------------------------------
def empty(space: spaces.Space, *lead: int) -> Tree:
    """Memory for values of a space. Each leaf of shape ``(*lead, *its shape)`` and the space's own type."""
    if isinstance(space, spaces.Dict):
        return {key: empty(part, *lead) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(empty(part, *lead) for part in space.spaces)
    return np.empty((*lead, *(space.shape or ())), space.dtype)


def sampled(space: spaces.Space, rng: np.random.Generator, count: int) -> Tree:
    """``count`` values of a space at random, as one tree."""
    if isinstance(space, spaces.Dict):
        return {key: sampled(part, rng, count) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sampled(part, rng, count) for part in space.spaces)
    space.seed(int(rng.integers(2**31)))
    return np.stack([np.asarray(space.sample(), space.dtype) for _ in range(count)])


def write_one(target: Tree, i: int, value: Any, id: str, space: spaces.Space, what: str = "observation") -> None:
    """``target[i] = value`` for one environment's value, leaf by leaf. `EnvError` naming the leaf where its form is not the space's."""
    if isinstance(space, spaces.Dict):
        if not hasattr(value, "keys") or not space.spaces.keys() <= set(value.keys()):
            got = sorted(map(str, value.keys())) if hasattr(value, "keys") else shown(value)
            raise EnvError(f"{id}: its {what} of environment {i} should have the keys {sorted(space.spaces)}, and is {got}.")
        for key, part in space.spaces.items():
            write_one(target[key], i, value[key], id, part, f"{what}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            raise EnvError(f"{id}: its {what} of environment {i} should be a tuple of {len(space.spaces)}, and is {shown(value)}.")
        for k, part in enumerate(space.spaces):
            write_one(target[k], i, value[k], id, part, f"{what}[{k}]")
    else:
        try:
            given = value if isinstance(value, np.ndarray) else np.asarray(value)
        except (TypeError, ValueError) as error:  # a list of lists of several lengths
            raise EnvError(f"{id}: its {what} of environment {i} is {shown(value)}, which is no {space.dtype}.") from error
        if given.shape != space.shape:
            raise EnvError(f"{id}: its {what} of environment {i} has the shape {given.shape}, the space says {space.shape}.")
        if given.dtype != target.dtype and not given.dtype.kind == target.dtype.kind == "f":  # the usual ones, at no cost
            require_fit(given, target.dtype, f"{id}: its {what} of environment {i}")
        target[i] = given


def require_fit(given: NDArray, dtype: np.dtype, whose: str) -> None:
    """`EnvError` where numbers would be others in this type. Fractions cut off, or out of its range; floats may be rounded."""
    cut = not np.can_cast(given.dtype, dtype, "same_kind")
    if given.dtype.kind in "iuf" and dtype.kind in "iu":
        holds = np.iinfo(dtype)
        if given.size and not (holds.min <= given.min() and given.max() <= holds.max):
            raise EnvError(
                f"{whose} has numbers from {given.min()} to {given.max()}; its space says {dtype}, which holds {holds.min} to {holds.max}. "
                f"Next: another dtype in the space."
            )
        cut = given.dtype.kind == "f" and bool((given != np.trunc(given)).any())  # np.zeros(4) of four switches is meant well
    if cut:
        raise EnvError(
            f"{whose} is {shown(given)} of {given.dtype}; its space says {dtype}, which does not hold such numbers. "
            f"Next: another dtype in the space, or observations of {dtype}."
        )


def is_finite(array: NDArray) -> bool:
    """Whether all numbers are. One pass of the processor's own multiplication in the usual case; whole numbers always are."""
    if array.dtype.kind != "f":
        return True
    flat = array if array.ndim == 1 else array.ravel()
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(array).all())  # the squares alone may be too large


def truths(told: Any, whose: str) -> NDArray[np.bool_]:
    """Truth values, given as such or as numbers. `EnvError` for anything else: "False" and nan are true in Python."""
    array = np.asarray(told)
    if array.size and (array.dtype.kind not in "biuf" or not np.isfinite(array).all()):
        raise EnvError(f"{whose}: {shown(told)} is no truth value and no finite number. Next: True or False, or None where nothing is known.")
    return array.astype(bool)


def truth(told: Any, whose: str) -> bool:
    """The same of one environment, which may come as an array of one."""
    array = truths(told, whose)
    if array.size != 1:
        raise EnvError(f"{whose}: {shown(told)} is no single truth value. Next: True or False, or None where nothing is known.")
    return bool(array.item())


def first_not_finite(tree: Tree) -> tuple[int, str, Any] | None:
    """(row, name of the leaf, value) of the first number that is not finite."""
    for name, leaf in named_leaves(tree):
        if not is_finite(leaf):
            place = np.argwhere(~np.isfinite(leaf))[0]
            return int(place[0]), name, leaf[tuple(place)]
    return None


# --- actions --------------------------------------------------------------------------------------------------------------
def checked_batch(space: spaces.Space, num_envs: int, action_N: Tree, id: str, name: str = "actions") -> Tree:
    """Actions of a batch, new arrays, clipped where the space is a Box. `EnvError` for a shape, a type or a number that does not fit."""
    if isinstance(space, spaces.Box):
        return checked_box(space, (space.low, space.high), num_envs, np.asarray(action_N), id, name)
    if isinstance(space, spaces.Dict):
        if not isinstance(action_N, dict) or set(action_N) != set(space.spaces):
            raise EnvError(f"{id}: {name} are {shown(action_N)}; a dict with the keys {sorted(space.spaces)} is needed.")
        return {key: checked_batch(part, num_envs, action_N[key], id, f"{name}[{key!r}]") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(action_N, tuple) or len(action_N) != len(space.spaces):
            raise EnvError(f"{id}: {name} are {shown(action_N)}; a tuple of {len(space.spaces)} is needed.")
        return tuple(checked_batch(part, num_envs, given, id, f"{name}[{i}]") for i, (part, given) in enumerate(zip(space.spaces, action_N, strict=True)))
    return _checked_choice(space, num_envs, np.asarray(action_N), id, name)


def checked_box(space: spaces.Space, bounds: tuple[NDArray, NDArray], num_envs: int, action: NDArray, id: str, name: str = "actions") -> NDArray:
    """`checked_batch` for a Box with these bounds."""
    if action.shape != (num_envs, *(space.shape or ())):
        raise EnvError(f"{id}: {name} have shape {action.shape}; {(num_envs, *(space.shape or ()))} is needed.")
    if not is_finite(action):
        row = np.argwhere(~np.isfinite(action))[0][0]
        raise EnvError(f"{id}: an action is not finite: {shown(action[row])} for environment {row}. Did the policy diverge?")
    return np.minimum(np.maximum(action, bounds[0]), bounds[1])


def _checked_choice(space: Any, num_envs: int, action: NDArray, id: str, name: str) -> NDArray:
    if action.shape != (num_envs, *space.shape):
        raise EnvError(f"{id}: {name} have shape {action.shape}; {(num_envs, *space.shape)} is needed.")
    if action.dtype.kind not in "iub":
        raise EnvError(f"{id}: {name} are {action.dtype}; whole numbers are needed, for they choose in {space}.")
    start, count = (0, 2) if isinstance(space, spaces.MultiBinary) else (space.start, space.n if isinstance(space, spaces.Discrete) else space.nvec)
    inside = (action >= start) & (action < start + count)
    if np.count_nonzero(inside) < inside.size:  # a third of what all() takes
        row = np.argwhere(~inside)[0][0]
        raise EnvError(f"{id}: {name} of environment {row} are {shown(action[row])}, which is not in {space}.")
    return action.astype(space.dtype)


class Native:
    """From actions as policies choose them to those of the simulator.

    A bounded Box is mapped linearly from [-1, 1] to its range.

    ``space``: the simulator's own. Called with a tree of checked actions.
    """

    def __init__(self, space: spaces.Space) -> None:
        self._maps = _maps(space)

    def __call__(self, action_N: Tree) -> Tree:
        return map_tree(lambda change, leaf: leaf if change is None else change(leaf), self._maps, action_N)


class Presented:
    """The inverse of `Native`: from the simulator's own actions to those of a policy.

    Of what comes back `Native` makes the same numbers again, bit by bit. It is of single precision, as a policy's actions are, where such numbers do, else of
    double precision; what is beyond the simulator's range is cut to it, as vectors do.
    """

    def __init__(self, space: spaces.Space) -> None:
        self._maps = _maps(space)

    def __call__(self, action_N: Tree) -> Tree:
        return map_tree(lambda change, leaf: change.inverse(np.asarray(leaf)), self._maps, action_N)


def _maps(space: spaces.Space) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _maps(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_maps(part) for part in space.spaces)
    return _Scaled(space) if isinstance(space, spaces.Box) else _Cast(space.dtype)


class _Scaled:
    def __init__(self, space: spaces.Box) -> None:
        self._dtype = space.dtype
        self._middle: Any = (space.high + space.low) / 2 if _is_scaled(space) else 0.0
        self._half: Any = _half(space.low, self._middle, space.high) if _is_scaled(space) else 1.0
        self._is_identity = bool(np.all(self._middle == 0) and np.all(self._half == 1))

    def __call__(self, leaf: NDArray) -> NDArray:
        return (leaf if self._is_identity else self._middle + self._half * leaf).astype(self._dtype, copy=False)

    def inverse(self, leaf: NDArray) -> NDArray:
        if self._is_identity:
            return leaf
        half = np.float64(self._half)
        found = np.divide(leaf - np.float64(self._middle), half, out=np.zeros(leaf.shape), where=half != 0)  # 0: there is nothing to choose
        found = np.clip(found, -1, 1)
        for near in (found.astype(np.float32), found):  # each is mapped in its own precision
            for other in (np.nextafter(near, near.dtype.type(-1)), np.nextafter(near, near.dtype.type(1))):
                near = np.where((self(near) != leaf) & (self(other) == leaf), other, near)
            if np.array_equal(self(near), leaf):
                break
        return near


def _half(low: NDArray, middle: Any, high: NDArray) -> NDArray:
    """Of a range, a little less where rounding would lead out of it."""
    half = np.minimum((high - low) / 2, np.minimum(high - middle, middle - low))
    return np.where((middle + half > high) | (middle - half < low), np.nextafter(half, half.dtype.type(0)), half)


class _Cast:
    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype

    def __call__(self, leaf: NDArray) -> NDArray:
        return leaf.astype(self._dtype, copy=False)

    def inverse(self, leaf: NDArray) -> NDArray:
        return leaf
