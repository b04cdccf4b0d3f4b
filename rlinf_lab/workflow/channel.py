"""Declaration of a channel, as the workflow's author writes it. The queue itself belongs to the executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workflow.handles import FlowBuilder, Ref
from rlinf_lab.workflow.specs import ChannelSpec
from rlinf_lab.workflow.structure import leaves


class Channel:
    """A named first-in-first-out stream between workers, handed to their methods as an argument.

    In the iteration function (the driver) a channel can also be written (`put`, `put_all`) and read (`get`, iteration).
    """

    def __init__(self, flow: FlowBuilder, spec: ChannelSpec) -> None:
        self._flow = flow
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name

    def put(
        self, item: Any, *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        """Hand over one item from the driver; blocks while the channel is full. See `Outbox.put`."""
        self._flow.dispatcher().driver_put(self.spec, self._values([item]), key, weight, priority)

    def put_all(
        self, items: Iterable[Any], *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        """Hand over many items from the driver, in order; ``weight`` and ``priority`` of each."""
        self._flow.dispatcher().driver_put(self.spec, self._values(items), key, weight, priority)

    def _values(self, items: Iterable[Any]) -> list[Any]:
        """Handles stay where they are made; a channel carries values."""
        found = list(items)
        for leaf in leaves(found):
            if isinstance(leaf, Ref):
                raise WorkflowError(
                    f"{leaf!r} was put into channel {self.name!r}, but has no value yet. Next: put {leaf!r}.wait(), or "
                    "pass the handle to a "
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
        notes += ["keyed"] * spec.keyed + ["whole batch"] * spec.whole + ["weighed"] * (spec.weight is not None)
        notes += [f"groups of {spec.group}{' of any rank' * (spec.gathered > 1)}"] * (spec.group > 1)
        notes += ["unread items are discarded"] * spec.discard_unread
        notes += ["may be empty"] * spec.may_be_empty
        order = spec.order if isinstance(spec.order, str) else "by a function"
        notes += [f"order={order}"] * (order != "fifo")
        return f"Channel({spec.name!r}, {', '.join(notes)})"
