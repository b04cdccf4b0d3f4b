"""What has travelled: for each edge and pair of hosts the transport, messages, items and bytes; and a TRANSFER span for each stretch of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rlinf_lab.runtime.routing import QueueId
from rlinf_lab.timeline.clock import Clock
from rlinf_lab.timeline.recorder import Recorder
from rlinf_lab.timeline.span import SpanKind


class Transit(NamedTuple):
    """Of one message: how it came, when it was handed over (in the clock of this node) and its bytes."""

    transport: str
    sent_ns: int
    nbytes: int


@dataclass(slots=True)
class _Stretch:
    """Messages of one edge that were heard in one go."""

    start_ns: int
    end_ns: int
    transport: str
    items: int = 0
    nbytes: int = 0


class Traffic:
    """Of one host: what has come to it, and what was handed over within it. Every method runs under its mutex."""

    def __init__(self, host: str, recorder: Recorder, clock: Clock) -> None:
        self._host, self._recorder, self._clock = host, recorder, clock
        self._counts: dict[tuple[str, str, str], list[int]] = {}  # (channel, origin, transport): messages, items, bytes
        self._open: dict[tuple[str, str, int], _Stretch] = {}  # (channel, origin, iteration)

    def within(self, channel: str, items: int) -> None:
        """Items were handed over by reference."""
        self._count(channel, self._host, "reference", items, 0)

    def arrived(self, queue: QueueId, origin: str, items: int, transit: Transit) -> None:
        self._count(queue.channel, origin, transit.transport, items, transit.nbytes)
        now = self._clock.now_ns()
        stretch = self._open.setdefault((queue.channel, origin, queue.iteration), _Stretch(min(now, transit.sent_ns), now, transit.transport))
        if transit.transport != stretch.transport:  # a part in memory, a part in the stream
            stretch.transport = "shared memory"
        stretch.end_ns, stretch.items, stretch.nbytes = now, stretch.items + items, stretch.nbytes + transit.nbytes

    def _count(self, channel: str, origin: str, transport: str, items: int, nbytes: int) -> None:
        counts = self._counts.get((channel, origin, transport))
        if counts is None:
            counts = self._counts[channel, origin, transport] = [0, 0, 0]
        counts[0] += 1
        counts[1] += items
        counts[2] += nbytes

    def write_down(self) -> None:
        """All that had arrived was heard: one span for each edge, on a lane of the pair of hosts."""
        for (channel, origin, iteration), s in self._open.items():
            track = self._recorder.track(f"{origin} → {self._host}", 0)
            name, number = self._recorder.name(s.transport), self._recorder.channel(channel)
            self._recorder.add(track, SpanKind.TRANSFER, name, s.start_ns, s.end_ns, iteration, s.items, s.nbytes, number)
        self._open.clear()

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"channel": channel, "from": origin, "to": self._host, "transport": transport, "messages": messages, "items": items, "bytes": nbytes}
            for (channel, origin, transport), (messages, items, nbytes) in self._counts.items()
        ]
