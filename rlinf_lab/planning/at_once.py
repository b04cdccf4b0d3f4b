"""Puts and gets from which nothing follows for anybody else: the engine's answer without its instructions, a third of the cost of settling an event."""

from __future__ import annotations

from rlinf_lab.planning.books import Channel, Process


class AtOnce:
    """The part of the engine that answers at once. Whoever uses it gets what settling the same event by itself would have given."""

    processes: list[Process]
    channels: dict[int, Channel]

    def put_at_once(self, process: int, channel: int, n: int) -> int:
        """A put that finds room while nobody waits for its items: the first sequence number, and nothing follows from it. -1: `settle` it."""
        p, queue = self.processes[process], self.channels[channel]
        first = queue.tail
        if p.state != "run" or queue.putters or queue.getters or first - queue.head + n > queue.capacity or p.weights is not None or queue.weights is not None:
            return -1
        queue.tail = first + n
        return first

    def get_at_once(self, process: int, channel: int, n: int) -> int:
        """A get whose items are there, of a process whose devices nobody else uses: the first sequence number; nothing follows from it. -1: `settle` it."""
        p, queue = self.processes[process], self.channels[channel]
        first, end = queue.head, queue.head + abs(n)
        if p.state != "run" or not (p.granted and p.alone and n) or queue.tail < end or queue.getters or queue.putters:
            return -1
        if queue.stub or queue.weights is not None or queue.is_early:
            return -1
        queue.head, queue.remote_stalled = end, False
        p.lo, p.hi = first, end
        return first
