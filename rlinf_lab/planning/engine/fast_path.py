"""What the engine answers without instructions, in a third of an event's usual time. These are puts and gets from which
nothing follows for anybody else; items that the only one who waits is given, of this host or of another one; and a get
that waits, with who gets the device from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlinf_lab.planning.engine.devices import Devices
from rlinf_lab.planning.engine.state import ALL, LOCK_KEY, NOW, Channel, Process

NOBODY, NOT_AT_ONCE = -1, -2


class AtOnce:
    """Whoever uses it gets what settling the same event by itself would have given."""

    def __init__(self, processes: list[Process], channels: dict[int, Channel], devices: Devices) -> None:
        self._processes, self._channels, self._devices = processes, channels, devices
        self._line_up = devices.line_up

    def is_sealed(self, channel: int) -> bool:
        """Whether it is known how many producers the channel has."""
        return self._channels[channel].stream.expected >= 0

    def put_at_once(self, process: int, channel: int, n: int) -> int:
        """A put that finds room while nobody waits for its items. Returns the first sequence number; nothing follows
        from it. -1: `settle` it.
        """
        p, queue = self._processes[process], self._channels[channel]
        first = queue.tail
        if (
            p.state != "run"
            or queue.putters
            or queue.getters
            or first - queue.head + n > queue.capacity
            or p.weights is not None
            or queue.weights is not None
        ):
            return -1
        queue.tail = first + n
        return first

    def put_to_waiting(self, process: int, channel: int, n: int) -> int:
        """A put that finds room, of items for the only one who waits: its number. It goes on if its ``state`` is "run",
        with the items from its ``lo`` to its ``hi``; else it waits for devices that others have. Nothing else follows.
        -1: `settle` it."""
        p, queue = self._processes[process], self._channels[channel]
        if (
            p.state != "run"
            or len(queue.getters) != 1
            or queue.putters
            or p.weights is not None
            or queue.weights is not None
        ):
            return -1
        q, asked = queue.getters[0]
        wanted, there = abs(asked), queue.tail - queue.head + n
        if (
            not wanted <= there <= queue.capacity
            or wanted >= ALL
            or queue.stub
            or queue.remote_stalled
            or queue.stream.whole
        ):
            return -1
        if not (q.alone and q.resident) and not all(self._devices.holder[d] for d in q.devices):
            return -1
        queue.getters.popleft()
        queue.tail += n
        q.lo = queue.head
        queue.head = q.hi = queue.head + wanted
        self._line_up(q)
        return q.index

    def puts_at_once(self, processes: Sequence[int], channels: Mapping[int, int], rounds: int) -> int:
        """Puts of one item each by all these processes, in ``rounds`` that follow each other. So many go into each of
        these channels, each round settled by itself: as many of the first rounds as nobody is given anything for are
        done, and nothing follows from them. 0: `settle` the first."""
        for process in processes:
            p = self._processes[process]
            if p.state != "run" or p.weights is not None:
                return 0
        for channel, each in channels.items():
            queue = self._channels[channel]
            if queue.putters or queue.weights is not None or queue.stub:
                return 0
            depth, room = queue.tail - queue.head, queue.capacity
            if queue.getters and not queue.is_early:
                if queue.stream.ended or queue.remote_stalled:
                    return 0
                wanted = abs(queue.getters[0][1])
                room = min(room, (wanted - ALL if wanted > ALL else wanted) - 1)
            rounds = min(rounds, (room - depth) // each)
        if rounds <= 0:
            return 0
        for channel, each in channels.items():
            self._channels[channel].tail += rounds * each
        return rounds

    def has_room(self, channel: int, n: int) -> bool:
        """Whether a put of ``n`` items would be done at once, at a glance. Others put and get meanwhile, and queues are
        forgotten.
        """
        queue = self._channels.get(channel)
        if queue is None:
            return True
        depth = queue.tail - queue.head
        return not queue.putters and (not depth or depth + n <= queue.capacity)

    def get_at_once(self, process: int, channel: int, n: int) -> int:
        """A get whose items are there, of a process whose devices nobody else uses. Returns the first sequence number;
        nothing follows from it. -1: `settle` it.
        """
        p, queue = self._processes[process], self._channels[channel]
        first, end = queue.head, queue.head + abs(n)
        if p.state != "run" or not (p.granted and p.alone and n) or queue.tail < end or queue.getters or queue.putters:
            return -1
        if queue.stub or queue.weights is not None or queue.is_early:
            return -1
        queue.head, queue.remote_stalled = end, False
        p.lo, p.hi = first, end
        return first

    def wait_at_once(self, process: int, channel: int, n: int) -> int:
        """A get whose items are not there yet. Returns the number of who has its device instead and goes on, with the
        items from its ``lo`` to its ``hi``; `NOBODY` where nobody waits for that. Nothing else follows. `NOT_AT_ONCE`:
        `settle` it.
        """
        p, queue = self._processes[process], self._channels[channel]
        if (
            p.state != "run"
            or not n
            or not NOW < n <= ALL
            or queue.putters
            or queue.stub
            or queue.shares
            or queue.remote_stalled
            or queue.stream.ended
        ):
            return NOT_AT_ONCE
        if queue.tail - queue.head >= abs(n):
            return NOT_AT_ONCE
        q = None
        if p.granted and not p.alone:
            device = p.devices[0]
            if self._devices.in_worker_groups[device]:
                return NOT_AT_ONCE
            if waiting := self._devices.queue[device]:
                q = waiting[0] if len(waiting) == 1 else min(waiting, key=LOCK_KEY)
                if not q.resident or q.working:
                    return NOT_AT_ONCE
                waiting.remove(q)
                q.granted = q.holding = True
                q.state = "run"
        if p.granted:
            p.granted = p.holding = False
            for device in p.devices:
                self._devices.holder[device] = q
        p.state = "get"
        queue.getters.append((p, n))
        return NOBODY if q is None else q.index

    def arrival_at_once(self, channel: int, n: int) -> int:
        """Items from another host for the only one who waits, alone on its devices. Returns its number; it goes on with
        the items from its ``lo`` to its ``hi``, and nothing else follows. -1: `remote_put` them.
        """
        queue = self._channels[channel]
        if (
            len(queue.getters) != 1
            or queue.putters
            or queue.weights is not None
            or queue.remote_stalled
            or queue.is_early
        ):
            return -1
        p, asked = queue.getters[0]
        wanted, first, end = abs(asked), queue.head, queue.tail + n
        if not (p.alone and p.resident) or wanted >= ALL or end - first < wanted:
            return -1
        queue.getters.popleft()
        queue.tail, queue.head = end, first + wanted
        p.lo, p.hi = first, first + wanted
        self._line_up(p)
        return p.index
