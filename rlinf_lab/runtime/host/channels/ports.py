"""The two ends of a channel as a worker under a host sees them. They post events and hand over items."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from rlinf_lab.errors import ChannelClosed, WorkflowError, shown
from rlinf_lab.planning.engine.engine import ALL, NOW
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.host.channels.ends import ChannelEnds
from rlinf_lab.runtime.host.state.messages import Moved
from rlinf_lab.runtime.host.state.queues import Queue
from rlinf_lab.runtime.host.state.rank import Process


class Port:
    """One end of a channel in one call.

    ``kind``: what it is called; ``methods``: what it has; ``other``: how to have the other end.
    """

    kind, methods, other = "", "", ""

    def __init__(self, ports: Ports, process: Process, channel: str, iteration: int) -> None:
        self._ends, self._refuse_within, self._layout = ports.ends, ports.refuse_within, ports.layout
        self._process, self._channel, self._iteration = process, channel, iteration
        self._spec = ports.layout.graph.channel(channel)
        self._queues: dict[int | None, Any] = {}  # by key; the only one of a channel without keys: by None
        self.moved = Moved(channel, self.kind == "Inbox")

    def refuse_incomplete(self) -> None:
        """When its call ends. Items that are left are told when the iteration has ended (`unread`): another call may
        read them.
        """

    def _who(self) -> str:
        return f"{self._process.label}: channel {self._channel!r}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self._who()} is an {self.kind} here: it has {self.methods}, not {name!r}. "
            f"Next: annotate it {self.other}."
        )

    def __repr__(self) -> str:
        return f"{self.kind}({self._channel!r} of {self._process.label}, iteration {self._iteration})"


class InboxPort(Port):
    """The reading end; see `workflow.worker.Inbox` for the contract."""

    kind, other = "Inbox", "lab.Outbox to write"
    methods = "get, get_nowait, get_weight, get_all, take and qsize"

    def __init__(self, ports: Ports, process: Process, channel: str, iteration: int) -> None:
        super().__init__(ports, process, channel, iteration)
        self._micro_batch, self._members = ports.layout.plan.micro_batch(channel), self._spec.gathered

    def __iter__(self) -> Iterator[list[Any]]:
        while batch := self.get():
            yield batch

    def get(self, n: int | None = None, *, key: int | None = None) -> list[Any]:
        if n is not None and (type(n) is not int or n < 1):  # the first test is the quick one
            self._refuse_count(n, "get", "the plan's micro-batch")
        return self._get(
            self._queue(key), n if n is not None else (ALL if self._micro_batch == ALL else -self._micro_batch)
        )

    def get_weight(self, weight: int, *, key: int | None = None) -> list[Any]:
        if not isinstance(weight, numbers.Integral) or isinstance(weight, bool) or weight < 1:
            raise WorkflowError(
                f"{self._who()}: get_weight({shown(weight)}): a whole number, at least 1. Next: get_weight(4096), say."
            )
        return self._get(self._queue(key), ALL + int(weight))

    def get_all(self) -> list[Any]:
        return self._get(self._queue(None), ALL)

    def _get(self, queue: Queue, wanted: int) -> list[Any]:
        self.moved.asked = True
        if self._process.together:
            self._refuse_within(self._process, self._channel, True)
        items = self._ends.get(self._process, queue, wanted)
        self.moved.items += len(items) * self._members
        return items

    def get_nowait(self, n: int | None = None, *, key: int | None = None) -> list[Any]:
        if n is not None and (type(n) is not int or n < 1):
            self._refuse_count(n, "get_nowait", "all that is there")
        self.moved.asked = True
        items = self._ends.get(self._process, self._queue(key), NOW - (ALL if n is None else n))
        self.moved.items += len(items) * self._members
        return items

    def qsize(self, *, key: int | None = None) -> int:
        self._ends.get(self._process, self._queue(key), NOW)
        return self._process.machine.lo

    def _refuse_count(self, n: Any, method: str, nothing: str) -> None:
        if not isinstance(n, numbers.Integral) or isinstance(n, bool):
            raise WorkflowError(
                f"{self._who()}: {method}({shown(n)}): a whole number of items, or nothing for {nothing}. "
                f"Next: {method}(3), or {method}()."
            )
        if n < 1:
            raise WorkflowError(
                f"{self._who()}: {method}({n}) asks for less than one item. Next: {method}(1), or {method}() for "
                f"{nothing}."
            )

    def take(self, *, key: int | None = None) -> Any:
        items = self._get(self._queue(key), 1)
        if not items:
            raise ChannelClosed(
                f"{self._who()}: take({'' if key is None else f'{key=}'}) after the end of the stream: "
                f"{self._why_nothing_comes(key)}"
            )
        return items[0]

    def _why_nothing_comes(self, key: int | None) -> str:
        if self._process.leaving:
            return "the rank leaves, and the others take what it would have taken. Next: let the call end."
        producers = self._layout.graph.producers(self._channel)
        done = f"{' and '.join(producers)} {'have' if len(producers) > 1 else 'has'} finished"
        return (
            f"{done}, and no item{'' if key is None else f' of key {key}'} is left. Next: take as many as are put, or "
            "get(1), which is [] then."
        )

    def _queue(self, key: int | None) -> Any:
        queue = self._queues.get(key if self._spec.keyed or key is None else self._key(key))
        if queue is None:
            queue = self._queues[key] = self._ends.reading_queue(
                self._process, self._channel, self._iteration, self._key(key)
            )
        return queue

    def _key(self, key: int | None) -> int:
        if self._spec.keyed and key is None:
            raise WorkflowError(f"{self._who()} is keyed. Next: say which key to read, for example take(key=0).")
        if key is not None and not self._spec.keyed:
            raise WorkflowError(
                f"{self._who()} has no keys. Next: leave key= out, or declare it with flow.channel({self._channel!r}, "
                "keyed=True)."
            )
        return -1 if key is None else key


class OutboxPort(Port):
    """The writing end; see `workflow.worker.Outbox`."""

    kind, methods, other = "Outbox", "put, put_all and is_wanted", "lab.Inbox to read"

    def __init__(self, ports: Ports, process: Process, channel: str, iteration: int) -> None:
        super().__init__(ports, process, channel, iteration)
        self._plain = self._spec.weight is None and self._spec.order in ("fifo", "lifo")

    def put(
        self, item: Any, *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        self._put(self._queue(key), [item], weight, priority)

    def put_all(
        self, items: Iterable[Any], *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        queue = self._queue(key)
        if queue.portion == 1 or not isinstance(items, Collection):  # what is still being made leaves as it comes
            for item in items:
                self._put(queue, [item], weight, priority)
            return
        rest = iter(items)
        while portion := list(itertools.islice(rest, queue.portion)):
            self._put(queue, portion, weight, priority)

    def is_wanted(self) -> bool:
        return self._ends.is_wanted(self._process, self._channel)

    def _put(self, queue: Queue, items: list[Any], weight: int | None, priority: float | None) -> None:
        if self._process.together:
            self._refuse_within(self._process, self._channel, False)
        tags = (
            None
            if self._plain and weight is None and priority is None
            else self._spec.tag(self._who(), items, weight, priority)
        )
        self._ends.put(self._process, queue, items, tags)
        self.moved.items += len(items)

    def _queue(self, key: int | None) -> Any:
        queue = self._queues.get(key) if self._spec.keyed or key is None else None
        if queue is None:
            if self._spec.keyed != (key is not None):
                need = (
                    "is keyed. Next: put(item, key=...)"
                    if self._spec.keyed
                    else "has no keys. Next: leave key= out, or declare it keyed=True"
                )
                raise WorkflowError(f"{self._who()} {need}.")
            queue = self._queues[key] = self._ends.writing_queue(
                self._process, self._channel, self._iteration, -1 if key is None else key
            )
        return queue


class GroupedOutboxPort(OutboxPort):
    """The writing end of a channel of groups. Items wait here until all of their key are there, then they are one item
    of the channel.
    """

    def __init__(self, ports: Ports, process: Process, channel: str, iteration: int) -> None:
        super().__init__(ports, process, channel, iteration)
        self._waiting: dict[int, list[tuple[Any, int | None]]] = {}

    def put(
        self, item: Any, *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        if key is None:
            raise WorkflowError(
                f"{self._who()} has groups of {self._spec.group}. Next: say of which group the item is, put(item, "
                "key=...)."
            )
        members = self._waiting.setdefault(key, [])
        members.append((item, weight))
        if len(members) == self._spec.group:
            del self._waiting[key]
            given = [w for _, w in members if w is not None]
            self._put(self._queue(None), [[item for item, _ in members]], sum(given) if given else None, priority)

    def put_all(
        self, items: Iterable[Any], *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        for item in items:
            self.put(item, key=key, weight=weight, priority=priority)

    def refuse_incomplete(self) -> None:
        for key, members in self._waiting.items():
            worker, ranks = self._process.worker, self._layout.ranks(self._process.worker)
            others = f", one of its {ranks} ranks; each gets items by itself" if ranks > 1 else ""
            raise WorkflowError(
                f"{self._who()} has groups of {self._spec.group}, and the call ended with {len(members)} of key "
                f"{key!r}{others}. Next: one rank puts all items "
                f"of a key, in one call"
                + (
                    f": a plan with one rank of {worker!r}, or groups of {self._spec.group} in what it reads, too."
                    if others
                    else "."
                )
            )


class KeyedOutboxPort(OutboxPort):
    """The writing end where each item says its group. That is put together, or given its turn, where it is read."""

    def __init__(self, ports: Ports, process: Process, channel: str, iteration: int) -> None:
        super().__init__(ports, process, channel, iteration)
        self._put_so_far = 0

    def put(
        self, item: Any, *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        self._put_of(key, [item], weight, priority)

    def put_all(
        self, items: Iterable[Any], *, key: int | None = None, weight: int | None = None, priority: float | None = None
    ) -> None:
        for item in items:
            self._put_of(key, [item], weight, priority)

    def _put_of(self, key: int | None, items: list[Any], weight: int | None, priority: float | None) -> None:
        if self._process.together:
            self._refuse_within(self._process, self._channel, False)
        tags = self._spec.tag(self._who(), items, weight, priority, key)
        # Written down as a group for so many of its items: which put completes one is known where it is read.
        size, before = self._spec.gathered, self._put_so_far
        self._put_so_far += len(items)
        self._ends.put(self._process, self._queue(None), items, tags, self._put_so_far // size - before // size)
        self.moved.items += len(items)


class Ports:
    """Makes the ends of channels that calls of a host are given. ``refuse_within``: ranks that work together must not
    wait at a channel; see `elastic.meetings`.
    """

    def __init__(self, layout: Layout, ends: ChannelEnds, refuse_within: Callable[[Process, str, bool], None]) -> None:
        self.layout, self.ends, self.refuse_within = layout, ends, refuse_within

    def inbox(self, process: Process, channel: str, iteration: int) -> InboxPort:
        """The reading end."""
        return InboxPort(self, process, channel, iteration)

    def outbox(self, process: Process, channel: str, iteration: int) -> OutboxPort:
        """The writing end that the channel's declaration asks for."""
        spec = self.layout.graph.channel(channel)
        made = KeyedOutboxPort if spec.asks_group else GroupedOutboxPort if spec.group > 1 else OutboxPort
        return made(self, process, channel, iteration)
