"""What the engine keeps books of: processes, streams and queues. Counts only; a queue's items are elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from rlinf_lab.errors import ExecutorError
from rlinf_lab.planning.engine.queue_order import ByRank, Groups, InTurn

ALL = 1 << 60
NOW = -ALL  # a get of n <= NOW: at most NOW - n items, and only what is there
UNBOUNDED = 1 << 60
IN_TURN, LAST_FIRST, BY_RANK, OLDEST_GROUP = ORDERS = range(4)  # in which the items of a queue are taken


class Part(NamedTuple):
    """Of a rank in a call: its ``position`` among the ``ranks`` that take part. ``group``: a number for its worker."""

    group: int = -1
    position: int = 0
    ranks: int = 1

    @property
    def is_alone(self) -> bool:
        return self.ranks == 1 and self.position == 0


ALONE = Part()


class Process:
    """A rank of a worker, as the engine sees it."""

    __slots__ = (
        "alone", "devices", "granted", "hi", "holding", "index", "iteration", "lo", "lock_key", "mates",
        "offloadable", "part", "priority", "ranks",
        "resident", "size", "state", "weights", "working",
    )  # fmt: skip

    def __init__(
        self, index: int, devices: tuple[int, ...], priority: int, size: int, offloadable: bool, resident: bool
    ) -> None:
        self.index = index
        self.devices = devices
        self.priority = priority
        self.size = size  # units of memory on each of its devices while resident
        self.working = 0  # further units while it has its devices
        self.mates: list[Process] = []  # those of its cell, itself too
        self.offloadable = offloadable
        self.resident = resident
        self.alone = True  # nobody else uses its devices
        self.holding = False
        self.granted = False  # owns the devices, but may still wait for a switch
        self.state = "idle"
        self.iteration = -1  # of its call
        self.part = ALONE  # in its call
        self.lo = self.hi = 0
        self.lock_key: tuple[int, int, int, int] = (0, 0, 0, 0)
        self.weights: Sequence[int] | None = None  # of the items of its put; None: each weighs 1
        # their places in the order of a channel that has one; None: as they come
        self.ranks: Sequence[float] | None = None


def expect(p: Process, state: str) -> None:
    """Raise `ExecutorError` for an event out of turn."""
    if p.state != state:
        raise ExecutorError(
            f"engine: process {p.index} is {p.state!r}, expected {state!r}: an event out of turn. Next: events as they "
            "are asked for."
        )


LOCK_KEY = attrgetter("lock_key")  # of those who wait for a device the smallest gets it


class Stream:
    """The closing state that all queues of one channel in one iteration share."""

    __slots__ = ("capacity", "channels", "closed", "ended", "expected", "name", "whole")

    def __init__(self, capacity: int | None, name: object, whole: bool = False) -> None:
        self.capacity = UNBOUNDED if capacity is None else capacity
        self.channels: list[int] = []
        self.closed = 0
        self.expected = -1  # unknown until sealed
        self.ended = False
        self.whole = whole  # nobody is given anything before all is there
        self.name = name


class Channel:
    """One queue: counts and the processes that wait at either end.

    ``stub``: its items live on another host. Here ``tail`` less ``head`` is what was put and not yet taken there; a get
    waits until that host has granted it items (`Engine.granted`). ``own``: only one rank reads it. What the ranks of a
    call share is divided when the stream has ended and one of them asks for everything (`divide`): from then on each
    reads its own share. ``order``: see `ORDERS`. ``group``: so many items of a key are put together here, and are one
    item from then on.
    """

    __slots__ = (
        "capacity",
        "getters",
        "group",
        "groups",
        "head",
        "own",
        "putters",
        "remote_stalled",
        "shares",
        "stream",
        "stub",
        "tail",
        "weights",
    )

    def __init__(self, stream: Stream, stub: bool, own: bool = False, order: int = IN_TURN, group: int = 1) -> None:
        self.stream = stream
        self.own = own
        self.group = -1  # whose ranks have the shares
        self.shares: list[Channel] = []  # by position in the call
        self.capacity = stream.capacity
        self.stub = stub
        self.head = self.tail = 0
        self.getters: deque[tuple[Process, int]] = deque()
        self.putters: deque[tuple[Process, int]] = deque()
        self.remote_stalled = False
        # Of what is there, once an item has been weighed; where the first to come is not the first to go, from the
        # beginning: all have their places.
        self.weights: InTurn | ByRank | None = None
        self.groups: Groups[int] | None = None
        if not stub and (group > 1 or order == OLDEST_GROUP):
            self.groups = Groups(group, order == OLDEST_GROUP)
        if not stub and (order != IN_TURN or group > 1):
            self.weights = ByRank(order == LAST_FIRST, self.groups)

    @property
    def is_early(self) -> bool:
        """Whether who wants some of it must wait for the end. Of a whole batch nobody gets a part before all is there.
        """
        return self.stream.whole and not self.stream.ended

    def leave(self, p: Process) -> bool:
        """Take a process off this channel's queues, and say whether it waited. What was not enough for it may be so for
        who was behind it.
        """
        if not any(waiting is p for waiting, _ in (*self.getters, *self.putters)):
            return False
        self.getters = deque(w for w in self.getters if w[0] is not p)
        self.putters = deque(w for w in self.putters if w[0] is not p)
        return True

    def entering(self, n: int, ranks: Sequence[float] | None) -> int:
        """How many a put of ``n`` items makes: fewer where groups are put together."""
        return n if self.groups is None or ranks is None else self.groups.completes(ranks)

    def weigh(self, n: int, weights: Sequence[int] | None, ranks: Sequence[float] | None = None) -> None:
        """``n`` items are about to enter."""
        if self.weights is None:
            self.weights = InTurn(self.tail - self.head)
        self.weights.add([1] * n if weights is None else weights, ranks)

    def unweigh(self, n: int) -> None:
        """The first ``n`` items leave."""
        assert self.weights is not None
        self.weights.take(n)

    def divide(self, part: Part) -> None:
        """What is there becomes equal shares of the ranks of a call, one after another. N items of R ranks are cut at
        N·r // R.
        """
        self.group, n, first = part.group, self.tail - self.head, self.head
        for r in range(part.ranks):
            share = Channel(self.stream, False, own=True)
            share.head = share.tail = first + n * r // part.ranks
            size = first + n * (r + 1) // part.ranks - share.head
            if self.weights is not None:
                share.weigh(size, self.weights.take(size))
            share.tail += size
            self.shares.append(share)
        self.head = self.tail

    def share(self, part: Part) -> Channel | None:
        """What a rank reads since everything was divided; None: it has no share."""
        return self.shares[part.position] if part.group == self.group and part.position < len(self.shares) else None

    @property
    def depth(self) -> int:
        return self.tail - self.head + sum(share.tail - share.head for share in self.shares)

    def reach(self, weight: int) -> int:
        """How many of the first items weigh that much together. `ALL` when all that are there do not."""
        if self.weights is None:
            return weight
        return ALL if self.weights.total < weight else self.weights.reach(weight)
