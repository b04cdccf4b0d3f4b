"""One-way messages between hosts: first in first out for each pair, no answers, no asking.

Same node: an abstract unix socket (no file to leave behind; the peer's user id is checked). Other node: TCP with a secret. The
frame is the same: a header of lengths, a pickle (protocol 5), then its buffers, which arrays are rebuilt upon without a copy. On the same
node large buffers lie in shared memory (`slots.py`), and the frame has only their numbers. Items of channels are packed already when they come here
(`parcels`): their frame has a pickle that says which queue they belong to, how many they are, and the packet, which the reading thread leaves closed.
A stream that ends without a farewell means that its sender died.

Sending never blocks: what the socket does not take at once is sent by a thread of the link. Hosts answer from their reading
threads; if those waited for room, two hosts with full sockets would wait for each other for ever. How much can pile up is
bounded by the capacities of the channels, which the engine keeps.

Messages that are gathered leave with one system call, and what has arrived is heard before anybody is answered: a busy stream costs few calls and wakes
few threads, a quiet one waits for nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlinf_lab.errors import ChannelBroken
from rlinf_lab.runtime.pickling import Packed, pickled
from rlinf_lab.runtime.slots import GREETING, REFERENCE, InSlot, SlotPool, SlotViews
from rlinf_lab.runtime.traffic import Transit

_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _forget_sockets() -> None:
    """In a forked child: without this it would keep the streams of its dead parent open, and nobody would notice the death."""
    for each in list(_OPEN):
        each.close()


os.register_at_fork(after_in_child=_forget_sockets)


def close_when_forked(connection: socket.socket) -> None:
    """A stream whose end says that this process died: its forked children shall not keep it open."""
    _OPEN.add(connection)


FAREWELL = 0xFFFFFFFF
FAREWELL_SECONDS = 5.0
ANSWER_SECONDS = 30.0
MOST_PARTS = 512  # of one system call
READ_BYTES = 1 << 18
PARCEL = 1 << 31  # beside the number of parts: a header and a packet; behind their lengths the number of items, and the time
HEADERS = 1024  # how many headers are remembered
IN_SLOT = 1 << 63  # beside the length of a buffer that lies in a slot
_COUNT = struct.Struct("<I")


@dataclass(frozen=True)
class Address:
    """Where a host listens. ``node`` tells whether the unix socket can be reached."""

    host: str
    node: str
    unix: str
    tcp: tuple[str, int]
    secret: bytes


def node_id() -> str:
    """The same for all processes that share a kernel and a network namespace."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/net')}"


class Listener:
    """Accepts links from other hosts; one reading thread for each calls ``on_message(message)`` in order.

    ``on_pause()`` is called when all that had arrived was handed over.
    ``on_broken(host)`` is called when a peer's stream ends without a farewell, ``on_error(host, error)`` when one of its messages
    cannot be unpickled here, or handled; the messages after it are still heard.
    """

    def __init__(
        self,
        host: str,
        on_message: Callable[[tuple], None],
        on_broken: Callable[[str], None],
        on_error: Callable[[str, BaseException], None],
        ip: str = "127.0.0.1",
        on_pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_message, self._on_broken, self._on_error, self._on_pause = on_message, on_broken, on_error, on_pause
        self._closed = False
        self._left: set[str] = set()  # peers that have said farewell
        self._left_changed = threading.Condition()
        secret = secrets.token_bytes(32)
        name = f"\0rlinf_lab-{os.getpid()}-{secrets.token_hex(8)}"
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.bind(name)
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        tcp.bind((ip, 0))
        self.address = Address(host, node_id(), name, tcp.getsockname(), secret)
        self._sockets: list[socket.socket] = [unix, tcp]
        _OPEN.update(self._sockets)
        for server in (unix, tcp):
            server.listen(64)
            threading.Thread(target=self._accept, args=(server,), name=f"listen {host}", daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                return
            self._sockets.append(connection)
            _OPEN.add(connection)
            threading.Thread(target=self._read, args=(connection,), name="link", daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        peer = ""  # known when it has said its name: whoever hangs up before that is no host of ours
        try:
            if connection.family == socket.AF_UNIX:
                _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
                if uid != os.getuid():
                    return
            stream = Stream(connection)
            if not secrets.compare_digest(stream.read(32), self.address.secret):
                return
            slots = SlotViews(connection, stream.read(GREETING.size))
            connection.send(b"\1" if slots.usable else b"\0")
            peer = stream.read(_COUNT.unpack(stream.read(4))[0]).decode()
            transport = "unix" if connection.family == socket.AF_UNIX else "tcp"
            self._hear(peer, stream, FrameReader(stream, slots, transport))
            with self._left_changed:
                self._left.add(peer)
                self._left_changed.notify_all()
        except (OSError, EOFError, struct.error):
            if not self._closed and peer:
                self._on_broken(peer)
        finally:
            connection.close()

    def _hear(self, peer: str, stream: Stream, frames: FrameReader) -> None:
        """Hand messages over until the farewell."""
        while frames.next():
            self._guarded(peer, lambda: self._on_message(frames.message()))
            if not stream.has_more():
                frames.forget()  # while it waits for the next one, nothing here keeps slots taken
                self._guarded(peer, self._on_pause)
        self._guarded(peer, self._on_pause)

    def _guarded(self, peer: str, step: Callable[[], None]) -> None:
        """Without a reader the run would hang: a class that is not here, no more files, a SystemExit are told, and the next message is heard."""
        try:
            step()
        except BaseException as error:
            self._on_error(peer, error)

    def wait_for_farewells(self, peers: set[str], seconds: float) -> bool:
        """Wait until everything these peers have sent was heard, and their farewell; False when the time passes first."""
        with self._left_changed:
            return self._left_changed.wait_for(lambda: peers <= self._left, seconds)

    def close(self) -> None:
        self._closed = True
        for each in self._sockets:
            with contextlib.suppress(OSError):  # it was not connected, or the other end was faster
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Stream:
    """The bytes that arrive on a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._at = self._end = 0

    def has_more(self) -> bool:
        """Whether something has arrived that was not read yet."""
        return self._at < self._end

    def read(self, size: int) -> bytes:
        """Exactly so many bytes. `EOFError` when the stream ends before."""
        while self._end - self._at < size:
            if size > READ_BYTES:
                return bytes(self.read_in_place(size))
            self._fill()
        start = self._at
        self._at = start + size
        return bytes(self._view[start : start + size])

    def read_in_place(self, size: int) -> bytearray:
        """The same, read into place: arrays are built upon it."""
        data = bytearray(size)
        done = min(size, self._end - self._at)
        data[:done] = self._view[self._at : self._at + done]
        self._at += done
        view = memoryview(data)
        while done < size:
            got = self._connection.recv_into(view[done:])
            if not got:
                raise EOFError("the stream ended")
            done += got
        return data

    def _fill(self) -> None:
        if self._at:  # what is left goes to the front
            self._buffer[: self._end - self._at] = self._buffer[self._at : self._end]
            self._at, self._end = 0, self._end - self._at
        got = self._connection.recv_into(self._view[self._end :])
        if not got:
            raise EOFError("the stream ended")
        self._end += got


class FrameReader:
    """Messages of a stream."""

    def __init__(self, stream: Stream, slots: SlotViews, transport: str) -> None:
        self._stream, self._slots = stream, slots
        self._headers: dict[bytes, tuple] = {}
        self._parts: list[Any] = []
        self._items = -1
        self._transport = transport
        self._transit = Transit(transport, 0, 0)

    def next(self) -> bool:
        """Read a frame; False after a farewell. `EOFError` when the stream ends without one."""
        stream = self._stream
        count = _COUNT.unpack(stream.read(4))[0]
        if count == FAREWELL:
            return False
        self._items = -1
        if count & PARCEL:
            count -= PARCEL
            sizes = list(struct.unpack(f"<{count + 2}Q", stream.read(8 * count + 16)))
            sent = sizes.pop()
            if self._transport == "tcp":  # another node has another clock
                sent = time.monotonic_ns()
            self._items = sizes.pop()
            slots = any(size & IN_SLOT for size in sizes)
            self._transit = Transit("shared memory" if slots else self._transport, sent, sum(size & ~IN_SLOT for size in sizes[1:]))
        else:
            sizes = list(struct.unpack(f"<{count}Q", stream.read(8 * count)))
        first = 1 if self._items < 0 else 2
        self._parts = [stream.read(size) for size in sizes[:first]] + [self._buffer(size) for size in sizes[first:]]
        return True

    def _buffer(self, size: int) -> Any:
        return InSlot(self._stream.read(REFERENCE.size), size - IN_SLOT) if size & IN_SLOT else self._stream.read_in_place(size)

    def message(self) -> tuple:
        """What the frame says. Raises what unpickling raises; `OSError` when this process may open no more files."""
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
        return "put", name, self._items, Packed(data, self._viewed(parts)), origin, tags, self._transit

    def _viewed(self, parts: list[Any]) -> tuple[Any, ...]:
        return tuple(self._slots.view(p) if isinstance(p, InSlot) else p for p in parts)

    def forget(self) -> None:
        self._parts = []


class Link:
    """The sending end of one direction. ``transport`` is "unix" or "tcp"."""

    def __init__(self, address: Address, me: str) -> None:
        self.peer = address.host
        self._changed = threading.Condition()
        self._gathered: list[bytes | memoryview] = []  # parts of frames that wait for `flush`
        self._headers: dict[tuple, bytes] = {}
        self._backlog: deque[memoryview] = deque()  # what the socket did not take at once; its head is being sent
        self._writer: threading.Thread | None = None
        self._broken: OSError | None = None
        self._closed = False
        self._socket, self.transport = self._connect(address)
        _OPEN.add(self._socket)
        self._slots = SlotPool(self._socket)
        name = me.encode()
        self._socket.sendall(address.secret + self._slots.greet() + _COUNT.pack(len(name)) + name)
        self._socket.settimeout(ANSWER_SECONDS)
        self._slots.hear(self._socket.recv(1))
        self._socket.settimeout(None)

    def _connect(self, address: Address) -> tuple[socket.socket, str]:
        if address.node == node_id():
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                unix.connect(address.unix)
                return unix, "unix"
            except OSError:  # another container of the same node: no common namespace of names
                unix.close()
        tcp = socket.create_connection(address.tcp, timeout=10)
        tcp.settimeout(None)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return tcp, "tcp"

    def send(self, message: tuple) -> None:
        """Hand a message over; never blocks. `WorkflowError` if it cannot be pickled (nothing is sent), `ChannelBroken` if the peer is gone."""
        self.gather(message)
        self.flush()

    def gather(self, message: tuple) -> None:
        """As `send`, but it may wait for `flush`, which the same thread calls before anything that it refers to changes."""
        if message[0] == "put" and len(message) == 6:
            _, name, count, packed, origin, tags = message
            header = self._headers.get((name, origin)) if tags is None else pickle.dumps((name, origin, tags), protocol=5)
            if header is None:
                if len(self._headers) >= HEADERS:
                    self._headers.clear()
                header = self._headers[name, origin] = pickle.dumps((name, origin, None), protocol=5)
            parts, buffers, items = [header, packed.data], [b.raw() for b in packed.buffers], [count, time.monotonic_ns()]
        else:
            data, buffers = pickled(message)
            parts, items = [data], []
        with self._changed:
            self._gathered += self._framed(parts, buffers, items)

    def _framed(self, parts: list[bytes | memoryview], buffers: list[memoryview], items: list[int]) -> list[bytes | memoryview]:
        """A frame in parts, so that large buffers need not be joined; those that fit into slots are copied there. ``items``: how many, and when."""
        sizes = [len(part) for part in parts]
        for raw in buffers:
            reference = self._slots.place(raw)
            sizes.append(raw.nbytes | (0 if reference is None else IN_SLOT))
            parts.append(raw if reference is None else reference)
        head = _COUNT.pack(len(sizes) | (PARCEL if items else 0)) + struct.pack(f"<{len(sizes) + len(items)}Q", *sizes, *items)
        return [head, *parts] if buffers else [b"".join((head, *parts))]

    def flush(self) -> None:
        """Send what was gathered."""
        if self._gathered:
            with self._changed:
                parts, self._gathered = self._gathered, []
                if parts:
                    self._post(parts)

    def _post(self, parts: list[bytes | memoryview]) -> None:
        """Under the lock."""
        if self._broken is not None:
            raise ChannelBroken(f"Host {self.peer!r} is gone: {self._broken}. Its workers have died; see run.status().")
        rest = self._joined(parts, 0) if self._backlog else self._now(parts)
        if rest:
            self._backlog.append(rest)
            self._changed.notify_all()
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name=f"write to {self.peer}", daemon=True)
                self._writer.start()

    def _now(self, parts: list[bytes | memoryview]) -> memoryview:
        """Hand over what the socket takes without waiting; returns a copy of the rest, for the sender may change its arrays."""
        if len(parts) > MOST_PARTS:
            parts = [b"".join(parts)]
        try:
            sent = self._socket.sendmsg(parts, [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken = error
            raise ChannelBroken(f"Host {self.peer!r} is gone: {error}. Its workers have died; see run.status().") from error
        return self._joined(parts, sent)

    def _joined(self, parts: list[bytes | memoryview], skip: int) -> memoryview:
        """All bytes but the first ``skip``."""
        rest = []
        for part in parts:
            size = part.nbytes if isinstance(part, memoryview) else len(part)
            if skip < size:
                rest.append(memoryview(part)[skip:])
            skip = max(0, skip - size)
        return memoryview(b"".join(rest))

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._backlog or self._closed)
                if not self._backlog:
                    return
                head = self._backlog[0]
            try:
                self._socket.sendall(head)
            except OSError as error:
                with self._changed:
                    self._broken = error
                    self._backlog.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._backlog.popleft()
                self._changed.notify_all()

    def close(self, seconds: float = FAREWELL_SECONDS) -> None:
        """Say farewell behind what has been sent and wait until it was heard; a peer that does not read for ``seconds`` is left without one."""
        with self._changed:
            if self._closed:
                return
            with contextlib.suppress(ChannelBroken):  # the peer was faster
                self._post([_COUNT.pack(FAREWELL)])
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._backlog, seconds)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(seconds)
            while self._socket.recv(1 << 12):  # the peer hangs up when it has heard everything; until then it may open slots
                pass
        self._socket.close()
        with self._changed:
            self._slots.close()
