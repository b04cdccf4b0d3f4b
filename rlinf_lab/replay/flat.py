"""Trees of arrays as flat dictionaries with names that a file can hold.

``{"obs": {"camera": a, "joints": (b, c)}}`` is ``{"obs/camera": a, "obs/joints/#0": b, "obs/joints/#1": c}``; other
characters of a key are percent-encoded, so no key can be taken for a place in a tuple.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import ConfigError, shown

Tree = Any
"""an array, or a dict or tuple of trees"""


def flat(tree: Tree) -> dict[str, NDArray]:
    """The tree's arrays by name. Raises `ConfigError` for an empty part and for a key that is no text."""
    return {name: np.asarray(leaf) for name, leaf in _leaves(tree, ())}


def nested(leaves: dict[str, NDArray]) -> Tree:
    """The tree that `flat` took apart."""
    if set(leaves) == {""}:
        return leaves[""]
    parts: dict[str, dict[str, NDArray]] = {}
    for name, leaf in leaves.items():
        first, _, rest = name.partition("/")
        parts.setdefault(first, {})[rest] = leaf
    trees = {key: nested(part) for key, part in parts.items()}
    if all(key.startswith("#") for key in trees):
        return tuple(trees[f"#{i}"] for i in range(len(trees)))
    return {unquote(key): part for key, part in trees.items()}


def _leaves(tree: Tree, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, (dict, tuple)):
        yield "/".join(path), tree
        return
    where = f"at {'/'.join(path)!r} " if path else ""
    if not tree:
        raise ConfigError(f"a tree of arrays {where}has an empty {type(tree).__name__}. Next: leave that part out.")
    if isinstance(tree, tuple):
        for i, part in enumerate(tree):
            yield from _leaves(part, (*path, f"#{i}"))
        return
    for key, part in tree.items():
        if not (isinstance(key, str) and key):
            raise ConfigError(f"a tree of arrays {where}has the key {shown(key)}. Next: keys that are text.")
        yield from _leaves(part, (*path, quote(key, safe="")))
