"""Messages between the hosts of a plan, in virtual time. Nobody holds a device while one flies, as in a run.

    put ── flight ──> queue ──> get                    who puts goes on at once; what it has put is there later
    get ── way ──> queue ── way ──> takes its devices  who asks a queue of another host waits for both ways

A put that finds its channel full waits for room as ever, and its item is there at once then: the reader has enough to
do until it would have come.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from rlinf_lab.planning.cached_method import cached_method
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.planning.simulator.scripts import PUT
from rlinf_lab.planning.simulator.state import ASKING, BITS, GETTING, RUNNING, Apply, Instructions, Rank, State
from rlinf_lab.timeline.record.batch import SPAN_STRUCT
from rlinf_lab.timeline.record.span import SpanKind

Landing = Callable[[], Instructions]

_FLOW = struct.calcsize("<qqq")  # in a packed span: behind its start, its end and its bytes


class Flights(Protocol):
    """How long messages fly, in nanoseconds; 0 within a host."""

    def put_ns(self, worker: str, rank: int, channel: str, key: int = -1) -> int:
        """From the put of an item to its arrival at the queue."""
        ...

    def ask_ns(self, worker: str, rank: int, channel: str) -> int:
        """From a rank to another host's queue that it reads, and as long back."""
        ...


class UnderWay:
    """What flies in a simulation. A timer stands for each moment at which something is there; `land` then says what
    follows from it.
    """

    def __init__(self, flights: Flights, state: State, apply: Apply) -> None:
        self._flights, self._state, self._engine, self._apply = flights, state, state.engine, apply
        self._spans = state.rows.data
        self._arriving: list[tuple[int, int, Landing]] = []
        self._sent = 0
        self._flying: Counter[int] = Counter()  # items by queue
        self._last: dict[tuple[int, int], int] = {}  # (process, stream): when the last item that it has sent is there
        self._askers = {p.index: self._asker(p) for p in list(state.ranks)}

    def _asker(self, p: Rank) -> Rank:
        """Who stands in line for a rank at the queues of other hosts."""
        machine = self._engine.processes[self._engine.add_process()]
        machine.state = "run"
        asker = Rank(p.worker, p.rank, machine.index, p.track, machine)
        asker.doing = ASKING
        self._state.ranks.append(asker)
        return asker

    def flies(self, p: Rank, kind: int, channel: str, key: int, queue: int, n: int) -> bool:
        """Whether what a rank does at a channel is a message. Then it is on its way."""
        state, way = self._state, self._way(p, channel, key, kind)
        if not way or (kind == PUT and not self._has_room(queue, n)):
            return False
        shard = state.layout.shard(channel, p.rank)
        stream = state.stream(channel, p.iteration, shard)
        if kind == PUT:
            self._send(p, queue, stream, n, way)
            p.doing, p.since = RUNNING, state.now
            state.ready.append(p)
            return True
        asker, stub = self._askers[p.index], (channel, p.iteration, shard, -2 - p.index)
        if stub not in state.queues:
            state.queues[stub] = self._engine.open_channel(stream, stub=True)
        asker.queue, asker.since, asker.first, asker.left = state.queues[stub], way, 0, p.index
        asker.machine.part = p.machine.part
        p.doing, p.first = GETTING, -1
        state.pending.append((p.index, int(Event.GET), asker.queue, n))
        self._ask(asker, queue, n, way)
        return True

    @cached_method
    def _way(self, p: Rank, channel: str, key: int, kind: int) -> int:
        """Nanoseconds that a rank's put into a channel flies, or its get there. A get takes as long back."""
        if kind == PUT:
            return self._flights.put_ns(p.worker, p.rank, channel, key)
        return 0 if key >= 0 else self._flights.ask_ns(p.worker, p.rank, channel)  # who reads a key has its queue

    def land(self) -> Instructions:
        found: Instructions = []
        while self._arriving and self._arriving[0][0] <= self._state.now:
            found += heapq.heappop(self._arriving)[2]()
        return found

    def _at(self, when: int, landing: Landing) -> None:
        self._sent += 1
        heapq.heappush(self._arriving, (when, self._sent, landing))
        heapq.heappush(self._state.timers, (when << BITS) + 2 * len(self._state.ranks) + 1)

    # --- puts ------------------------------------------------------------------------------------------------
    def _has_room(self, queue: int, n: int) -> bool:
        channel = self._engine.channels[queue]
        return not channel.putters and channel.tail - channel.head + self._flying[queue] + n <= channel.capacity

    def _send(self, p: Rank, queue: int, stream: int, n: int, flight: int) -> None:
        """Write down n puts of this instant; their items fly."""
        places, now = list[int](), self._state.now
        for _ in range(n):
            places.append(len(self._spans))
            self._spans += SPAN_STRUCT.pack(
                now, now, 0, -1, p.track, p.method, p.channel, p.iteration, 1, int(SpanKind.PUT)
            )
        self._flying[queue] += n
        self._last[p.index, stream] = now + flight
        weights, ranks = p.machine.weights, p.machine.ranks
        self._at(now + flight, lambda: self._arrive(queue, places, weights, ranks))

    def _arrive(
        self, queue: int, places: Sequence[int], weights: Sequence[int] | None, ranks: Sequence[float] | None
    ) -> Instructions:
        self._flying[queue] -= len(places)
        if queue not in self._engine.channels:  # its iteration is over: nobody has wanted it
            return []
        first, instructions = self._engine.remote_put(
            queue, len(places), weights and list(weights) * len(places), ranks and list(ranks) * len(places)
        )
        for number, place in enumerate(places, first):
            self._spans[place + _FLOW : place + _FLOW + 8] = number.to_bytes(8, "little")
        return instructions

    def close(self, p: Rank, stream: int) -> None:
        """A producer has done: its stream hears of it behind the last item."""
        when = self._last.pop((p.index, stream), 0)
        if when <= self._state.now:
            self._apply(self._engine.close(stream))
        else:
            self._at(when, lambda: self._engine.close(stream) if stream in self._engine.streams else [])

    # --- gets ------------------------------------------------------------------------------------------------
    def _ask(self, asker: Rank, queue: int, n: int, way: int) -> None:
        """A get of another host sets out. When it is there, the ``asker`` stands in line for its rank."""

        def landing() -> Instructions:
            if queue in self._engine.channels:
                self._state.pending.append((asker.index, int(Event.GET), queue, n))
            return []

        self._at(self._state.now + way, landing)

    def answered(self, asker: Rank) -> None:
        """Items fly back to the rank for which it stood in line. Or the news that there are no more."""
        index, stub, first, n = asker.left, asker.queue, asker.first, asker.value
        self._at(
            self._state.now + asker.since,
            lambda: self._engine.granted(index, stub, first, n) if stub in self._engine.channels else [],
        )
