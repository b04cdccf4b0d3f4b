"""The leaves of a space of observations.

What kind each is, and the trees of arrays that belong to it.

A tree has the form of its space: an array for a leaf, a dict for `gymnasium.spaces.Dict`, a tuple for
`gymnasium.spaces.Tuple`, nested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rlinf_lab.errors import ConfigError, article, shown

MOST_CHANNELS = 32  # of an image: eight stacked frames of RGBD
LEAST_PIXELS = 8  # along each side: below, a convolution has nothing to find


class Kind(Enum):
    """What a policy makes of a leaf."""

    NUMBERS = "numbers"
    """a Box that is no image: flattened, normalised by its statistics"""
    IMAGE = "image"
    """a Box of height, width and channels: scaled to [0, 1], channels first"""
    CATEGORIES = "categories"
    """Discrete and MultiDiscrete: one-hot"""
    BINARY = "binary"
    """MultiBinary: 0 or 1"""


@dataclass(frozen=True)
class Leaf:
    """One leaf of a space of observations."""

    name: str
    """where it is in the tree, as Python would index it: ``["camera"][0]``; empty where the space is a leaf itself"""
    space: Any
    """Box, Discrete, MultiDiscrete or MultiBinary"""
    kind: Kind
    channels_first: bool = False
    """of an image"""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of one observation, as the environment gives it."""
        return tuple(self.space.shape)

    @cached_property
    def prepared_shape(self) -> tuple[int, ...]:
        """Of one observation, as an encoder gets it. Images channels first, categories one-hot in one row."""
        if self.kind is Kind.CATEGORIES:
            return (int(choices(self.space).sum()),)
        if self.kind is Kind.IMAGE:
            shape = self.shape if len(self.shape) == 3 else (*self.shape, 1)
            return shape if self.channels_first else (shape[2], *shape[:2])
        return self.shape

    @cached_property
    def size(self) -> int:
        """Numbers in one observation, as an encoder gets it."""
        return int(np.prod(self.prepared_shape))

    def __str__(self) -> str:
        what = self.kind.value
        if self.kind is Kind.IMAGE:
            what = f"image, channels {'first' if self.channels_first else 'last'}"
        return f"{self.name}{' ' if self.name else ''}{what} {self.shape if self.shape else self.size}"


def choices(space: Any) -> np.ndarray:
    """How many values each component of a Discrete or MultiDiscrete space has, in one row."""
    return np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec).reshape(-1).astype(np.int64)


def first_choice(space: Any) -> np.ndarray:
    """The lowest value of each component of a Discrete or MultiDiscrete space, in one row."""
    return np.broadcast_to(np.asarray(space.start, dtype=np.int64), space.shape or (1,)).reshape(-1)


def leaves_of(space: Space, name: str = "") -> tuple[Leaf, ...]:
    """All leaves, in the order of the space. Raises `ConfigError` that names a leaf which no policy can read."""
    return tuple(_leaves(space, name))


def in_rows(leaf_B: Any) -> Any:
    """A tensor (B, ...) as (B, X); of a leaf without axes X is 1."""
    return leaf_B.flatten(1) if leaf_B.dim() > 1 else leaf_B.unsqueeze(1)


def _leaves(space: Any, name: str) -> Iterator[Leaf]:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        if not space.spaces:
            raise ConfigError(
                f"observation_space{name} is {shown(space)}: nothing is in it. Next: give it at least one entry, or "
                "leave it out."
            )
        for key, part in _parts(space):
            yield from _leaves(part, f"{name}[{key!r}]")
    elif isinstance(space, spaces.Box):
        yield _box(space, name)
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        yield Leaf(name, space, Kind.CATEGORIES)
    elif isinstance(space, spaces.MultiBinary):
        yield Leaf(name, space, Kind.BINARY)
    elif isinstance(space, Space):
        raise ConfigError(
            f"observation_space{name} is {shown(space)}: policies read Box, Discrete, MultiDiscrete, MultiBinary, Dict "
            "and Tuple of those. "
            f"Next: gymnasium.wrappers.TransformObservation to one of them, or drop the entry with FilterObservation."
        )
    else:
        raise ConfigError(
            f"observation_space{name} is {shown(space)}, {article(type(space).__name__)}, not a gymnasium space. Next: pass "
            "env.observation_space of one environment."
        )


def _box(space: spaces.Box, name: str) -> Leaf:
    if not np.prod(space.shape):
        raise ConfigError(
            f"observation_space{name} is {shown(space)}: nothing is in it. Next: drop the entry with "
            "gymnasium.wrappers.FilterObservation."
        )
    shape = space.shape
    is_bytes = space.dtype == np.uint8
    if len(shape) == 2 and is_bytes and min(shape) >= LEAST_PIXELS:
        return Leaf(name, space, Kind.IMAGE)
    if len(shape) != 3 or not (is_bytes or space.is_bounded()):
        return Leaf(name, space, Kind.NUMBERS)
    first = shape[0] < shape[2]  # as many of both: channels last, as environments render
    channels, sides = (shape[0], shape[1:]) if first else (shape[2], shape[:2])
    is_image = channels <= MOST_CHANNELS and min(sides) >= LEAST_PIXELS
    return Leaf(name, space, Kind.IMAGE, first) if is_image else Leaf(name, space, Kind.NUMBERS)


def _parts(space: Any) -> list[tuple[Any, Any]]:
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def flatten(space: Any, tree: Any, name: str = "") -> list[Any]:
    """The arrays of a tree in the order of `leaves_of`. Raises `ValueError` where the tree has not the form of its
    space.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(tree, dict) or not tree.keys() >= space.spaces.keys():
            have = sorted(map(str, tree)) if isinstance(tree, dict) else article(type(tree).__name__)
            raise ValueError(
                f"{name or 'the tree'} must be a dict with the keys {sorted(map(str, space.spaces))} of its space; it "
                f"has {have}."
            )
        return [leaf for key, part in space.spaces.items() for leaf in flatten(part, tree[key], f"{name}[{key!r}]")]
    if isinstance(space, spaces.Tuple):
        if not isinstance(tree, (tuple, list)) or len(tree) != len(space.spaces):
            raise ValueError(
                f"{name or 'the tree'} must be a tuple of {len(space.spaces)} as its space; it is {shown(tree)}."
            )
        return [leaf for i, part in enumerate(space.spaces) for leaf in flatten(part, tree[i], f"{name}[{i}]")]
    return [tree]


def unflatten(space: Any, leaves: Sequence[Any]) -> Any:
    """The tree whose leaves these are: the reverse of `flatten`."""
    remaining = iter(leaves)
    return _built(space, remaining)


def _built(space: Any, remaining: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _built(part, remaining) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_built(part, remaining) for part in space.spaces)
    return next(remaining)
