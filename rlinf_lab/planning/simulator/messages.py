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

from rlinf_lab.planning.engine.engine import Engine, Event, Process
from rlinf_lab.planning.simulator.scripts import PUT
from rlinf_lab.timeline.record.batch import SPAN_STRUCT
from rlinf_lab.timeline.record.span import SpanKind

Instructions = list[tuple[int, int, int, int]]
Landing = Callable[[], Instructions]

_FLOW = struct.calcsize("<qqq")  # in a packed span: behind its start, its end and its bytes


class Flights(Protocol):
    """How long messages fly, in nanoseconds; 0 within a host."""

    def put_ns(self, worker: str, rank: int, channel: str, key: int = -1) -> int:
        """From the put of an item to its arrival at the queue."""
        ...

    def ask_ns(self, worker: str, rank: int, channel: str) -> int:
        """From a rank to the queue of another host that it reads, and as long back."""
        ...


class Member(Protocol):
    """What is looked at of a simulated rank: numbers of its track, of its method's and its channel's name, of its
    iteration.
    """

    worker: str
    rank: int
    index: int
    machine: Process
    track: int
    method: int
    channel: int
    iteration: int


class UnderWay:
    """What flies in a simulation. ``spans``: where those are packed. The rest returns when something is there; `land`
    then says what follows from it.
    """

    def __init__(self, flights: Flights, engine: Engine, spans: bytearray) -> None:
        self._flights, self._engine, self._spans = flights, engine, spans
        self._ways: dict[tuple[int, str, int, int], int] = {}
        self._arriving: list[tuple[int, int, Landing]] = []
        self._sent = 0
        self._flying: Counter[int] = Counter()  # items by queue
        self._last: dict[tuple[int, int], int] = {}  # (process, stream): when the last item that it has sent is there

    def way(self, p: Member, channel: str, key: int, kind: int) -> int:
        """How long what a rank puts into a channel flies, or its get there, and as long back."""
        name = p.index, channel, key, kind
        if name not in self._ways:
            self._ways[name] = self._found(p, channel, key, kind)
        return self._ways[name]

    def _found(self, p: Member, channel: str, key: int, kind: int) -> int:
        if kind == PUT:
            return self._flights.put_ns(p.worker, p.rank, channel, key)
        return 0 if key >= 0 else self._flights.ask_ns(p.worker, p.rank, channel)  # who reads a key has its queue

    def land(self, now: int) -> Instructions:
        found: Instructions = []
        while self._arriving and self._arriving[0][0] <= now:
            found += heapq.heappop(self._arriving)[2]()
        return found

    def _at(self, when: int, landing: Landing) -> int:
        self._sent += 1
        heapq.heappush(self._arriving, (when, self._sent, landing))
        return when

    # --- puts ------------------------------------------------------------------------------------------------
    def has_room(self, queue: int, n: int) -> bool:
        channel = self._engine.channels[queue]
        return not channel.putters and channel.tail - channel.head + self._flying[queue] + n <= channel.capacity

    def send(self, p: Member, queue: int, stream: int, n: int, now: int, flight: int) -> int:
        """Write down n puts of this instant; their items fly. When they are there."""
        places = []
        for _ in range(n):
            places.append(len(self._spans))
            self._spans += SPAN_STRUCT.pack(
                now, now, 0, -1, p.track, p.method, p.channel, p.iteration, 1, int(SpanKind.PUT)
            )
        self._flying[queue] += n
        self._last[p.index, stream] = now + flight
        weights, ranks = p.machine.weights, p.machine.ranks
        return self._at(now + flight, lambda: self._arrive(queue, places, weights, ranks))

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

    def close(self, p: Member, stream: int, now: int) -> tuple[int, Instructions]:
        """A producer has done: its stream hears of it behind the last item. (0, what follows) or (when,
        nothing yet).
        """
        when = self._last.pop((p.index, stream), 0)
        if when <= now:
            return 0, self._engine.close(stream)
        return self._at(when, lambda: self._engine.close(stream) if stream in self._engine.streams else []), []

    # --- gets ------------------------------------------------------------------------------------------------
    def ask(
        self, asker: Member, queue: int, n: int, now: int, way: int, post: Callable[[tuple[int, int, int, int]], None]
    ) -> int:
        """A get of another host sets out. When it is there; then the ``asker`` stands in line for its rank."""

        def landing() -> Instructions:
            if queue in self._engine.channels:
                post((asker.index, int(Event.GET), queue, n))
            return []

        return self._at(now + way, landing)

    def answer(self, p: Member, stub: int, first: int, n: int, now: int, way: int) -> int:
        """Items, or the news that there are no more, fly back to the rank that asked."""
        return self._at(
            now + way, lambda: self._engine.granted(p.index, stub, first, n) if stub in self._engine.channels else []
        )
