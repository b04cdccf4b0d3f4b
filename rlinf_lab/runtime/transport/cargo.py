"""Weights on their way in buckets, and as what has changed since the version before.

    state ──pickle──> blocks of memory ──ranges of at most a bucket──> unchanged words left out
                                                     │ messages, one for each question
                                                     └──> blocks ──> state

The reader asks for bucket after bucket, so that items and calls go between them. When it has all it asks whether they
are whole (`SEAL`): a learner that goes on in the same memory meanwhile would have it take half of a version and half of
another. Nobody needs to ask where a copy was sent: by delta, and of little.

Small tensors are joined into blocks. What has changed is found word by word, bit for bit; a range where more than a
third has changed travels as it is. By delta both sides keep the last version: the reader's is not writable.
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

WORD = 4  # bytes; what changes in an update is a float or two halves
BUCKET = 16 << 20
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
    def of(cls, version: int, state: Any, copies: bool = False) -> Cargo:
        """Raises `WorkflowError` when the state does not pickle. ``copies``: whatever happens to the state's own memory
        later.
        """
        data, buffers = pickled(state)
        raws = [b.on_host() if isinstance(b, OnDevice) else b for b in buffers]  # what lay on a GPU is a copy already
        places, blocks = together(raws)
        whole = [
            _bytes(raw, copies and not isinstance(b, OnDevice)) for raw, b,
            place in zip(raws, buffers, places, strict=True) if place is None
        ]  # fmt: skip
        return cls(version, data, [*whole, *(np.asarray(memoryview(block)) for block in blocks)], places)

    def open(self, is_kept: bool) -> Any:
        """The state, whose arrays lie on the blocks and cannot be written if these are kept."""
        views: list[Any] = [memoryview(block.data).toreadonly() if is_kept else block for block in self.blocks]
        return pickle.loads(self.data, buffers=_apart(views, self.places))


class Piece(NamedTuple):
    """Bytes ``start`` to ``stop`` of a block: all of them, or the ``words`` (numbers within the range) that have
    changed.
    """

    block: int
    start: int
    stop: int
    content: NDArray
    words: NDArray[np.uint32] | None = None


class Arrived(NamedTuple):
    """A bucket at the reader. ``number`` of ``total``; ``places``: as of `Cargo`, in the first one; ``sizes``: bytes of
    each block; ``base``: the version that left-out words are those of, 0 for none; ``is_kept``: the next version may be
    sent as what has changed in this one; ``is_sealed``: it cannot have changed on its way."""

    version: int
    base: int
    number: int
    total: int
    data: bytes
    places: tuple[Place | None, ...]
    sizes: tuple[int, ...]
    pieces: tuple[Piece, ...]
    is_kept: bool
    is_sealed: bool


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
    """What was sent of this version is whole; or ``changed``, the first part of it that is not."""

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


class Copy:
    """Of a version, made when the first host asks for it, whatever happens to the state's own memory later: all hosts
    are sent this one, and a later version is compared with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: tuple[Cargo, str] | None = None

    def of(self, version: int, state: Any, unchanged: Unchanged) -> tuple[Cargo, str]:
        """And what had changed when it was made."""
        with self._lock:
            if self._made is None:
                made = Cargo.of(version, state, copies=True)
                self._made = made, unchanged.changed()
            return self._made


class Outgoing:
    """A version on its way to one host, which holds ``base``. Pickled and compared bucket by bucket, by the thread that
    sends.

    ``copy``: by delta. What is sent and kept for the next one is a copy: a learner that goes on in the same memory
    would have the next version compared with itself.
    """

    def __init__(
        self, version: int, state: Any, base: Cargo | None, bucket: int, unchanged: Unchanged, copy: Copy | None = None
    ) -> None:
        self.version, self.state, self.base, self.copy = version, state, base, copy
        self._base_version = base.version if base is not None else 0
        self._unchanged: Unchanged | None = unchanged
        self._torn = ""
        self._bucket, self._lock = bucket, threading.Lock()
        self.cargo: Cargo | None = None  # when the first bucket has been pickled
        self._buckets: list[list[tuple[int, int, int]]] = []

    def changed(self) -> str:
        """The first part of what is sent that was changed since it was published; "" where none was."""
        unchanged = self._unchanged
        return self._torn if unchanged is None else unchanged.changed()

    def encode(self, number: int) -> Arrived:
        with self._lock:
            if self.cargo is None:
                if self.copy is None or self._unchanged is None:
                    cargo = Cargo.of(self.version, self.state)
                else:
                    cargo, self._torn = self.copy.of(self.version, self.state, self._unchanged)
                    # nobody needs it any more; this stays until the next version is asked for
                    self.state = self._unchanged = None
                self._buckets = ranges([b.size for b in cargo.blocks], self._bucket)
                self.cargo = cargo
        cargo, total = self.cargo, len(self._buckets)
        pieces = tuple(_piece(cargo, self.base, *r) for r in self._buckets[number])
        if number + 1 == total:
            self.base = None
        sizes = tuple(block.size for block in cargo.blocks)
        is_kept = self.copy is not None
        data, places = (b"", ()) if number else (cargo.data, tuple(cargo.places))
        return Arrived(
            self.version,
            self._base_version,
            number,
            total,
            data,
            places,
            sizes,
            pieces,
            is_kept,
            is_sealed=is_kept and not self._torn,
        )


@dataclass(frozen=True)
class Bucket:
    """What is put into a message: it becomes an `Arrived` when the message is pickled, outside every lock
    of the host.
    """

    outgoing: Outgoing
    number: int

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Arrived._make, (tuple(self.outgoing.encode(self.number)),)


@dataclass(frozen=True)
class Seal:
    """What is put into a message: it becomes a `Sealed` when that is pickled. To look takes milliseconds, which nothing
    else shall wait for.
    """

    outgoing: Outgoing | Whole

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Sealed, (self.outgoing.changed(),)


def ranges(sizes: Sequence[int], bucket: int) -> list[list[tuple[int, int, int]]]:
    """Blocks of these bytes cut into ranges (block, start, stop) and shared among buckets of at most ``bucket`` bytes;
    one bucket at least.
    """
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


def _piece(cargo: Cargo, base: Cargo | None, block: int, start: int, stop: int) -> Piece:
    new = cargo.blocks[block][start:stop]
    if base is None or block >= len(base.blocks) or base.blocks[block].size != cargo.blocks[block].size:
        return Piece(block, start, stop, new)
    new_words, old_words = _words(new), _words(base.blocks[block][start:stop])
    changed = np.flatnonzero(new_words != old_words)
    if 3 * changed.size > new_words.size:
        return Piece(block, start, stop, new)
    return Piece(block, start, stop, new_words[changed], changed.astype(np.uint32))


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


def _bytes(buffer: Any, copies: bool) -> NDArray[np.uint8]:
    found = np.asarray(buffer, np.uint8)
    return found.copy() if copies else found


def _words(data: NDArray[np.uint8]) -> NDArray:
    """As whole words where they come out even and lie on their boundaries; else byte by byte."""
    even = data.size % WORD == 0 and data.ctypes.data % WORD == 0
    return data.view(np.uint32) if even else data


def assembled(buckets: Sequence[Arrived], base: Cargo | None) -> Cargo:
    """All buckets of a version, on top of ``base``, which must be the version that they name."""
    first = buckets[0]
    assert first.base == (base.version if base is not None and first.base else 0), (
        "the version that was left out is not here"
    )
    blocks = []
    left_out = {piece.block for bucket in buckets for piece in bucket.pieces if piece.words is not None}
    for i, size in enumerate(first.sizes):
        keeps = i in left_out and base is not None and i < len(base.blocks) and base.blocks[i].size == size
        blocks.append(base.blocks[i].copy() if keeps and base is not None else np.empty(size, np.uint8))
    for piece in (p for bucket in buckets for p in bucket.pieces):
        target = blocks[piece.block][piece.start : piece.stop]
        if piece.words is None:
            target[:] = piece.content
        else:
            target.view(piece.content.dtype)[piece.words] = piece.content
    return Cargo(first.version, first.data, blocks, first.places)
