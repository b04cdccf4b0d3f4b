"""What has travelled, for each edge and pair of hosts. It has the transport, messages, items and bytes, and a TRANSFER
span for each stretch of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlinf_lab.runtime.transport.routing import QueueId
from rlinf_lab.timeline.record.clock import Clock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind

STREAMS = ("unix", "tcp")
_TRANSFER = int(SpanKind.TRANSFER)


class Transit(NamedTuple):
    """How one message came, when it was handed over, and its bytes. The time is in the clock of this node."""

    transport: str
    sent_ns: int
    nbytes: int


@dataclass(slots=True)
class _Edge:
    """A channel, as it comes from one host in one iteration. It has its name in the recorder, and messages that were
    heard in one go.
    """

    track: int
    number: int
    iteration: int
    is_open: bool = False
    start_ns: int = 0
    end_ns: int = 0
    transport: str = ""
    items: int = 0
    nbytes: int = 0
    counts: dict[str, list[int]] = field(default_factory=dict)  # by transport: messages, items, bytes


class Traffic:
    """Of one host: what has come to it, and what was handed over within it. Every method runs under its mutex."""

    def __init__(self, host: str, recorder: Recorder, clock: Clock) -> None:
        self._host, self._recorder, self._clock = host, recorder, clock
        self._counts: dict[tuple[str, str, str], list[int]] = {}  # (channel, origin, transport): messages, items, bytes
        self._edges: dict[tuple[str, str], _Edge] = {}  # (channel, origin)
        self._open: list[_Edge] = []

    def within(self, channel: str) -> list[int]:
        """The counts of what is handed over by reference: messages, items, bytes. Whoever does so adds to them."""
        return self._counts_of(channel, self._host, "reference")

    def arrived(self, queue: QueueId, origin: str, items: int, transit: Transit, puts: int = 1) -> None:
        """``puts``: how many messages came as one."""
        transport, sent_ns, nbytes = transit
        edge = self._edges.get((queue.channel, origin))
        if edge is None or edge.iteration != queue.iteration:
            edge = self._new_edge(queue.channel, origin, queue.iteration)
        counts = edge.counts.get(transport)
        if counts is None:
            counts = edge.counts[transport] = self._counts_of(queue.channel, origin, transport)
        counts[0] += puts
        counts[1] += items
        counts[2] += nbytes
        edge.end_ns = now = self._clock.now_ns()
        if not edge.is_open:
            edge.is_open, edge.start_ns, edge.transport = True, min(now, sent_ns), transport
            edge.items, edge.nbytes = items, nbytes
            self._open.append(edge)
            return
        if transport not in STREAMS:  # a part beside the stream, a part in it
            edge.transport = transport
        edge.items += items
        edge.nbytes += nbytes

    def _new_edge(self, channel: str, origin: str, iteration: int) -> _Edge:
        track = self._recorder.track(f"{origin} → {self._host}", 0)
        edge = self._edges[channel, origin] = _Edge(track, self._recorder.channel(channel), iteration)
        return edge

    def _counts_of(self, channel: str, origin: str, transport: str) -> list[int]:
        counts = self._counts.get((channel, origin, transport))
        if counts is None:
            counts = self._counts[channel, origin, transport] = [0, 0, 0]
        return counts

    def is_open(self) -> bool:
        """Whether anything has come that is not written down."""
        return bool(self._open)

    def write_down(self) -> None:
        """Write down one span for each edge: all that had arrived was heard. It is on a lane of the pair of hosts."""
        recorder = self._recorder
        for e in self._open:
            e.is_open = False
            recorder.add(
                e.track,
                _TRANSFER,
                recorder.name(e.transport),
                e.start_ns,
                e.end_ns,
                e.iteration,
                e.items,
                e.nbytes,
                e.number,
            )
        self._open.clear()

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "channel": channel,
                "from": origin,
                "to": self._host,
                "transport": transport,
                "messages": messages,
                "items": items,
                "bytes": nbytes,
            }
            for (channel, origin, transport), (messages, items, nbytes) in self._counts.items()
            if messages
        ]
