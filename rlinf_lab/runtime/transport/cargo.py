"""Weights on their way, in one message.

When the reader has them it asks whether they are whole (`Seal`): a learner that goes on in the same memory meanwhile
would have it take half of a version and half of another. Nobody needs to ask where a copy was sent: of little. Small
tensors are joined into blocks.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlinf_lab.runtime.transport.pickling import LARGE, OnDevice, Packed
from rlinf_lab.runtime.transport.unchanged import Unchanged

LITTLE = 1 << 20  # bytes
ALIGNED = 64  # arrays begin at such places


class Place(NamedTuple):
    """Where a small buffer lies: bytes ``start`` to ``stop`` of a block."""

    block: int
    start: int
    stop: int


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


@dataclass(frozen=True)
class Seal:
    """What is put into a message: it becomes a `Sealed` when that is pickled. To look takes milliseconds, which nothing
    else shall wait for.
    """

    outgoing: Whole

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Sealed, (self.outgoing.changed(),)


def together(raws: Sequence[Any]) -> tuple[tuple[Place | None, ...], list[bytearray]]:
    """Small buffers copied into blocks of at most `LITTLE` bytes. Each one by itself takes tens of microseconds on its
    way. Returns where each lies; None for a large one, and where there are no bytes here.
    """
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
