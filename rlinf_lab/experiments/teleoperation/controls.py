"""From keys, sliders and sticks to actions. Which key does what, and what the action is of what is held.

Keys are named as browsers name their places (``KeyboardEvent.code``: "KeyW", "ArrowLeft"), the same on every layout.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.vecenv import EnvSpec

# of an axis: the key for less of it, and for more
PAIRS = (
    ("KeyA", "KeyD"), ("KeyS", "KeyW"), ("KeyQ", "KeyE"), ("KeyF", "KeyR"), ("KeyG", "KeyT"), ("KeyH", "KeyY"),
    ("KeyJ", "KeyU"), ("KeyK", "KeyI"), ("KeyL", "KeyO"),
)  # fmt: skip
WAYS = ("right", "forward", "up", "gripper")  # what the first of them are for, where names say so
ARROWS = (("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"))
DIGITS = tuple(f"Digit{n}" for n in (*range(1, 10), 0))
IDLE_KEY = "Space"
STAYS = ("gripper", "fingers")  # axes that keep their last value: nobody holds a key to hold a cube
IDLE = ("none", "noop", "nothing", "no-op")
WORDS = {"left": "ArrowLeft", "right": "ArrowRight", "up": "ArrowUp", "down": "ArrowDown", "main": "ArrowUp"}
CODES = r"Key[A-Z]|Digit\d|Arrow(Left|Right|Up|Down)|Space|Numpad\w+"
MOST_AXES = 64
DRIVES = "a Box, a Discrete or a MultiBinary space"


@dataclass(frozen=True)
class Binding:
    """Keys that are held together, and what they do. That is a part of an action, or a choice."""

    keys: tuple[str, ...]
    does: tuple[float, ...] | int


@dataclass(frozen=True)
class Controls:
    """How somebody drives a space of actions. ``names``: of its numbers, or of its choices."""

    space: spaces.Space
    names: tuple[str, ...]
    stays: tuple[bool, ...]
    """of each axis; () of choices"""
    bindings: tuple[Binding, ...]
    idle: int | None = None
    """the choice of who does nothing; None: there is none, or these are axes"""

    @property
    def are_choices(self) -> bool:
        return isinstance(self.space, spaces.Discrete)

    @property
    def first(self) -> int:
        """The action of choice 0."""
        return int(self.space.start) if isinstance(self.space, spaces.Discrete) else 0

    @classmethod
    def of(cls, spec: EnvSpec, keys_to_action: Mapping[Any, Any] | None = None) -> Controls:
        """Those of an environment. ``keys_to_action``: as gymnasium's `play` has it; None: by number and name of the
        actions. `ConfigError` for a space that has no controls, and for keys or actions that there are not.
        """
        space, names = spec.action_space, spec.action_names
        if isinstance(space, spaces.Discrete):
            return _choices(spec.id, space, names, keys_to_action)
        size = math.prod(space.shape) if isinstance(space, (spaces.Box, spaces.MultiBinary)) else 0
        if not 1 <= size <= MOST_AXES:
            raise ConfigError(
                f"teleoperate({spec.id!r}): its actions are {shown(space)}; keys and sliders drive {DRIVES} of at most "
                f"{MOST_AXES} numbers. Next: teleoperate on a wrapper of it, such as gymnasium.ActionWrapper."
            )
        return _axes(spec.id, space, size, names, keys_to_action)

    def rest(self) -> Any:
        """The action of who does nothing; None where doing nothing is no action."""
        if self.are_choices:
            return None if self.idle is None else self.action({"choice": self.idle})
        return self.action({"axes": [0.0] * len(self.names)})

    def action(self, told: Mapping[str, Any]) -> Any:
        """Of what a page says is held, ``{"axes": [0, -1]}`` or ``{"choice": 2}``. `ValueError` for anything else."""
        if self.are_choices:
            choice = told.get("choice")
            if isinstance(choice, bool) or not isinstance(choice, int) or not 0 <= choice < len(self.names):
                raise ValueError(f"a choice from 0 to {len(self.names) - 1} is needed, not {shown(choice)}")
            return np.asarray(choice + self.first, self.space.dtype)
        try:
            axes_A = np.asarray(told.get("axes"), np.float64)
        except (TypeError, ValueError, OverflowError):
            axes_A = np.empty(0)
        if axes_A.shape != (len(self.names),) or not np.isfinite(axes_A).all():
            raise ValueError(f"{len(self.names)} finite numbers are needed, not {shown(told.get('axes'))}")
        axes_A = np.clip(axes_A, -1.0, 1.0)
        if isinstance(self.space, spaces.MultiBinary):
            return (axes_A > 0).astype(self.space.dtype).reshape(self.space.shape)
        assert isinstance(self.space, spaces.Box)
        low, high = self.space.low.astype(np.float64), self.space.high.astype(np.float64)
        bounded = np.isfinite(low) & np.isfinite(high)  # elsewhere an axis at its end is 1, in the environment's units
        with np.errstate(invalid="ignore"):
            middle, reach = np.where(bounded, (low + high) / 2, 0.0), np.where(bounded, (high - low) / 2, 1.0)
        action = np.clip(middle + axes_A.reshape(self.space.shape) * reach, low, high)
        return (np.round(action) if self.space.dtype.kind in "iu" else action).astype(self.space.dtype)

    def told(self, action: Any) -> dict[str, Any]:
        """An action as the page shows it. The place of each axis from -1 to 1, or the choice."""
        if self.are_choices:
            return {"choice": int(action) - self.first}
        flat_A = np.asarray(action, np.float64).reshape(-1)
        if isinstance(self.space, spaces.MultiBinary):
            return {"axes": flat_A.tolist()}
        assert isinstance(self.space, spaces.Box)
        low, high = (bound.astype(np.float64).reshape(-1) for bound in (self.space.low, self.space.high))
        bounded = np.isfinite(low) & np.isfinite(high) & (high > low)
        with np.errstate(invalid="ignore", divide="ignore"):
            place_A = np.where(bounded, 2 * (flat_A - low) / (high - low) - 1, flat_A)
        return {"axes": [float(place) for place in np.clip(place_A, -1, 1)]}

    def for_page(self) -> dict[str, Any]:
        return {
            "places": [] if self.are_choices else _places(self.names),
            "kind": "choices" if self.are_choices else "axes", "names": list(self.names), "stays": list(self.stays),
            "idle": self.idle, "signed": not isinstance(self.space, spaces.MultiBinary),
            "bindings": [
                {"keys": list(b.keys), "does": list(b.does) if isinstance(b.does, tuple) else b.does}
                for b in self.bindings
            ],
        }  # fmt: skip

    def __repr__(self) -> str:
        keys = ", ".join(f"{'+'.join(b.keys)}: {self._said(b)}" for b in self.bindings)
        return f"Controls({keys or ', '.join(self.names)})"

    def _said(self, binding: Binding) -> str:
        if isinstance(binding.does, int):
            return self.names[binding.does]
        parts = [f"{name} {by:+g}" for name, by in zip(self.names, binding.does, strict=True) if by]
        return " ".join(parts) or "nothing"


def _choices(id: str, space: spaces.Discrete, given: Sequence[str] | None, keys: Mapping[Any, Any] | None) -> Controls:
    count = int(space.n)
    names = tuple(given) if given is not None and len(given) == count else tuple(f"action {i}" for i in range(count))
    idle = next((i for i, name in enumerate(names) if name.lower() in IDLE), None)
    if keys is not None:
        bindings = tuple(Binding(_codes(id, held), _choice(id, space, action)) for held, action in keys.items())
        return Controls(space, names, (), bindings, idle)
    words = [_keys_of_words(name) for name in names]
    named = [w for w in words if w]
    is_plain = len(set(named)) == len(named) and len(named) + (idle is not None) >= min(count, 3)
    bindings, digits = (), iter(DIGITS)
    for i, held in enumerate(words if is_plain else [()] * count):
        if i != idle:
            key = held or ((next(digits, ""),))
            bindings += (Binding(key, i),) if key[0] else ()
    if idle is not None:
        bindings += (Binding((IDLE_KEY,), idle),)
    return Controls(space, names, (), bindings, idle)


def _keys_of_words(name: str) -> tuple[str, ...]:
    """Arrows that a name speaks of, and F for "fire". () where it speaks of none."""
    found = [WORDS[word] for word in re.findall(r"left|right|up|down|main", name.lower().replace("pick up", ""))]
    return tuple(found + ["KeyF"] * ("fire" in name.lower()))


def _axes(
    id: str, space: spaces.Space, size: int, given: Sequence[str] | None, keys: Mapping[Any, Any] | None
) -> Controls:
    names = tuple(given) if given is not None and len(given) == size else tuple(f"action {i}" for i in range(size))
    stays = tuple(any(word in name.lower() for word in STAYS) for name in names)
    if keys is not None:
        return Controls(
            space, names, stays, tuple(Binding(_codes(id, held), _part(id, size, does)) for held, does in keys.items())
        )
    places = _places(names)
    rows = [(i, pairs[place]) for pairs in (PAIRS, ARROWS) for i, place in enumerate(places) if place < len(pairs)]
    pairs = [(i, pair) for i, pair in rows if size > len(ARROWS) or pair in ARROWS]
    ends = (None, 1.0) if isinstance(space, spaces.MultiBinary) else (-1.0, 1.0)  # nothing is less than off
    bindings = [
        Binding((key,), tuple(by if k == i else 0.0 for k in range(size)))
        for i, pair in pairs
        for key, by in zip(pair, ends, strict=True)
        if by is not None
    ]
    return Controls(space, names, stays, (*bindings, Binding((IDLE_KEY,), (0.0,) * size)))


def _places(names: Sequence[str]) -> list[int]:
    """Which pair of keys each axis has. By what its name says of its way, else the first that is free."""
    words = [re.findall(r"[a-z]+", name.lower()) for name in names]
    said = [next((k for k, way in enumerate(WAYS) if way in some), None) for some in words]
    said = [place if place is not None and said.index(place) == i else None for i, place in enumerate(said)]
    free = iter(k for k in range(len(names) + len(WAYS)) if k not in said)
    return [next(free) if place is None else place for place in said]


def _codes(id: str, keys: Any) -> tuple[str, ...]:
    """Keys by their places. Given as gymnasium writes them ("w", "wd", ("w", "d")) or as browsers do ("KeyW")."""
    whole = isinstance(keys, str) and (len(keys) == 1 or re.fullmatch(r"(Key|Digit|Arrow|Space|Numpad)\w*", keys))
    is_chord = isinstance(keys, str) and 1 < len(keys) <= 3  # longer ones would be the name of a key
    are_several = is_chord or isinstance(keys, (tuple, list))
    parts = [keys] if whole or isinstance(keys, int) else list(keys) if are_several else [None]
    found = []
    for part in parts:
        if isinstance(part, int) and not isinstance(part, bool) and 0 < part < 0x110000:
            part = chr(part)  # as gymnasium's play has them
        if isinstance(part, str) and re.fullmatch(r"[a-zA-Z]", part):
            found.append(f"Key{part.upper()}")
        elif isinstance(part, str) and re.fullmatch(r"\d", part):
            found.append(f"Digit{part}")
        elif isinstance(part, str) and re.fullmatch(CODES, part):
            found.append(part)
        elif part == " ":
            found.append(IDLE_KEY)
        else:
            raise ConfigError(
                f"teleoperate({id!r}, keys_to_action={{{shown(keys)}: ...}}): a letter or a digit, a tuple of them, or "
                'a key\'s code. Next: {"a": ..., ("a", "w"): ..., "ArrowLeft": ...}.'
            )
    if not found:
        raise ConfigError(f"teleoperate({id!r}, keys_to_action={{{shown(keys)}: ...}}): no key. Next: {{'a': ...}}.")
    return tuple(found)


def _choice(id: str, space: spaces.Discrete, action: Any) -> int:
    if isinstance(action, bool) or not space.contains(action):
        raise ConfigError(
            f"teleoperate({id!r}, keys_to_action={{...: {shown(action)}}}): an action of {space} is needed. Next: a "
            f"whole number from {int(space.start)} to {int(space.start + space.n) - 1}."
        )
    return int(action) - int(space.start)


def _part(id: str, size: int, does: Any) -> tuple[float, ...]:
    try:
        array = np.asarray(does, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0)
    if array.shape != (size,) or not np.isfinite(array).all() or (np.abs(array) > 1).any():
        raise ConfigError(
            f"teleoperate({id!r}, keys_to_action={{...: {shown(does)}}}): {size} numbers from -1 to 1, how far each "
            "axis goes of its range. Next: one for each number of the action; keys that are held together are added."
        )
    return tuple(float(x) for x in array)
