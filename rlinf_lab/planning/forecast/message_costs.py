"""What messages between processes add to the calls of a forecast. They cost computing at both ends, and their flight
where somebody waits for them.

    put ── busy ──> · · · flight · · · ──> busy ── get

Computing is laid into the scripts of the calls (`Hops.carried`), flights the simulator makes
(`planning.simulator.messages`): nobody holds a device meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.plan.process_groups import homes_of, place_hosts
from rlinf_lab.planning.profile.profile import Message
from rlinf_lab.planning.simulator.scripts import GET, PUT, RUN, Script, Turn, run

NONE = Message("unix", 0.0, 0.0)


class Taking(NamedTuple):
    """Seconds of a get. ``busy`` computing for each item, ``asking`` computing for each get, ``flight`` there and back
    of each get.
    """

    busy: float = 0.0
    asking: float = 0.0
    flight: float = 0.0


class Hops:
    """The messages of a plan whose hosts are processes. ``messages``: what one costs, for each transport; none:
    nothing.
    """

    def __init__(self, layout: Layout, messages: Sequence[Message]) -> None:
        self._layout, self._place = layout, place_hosts(layout)
        self._messages = tuple(messages)
        self._nodes = {
            host: Device.node_of(names) for host in set(self._place.values()) if (names := self._device_names(host))
        }

    def sending(self, worker: str, rank: int, channel: str, key: int = -1) -> float:
        """Computing seconds that the put of an item costs its producer."""
        return self._between(self._place[worker, rank], self._home(channel, rank, key)).busy_s

    def taking(self, worker: str, rank: int, channel: str) -> Taking:
        here = self._place[worker, rank]
        home = here if self._layout.graph.channel(channel).keyed else self._home(channel, rank)
        if home != here:
            one = self._between(here, home)
            return Taking(0.0, 2 * one.busy_s, 2 * one.latency_s)
        producers = [
            (p, r)
            for p in self._layout.graph.producers(channel)
            for r in range(self._layout.ranks(p))
            if self._reaches(channel, r, rank)
        ]
        ways = [self._between(self._place[p, r], here) for p, r in producers]
        return Taking(sum(w.busy_s for w in ways) / max(1, len(ways)))

    def flight(self, worker: str, rank: int, channel: str, key: int = -1) -> float:
        """Seconds from the put of an item to its arrival at the queue."""
        return self._between(self._place[worker, rank], self._home(channel, rank, key)).latency_s

    def put_ns(self, worker: str, rank: int, channel: str, key: int = -1) -> int:
        """See `messages.Flights`."""
        return round(1e9 * self.flight(worker, rank, channel, key))

    def ask_ns(self, worker: str, rank: int, channel: str) -> int:
        return round(1e9 * self.taking(worker, rank, channel).flight / 2)

    def _reaches(self, channel: str, producer: int, consumer: int) -> bool:
        return not self._layout.sharded(channel) or producer == consumer

    def _home(self, channel: str, rank: int, key: int = -1) -> str:
        """The host of the queue that a rank's item goes to, or that it reads."""
        layout = self._layout
        if layout.sharded(channel):
            return self._place[layout.graph.consumers(channel)[0], rank]
        if layout.graph.channel(channel).keyed:
            return self._place[layout.key_owner(channel, max(0, key))]
        return homes_of(layout, self._place, channel)[0]

    def _between(self, a: str, b: str) -> Message:
        if a == b or not self._messages:
            return NONE
        return message_of(self._messages, self._nodes.get(a, 0) == self._nodes.get(b, 0))

    def _device_names(self, host: str) -> list[str]:
        return [d for member, h in self._place.items() if h == host for d in self._layout.device_names(*member)]

    # --- scripts -----------------------------------------------------------------------------------------------
    def carried(
        self, worker: str, script: Callable[[Turn], Script], before: Hops | None = None
    ) -> Callable[[Turn], Script]:
        """A call's script with what its messages cost in computing. ``before``: those of the run that the durations
        were read off; theirs is in the durations.

        What a message of that run cost that this plan does not send is taken off the runs that follow it.
        """

        puts: dict[tuple[int, str, int], float] = {}
        gets: dict[tuple[int, str], tuple[float, float]] = {}

        def with_messages(turn: Turn) -> Script:
            inner, rank = script(turn), turn.rank
            got: int | None = None
            spare = 0  # nanoseconds
            while True:
                try:
                    op = next(inner) if got is None else inner.send(got)
                except StopIteration:
                    return
                kind, channel, n, key = op
                seconds = 0.0
                if kind == RUN and spare:
                    spare, op = max(0, spare - n), run(max(0, n - spare))
                elif kind == PUT and n:
                    if (rank, channel, key) not in puts:
                        puts[rank, channel, key] = self._put_seconds(before, worker, rank, channel, key)
                    seconds = n * puts[rank, channel, key]
                    yield from _spend(seconds)
                got = yield op
                if kind == GET and got:
                    if (rank, channel) not in gets:
                        gets[rank, channel] = self._get_seconds(before, worker, rank, channel)
                    each, once = gets[rank, channel]
                    seconds = got * each + once
                    yield from _spend(seconds)
                spare += round(max(0.0, -seconds) * 1e9)

        return with_messages

    def _put_seconds(self, before: Hops | None, worker: str, rank: int, channel: str, key: int) -> float:
        """Of an item, beyond what the recorded durations have in them. Below zero where they have more."""
        had = before.sending(worker, before._like(worker, rank), channel, key) if before is not None else 0.0
        return self.sending(worker, rank, channel, key) - had

    def _get_seconds(self, before: Hops | None, worker: str, rank: int, channel: str) -> tuple[float, float]:
        """Of each item, and of the get itself."""
        now = self.taking(worker, rank, channel)
        had = before.taking(worker, before._like(worker, rank), channel) if before is not None else Taking()
        return now.busy - had.busy, now.asking - had.asking

    def _like(self, worker: str, rank: int) -> int:
        """The rank of this plan that stands for one of another plan."""
        return min(rank, self._layout.ranks(worker) - 1)


def message_of(messages: Sequence[Message], one_node: bool) -> Message:
    """What a message costs within a node or between nodes. The dearest where that transport was not measured."""
    wanted = "unix" if one_node else "tcp"
    return max(messages, key=lambda m: (m.transport == wanted, m.latency_s + m.busy_s))


def _spend(seconds: float) -> Script:
    if seconds > 0:
        yield run(round(seconds * 1e9))
