"""Large arrays between processes of a node without a copy on the receiving side. Slots of shared memory hold them.

The sender copies a buffer into a memory file (memfd: no name, nothing to leave behind) and sends where it lies; the
receiver maps the file once and builds the array upon it. When the last array on a slot dies its number goes back on the
same socket. Nobody waits for a slot: when all are taken, another one is made, up to a limit; beyond it, and when the
process may open no more files, buffers travel in the stream. A file holds many slots, for a process may open only so
many.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rlinf_lab.runtime.transport.pickling import LARGE

LIMIT = 1 << 29  # bytes of all slots of one link
ARENA = 1 << 25  # bytes of a file, unless one slot needs more; the system gives memory to those that are written
GREETING = struct.Struct("<Ii16s")  # process, file and content of the slot that shows whether slots can be seen
REFERENCE = struct.Struct("<IIiQ")  # a slot: its number, the number of its arena, that one's file, the offset in it
# instead of the number of a file: what comes may have to be fetched, which is for nobody but the link's own thread
HEARD_ALONE = -2
LENT = 1 << 31  # beside a number that goes back: not of a slot, but of memory that was lent (`cuda_ipc`)
_NUMBER = struct.Struct("<I")
_TOKEN = 16


class Arena:
    """A memory file, mapped here."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size, self.used = number, size, 0
        self.file = os.memfd_create("rlinf_lab", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.file, size)
            self.map = mmap.mmap(self.file, size)
        except OSError:
            os.close(self.file)
            raise

    def close(self) -> None:
        self.map.close()
        os.close(self.file)


class Slot(NamedTuple):
    """A part of an arena."""

    number: int
    size: int
    arena: Arena
    offset: int


class InSlot(NamedTuple):
    """What travels of a buffer that lies in a slot."""

    reference: bytes
    size: int

    @property
    def number(self) -> int:
        """The slot's."""
        return int(REFERENCE.unpack(self.reference)[0])


class Returned:
    """Numbers that the receiver of a link has sent back on its socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._rest = b""  # of a number that has not come whole

    def heard(self) -> Iterator[int]:
        """Those that have come since; it does not wait."""
        with contextlib.suppress(BlockingIOError, OSError):
            while data := self._connection.recv(1 << 12, socket.MSG_DONTWAIT):
                data = self._rest + data
                whole = len(data) // _NUMBER.size * _NUMBER.size
                self._rest = data[whole:]
                yield from (number for (number,) in _NUMBER.iter_unpack(data[:whole]))


class SlotPool:
    """The sender's end of one link. Used by whoever holds the link's lock. ``given_back``: told the numbers of what was
    lent.
    """

    def __init__(self, connection: socket.socket, given_back: Callable[[int], None]) -> None:
        self._returned, self._given_back = Returned(connection), given_back
        self._arenas: list[Arena] = []
        self._slots: list[Slot] = []
        self._free: dict[int, list[Slot]] = {}
        self._bytes = 0
        self.usable = False  # the processes see each other's files

    def greet(self) -> bytes:
        """What to say first: a slot with a secret in it."""
        if not hasattr(os, "memfd_create"):
            return GREETING.pack(0, -1, b"")
        probe = self._new_arena(mmap.PAGESIZE)
        if probe is None:
            return GREETING.pack(0, -1, b"")
        token = secrets.token_bytes(_TOKEN)
        probe.map[:_TOKEN] = token
        probe.used = probe.size
        return GREETING.pack(os.getpid(), probe.file, token)

    def hear(self, answer: bytes) -> None:
        """The other end has found the secret, or not: another container, or another node."""
        self.usable = answer == b"\1"

    def place(self, raw: memoryview) -> bytes | None:
        """Copy a buffer into a slot. The reference to send, or None when it has to travel in the stream."""
        if not self.usable or raw.nbytes < LARGE:
            return None
        self.take_back()
        size = max(mmap.PAGESIZE, 1 << (raw.nbytes - 1).bit_length())
        free = self._free.setdefault(size, [])
        slot = free.pop() if free else self._new_slot(size)
        if slot is None:
            return None
        slot.arena.map[slot.offset : slot.offset + raw.nbytes] = (
            raw.cast("B") if raw.format != "B" or raw.ndim != 1 else raw
        )
        return REFERENCE.pack(slot.number, slot.arena.number, slot.arena.file, slot.offset)

    def _new_slot(self, size: int) -> Slot | None:
        if self._bytes + size > LIMIT:
            return None
        arena = next((a for a in self._arenas if a.used + size <= a.size), None) or self._new_arena(max(ARENA, size))
        if arena is None:
            return None
        slot = Slot(len(self._slots), size, arena, arena.used)
        arena.used += size
        self._slots.append(slot)
        self._bytes += size
        return slot

    def _new_arena(self, size: int) -> Arena | None:
        try:
            self._arenas.append(Arena(len(self._arenas), size))
        except OSError:  # no more files, or no memory: the stream needs neither
            return None
        return self._arenas[-1]

    def take_back(self) -> None:
        """Hear what is free again."""
        for number in self._returned.heard():
            if number & LENT:
                self._given_back(number)
            else:
                slot = self._slots[number]
                self._free[slot.size].append(slot)

    def close(self) -> None:
        """The receiver's own maps live on as long as its arrays."""
        for arena in self._arenas:
            arena.close()
        self._arenas.clear()
        self._slots.clear()
        self._free.clear()
        self.usable = False


class SlotViews:
    """The receiver's end of one connection."""

    def __init__(self, connection: socket.socket, greeting: bytes) -> None:
        self._connection = connection
        self._maps: dict[int, mmap.mmap] = {}
        self._done: deque[int] = deque()
        self._process, self.probe, token = GREETING.unpack(greeting)
        self.usable = False
        if self._process and connection.family == socket.AF_UNIX:
            with contextlib.suppress(OSError, ValueError):  # not visible from here
                self.usable = self._map(0, self.probe)[:_TOKEN] == token

    def _map(self, number: int, file: int) -> mmap.mmap:
        found = self._maps.get(number)
        if found is None:
            handle = os.open(f"/proc/{self._process}/fd/{file}", os.O_RDWR)
            try:
                found = self._maps[number] = mmap.mmap(handle, 0)
            finally:
                os.close(handle)
        return found

    def view(self, buffer: InSlot) -> Any:
        """The bytes of a slot, as an array that arrays can be built upon. `OSError` when this process may open no more
        files.
        """
        number, arena, file, offset = REFERENCE.unpack(buffer.reference)
        array = np.frombuffer(self._map(arena, file), np.uint8, buffer.size, offset)
        weakref.finalize(array, self.give_back, number).atexit = False
        return array

    def give_back(self, number: int) -> None:
        """May be called by any thread at any time, within itself too. Each number is taken out before it is sent, so it
        goes back once.
        """
        self._done.append(number)
        while self._done:
            try:
                number = self._done.popleft()
            except IndexError:  # another thread has sent it
                return
            try:
                self._connection.send(_NUMBER.pack(number), socket.MSG_DONTWAIT)
            except BlockingIOError:  # the sender reads them before it makes its next slot
                self._done.appendleft(number)
                return
            except OSError:  # it is gone
                return
