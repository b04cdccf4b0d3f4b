"""Spaces of gymnasium as JSON, and trees of arrays as columns by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.trees import Tree

LARGEST_ROW = 256 << 20
"""Bytes of one row of a data set, at most: a file that comes from anywhere must not ask for all memory by a few digits."""
MOST_AXES, DEEPEST = 16, 32


def to_json(space: Space) -> dict[str, Any]:
    """What `from_json` makes the space of. `ConfigError` for a kind that has no form here."""
    if isinstance(space, spaces.Box):
        return {"box": list(space.shape), "dtype": str(space.dtype), "low": _bound(space.low), "high": _bound(space.high)}
    if isinstance(space, spaces.Discrete):
        return {"discrete": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"multi_discrete": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"multi_binary": int(space.n) if isinstance(space.n, (int, np.integer)) else list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"dict": {str(key): to_json(part) for key, part in space.items()}}
    if isinstance(space, spaces.Tuple):
        return {"tuple": [to_json(part) for part in space.spaces]}
    raise ConfigError(f"{space!r} cannot be written to a data set: Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple can.")


def from_json(plain: Any) -> Space:
    """`ConfigError` for what is no such thing, or has rows of more than `LARGEST_ROW` bytes."""
    try:
        if _row_bytes(plain) > LARGEST_ROW:
            raise ConfigError(f"{shown(plain)} has rows of {_row_bytes(plain) >> 20} MiB, and {LARGEST_ROW >> 20} are read. Next: check its shape.")
        return _space(plain)
    except ConfigError:
        raise
    except (TypeError, ValueError, KeyError, AssertionError, AttributeError, OverflowError) as error:
        raise ConfigError(f"{shown(plain)} is no space: {error}.") from error


def _row_bytes(plain: Any, deep: int = 0) -> int:
    """Of a value of the space, before anything of that size is made."""
    if deep > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if not plain.keys() & {"box", "discrete", "multi_discrete", "multi_binary"}:
        return sum(_row_bytes(part, deep + 1) for part in (*plain.get("dict", {}).values(), *plain.get("tuple", ())))
    shape = plain.get("box", plain.get("multi_binary", 1))
    sizes = [int(n) for n in (shape if isinstance(shape, list) else [shape])]
    if len(sizes) > MOST_AXES or any(n < 0 for n in sizes):
        raise ValueError(f"its shape is {shown(shape)}")
    return math.prod(sizes) * (np.dtype(plain["dtype"]).itemsize if "box" in plain else 1)


def _space(plain: Any) -> Space:
    if "box" in plain:
        low, high = (_filled(plain[name], plain) for name in ("low", "high"))
        return spaces.Box(low, high, tuple(plain["box"]), np.dtype(plain["dtype"]).type)
    if "discrete" in plain:
        return spaces.Discrete(int(plain["discrete"]), start=int(plain.get("start", 0)))
    if "multi_discrete" in plain:
        choices = np.array(plain["multi_discrete"], np.int64)
        return spaces.MultiDiscrete(choices, start=np.broadcast_to(np.array(plain.get("start", 0), np.int64), choices.shape))
    if "multi_binary" in plain:
        size = plain["multi_binary"]
        return spaces.MultiBinary(size if isinstance(size, int) else tuple(size))
    if "dict" in plain:
        return spaces.Dict({key: _space(part) for key, part in plain["dict"].items()})
    if "tuple" in plain:
        return spaces.Tuple([_space(part) for part in plain["tuple"]])
    raise ConfigError(f"{shown(plain)} is no space.")


def _bound(bound: np.ndarray) -> Any:
    """One number where all are the same; infinities as JSON has them: as text. Whole numbers stay whole."""
    values = bound if bound.dtype.kind in "iu" else bound.astype(np.float64)
    if values.size and bool((values == values.flat[0]).all()):
        value = values.flat[0].item()
        return str(value) if math.isinf(value) else value
    return np.where(np.isinf(values), np.char.mod("%s", values), values.astype(object)).tolist()


def _filled(bound: Any, plain: Mapping[str, Any]) -> np.ndarray:
    kind = np.dtype(plain["dtype"])
    if kind.kind in "iu":  # as Python's, for a float has not all digits; an older file has floats, beyond the type by rounding
        least, most = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        whole = np.vectorize(lambda number: min(max(int(number), least), most), otypes=[object])
        return np.broadcast_to(whole(np.array(bound, object)).astype(kind), tuple(plain["box"]))
    return np.broadcast_to(np.array(bound, np.float64), tuple(plain["box"])).astype(kind)


def leaf_spaces(space: Space, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Space]]:
    """Every leaf with its place: keys of dicts, numbers in tuples."""
    if isinstance(space, spaces.Dict):
        for key, part in space.items():
            yield from leaf_spaces(part, (*path, str(key)))
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from leaf_spaces(part, (*path, str(i)))
    else:
        yield path, space


def at(tree: Tree, path: tuple[str, ...]) -> Any:
    """The leaf of a tree at that place."""
    for key in path:
        tree = tree[int(key)] if isinstance(tree, tuple) else tree[key]
    return tree


def built(space: Space, leaf: Any, path: tuple[str, ...] = ()) -> Tree:
    """A tree of the form of ``space``; ``leaf(path)`` gives each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: built(part, leaf, (*path, str(key))) for key, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(built(part, leaf, (*path, str(i))) for i, part in enumerate(space.spaces))
    return leaf(path)


def typed(space: Space, tree: Tree, cut: bool = False) -> Tree:
    """Arrays in the types of their space. ``cut``: to the bounds of a Box, too."""
    leaves = dict(leaf_spaces(space))

    def leaf(path: tuple[str, ...]) -> np.ndarray:
        part, array = leaves[path], np.asarray(at(tree, path))
        array = np.clip(array, part.low, part.high) if cut and isinstance(part, spaces.Box) else array
        return array.astype(part.dtype, copy=False)

    return built(space, leaf)


def is_image(space: Space) -> bool:
    """A picture: uint8, height × width × 3."""
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3 and space.shape[2] == 3
