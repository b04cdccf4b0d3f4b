"""Items on their way. What one put has handed over stays together until it is taken."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.engine.queue_order import Groups
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.unchanged import Unchanged


class Parcel:
    """The items of one put. Those of another host stay packed until a rank takes the first of them, and are rebuilt by
    its own thread.
    """

    __slots__ = ("_items", "_lock", "_packed", "count", "origin", "taken")

    def __init__(self, count: int, origin: str, content: list[Any] | Packed) -> None:
        self.count, self.origin = count, origin
        self.taken = 0  # written under the host's mutex
        self._packed: Packed | None = content if isinstance(content, Packed) else None
        self._items: list[Any] | None = None if isinstance(content, Packed) else content
        self._lock = threading.Lock()

    def open(self, lo: int, hi: int) -> list[Any]:
        """Its items [lo, hi), each asked for once. Raises whatever their classes raise when they are rebuilt."""
        if hi - lo == self.count:  # nobody else asks for any of them
            items: list[Any] | None = self._items if self._packed is None else self._packed.open()
            assert items is not None
            return items
        with self._lock:
            if self._items is None:
                assert self._packed is not None
                self._items, self._packed = self._packed.open(), None
            found = self._items[lo:hi]
            self._items[lo:hi] = [None] * (hi - lo)  # whoever holds the rest keeps nothing of these alive
            return found

    def __repr__(self) -> str:
        return (
            f"Parcel({self.count} items of host {self.origin!r}, {self.taken} "
            f"taken{', packed' if self._packed is not None else ''})"
        )


class CheckedParcel(Parcel):
    """One of this process whose items must be what they were when they were put. ``who``: put them, and where."""

    __slots__ = ("_put", "_who")

    def __init__(self, origin: str, items: list[Any], who: str) -> None:
        super().__init__(len(items), origin, items)
        self._put, self._who = [Unchanged(item, whole=True) for item in items], who

    def open(self, lo: int, hi: int) -> list[Any]:
        """Raises `WorkflowError` for an item that has changed since."""
        for i in range(lo, hi):
            if field := self._put[i].changed():
                raise WorkflowError(
                    f"{self._who}: an item was changed after it was put, and before it was taken: {field}. Whoever "
                    f"takes it in this process gets the change, in another one not. Next: put a copy (array.copy(), "
                    f"tensor.clone()), or make a new item for each put."
                )
        return super().open(lo, hi)


class Gathered(Parcel):
    """One group whose items came one by one, from anywhere. ``origin`` is that of the last of them."""

    __slots__ = ("_pieces",)

    def __init__(self, origin: str, pieces: Sequence[Piece]) -> None:
        super().__init__(1, origin, [])
        self._pieces = pieces

    def open(self, lo: int, hi: int) -> list[Any]:
        return [opened(self._pieces)]


class Piece(NamedTuple):
    """Items [lo, hi) of a parcel: what a get has been given."""

    parcel: Parcel
    lo: int
    hi: int

    def content(self) -> tuple[int, list[Any] | Packed]:
        """How many items, and what to send to another host. The latter is as it came where it is whole."""
        packed, count = self.parcel._packed, self.hi - self.lo
        return count, packed if packed is not None and count == self.parcel.count else self.parcel.open(
            self.lo, self.hi
        )


def take(parcels: deque[Parcel], n: int) -> list[Piece]:
    """The next ``n`` items. Under the host's mutex."""
    found = []
    while n:
        parcel = parcels[0]
        lo = parcel.taken
        hi = parcel.taken = min(parcel.count, lo + n)
        if hi == parcel.count:
            parcels.popleft()
        found.append(Piece(parcel, lo, hi))
        n -= hi - lo
    return found


def split_off(pieces: deque[Piece], n: int) -> list[Piece]:
    """The first ``n`` items of these. Under the host's mutex."""
    found = []
    while n:
        parcel, lo, hi = pieces.popleft()
        if hi - lo > n:
            pieces.appendleft(Piece(parcel, lo + n, hi))
            hi = lo + n
        found.append(Piece(parcel, lo, hi))
        n -= hi - lo
    return found


class Ordered:
    """Items of a channel that are not taken in the order of their coming. The smallest rank goes first, among equals
    the first.
    """

    def __init__(self, last_first: bool = False, groups: Groups[Piece] | None = None) -> None:
        """``groups``: ranks are keys; the items of a group become one, a list."""
        self._last_first, self._groups = last_first, groups
        self._heap: list[tuple[float, int, Piece]] = []
        self._stored = 0

    def store(self, parcel: Parcel, ranks: Sequence[float] | None) -> int:
        """How many can be taken by that."""
        before = self._stored
        for i in range(parcel.count):
            piece = Piece(parcel, i, i + 1)
            rank = -self._stored - 1 if self._last_first else 0 if ranks is None else ranks[i]
            if self._groups is not None:
                if (whole := self._groups.add(rank, piece)) is None:
                    continue
                rank, pieces = whole
                piece = pieces[0] if self._groups.size == 1 else Piece(Gathered(parcel.origin, pieces), 0, 1)
            self._stored += 1
            heapq.heappush(self._heap, (rank, self._stored, piece))
        return self._stored - before

    def take(self, n: int) -> list[Piece]:
        return [heapq.heappop(self._heap)[2] for _ in range(n)]

    def clear(self) -> None:
        self._heap.clear()
        if self._groups is not None:
            self._groups.clear()

    def __len__(self) -> int:
        return len(self._heap)


def opened(pieces: Sequence[Piece]) -> list[Any]:
    """The items themselves."""
    if len(pieces) == 1:
        parcel, lo, hi = pieces[0]
        return parcel.open(lo, hi)
    return [item for parcel, lo, hi in pieces for item in parcel.open(lo, hi)]
