"""The engine's queues: puts are matched with room, and gets with items."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from rlinf_lab.planning.engine.devices import Devices
from rlinf_lab.planning.engine.instructions import BOUND, DIVIDE, EXTEND, RESUME, STORE, Instructions
from rlinf_lab.planning.engine.state import ALL, NOW, Channel, Process, expect


class Matching:
    """Of all ``channels``, by number. ``out``: where instructions are added."""

    def __init__(self, channels: dict[int, Channel], devices: Devices, out: Instructions) -> None:
        self._channels, self._devices, self._out = channels, devices, out

    def put(self, p: Process, channel: int, n: int) -> None:
        if p.state != "run":
            expect(p, "run")
        queue = self._channels[channel]
        depth, entering = queue.tail - queue.head, n if queue.groups is None else queue.entering(n, p.ranks)
        if not queue.putters and (depth + entering <= queue.capacity or self._room(queue, entering)):
            self._out.append((STORE, p.index, channel, queue.tail))
            self._out.append((RESUME, p.index, 0, 0))  # keeps its devices
            if (p.weights is not None or queue.weights is not None) and not queue.stub:
                queue.weigh(n, p.weights, p.ranks)
            queue.tail += entering
            if queue.getters:
                self.serve(channel)
            return
        p.state = "put"
        queue.putters.append((p, n))
        self._devices.release(p)
        if queue.getters:
            self.serve(channel)

    def get(self, p: Process, channel: int, n: int) -> None:
        if p.state != "run":
            expect(p, "run")
        queue = self._channels[channel]
        if not n:  # it takes nothing more: as at the end of the stream
            self._devices.release(p)
            self.give_nothing(p)
            return
        if queue.stub:
            p.state = "get"
            if n > NOW:  # who asks for what is there keeps its devices until the answer comes
                self._devices.release(p)
            queue.getters.append((p, n))
            return
        if n <= NOW:
            if self._look(p, queue, NOW - n) and queue.putters:
                self.serve(channel)
            return
        size = n if n > 0 else -n
        if p.granted and p.alone and not queue.getters and queue.tail - queue.head >= size and not queue.is_early:
            # The items are there and nobody else uses the devices: the same as below, without giving them away and
            # getting them back.
            p.lo = lo = queue.head
            queue.head = p.hi = lo + size
            if queue.weights is not None:
                queue.unweigh(size)
            queue.remote_stalled = False
            self._out.append((BOUND, p.index, lo, lo + size))
            self._out.append((RESUME, p.index, lo, lo + size))
            if queue.putters:
                self.serve(channel)
            return
        p.state = "get"
        self._devices.release(p)
        if queue.shares:
            self._give_of_share(queue, p, n)
            return
        queue.getters.append((p, n))
        if queue.remote_stalled:
            self.extend(channel)
        self.serve(channel)

    def _look(self, p: Process, queue: Channel, most: int) -> int:
        """A get that does not wait: what is there, unless others wait for it. Of 0: only how many that would be.
        Returns how many it has got."""
        own = queue.share(p.part) if queue.shares else queue
        there = 0 if own is None or queue.is_early or queue.getters else own.tail - own.head
        n = min(there, most)
        p.lo = p.hi = there if own is None or not most else own.head
        if own is not None and n:
            own.head = p.hi = p.lo + n
            if own.weights is not None:
                own.unweigh(n)
            queue.remote_stalled = False
        self._out.append((BOUND, p.index, p.lo, p.hi))
        self._devices.go_on(p)
        return n

    def _room(self, queue: Channel, n: int) -> bool:
        """Whether there is room for n items. There is below the capacity, or with nothing there (a put larger than the
        channel), or when an exact get asks for more.
        """
        depth = queue.tail - queue.head
        if depth == 0 or depth + n <= queue.capacity:
            return True
        return bool(queue.getters) and not queue.stub and queue.getters[0][1] > depth

    def extend(self, channel: int) -> None:
        """Remote producers are blocked. If the get in front wants more than is there, they may send it."""
        queue = self._channels[channel]
        wanted = queue.getters[0][1] if queue.getters else 0
        missing = wanted - (queue.tail - queue.head)
        if wanted == ALL:
            self.grant_more(channel, 1 << 20)
        elif wanted > ALL:
            self.grant_more(channel, max(1, queue.tail - queue.head))
        elif wanted > 0 and missing > 0:
            self.grant_more(channel, missing)

    def grant_more(self, channel: int, n: int) -> None:
        self._channels[channel].remote_stalled = False
        self._out.append((EXTEND, -1, channel, n))

    def _store(self, channel: int, p: Process, n: int) -> None:
        queue = self._channels[channel]
        self._out.append((STORE, p.index, channel, queue.tail))
        entering = queue.entering(n, p.ranks)
        if (p.weights is not None or queue.weights is not None) and not queue.stub:
            queue.weigh(n, p.weights, p.ranks)
        queue.tail += entering

    def give_nothing(self, p: Process) -> None:
        p.lo = p.hi = 0
        self._out.append((BOUND, p.index, 0, 0))
        self._devices.want(p)

    def accept(self, channel: int, p: Process, n: int) -> None:
        self._store(channel, p, n)
        self.give_nothing(p)

    def bind(self, channel: int, n: int) -> None:
        queue = self._channels[channel]
        p, _ = queue.getters.popleft()
        queue.remote_stalled = False
        self._give(queue, p, n)

    def _give(self, queue: Channel, p: Process, n: int) -> None:
        p.lo = lo = queue.head
        queue.head = p.hi = lo + n
        if queue.weights is not None:
            queue.unweigh(n)
        self._out.append((BOUND, p.index, lo, lo + n))
        self._devices.want(p)

    def _divide(self, channel: int) -> None:
        """The stream has ended, and in front somebody waits for everything who is not alone."""
        queue = self._channels[channel]
        waiting, queue.getters = queue.getters, deque()
        queue.divide(waiting[0][0].part)
        self._out.append((DIVIDE, -1, channel, len(queue.shares)))
        for p, n in waiting:
            self._give_of_share(queue, p, n)

    def _give_of_share(self, queue: Channel, p: Process, wanted: int) -> None:
        """Whatever it asks for it gets of its share. Then it meets the end of the stream."""
        share = queue.share(p.part)
        if share is None:
            self.give_nothing(p)
            return
        n = share.reach(wanted - ALL) if wanted > ALL else abs(wanted)
        self._give(share, p, min(n, share.depth))

    def serve(self, channel: int) -> None:
        """Match waiting putters with room and waiting getters with items until neither can move."""
        queue = self._channels[channel]
        putters, getters = queue.putters, queue.getters
        while True:
            if putters and self._room(queue, queue.entering(putters[0][1], putters[0][0].ranks)):
                self.accept(channel, *putters.popleft())
                continue
            if not getters or queue.stub or queue.is_early:
                return
            depth = queue.tail - queue.head
            wanted = getters[0][1]
            if wanted < 0:
                short = depth > 0 and (putters or queue.remote_stalled)
                wanted = -wanted
                ready = depth >= wanted or short
            else:
                if wanted > ALL:
                    wanted = queue.reach(wanted - ALL)
                ready = depth >= wanted
            if not ready and (putters or not queue.stream.ended):
                return
            p, asked = getters[0]
            if asked == ALL and not queue.own and not p.part.is_alone:
                self._divide(channel)
                return
            self.bind(channel, wanted if wanted < depth else depth)

    def relieve(self, widen: bool, spared: Collection[int]) -> bool:
        """Let one putter exceed the capacity, or serve a short get: see `Engine.relieve`. Whether there was one."""
        full = [
            (q.tail - q.head, q.putters[0][0].index, i)
            for i, q in self._channels.items()
            if q.putters and not q.stub and i not in spared
        ]
        full += [(q.tail - q.head, -1, i) for i, q in self._channels.items() if q.remote_stalled and i not in spared]
        if full:
            depth, putter, i = min(full)
            if putter < 0:
                self.grant_more(i, max(1, depth))
            elif widen:
                self._channels[i].capacity = 2 * depth + self._channels[i].putters[0][1]
            else:
                self.accept(i, *self._channels[i].putters.popleft())
            self.serve(i)
            return True
        short = [
            (q.getters[0][0].index, i) for i, q in self._channels.items()
            if q.getters and not q.stub and q.getters[0][1] < 0 and q.tail > q.head and not q.is_early
        ]  # fmt: skip
        if short:
            _, i = min(short)
            self.bind(i, self._channels[i].depth)
            self.serve(i)
            return True
        return False
