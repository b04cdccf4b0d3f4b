"""One-way messages between hosts: first in first out for each pair, no answers, no asking.

Same node: an abstract unix socket (no file to leave behind; the peer's user id is checked). Other node: TCP with a
secret. The frame is the same: a header of lengths, a pickle (protocol 5), then its buffers, which arrays are rebuilt
upon without a copy. On the same node large buffers lie in shared memory (`shared_memory.py`), and the frame has only
their numbers. Tensors on a GPU stay there for processes that see it (`cuda_ipc.py`), or go from GPU to GPU
(`collectives.py`). Items of channels are packed already when they come here (`item_batches`): their frame has a pickle
that says which queue they belong to, how many they are, and the packet, which whoever hears it leaves closed. A stream
that ends without a farewell means that its sender died. How messages are heard: `listener`, `lookout`.

Sending never blocks: what the socket does not take at once is sent by a thread of the link. Hosts answer from their
reading threads; if those waited for room, two hosts with full sockets would wait for each other for ever. How much can
pile up is bounded by the capacities of the channels, which the engine keeps.

Messages that are gathered leave with one system call, and what has arrived is heard before anybody is answered: a busy
stream costs few calls and wakes few threads, a quiet one waits for nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from rlinf_lab.errors import ChannelBroken
from rlinf_lab.runtime.transport.collectives import BETWEEN_GPUS, LOOPBACK, Senders
from rlinf_lab.runtime.transport.cuda_ipc import ASKED, Lender
from rlinf_lab.runtime.transport.frames import (
    COUNT,
    FAREWELL,
    HEADERS,
    IN_PAIR,
    IN_SLOT,
    ON_GPU,
    ON_HOST,
    PACKET,
    PARCEL,
    RUN,
    SMALL,
    TOGETHER,
)
from rlinf_lab.runtime.transport.pickling import OnDevice, pickled
from rlinf_lab.runtime.transport.shared_memory import GREETING, HEARD_ALONE, SlotPool

_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _forget_sockets() -> None:
    """In a forked child: forget the sockets of its parent. It would keep the streams of its dead parent open, and
    nobody would notice the death.
    """
    for each in list(_OPEN):
        each.close()


os.register_at_fork(after_in_child=_forget_sockets)


def close_when_forked(connection: socket.socket) -> None:
    """A stream whose end says that this process died. Its forked children shall not keep it open."""
    _OPEN.add(connection)


FAREWELL_SECONDS = 5.0
ANSWER_SECONDS = 30.0
MOST_PARTS = 512  # of one system call
MOST_TOGETHER = 64  # packets of one queue in a frame
SHORT = 1 << 10  # bytes of a packet that travels with others: longer ones gain nothing


@dataclass(frozen=True)
class Address:
    """Where a host listens.

    ``node`` tells whether the unix socket can be reached; ``ray_node``: Ray's name of the node, "" without Ray;
    ``gpus``: ids of those that its ``process`` sees.
    """

    host: str
    node: str
    unix: str
    tcp: tuple[str, int]
    secret: bytes
    ray_node: str = ""
    gpus: tuple[str, ...] = ()
    process: int = 0


class Ways(NamedTuple):
    """How messages of a host get to others.

    ``between_nodes``: what large buffers to another node of Ray take, "stream" or "gloo";
    ``ray_node``: the host's own; ``between_gpus``: "ipc" (tensors on a GPU stay there where the other process sees it),
    "nccl" (and go from GPU to GPU where it does not) or "host".
    """

    between_nodes: str = "stream"
    ray_node: str = ""
    between_gpus: str = "ipc"

    def leave_node(self, address: Address) -> bool:
        """Whether this is another way than to a host of this node. It is one to a node that Ray emulates here, too."""
        return self.between_nodes != "stream" and self.ray_node != address.ray_node


def node_id() -> str:
    """The same for all processes that share a kernel and a network namespace."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/net')}"


BY_DEFAULT = Ways()
# seconds without a byte, seconds between probes, how many of them
PROBES = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 3, socket.TCP_KEEPCNT: 3}


def notice_silence(tcp: socket.socket) -> None:
    """Whoever reads hears within 14 s that the other node is gone. One that loses its power or its cable does not hang
    up.

    Kernels answer each other's probes, so a process that is stopped or busy is no such node.
    """
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        tcp.setsockopt(socket.IPPROTO_TCP, option, value)


class _Run:
    """Packets of one queue, one after another."""

    __slots__ = ("begun_ns", "counts", "header", "packets")

    def __init__(self, header: bytes) -> None:
        self.header, self.begun_ns = header, time.monotonic_ns()
        self.packets: list[bytes] = []
        self.counts: list[int] = []

    def frame(self) -> bytes:
        packets, counts, header = self.packets, self.counts, self.header
        if len(packets) == 1:
            return SMALL.pack(PACKET, len(header), len(packets[0]), counts[0], self.begun_ns) + header + packets[0]
        head = RUN.pack(TOGETHER, len(header), sum(map(len, packets)), len(packets), self.begun_ns)
        return b"".join((head, struct.pack(f"<{2 * len(packets)}I", *map(len, packets), *counts), header, *packets))


class Link:
    """The sending end of one direction. ``transport`` is "unix" or "tcp"."""

    def __init__(self, address: Address, me: str, ways: Ways = BY_DEFAULT) -> None:
        self.peer = address.host
        # taken twice for a message; by the condition, in Python, each time costs three times as much
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._gathered: list[bytes | memoryview] = []  # parts of frames that wait for `flush`
        self._run: _Run | None = None  # what was gathered last, if more may travel with it
        self._headers: dict[tuple, bytes] = {}
        self._backlog: deque[memoryview] = deque()  # what the socket did not take at once; its head is being sent
        self._writer: threading.Thread | None = None
        self._broken: OSError | None = None
        self._closed = False
        self._socket, self.transport = self._connect(address, ways)
        _OPEN.add(self._socket)
        self._lender = Lender(self.peer, address.gpus)
        self._slots = SlotPool(self._socket, self._lender.given_back)
        own = self._socket.getsockname()[0] if self.transport == "tcp" else LOOPBACK
        self._senders = Senders(self.peer, own)
        self._beside: tuple[int, Callable[[memoryview], bytes | None]] = IN_SLOT, self._slots.place
        if ways.leave_node(address):
            self._beside = IN_PAIR, self._senders.place_bytes
        self._uses_nccl = ways.between_gpus == "nccl" and bool(address.gpus)
        name = me.encode()
        greeting = self._slots.greet() if self._beside[0] == IN_SLOT else GREETING.pack(0, HEARD_ALONE, b"")
        self._socket.sendall(address.secret + greeting + COUNT.pack(len(name)) + name)
        self._socket.settimeout(ANSWER_SECONDS)
        self._slots.hear(self._socket.recv(1))
        self._socket.settimeout(None)
        self._lender.why_not = self._why_not_lend(address, ways)

    def _why_not_lend(self, address: Address, ways: Ways) -> str:
        """Why no tensor on a GPU can be used where it is. "" if that depends on the tensor."""
        if ways.between_gpus == "host":
            return ASKED
        if self.transport != "unix":
            return "it is on another node"
        if address.process == os.getpid():
            return "it is in this process"
        return "" if self._slots.usable else "it is in a container of its own"

    def _connect(self, address: Address, ways: Ways) -> tuple[socket.socket, str]:
        if address.node == node_id() and not ways.leave_node(address):
            unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                unix.connect(address.unix)
                return unix, "unix"
            except OSError:  # another container of the same node: no common namespace of names
                unix.close()
        try:
            tcp = socket.create_connection(address.tcp, timeout=10)
        except OSError as error:
            raise ChannelBroken(
                f"Host {self.peer!r} cannot be reached at {address.tcp[0]}:{address.tcp[1]} ({error}). Next: let TCP "
                f"through between the nodes; lab.check(flow, plan, ...) names those that do not reach each other."
            ) from error
        tcp.settimeout(None)
        tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        notice_silence(tcp)
        return tcp, "tcp"

    def send(self, message: tuple) -> None:
        """Hand a message over; never blocks. `WorkflowError` if it cannot be pickled (nothing is sent), `ChannelBroken`
        if the peer is gone.
        """
        self.gather(message)
        self.flush()

    def gather(self, message: tuple) -> None:
        """As `send`, but it may wait for `flush`. The same thread calls that before anything changes that it refers
        to.
        """
        if message[0] == "put" and len(message) == 6:
            _, name, count, packed, origin, tags = message
            header = (
                self._headers.get((name, origin)) if tags is None else pickle.dumps((name, origin, tags), protocol=5)
            )
            if header is None:
                if len(self._headers) >= HEADERS:
                    self._headers.clear()
                header = self._headers[name, origin] = pickle.dumps((name, origin, None), protocol=5)
            if not packed.buffers:
                with self._lock:
                    self._gather_packet(header, packed.data, count, tags is None)
                return
            parts, buffers, items = (
                [header, packed.data],
                [b if type(b) is OnDevice else b.raw() for b in packed.buffers],
                [count, time.monotonic_ns()],
            )
        else:
            data, buffers = pickled(message)
            parts, items = [data], []
        with self._lock:
            self._end_run()
            self._gathered += self._framed(parts, buffers, items)

    def _gather_packet(self, header: bytes, data: bytes, count: int, plain: bool) -> None:
        """Under the lock. Short packets of one queue that follow one another are one frame: whoever hears it has as
        much to do as for one of them.
        """
        short = plain and len(data) <= SHORT
        run = self._run
        if run is None or not short or run.header is not header or len(run.packets) == MOST_TOGETHER:
            self._end_run()
            run = self._run = _Run(header)
        run.packets.append(data)
        run.counts.append(count)
        if not short:
            self._end_run()

    def _end_run(self) -> None:
        """Under the lock."""
        if self._run is not None:
            self._gathered.append(self._run.frame())
            self._run = None

    def _framed(
        self, parts: list[bytes | memoryview], buffers: list[Any], items: list[int]
    ) -> list[bytes | memoryview]:
        """A frame in parts, so that large buffers need not be joined. What fits into slots is copied there.

        ``items``: how many, and when.
        """
        sizes = [len(part) for part in parts]
        for raw in buffers:
            size, part = self._placed(raw)
            sizes.append(size)
            parts.append(part)
        head = COUNT.pack(len(sizes) | (PARCEL if items else 0)) + struct.pack(
            f"<{len(sizes) + len(items)}Q", *sizes, *items
        )
        return [head, *parts] if buffers else [b"".join((head, *parts))]

    def _placed(self, raw: Any) -> tuple[int, bytes | memoryview]:
        """The size of a buffer with its marks, and what travels in the stream."""
        if type(raw) is OnDevice:
            if (lent := self._lender.place(raw)) is not None:
                return raw.nbytes | ON_GPU, lent
            if self._uses_nccl and (sent := self._senders.place(raw.block, BETWEEN_GPUS)) is not None:
                return raw.nbytes | ON_GPU | IN_PAIR, sent
            self._lender.tell()
            size, part = self._placed(raw.on_host())
            return size | ON_HOST, part
        mark, place = self._beside
        reference = place(raw)
        return (raw.nbytes, raw) if reference is None else (raw.nbytes | mark, reference)

    def reclaim(self) -> None:
        """Hear what was given back: a GPU's memory should not wait for the next message."""
        if self._lender.has_lent:
            with self._lock:
                self._slots.take_back()

    def peer_died(self) -> None:
        """What it had is free."""
        if self._lender.has_lent:
            with self._lock:
                self._slots.take_back()
                self._lender.lost()
        self._senders.receiver_died()

    def has_gathered(self) -> bool:
        """Whether `flush` has anything to do."""
        return bool(self._gathered) or self._run is not None

    def flush(self) -> None:
        """Send what was gathered."""
        if self.has_gathered():
            with self._lock:
                self._end_run()
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

    def _now(self, parts: list[bytes | memoryview]) -> memoryview | None:
        """Hand over what the socket takes without waiting. Returns a copy of the rest, for the sender may change its
        arrays.
        """
        if len(parts) > MOST_PARTS:
            parts = [b"".join(parts)]
        try:
            sent = self._socket.sendmsg(parts, [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken = error
            raise ChannelBroken(
                f"Host {self.peer!r} is gone: {error}. Its workers have died; see run.status()."
            ) from error
        return None if len(parts) == 1 and sent == len(parts[0]) else self._joined(parts, sent)

    def _joined(self, parts: list[bytes | memoryview], skip: int) -> memoryview:
        """All bytes but the first ``skip``. Without memory for them the stream ends here: what the peer has of a
        message cannot be followed by another.
        """
        try:
            return self._copied(parts, skip)
        except MemoryError as error:
            self._broken = OSError(errno.ENOMEM, f"no memory for a message to it: {error}")
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            raise

    @staticmethod
    def _copied(parts: list[bytes | memoryview], skip: int) -> memoryview:
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
            del head  # while it waits for the next one, nothing here keeps memory
            with self._changed:
                self._backlog.popleft()
                self._changed.notify_all()

    def close(self, seconds: float = FAREWELL_SECONDS) -> None:
        """Say farewell behind what has been sent and wait until it was heard. A peer that does not read for ``seconds``
        is left without one.
        """
        with self._changed:
            if self._closed:
                return
            with contextlib.suppress(ChannelBroken):  # the peer was faster
                self._post([COUNT.pack(FAREWELL)])
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._backlog, seconds)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(seconds)
            # the peer hangs up when it has heard everything; until then it may open slots
            while self._socket.recv(1 << 12):
                pass
        self._socket.close()
        with self._changed:
            self._slots.close()
            self._lender.close()
        self._senders.close()
