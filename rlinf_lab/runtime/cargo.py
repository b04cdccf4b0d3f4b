"""Weights on their way in buckets, and as what has changed since the version before.

    state ──pickle──> blocks of memory ──ranges of at most a bucket──> unchanged words left out ──messages, one for each question──> blocks ──> state

The reader asks for bucket after bucket, so that items and calls go between them. What has changed is found word by word, bit for bit; a range
where more than a third has changed travels as it is. Both sides keep the last version: the reader's is not writable.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.runtime.pickling import OnDevice, pickled
from rlinf_lab.runtime.unchanged import Unchanged

WORD = 4  # bytes; what changes in an update is a float or two halves
BUCKET = 16 << 20


@dataclass(frozen=True)
class Cargo:
    """A version as it travels: its pickle, and its blocks of memory as bytes."""

    version: int
    data: bytes
    blocks: Sequence[NDArray[np.uint8]]

    @classmethod
    def of(cls, version: int, state: Any, copies: bool = False) -> Cargo:
        """Raises `WorkflowError` when the state does not pickle. ``copies``: whatever happens to the state's own memory later."""
        data, buffers = pickled(state)
        return cls(version, data, [_bytes(b, copies) for b in buffers])

    def open(self) -> Any:
        """The state, whose arrays lie on the blocks and cannot be written."""
        return pickle.loads(self.data, buffers=[memoryview(block.data).toreadonly() for block in self.blocks])


class Piece(NamedTuple):
    """Bytes ``start`` to ``stop`` of a block: all of them, or the ``words`` (numbers within the range) that have changed."""

    block: int
    start: int
    stop: int
    content: NDArray
    words: NDArray[np.uint32] | None = None


class Arrived(NamedTuple):
    """A bucket at the reader. ``number`` of ``total``; ``sizes``: bytes of each block; ``base``: the version that left-out words are those of, 0 for none."""

    version: int
    base: int
    number: int
    total: int
    data: bytes
    sizes: tuple[int, ...]
    pieces: tuple[Piece, ...]


class Outgoing:
    """A version on its way to one host, which holds ``base``. Pickled and compared bucket by bucket, by the thread that sends.

    ``copies``: what is kept for the next one is a copy: a learner that goes on in the same memory would have the next version compared with itself.
    """

    def __init__(self, version: int, state: Any, base: Cargo | None, bucket: int, unchanged: Unchanged, copies: bool = False) -> None:
        self.version, self.base, self.copies = version, base, copies
        self.unchanged = unchanged  # since it was published
        self._state, self._bucket, self._lock = state, bucket, threading.Lock()
        self.cargo: Cargo | None = None  # when the first bucket has been pickled
        self._buckets: list[list[tuple[int, int, int]]] = []

    def encode(self, number: int) -> Arrived:
        with self._lock:
            if self.cargo is None:
                self.cargo = Cargo.of(self.version, self._state, self.copies)
                self._buckets = ranges([b.size for b in self.cargo.blocks], self._bucket)
        cargo, base = self.cargo, self.base
        pieces = tuple(_piece(cargo, base, *r) for r in self._buckets[number])
        sizes = tuple(block.size for block in cargo.blocks)
        return Arrived(self.version, base.version if base else 0, number, len(self._buckets), b"" if number else cargo.data, sizes, pieces)


@dataclass(frozen=True)
class Bucket:
    """What is put into a message: it becomes an `Arrived` when the message is pickled, outside every lock of the host."""

    outgoing: Outgoing
    number: int

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Arrived._make, (tuple(self.outgoing.encode(self.number)),)


def ranges(sizes: Sequence[int], bucket: int) -> list[list[tuple[int, int, int]]]:
    """Blocks of these bytes cut into ranges (block, start, stop) and shared among buckets of at most ``bucket`` bytes; one bucket at least."""
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


def _bytes(buffer: Any, copies: bool) -> NDArray[np.uint8]:
    """What lay on a GPU is a copy already."""
    if isinstance(buffer, OnDevice):
        return np.asarray(buffer.on_host(), np.uint8)
    found = np.asarray(buffer, np.uint8)
    return found.copy() if copies else found


def _words(data: NDArray[np.uint8]) -> NDArray:
    """As whole words where they come out even and lie on their boundaries; else byte by byte."""
    even = data.size % WORD == 0 and data.ctypes.data % WORD == 0
    return data.view(np.uint32) if even else data


def assembled(buckets: Sequence[Arrived], base: Cargo | None) -> Cargo:
    """All buckets of a version, on top of ``base``, which must be the version that they name."""
    first = buckets[0]
    assert first.base == (base.version if base is not None and first.base else 0), "the version that was left out is not here"
    blocks = []
    for i, size in enumerate(first.sizes):
        keeps = first.base and base is not None and i < len(base.blocks) and base.blocks[i].size == size
        blocks.append(base.blocks[i].copy() if keeps and base is not None else np.empty(size, np.uint8))
    for piece in (p for bucket in buckets for p in bucket.pieces):
        target = blocks[piece.block][piece.start : piece.stop]
        if piece.words is None:
            target[:] = piece.content
        else:
            target.view(piece.content.dtype)[piece.words] = piece.content
    return Cargo(first.version, first.data, blocks)
