"""Messages as bytes, at the end that hears them. They are frames of a stream; see `links` for what one looks like.

A frame is read by whoever has the connection's lock. A thread that has nothing else to do reads on until the frame is
there; a rank that listens while it waits (`lookout`) takes only what has arrived: the beginning of a frame stays in the
buffer, and large frames are left to the thread.
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from rlinf_lab.runtime.transport import collectives, cuda_ipc
from rlinf_lab.runtime.transport.collectives import Coming, Receivers
from rlinf_lab.runtime.transport.cuda_ipc import Lent
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.shared_memory import REFERENCE, InSlot, SlotViews
from rlinf_lab.runtime.transport.traffic import Transit

FAREWELL = 0xFFFFFFFF
# beside the number of parts: a header and a packet; behind their lengths the number of items, and the time
PARCEL = 1 << 31
IN_PAIR = 1 << 59  # beside the length of a buffer: torch.distributed brings it,
IN_SLOT = 1 << 61  # in a slot,
ON_HOST = 1 << 62  # wherever it lies it was copied from a GPU,
ON_GPU = 1 << 63  # it is there and was lent
LENGTH = IN_PAIR - 1
HEADERS = 1024  # how many headers are remembered
READ_BYTES = 1 << 18
COUNT = struct.Struct("<I")
# what begins the usual frame, a packet without buffers: PACKET, bytes of header and packet, items, time
SMALL = struct.Struct("<IQQQQ")
PACKET = PARCEL | 2
# what begins several such packets: TOGETHER, bytes of header and packets, how many, time; then bytes and items of each
RUN = struct.Struct("<IQQQQ")
TOGETHER = PARCEL | (1 << 30)


class InPair(NamedTuple):
    """What stands for bytes in host memory that torch.distributed brings."""

    coming: Coming


class _Announced(NamedTuple):
    """A buffer that is lent or received, as the frame says it."""

    size: int
    number: int
    described: bytes


class NotYetThere(Exception):
    """The rest of a frame has not arrived, and nobody shall wait for it here."""


class Stream:
    """The bytes that arrive on a socket. Only the thread that may wait for more of them leaves ``waits`` True."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._at = self._end = 0
        self.waits = True

    def has_more(self) -> bool:
        """Whether something has arrived that was not read yet."""
        return self._at < self._end

    def mark(self) -> int:
        """Where it is: for `back`, as long as nothing waits or fetches."""
        return self._at

    def back(self, mark: int) -> None:
        self._at = mark

    def fetch(self, most: int = READ_BYTES) -> bool:
        """Take in what has arrived, up to ``most`` bytes, without waiting. Whether that was less than might be there.
        `EOFError` at the end.
        """
        self._to_the_front()
        room = min(most, READ_BYTES - self._end)
        if not room:
            return False
        try:
            got = self._connection.recv_into(self._view[self._end :], room, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        if not got:
            raise EOFError("the stream ended")
        self._end += got
        return got < room

    def small(self) -> tuple[bytes, bytes, int, int] | None:
        """The usual frame, if that is what is there, and all of it. Returns its header, its packet, how many items, and
        when they were sent.
        """
        at, view = self._at + SMALL.size, self._view
        if at > self._end:
            return None
        kind, header, data, items, sent = SMALL.unpack_from(view, self._at)
        middle = at + header
        end = middle + data
        if kind != PACKET or end > self._end:
            return None
        self._at = end
        return bytes(view[at:middle]), bytes(view[middle:end]), items, sent

    def together(self) -> tuple[bytes, list[bytes], tuple[int, ...], int] | None:
        """Packets of one queue, if that is what is there, and all of it. Returns their header, them, how many items of
        each, and when they were sent.
        """
        at, view = self._at + RUN.size, self._view
        if at > self._end:
            return None
        kind, header, data, count, sent = RUN.unpack_from(view, self._at)
        middle = at + 8 * count + header
        if kind != TOGETHER or middle + data > self._end:
            return None
        self._at = middle + data
        return bytes(view[middle - header : middle]), *_packets(view, at, middle, count), sent

    def read(self, size: int) -> bytes:
        """Exactly so many bytes. `EOFError` when the stream ends before; `NotYetThere` for who does not wait."""
        while self._end - self._at < size:
            if not self.waits:
                raise NotYetThere
            if size > READ_BYTES:
                return bytes(self.read_in_place(size))
            self._to_the_front()
            self._more(self._view[self._end :])
        start = self._at
        self._at = start + size
        return bytes(self._view[start : start + size])

    def read_in_place(self, size: int) -> bytearray:
        """The same, read into place: arrays are built upon it. `MemoryError` behind those bytes."""
        done = min(size, self._end - self._at)
        if done < size and not self.waits:
            raise NotYetThere
        try:
            data = bytearray(size)
        except MemoryError:
            self._skip(size)
            raise
        data[:done] = self._view[self._at : self._at + done]
        self._at += done
        view = memoryview(data)
        while done < size:
            got = self._connection.recv_into(view[done:])
            if not got:
                raise EOFError("the stream ended")
            done += got
        return data

    def _skip(self, size: int) -> None:
        """What comes behind them can be heard."""
        done = min(size, self._end - self._at)
        self._at += done
        while done < size:
            got = self._connection.recv_into(self._view, min(READ_BYTES, size - done))
            if not got:
                raise EOFError("the stream ended")
            done += got

    def _more(self, room: memoryview) -> None:
        got = self._connection.recv_into(room)
        if not got:
            raise EOFError("the stream ended")
        self._end += got

    def _to_the_front(self) -> None:
        """What is left: it makes room."""
        if self._at:
            if self._at < self._end:
                self._buffer[: self._end - self._at] = self._buffer[self._at : self._end]
            self._at, self._end = 0, self._end - self._at


def _packets(view: memoryview | bytes, table: int, at: int, count: int) -> tuple[list[bytes], tuple[int, ...]]:
    """Packets that lie one after another from ``at`` on, and how many items of each."""
    numbers = struct.unpack_from(f"<{2 * count}I", view, table)
    found = []
    for size in numbers[:count]:
        found.append(bytes(view[at : at + size]))
        at += size
    return found, numbers[count:]


class FrameReader:
    """Messages of a stream. ``outlives``: what is heard may be used when the sender has ended."""

    def __init__(
        self,
        stream: Stream,
        slots: SlotViews,
        receivers: Receivers,
        transport: str,
        outlives: bool = False,
    ) -> None:
        self._stream, self._slots, self._receivers, self._outlives = stream, slots, receivers, outlives
        self._headers: dict[bytes, tuple] = {}
        self._parts: list[Any] = []
        self._items = -1
        self._lacking = 0  # bytes of the frame that there was no memory for
        self._counts: tuple[int, ...] = ()  # of packets that have come together
        self._transport = transport
        self._transit = Transit(transport, 0, 0)

    def next(self) -> bool:
        """Read a frame; False after a farewell. `EOFError` when the stream ends without one."""
        stream, self._counts = self._stream, ()
        if (small := stream.small()) is not None:
            header, data, self._items, sent = small
            self._parts = [header, data]
            self._transit = Transit(self._transport, self._sent(sent), len(data))
            return True
        if (several := stream.together()) is not None:
            self._take_together(*several)
            return True
        count = COUNT.unpack(stream.read(4))[0]
        if count == FAREWELL:
            return False
        self._items = -1
        if count == TOGETHER:
            header, data, packets, sent = struct.unpack("<4Q", stream.read(RUN.size - 4))
            rest = stream.read(8 * packets + header + data)
            middle = 8 * packets + header
            self._take_together(rest[8 * packets : middle], *_packets(rest, 0, middle, packets), sent)
            return True
        if count & PARCEL:
            count -= PARCEL
            sizes = list(struct.unpack(f"<{count + 2}Q", stream.read(8 * count + 16)))
            sent = self._sent(sizes.pop())
            self._items = sizes.pop()
            self._transit = Transit(self._way(sizes), sent, sum(size & LENGTH for size in sizes[1:]))
        else:
            sizes = list(struct.unpack(f"<{count}Q", stream.read(8 * count)))
        first = 1 if self._items < 0 else 2
        self._lacking = 0
        parts = [self._part(stream.read, size) for size in sizes[:first]] + [
            self._part(self._buffer, size) for size in sizes[first:]
        ]
        self._parts = [self._begun(p) if type(p) is _Announced else p for p in parts]
        return True

    def _part(self, read: Callable[[int], Any], size: int) -> Any:
        """Of a frame. Without memory for one of them this message is lost, not the next ones."""
        try:
            return read(size)
        except MemoryError:
            self._lacking += size & LENGTH
            return b""

    def _way(self, sizes: list[int]) -> str:
        """By which way a packet has come whose parts have these sizes."""
        marks = max(sizes)  # the highest one names it
        if marks <= LENGTH:
            return self._transport
        if marks & ON_GPU:
            return "nccl" if marks & IN_PAIR else "cuda_ipc"
        return "cuda_host_copy" if marks & ON_HOST else "shared memory" if marks & IN_SLOT else "gloo"

    def _take_together(self, header: bytes, packets: list[bytes], counts: tuple[int, ...], sent: int) -> None:
        self._items, self._counts, self._parts = sum(counts), counts, [header, *packets]
        self._transit = Transit(self._transport, self._sent(sent), sum(map(len, packets)))

    def _sent(self, there: int) -> int:
        """When something was handed over: another node has another clock."""
        return time.monotonic_ns() if self._transport != "unix" else there

    def _buffer(self, size: int) -> Any:
        """Read a buffer, and only that. A frame of which a part has not arrived is read again from its beginning."""
        stream, length = self._stream, size & LENGTH
        if size & IN_SLOT:
            return InSlot(stream.read(REFERENCE.size), length)
        if size & IN_PAIR:
            (described,) = collectives.HEAD.unpack(stream.read(collectives.HEAD.size))
            return _Announced(size, -1, stream.read(described))
        if size & ON_GPU:
            number, described = cuda_ipc.HEAD.unpack(stream.read(cuda_ipc.HEAD.size))
            return _Announced(size, number, stream.read(described))
        return stream.read_in_place(length)

    def _begun(self, part: _Announced) -> Any:
        """The frame is there: it is received once, opened once or given back once."""
        if part.size & IN_PAIR:
            coming = self._receivers.expect(part.described, part.size & LENGTH)
            return coming if part.size & ON_GPU else InPair(coming)
        return Lent(part.described, part.number, self._slots.give_back, self._outlives)

    def message(self) -> tuple:
        """What the frame says. Raises what unpickling raises; `OSError` when this process may open no more files,
        `MemoryError` when it has no more memory.
        """
        if self._lacking:
            lacking, self._lacking = self._lacking, 0
            self._refuse(self._parts)
            raise MemoryError(f"{lacking / 2**20:.1f} MiB")
        if self._items < 0:
            data, *parts = self._parts
            message: tuple = pickle.loads(data, buffers=self._viewed(parts))
            return message
        header, data, *parts = self._parts
        known = self._headers.get(header)
        if known is None:
            if len(self._headers) >= HEADERS:
                self._headers.clear()
            known = self._headers[header] = pickle.loads(header)
        name, origin, tags = known
        if self._counts:
            return "puts", name, self._counts, [data, *parts], origin, self._transit
        return "put", name, self._items, Packed(data, self._viewed(parts) if parts else ()), origin, tags, self._transit

    def _viewed(self, parts: list[Any]) -> tuple[Any, ...]:
        viewed: list[Any] = []
        try:
            for p in parts:
                viewed.append(
                    self._slots.view(p)
                    if isinstance(p, InSlot)
                    else p.coming.open().numpy()
                    if isinstance(p, InPair)
                    else p
                )
        except BaseException:
            self._refuse(parts[len(viewed) :])
            raise
        return tuple(viewed)

    def _refuse(self, parts: list[Any]) -> None:
        """Of a message that is lost: what the sender keeps for it is free."""
        for part in parts:
            if isinstance(part, InSlot):
                self._slots.give_back(part.number)

    def forget(self) -> None:
        self._parts = []
