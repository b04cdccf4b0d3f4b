"""The two ends of a channel as a worker under a host sees them: they post events and hand over items."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import ChannelClosed, WorkflowError
from rlinf_lab.planning.engine import ALL

if TYPE_CHECKING:
    from rlinf_lab.runtime.host import Host
    from rlinf_lab.runtime.process import Process


class InboxPort:
    """The reading end; see `workflow.worker.Inbox` for the contract."""

    def __init__(self, host: Host, process: Process, channel: str, iteration: int) -> None:
        self._host, self._process, self._channel, self._iteration = host, process, channel, iteration
        self._spec = host.layout.graph.channel(channel)
        self._chunk = host.layout.plan.chunk(channel)
        self._queues: dict[int, Any] = {}

    def __iter__(self) -> Iterator[list[Any]]:
        while batch := self.get():
            yield batch

    def get(self, n: int | None = None, *, key: int | None = None) -> list[Any]:
        if n is not None and n < 1:
            raise WorkflowError(f"{self._who()}: get({n}) asks for less than one item.")
        wanted = n if n is not None else (ALL if self._chunk == ALL else -self._chunk)
        return self._host.get(self._process, self._queue(key), wanted)

    def get_all(self) -> list[Any]:
        return self._host.get(self._process, self._queue(None), ALL)

    def take(self, *, key: int | None = None) -> Any:
        items = self._host.get(self._process, self._queue(key), 1)
        if not items:
            raise ChannelClosed(f"{self._who()}: take() after the end of the stream: every producer has finished.")
        return items[0]

    def _queue(self, key: int | None) -> Any:
        number = self._key(key)
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queues[number] = self._host.reading_queue(self._process, self._channel, self._iteration, number)
        return queue

    def _key(self, key: int | None) -> int:
        if self._spec.keyed and key is None:
            raise WorkflowError(f"{self._who()} is keyed: say which key to read, for example take(key=0).")
        if key is not None and not self._spec.keyed:
            raise WorkflowError(f"{self._who()} has no keys; declare it with flow.channel({self._channel!r}, keyed=True).")
        return -1 if key is None else key

    def _who(self) -> str:
        return f"{self._process.label}: channel {self._channel!r}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"{self._who()} is an Inbox here: it has get, get_all and take, not {name!r}. Next: annotate it lab.Outbox to write.")

    def __repr__(self) -> str:
        return f"Inbox({self._channel!r} of {self._process.label}, iteration {self._iteration})"


class OutboxPort:
    """The writing end; see `workflow.worker.Outbox`."""

    def __init__(self, host: Host, process: Process, channel: str, iteration: int) -> None:
        self._host, self._process, self._channel, self._iteration = host, process, channel, iteration
        self._keyed = host.layout.graph.channel(channel).keyed
        self._queues: dict[int, Any] = {}

    def put(self, item: Any, *, key: int | None = None) -> None:
        self._host.put(self._process, self._queue(key), [item])

    def put_all(self, items: Iterable[Any], *, key: int | None = None) -> None:
        queue = self._queue(key)
        if queue.portion == 1 or not isinstance(items, Collection):  # what is still being made leaves as it comes
            for item in items:
                self._host.put(self._process, queue, [item])
            return
        rest = iter(items)
        while portion := list(itertools.islice(rest, queue.portion)):
            self._host.put(self._process, queue, portion)

    def _queue(self, key: int | None) -> Any:
        if self._keyed != (key is not None):
            need = "is keyed: give put(item, key=...)" if self._keyed else "has no keys: leave key= out, or declare it keyed=True"
            raise WorkflowError(f"{self._process.label}: channel {self._channel!r} {need}.")
        number = -1 if key is None else key
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queues[number] = self._host.writing_queue(self._process, self._channel, self._iteration, number)
        return queue

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        who = f"{self._process.label}: channel {self._channel!r}"
        raise AttributeError(f"{who} is an Outbox here: it has put and put_all, not {name!r}. Next: annotate it lab.Inbox to read.")

    def __repr__(self) -> str:
        return f"Outbox({self._channel!r} of {self._process.label}, iteration {self._iteration})"
