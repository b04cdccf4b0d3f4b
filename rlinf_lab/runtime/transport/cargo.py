"""Weights on their way, in one message or in buckets.

    state ──pickle──> blocks of memory ──ranges of at most a bucket, one message for each question──> blocks ──> state

The reader asks for bucket after bucket, so that items and calls go between them. When it has all it asks whether they
are whole (`SEAL`): a learner that goes on in the same memory meanwhile would have it take half of a version and half of
another. Nobody needs to ask where a copy was sent: of little. Small tensors are joined into blocks.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.runtime.transport.pickling import LARGE, OnDevice, Packed, pickled
from rlinf_lab.runtime.transport.unchanged import Unchanged

WORD = 4  # bytes: no bucket ends within one
SEAL = -1  # instead of the number of a bucket: all have come
LITTLE = 1 << 20  # bytes
ALIGNED = 64  # arrays begin at such places


class Place(NamedTuple):
    """Where a small buffer lies: bytes ``start`` to ``stop`` of a block."""

    block: int
    start: int
    stop: int


@dataclass(frozen=True)
class Cargo:
    """A version as it travels: its pickle, and its blocks of memory as bytes. ``places``: of the pickle's buffers in
    the joined blocks, which are the last; None where a buffer is a block by itself."""

    version: int
    data: bytes
    blocks: Sequence[NDArray[np.uint8]]
    places: Sequence[Place | None]

    @classmethod
    def of(cls, version: int, state: Any) -> Cargo:
        """Raises `WorkflowError` when the state does not pickle."""
        data, buffers = pickled(state)
        raws = [b.on_host() if isinstance(b, OnDevice) else b for b in buffers]
        places, blocks = together(raws)
        whole = [np.asarray(raw, np.uint8) for raw, place in zip(raws, places, strict=True) if place is None]
        return cls(version, data, [*whole, *(np.asarray(memoryview(block)) for block in blocks)], places)

    def open(self) -> Any:
        """The state, whose arrays lie on the blocks."""
        return pickle.loads(self.data, buffers=_apart(self.blocks, self.places))


class Piece(NamedTuple):
    """Bytes ``start`` to ``stop`` of a block."""

    block: int
    start: int
    stop: int
    content: NDArray


class Arrived(NamedTuple):
    """A bucket at the reader. ``number`` of ``total``; ``places``: as of `Cargo`, in the first one; ``sizes``: bytes of
    each block."""

    version: int
    number: int
    total: int
    data: bytes
    places: tuple[Place | None, ...]
    sizes: tuple[int, ...]
    pieces: tuple[Piece, ...]
    is_sealed: bool = False  # it may have changed on its way


class ArrivedWhole(NamedTuple):
    """A version that has come in one message; whoever pulls it rebuilds it. ``places``: of its pickle's buffers in
    those of ``packed``, None where that is one by itself; the joined ones are the last."""

    packed: Packed
    places: tuple[Place | None, ...]
    is_sealed: bool

    def open(self) -> Any:
        """The state. Raises whatever its classes raise when they are rebuilt."""
        return pickle.loads(self.packed.data, buffers=_apart(self.packed.buffers, self.places))


class Sealed(NamedTuple):
    """What was sent of this version is whole. Or ``changed``, the first part of it that is not."""

    changed: str


class Whole:
    """A version on its way in one message. It becomes an `ArrivedWhole` when the message is pickled, outside every lock
    of the host.
    """

    def __init__(self, version: int, state: Any, unchanged: Unchanged) -> None:
        self.version, self.state, self._unchanged = version, state, unchanged

    def changed(self) -> str:
        """The first part of it that was, since it was published; "" where none was."""
        return self._unchanged.changed()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        packed, places, little = joined(Packed.of(self.state))
        is_sealed = not self._unchanged.knows_any or (little and not self.changed())
        return ArrivedWhole, (packed, places, is_sealed)


class Outgoing:
    """A version on its way to one host in buckets; the thread that sends pickles."""

    def __init__(self, version: int, state: Any, bucket: int, unchanged: Unchanged) -> None:
        self.version, self.state = version, state
        self._unchanged, self._bucket, self._lock = unchanged, bucket, threading.Lock()
        self._cargo: Cargo | None = None  # when the first bucket has been pickled
        self._buckets: list[list[tuple[int, int, int]]] = []

    def changed(self) -> str:
        """The first part of what is sent that was changed since it was published. "" where none was."""
        return self._unchanged.changed()

    def encode(self, number: int) -> Arrived:
        """One bucket."""
        with self._lock:
            if self._cargo is None:
                cargo = Cargo.of(self.version, self.state)
                self._buckets = ranges([b.size for b in cargo.blocks], self._bucket)
                self._cargo = cargo
        cargo, total = self._cargo, len(self._buckets)
        pieces = tuple(Piece(*r, cargo.blocks[r[0]][r[1] : r[2]]) for r in self._buckets[number])
        sizes = tuple(block.size for block in cargo.blocks)
        data, places = (b"", ()) if number else (cargo.data, tuple(cargo.places))
        return Arrived(self.version, number, total, data, places, sizes, pieces)


@dataclass(frozen=True)
class Bucket:
    """What is put into a message: it becomes an `Arrived` when the message is pickled, outside every lock
    of the host.
    """

    outgoing: Outgoing
    number: int

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Arrived, tuple(self.outgoing.encode(self.number))


@dataclass(frozen=True)
class Seal:
    """What is put into a message: it becomes a `Sealed` when that is pickled. To look takes milliseconds, which nothing
    else shall wait for.
    """

    outgoing: Outgoing | Whole

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Sealed, (self.outgoing.changed(),)


def ranges(sizes: Sequence[int], bucket: int) -> list[list[tuple[int, int, int]]]:
    """Buckets of at most ``bucket`` bytes, each of ranges (block, start, stop); one at least."""
    found: list[list[tuple[int, int, int]]] = [[]]
    room = bucket = max(WORD, bucket // WORD * WORD)
    for block, size in enumerate(sizes):
        start = 0
        while start < size:
            if room < WORD:
                found.append([])
                room = bucket
            stop = min(size, start + room // WORD * WORD)
            found[-1].append((block, start, stop))
            room -= stop - start
            start = stop
    return found


def together(raws: Sequence[Any]) -> tuple[tuple[Place | None, ...], list[bytearray]]:
    """Small buffers copied into blocks of at most `LITTLE` bytes: each one by itself takes tens of microseconds on its
    way. Where each lies; None for a large one, and where there are no bytes here."""
    places, blocks = list[Place | None](), [bytearray()]
    for raw in raws:
        if raw is None or raw.nbytes >= LARGE:
            places.append(None)
            continue
        if len(blocks[-1]) + raw.nbytes > LITTLE:
            blocks.append(bytearray())
        block = blocks[-1]
        places.append(Place(len(blocks) - 1, len(block), len(block) + raw.nbytes))
        block += raw
        block += bytes(-len(block) % ALIGNED)
    return tuple(places), blocks


def joined(packed: Packed) -> tuple[Packed, tuple[Place | None, ...], bool]:
    """Small buffers `together`. Where each lies, and whether all are copies now."""
    places, blocks = together([None if type(b) is OnDevice else memoryview(b).cast("B") for b in packed.buffers])
    whole = [buffer for buffer, place in zip(packed.buffers, places, strict=True) if place is None]
    return Packed(packed.data, (*whole, *map(pickle.PickleBuffer, blocks))), places, not whole


def _apart(buffers: Sequence[Any], places: Sequence[Place | None]) -> list[Any]:
    """A pickle's buffers; the joined ones are the last of ``buffers``."""
    count = places.count(None)
    whole, blocks = iter(buffers[:count]), [memoryview(block) for block in buffers[count:]]
    return [next(whole) if p is None else blocks[p.block][p.start : p.stop] for p in places]


def assembled(buckets: Sequence[Arrived]) -> Cargo:
    """All buckets of a version."""
    first = buckets[0]
    blocks = [np.empty(size, np.uint8) for size in first.sizes]
    for piece in (p for bucket in buckets for p in bucket.pieces):
        blocks[piece.block][piece.start : piece.stop] = piece.content
    return Cargo(first.version, first.data, blocks, first.places)
