"""One-way messages between hosts: first in first out for each pair, no answers, no asking.

Same node: an abstract unix socket (no file to leave behind; the peer's user id is checked). Other node: TCP with a secret. The
frame is the same: a header of lengths, a pickle (protocol 5), then its buffers, which arrays are rebuilt upon without a copy.
A stream that ends without a farewell means that its sender died.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle

from rlinf_lab.errors import ChannelBroken, WorkflowError

FAREWELL = 0xFFFFFFFF
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

    ``on_broken(host)`` is called when a peer's stream ends without a farewell.
    """

    def __init__(self, host: str, on_message: Callable[[tuple], None], on_broken: Callable[[str], None], ip: str = "127.0.0.1") -> None:
        self._on_message, self._on_broken = on_message, on_broken
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
            threading.Thread(target=self._read, args=(connection,), name="link", daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        if connection.family == socket.AF_UNIX:
            _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
            if uid != os.getuid():
                connection.close()
                return
        peer = "?"
        try:
            stream = connection.makefile("rb", buffering=1 << 16)
            if not secrets.compare_digest(stream.read(32), self.address.secret):
                connection.close()
                return
            peer = stream.read(_COUNT.unpack(stream.read(4))[0]).decode()
            while (message := read_frame(stream)) is not None:
                self._on_message(message)
            with self._left_changed:
                self._left.add(peer)
                self._left_changed.notify_all()
        except (OSError, EOFError, struct.error):
            if not self._closed:
                self._on_broken(peer)
        finally:
            connection.close()

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


def read_frame(stream: Any) -> tuple | None:
    """The next message; None after a farewell. `EOFError` when the stream ends in the middle or without a farewell."""
    count = _COUNT.unpack(_exactly(stream, 4))[0]
    if count == FAREWELL:
        return None
    sizes = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    parts = [_exactly(stream, size) for size in sizes]
    return pickle.loads(parts[0], buffers=parts[1:])


def _exactly(stream: Any, size: int) -> bytearray:
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        got = stream.readinto(view[done:])
        if not got:
            raise EOFError("the stream ended")
        done += got
    return data


class Link:
    """The sending end of one direction. ``transport`` is "unix" or "tcp"."""

    def __init__(self, address: Address, me: str) -> None:
        self.peer = address.host
        self._lock = threading.Lock()
        self._socket, self.transport = self._connect(address)
        name = me.encode()
        self._socket.sendall(address.secret + _COUNT.pack(len(name)) + name)

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
        """Hand a message over. `WorkflowError` if it cannot be pickled (nothing is sent), `ChannelBroken` if the peer is gone."""
        frame = encode(message)
        try:
            with self._lock:
                self._socket.sendall(frame)
        except OSError as error:
            raise ChannelBroken(f"Host {self.peer!r} is gone: {error}. Its workers have died; see run.status().") from error

    def close(self) -> None:
        try:
            with self._lock:
                self._socket.sendall(_COUNT.pack(FAREWELL))
        except OSError:  # the peer was faster
            pass
        self._socket.close()


def encode(message: tuple) -> bytes:
    """One frame. Classes of a notebook travel by value, arrays as raw buffers."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    except Exception:  # a class of a notebook cell, a lambda: the slower pickler knows them
        buffers.clear()
        try:
            data = cloudpickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        except Exception as error:
            what = ", ".join(sorted({type(part).__name__ for part in message[1:]}))
            raise WorkflowError(
                f"A {message[0]!r} message cannot be sent to another process: {type(error).__name__}: {error} (it holds: {what}). "
                f"Next: put plain values, arrays or dataclasses into channels; keep open files, locks and generators out."
            ) from error
    raw = [b.raw() for b in buffers]
    sizes = [len(data), *(r.nbytes for r in raw)]
    return b"".join([_COUNT.pack(len(sizes)), struct.pack(f"<{len(sizes)}Q", *sizes), data, *raw])
