"""Trees of arrays: an array, a dict or a tuple, nested.

A dict for gymnasium's Dict, a tuple for its Tuple. A plain array is a tree, and costs nothing extra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Tree = Any
"""numpy arrays or torch tensors in dicts and tuples; every leaf has the same leading axes"""


def map_tree(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """``function(leaf, *leaves of the others)`` for every leaf, in a tree of the same form. Keys of the others that the first lacks are left out."""
    if isinstance(tree, dict):
        return {key: map_tree(function, part, *(other[key] for other in others)) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map_tree(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Tree) -> list[Any]:
    """The arrays, in the tree's order."""
    return [leaf for _, leaf in named_leaves(tree)]


def named_leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each leaf with its place as Python would index it.

    Such as ``["camera"][0]``; "" where the tree is a leaf itself.
    """
    if isinstance(tree, (dict, tuple)):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from named_leaves(part, f"{name}[{key!r}]")
    else:
        yield name, tree


def rows(tree: Tree, index: Any) -> Tree:
    """``leaf[index]`` of every leaf."""
    if isinstance(tree, (dict, tuple)):
        return map_tree(lambda leaf: leaf[index], tree)
    return tree[index]


def assign(target: Tree, index: Any, source: Tree) -> None:
    """``target[index] = source``, leaf by leaf, converted to the target's types."""
    if isinstance(target, dict):
        for key, part in target.items():
            assign(part, index, source[key])
    elif isinstance(target, tuple):
        for part, given in zip(target, source, strict=True):
            assign(part, index, given)
    else:
        target[index] = source


def length(tree: Tree) -> int:
    """Of the leading axis."""
    while isinstance(tree, (dict, tuple)):
        tree = next(iter(tree.values())) if isinstance(tree, dict) else tree[0]
    return len(tree)
