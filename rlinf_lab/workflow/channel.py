"""Declaration of a channel, as the workflow's author writes it. The queue itself belongs to the executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import ConfigError, WorkflowError
from rlinf_lab.workflow.handles import Handle, Ref
from rlinf_lab.workflow.structure import leaves

if TYPE_CHECKING:
    from rlinf_lab.workflow.workflow import Workflow

DEFAULT_CAPACITY = 64


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """What a channel promises.

    ``capacity``: items it holds before a put blocks (``None``: unbounded). ``keyed``: every item has an integer key and is
    read by it. ``whole``: the consumer wants everything of an iteration at once (on-policy training), so nothing bounds it.
    """

    name: str
    capacity: int | None = DEFAULT_CAPACITY
    keyed: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ConfigError(f"Channel name {self.name!r} is not an identifier; use letters, digits and underscores.")
        for option in ("keyed", "whole"):
            if not isinstance(getattr(self, option), bool):
                raise ConfigError(f"Channel {self.name!r}: {option} is {getattr(self, option)!r}; it must be True or False.")
        if self.capacity is not None and (not isinstance(self.capacity, int) or isinstance(self.capacity, bool) or self.capacity < 1):
            raise ConfigError(
                f"Channel {self.name!r}: capacity is {self.capacity!r}; it must be a whole number of items, "
                f"at least 1, or None for no bound."
            )


class Channel:
    """A named first-in-first-out stream between workers, handed to their methods as an argument.

    In the iteration function (the driver) a channel can also be written (`put`, `put_all`) and read (`get`, iteration).
    """

    def __init__(self, flow: Workflow, spec: ChannelSpec) -> None:
        self._flow = flow
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name

    def put(self, item: Any, *, key: int | None = None) -> None:
        """Hand over one item from the driver; blocks while the channel is full."""
        self._flow.dispatcher().driver_put(self.spec, self._values([item]), key)

    def put_all(self, items: Iterable[Any], *, key: int | None = None) -> None:
        """Hand over many items from the driver, in order."""
        self._flow.dispatcher().driver_put(self.spec, self._values(items), key)

    def _values(self, items: Iterable[Any]) -> list[Any]:
        """Handles stay where they are made; a channel carries values."""
        found = list(items)
        for leaf in leaves(found):
            if isinstance(leaf, (Handle, Ref)):
                raise WorkflowError(
                    f"{leaf!r} was put into channel {self.name!r}, but has no value yet. Next: put {leaf!r}.wait(), or pass the handle to a "
                    f"worker's method that puts its value."
                )
        return found

    def get(self, n: int | None = None, *, key: int | None = None) -> list[Any]:
        """``n`` items for the driver (fewer at the end of the stream, ``[]`` after it)."""
        return self._flow.dispatcher().driver_get(self.spec, n, key)

    def get_all(self) -> list[Any]:
        """Everything of this iteration, for the driver."""
        return self._flow.dispatcher().driver_get(self.spec, "all", None)

    def __iter__(self) -> Iterator[list[Any]]:
        while batch := self.get():
            yield batch

    def __repr__(self) -> str:
        spec = self.spec
        notes = [f"capacity={'unbounded' if spec.capacity is None or spec.whole else spec.capacity}"]
        notes += ["keyed"] * spec.keyed + ["whole batch"] * spec.whole
        return f"Channel({spec.name!r}, {', '.join(notes)})"
