"""Payloads of the queues whose consumer lives on this host, and stubs of those that live elsewhere."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlinf_lab.planning.engine import Engine
from rlinf_lab.planning.layout import Layout


class QueueId(NamedTuple):
    """A queue, the same on every host. ``shard``: unit of a fused group; ``key``: -1 on a channel without keys."""

    channel: str
    iteration: int
    shard: int
    home: str
    key: int


class StreamId(NamedTuple):
    """All queues that end together."""

    channel: str
    iteration: int
    shard: int
    home: str


@dataclass(eq=False, slots=True)
class Queue:
    """``items``: (payload, host it came from) in the engine's order; empty for a stub."""

    name: QueueId
    index: int  # of the engine's channel
    stream: int  # of the engine's stream
    stub: bool
    items: deque[tuple[Any, str]] = field(default_factory=deque)
    put: int = 0
    taken: int = 0


class QueueTable:
    """Opens queues on first use and forgets those of finished iterations."""

    def __init__(self, layout: Layout, engine: Engine, host: str) -> None:
        self._layout, self._engine, self._host = layout, engine, host
        self._queues: dict[QueueId, Queue] = {}
        self._streams: dict[StreamId, int] = {}
        self._by_index: dict[int, Queue] = {}
        self._retired = -1

    def queue(self, name: QueueId) -> Queue:
        found = self._queues.get(name)
        if found is None:
            stub = name.home != self._host
            stream = self.stream(StreamId(*name[:4]))
            index = self._engine.open_channel(stream, stub)
            found = self._queues[name] = self._by_index[index] = Queue(name, index, stream, stub)
        return found

    def stream(self, name: StreamId) -> int:
        if name not in self._streams:
            capacity = self._layout.capacity(name.channel)
            self._streams[name] = self._engine.open_stream(capacity, name)
        return self._streams[name]

    def is_retired(self, iteration: int) -> bool:
        """Whether a message about this iteration comes too late to matter (a credit that another link overtook)."""
        return iteration <= self._retired

    def of(self, index: int) -> Queue:
        return self._by_index[index]

    def homed(self, channel: str, iteration: int) -> list[StreamId]:
        return [s for s in self._streams if s.channel == channel and s.iteration == iteration and s.home == self._host]

    def of_stream(self, stream: int) -> list[Queue]:
        return [q for q in self._queues.values() if q.stream == stream]

    def retire(self, iteration: int) -> None:
        """Forget the queues of ``iteration`` and before; nobody waits at them any more."""
        self._retired = max(self._retired, iteration)
        for name in [n for n in self._queues if n.iteration <= iteration]:
            queue = self._queues.pop(name)
            del self._by_index[queue.index]
            self._engine.forget_channel(queue.index)
        for stream in [s for s in self._streams if s.iteration <= iteration]:
            self._engine.forget_stream(self._streams.pop(stream))

    def rows(self) -> list[dict[str, Any]]:
        """Depth and counts of every live queue."""
        return [
            {
                "channel": q.name.channel, "iteration": q.name.iteration, "shard": q.name.shard, "key": q.name.key,
                "depth": self._engine.depth(q.index), "put": q.put, "taken": q.taken,
            }
            for q in list(self._queues.values()) if not q.stub
        ]  # fmt: skip
