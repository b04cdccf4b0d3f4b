"""Payloads of the queues whose consumer lives here, and stubs of those that live elsewhere."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from rlinf_lab.planning.engine.engine import Engine
from rlinf_lab.planning.engine.queue_order import Groups
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.transport.item_batches import Ordered, Parcel, Piece, split_off, take
from rlinf_lab.runtime.transport.routing import QueueId, Router, StreamId
from rlinf_lab.workflow.specs import Tags

MOST_TOGETHER = 1024


@dataclass(eq=False, slots=True)
class Queue:
    """The items of one queue, or a stub of it. ``parcels``: what was put and not yet taken, in the engine's order; none
    at a stub.

    Room between hosts: a stub may hold its share of the capacity; items that the home hands over are credit for their
    origin. A stub that is full says so once, with the credit it has received; if more is on its way it need not be
    noted as stalled.
    """

    name: QueueId
    index: int  # of the engine's channel
    stream: int  # of the engine's stream
    stub: bool
    share: int | None = None  # of the capacity, for each producing host; None: no bound
    parcels: deque[Parcel] = field(default_factory=deque)
    ordered: Ordered | None = None  # instead of the parcels, where not the first goes first
    # by position in a call, since a rank has asked for everything
    shares: list[deque[Piece]] = field(default_factory=list)
    members: int = 1  # items of a group that is put together here
    put: int = 0
    taken: int = 0
    numbered: bool = False  # producers and consumers count the same items
    number: int = -1  # of the channel's name, in the recorder
    within: list[int] = field(default_factory=lambda: [0, 0, 0])  # what was handed over here, in `traffic`
    portion: int = 1  # of a put of many, at most so many at a time
    abandoned: bool = False  # nobody will read it: what comes is dropped,
    lets_go: bool = False  # and nobody minds
    received: int = 0  # credit that has arrived at this stub
    credited: Counter[str] = field(default_factory=Counter)  # credit that this home has sent to each origin
    saved: Counter[str] = field(default_factory=Counter)  # credit not yet sent
    debt: Counter[str] = field(default_factory=Counter)  # the part of it that was given ahead, before items were taken
    # origins that wait for credit, in the order of their saying so
    stalled: dict[str, None] = field(default_factory=dict)
    iteration: int = field(init=False)
    room: str = field(init=False)  # what a put waits for, in words
    supply: str = field(init=False)  # what a get waits for

    def __post_init__(self) -> None:
        self.iteration = self.name.iteration
        self.room, self.supply = f"room in channel {self.name.channel!r}", f"items of channel {self.name.channel!r}"

    def store(self, parcel: Parcel, tags: Tags | None) -> int:
        """Keep a parcel; how many items can be taken by that. They are fewer than came where groups are put together.
        """
        if self.ordered is not None:
            return self.ordered.store(parcel, None if tags is None else tags.ranks)
        self.parcels.append(parcel)
        return parcel.count

    def take(self, n: int, position: int) -> list[Piece]:
        """The next ``n`` items of the rank at this position in its call."""
        if self.shares:
            return split_off(self.shares[position], n) if n else []
        if self.ordered is not None:
            return self.ordered.take(n)
        # mostly: what one has put another takes
        if self.parcels and (parcel := self.parcels[0]).count == n and not parcel.taken:
            self.parcels.popleft()
            parcel.taken = n
            return [Piece(parcel, 0, n)]
        return take(self.parcels, n)

    def divide(self, count: int) -> None:
        """See `planning.engine.state.Channel.divide`."""
        n = sum(p.count - p.taken for p in self.parcels) if self.ordered is None else len(self.ordered)
        ends = [n * r // count for r in range(count + 1)]
        self.shares = [deque(self.take(hi - lo, 0)) for lo, hi in itertools.pairwise(ends)]

    def clear(self) -> None:
        self.parcels.clear()
        self.shares = [deque() for _ in self.shares]
        if self.ordered is not None:
            self.ordered.clear()


class QueueTable:
    """Opens queues on first use and forgets those of finished iterations."""

    def __init__(self, layout: Layout, engine: Engine, router: Router, host: str) -> None:
        self._layout, self._engine, self._router, self._host = layout, engine, router, host
        self._queues: dict[QueueId, Queue] = {}
        self._streams: dict[StreamId, int] = {}
        self._by_index: dict[int, Queue] = {}
        self._abandoned: dict[tuple[str, int], bool] = {}  # (channel, iteration): whether nobody minds
        self._retired = -1

    def queue(self, name: QueueId) -> Queue:
        found = self._queues.get(name)
        if found is None:
            stub = name.home != self._host
            stream, spec = self.stream(StreamId(*name[:4])), self._layout.graph.channel(name.channel)
            share = self._router.share(name.channel)
            index = self._engine.open_channel(
                stream, stub, share if stub else None, not self._layout.is_shared(name.channel), spec.taken_by,
                spec.gathered,
            )  # fmt: skip
            found = self._queues[name] = self._by_index[index] = Queue(name, index, stream, stub, share)
            found.numbered = spec.is_fifo and self._router.is_numbered(name.channel)
            if not stub and not spec.is_fifo:
                groups: Groups[Piece] = Groups(spec.gathered, spec.order == "oldest_group")
                found.ordered = Ordered(spec.order == "lifo", groups if spec.asks_group else None)
                found.members = spec.gathered

            if stub:  # half of the room, so that one half travels while the other is used up
                found.portion = MOST_TOGETHER if share is None else min(MOST_TOGETHER, max(1, share // 2))
            if not stub and (lets_go := self._abandoned.get((name.channel, name.iteration))) is not None:
                found.abandoned, found.lets_go = True, lets_go
                if lets_go:
                    self._engine.abandon(index)
        return found

    def abandon(self, channel: str, iteration: int, lets_go: bool) -> list[Queue]:
        """Mark the queues that live here as read to the end; those that exist already. ``lets_go``: nobody minds."""
        self._abandoned[channel, iteration] = lets_go
        found = self.at_home(channel, iteration)
        for queue in found:
            queue.abandoned, queue.lets_go = True, lets_go
            queue.clear()
        return found

    def at_home(self, channel: str, iteration: int) -> list[Queue]:
        """Those of a channel that live here and exist already."""
        return [q for n, q in self._queues.items() if n.channel == channel and n.iteration == iteration and not q.stub]

    def left(self, channel: str, iteration: int) -> int:
        """How many items (or groups) were put here and not taken. Those that were dropped count."""
        return sum(q.put - q.taken for q in self.at_home(channel, iteration))

    def stream(self, name: StreamId) -> int:
        if name not in self._streams:
            capacity = self._layout.capacity(name.channel)
            self._streams[name] = self._engine.open_stream(
                capacity, name, self._layout.graph.channel(name.channel).whole
            )
        return self._streams[name]

    def is_retired(self, iteration: int) -> bool:
        """Whether a message about this iteration comes too late to matter. A credit that another link overtook
        does.
        """
        return iteration <= self._retired

    def of(self, index: int) -> Queue:
        return self._by_index[index]

    def retire(self, iteration: int) -> None:
        """Forget the queues of ``iteration`` and before; nobody waits at them any more."""
        self._retired = max(self._retired, iteration)
        for name in [n for n in self._queues if n.iteration <= iteration]:
            queue = self._queues.pop(name)
            del self._by_index[queue.index]
            self._engine.forget_channel(queue.index)
        for stream in [s for s in self._streams if s.iteration <= iteration]:
            self._engine.forget_stream(self._streams.pop(stream))
        self._abandoned = {a: lets_go for a, lets_go in self._abandoned.items() if a[1] > iteration}

    def rows(self) -> list[dict[str, Any]]:
        """Depth, capacity, counts and waiting ranks (at either end) of every live queue. Capacity None: no bound.

        Of ranks of other hosts that wait for room, one is counted for each host.
        """
        rows = []
        for q in list(self._queues.values()):
            if not q.stub:
                getting, putting = self._engine.waiting_at(q.index)
                rows.append({
                    "channel": q.name.channel, "iteration": q.name.iteration, "shard": q.name.shard, "key": q.name.key,
                    "depth": self._engine.depth(q.index), "capacity": self._layout.capacity(q.name.channel),
                    "put": q.put, "taken": q.taken,
                    "waiting_getters": getting, "waiting_putters": putting + len(q.stalled),
                })  # fmt: skip
        return rows
