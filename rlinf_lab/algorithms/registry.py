"""Advantages and losses by name, one's own among them.

    @lab.algorithms.advantage("centred")
    def centred(reward_PG):
        return reward_PG - reward_PG.mean(1, keepdims=True)

A recipe looks a name up when its workflow is built and gives its workers the function itself, so one that was
registered in a notebook's cell is found in every process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from rlinf_lab.errors import ConfigError, UnknownNameError, shown

F = TypeVar("F", bound=Callable[..., Any])


class Entry(NamedTuple):
    """A registered function."""

    name: str
    function: Callable[..., Any]
    of: str

    @property
    def is_ours(self) -> bool:
        """Whether rlinf_lab wrote it."""
        return str(getattr(self.function, "__module__", "")).startswith("rlinf_lab.")


class Registry(Generic[F]):
    """Functions of one kind by name. Call it with a name to register one, `get` one, or iterate over the names."""

    def __init__(self, kind: str, takes: dict[str, str]) -> None:
        self.kind = kind
        self.takes = takes
        """what a function may be ``of``, and the signature that it then has"""
        self._entries: dict[str, Entry] = {}

    def __call__(self, name: str, *, of: str | None = None) -> Callable[[F], F]:
        """A decorator that registers a function as ``name``. Registering again replaces, as running a cell again does.

        Raises `ConfigError` for a name that is no text and for what no function, `UnknownNameError` for another ``of``.
        """
        if not isinstance(name, str) or not name:
            raise ConfigError(f"A {self.kind} needs a name, not {shown(name)}. Next: @lab.algorithms.{self.kind}('mine').")
        wanted = next(iter(self.takes)) if of is None else of
        if wanted not in self.takes:
            raise UnknownNameError.of(f"of= of a {self.kind}", of, self.takes)

        def register(function: F) -> F:
            if not callable(function):
                raise ConfigError(f"{self.kind} {name!r} is {shown(function)}, not a function.")
            entry = Entry(name, function, wanted)
            if name in self._entries and self._entries[name].is_ours and not entry.is_ours:
                warnings.warn(f"{self.kind} {name!r} of rlinf_lab is replaced by yours from here on. Next: another name keeps both.", stacklevel=2)
            self._entries[name] = entry
            return function

        return register

    def get(self, name: str | Callable[..., Any], *, of: str | tuple[str, ...] | None = None) -> Entry:
        """The function registered as ``name``; a function is taken as it is.

        ``of`` restricts the answer. Raises `UnknownNameError`, which suggests the nearest name that would do.
        """
        allowed = tuple(self.takes) if of is None else (of,) if isinstance(of, str) else of
        if callable(name):
            return Entry(getattr(name, "__name__", repr(name)), name, allowed[0])
        fitting = {n: e for n, e in self._entries.items() if e.of in allowed}
        if name in fitting:
            return fitting[name]
        other = self._entries.get(name)
        hint = f"{name!r} is of {other.of}; here one of {' or '.join(allowed)} is needed." if other else ""
        hint = hint or f"Next: one of those, or register yours with @lab.algorithms.{self.kind}({shown(name)})."
        raise UnknownNameError.of(self.kind, name, fitting, hint)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __repr__(self) -> str:
        by = {of: [n for n in self if self._entries[n].of == of] for of in self.takes}
        lines = [f"{of}: {', '.join(names) or 'none'}  {self.takes[of]}" for of, names in by.items()]
        return "\n".join([f"Registry of {self.kind}:", *lines])


advantage: Registry = Registry(
    "advantage",
    {
        "group": "f(reward_PG) -> advantage_PG, each prompt's group of responses by itself",
        "batch": "f(reward_PG) -> advantage_PG, needs all groups of the batch",
        "steps": "f(reward_TN, value_TN, next_value_TN, terminated_TN, truncated_TN, *, gamma, lam) -> (advantage, target)",
    },
)
"""advantages by name; ``of="group"`` unless said otherwise"""

loss: Registry = Registry(
    "loss",
    {"policy": "f(log_prob, old_log_prob, advantage, mask=None, **options of policy_loss) -> PolicyLoss"},
)
"""losses of a policy by name"""
