"""Values inside values: leaves of nested containers and dataclasses, and parts named by a path. Containers are lists,
tuples, dicts and sets.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

_PLAIN = {type(None), bool, int, float, complex, str, bytes}
Path = tuple[tuple[str, Any], ...]  # attributes (".", name) and items ("[", key)


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change(leaf)`` in the place of every leaf. ``value`` itself when no leaf was changed.

    Containers are plain lists, tuples (named ones too), dicts, sets and dataclass instances; anything else is a leaf. A
    container that holds itself is left alone.
    """
    return _rebuilt(value, change, ())


def _rebuilt(value: Any, change: Callable[[Any], Any], inside: tuple[int, ...]) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return change(value)
    parts = _parts(value, kind)
    if parts is None:
        return change(value)
    if id(value) in inside or set(map(type, parts)) <= _PLAIN:  # numbers by the million are looked at in no time
        return value
    deeper = (*inside, id(value))
    new = [_rebuilt(part, change, deeper) for part in parts]
    return value if all(a is b for a, b in zip(parts, new, strict=True)) else _made(value, kind, new)


def _parts(value: Any, kind: type) -> list[Any] | None:
    """What a container holds; None for a leaf."""
    if kind in (list, tuple, set, frozenset) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return list(value)
    if kind is dict:
        return list(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, f.name) for f in dataclasses.fields(value) if hasattr(value, f.name)]
    return None


def _made(value: Any, kind: type, parts: list[Any]) -> Any:
    """A container like ``value`` that holds ``parts``."""
    if kind is dict:
        return dict(zip(value, parts, strict=True))
    if kind in (list, tuple, set, frozenset):
        return kind(parts)
    if isinstance(value, tuple):
        return kind(*parts)
    changed = copy.copy(value)
    names = [f.name for f in dataclasses.fields(value) if hasattr(value, f.name)]
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(changed, name, part)  # frozen ones too
    return changed


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of ``value``; containers of nothing but numbers and texts may be passed over."""
    found: list[Any] = []

    def keep(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    rebuilt(value, keep)
    return iter(found)


def path_text(path: Path) -> str:
    """As it would be written: ``.metrics['loss']``."""
    return "".join(f".{key}" if how == "." else f"[{key!r}]" for how, key in path)


def follow(value: Any, path: Path) -> Any:
    """The part of ``value`` that ``path`` names; a dict also answers to attribute access."""
    for how, key in path:
        if how == "." and not (isinstance(value, dict) and key in value):
            value = getattr(value, key)
        else:
            value = value[key]
    return value
