"""The hearing end of the links of a host. It is a socket that others connect to, and a thread for each that does."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

from rlinf_lab.runtime.threads.lookout import IN_TURN, Lookout
from rlinf_lab.runtime.transport.collectives import LOOPBACK, Receivers
from rlinf_lab.runtime.transport.cuda_ipc import visible_gpus
from rlinf_lab.runtime.transport.frames import COUNT, FrameReader, NotYetThere, Stream
from rlinf_lab.runtime.transport.links import Address, close_when_forked, node_id, notice_silence
from rlinf_lab.runtime.transport.shared_memory import GREETING, HEARD_ALONE, SlotViews

PORTION = 1 << 13  # bytes that a rank takes in at once: it may have what it waits for, and others would wait for it


class Ears(NamedTuple):
    """What is done about messages: see `Listener`."""

    on_message: Callable[[tuple], None]
    on_error: Callable[[str, BaseException], None]
    on_pause: Callable[[], None]


class Incoming:
    """One connection. It is heard by its thread, and by a rank at the lookout; whoever does holds the lock."""

    def __init__(
        self,
        peer: str,
        connection: socket.socket,
        stream: Stream,
        frames: FrameReader,
        ears: Ears,
        lookout: Lookout | None,
    ) -> None:
        self._peer, self._stream, self._frames, self._ears, self._lookout = peer, stream, frames, ears, lookout
        self._number = connection.fileno()
        self._reading = threading.Lock()
        self._has_left = False
        # of the thread; without one it waits in the stream, and nobody else hears
        self._poll: select.epoll | None = None
        if lookout is not None:
            with contextlib.suppress(OSError):  # no more files
                poll = select.epoll()
                lookout.watch(self)  # first: it is the first that is woken
                try:
                    poll.register(self._number, IN_TURN)
                except OSError:
                    lookout.forget(self)
                    raise
                self._poll = poll

    def fileno(self) -> int:
        return self._number

    def leave(self) -> None:
        """Nothing more is heard. The number of a file that is closed may become somebody else's."""
        with self._reading:
            self._has_left = True
            if self._poll is not None:
                assert self._lookout is not None
                self._lookout.forget(self)
                self._poll.close()

    # --- the thread ----------------------------------------------------------------------------------------
    def hear(self) -> None:
        """Hand messages over until the farewell. `EOFError` when the stream ends without one."""
        while True:
            with self._reading:
                if not self._hear_all():
                    return
            if self._poll is not None:
                self._poll.poll()

    def _hear_all(self) -> bool:
        """What has arrived, and the rest of what has begun to; False at the farewell."""
        stream = self._stream
        stream.waits = True
        if self._poll is not None and not stream.has_more():
            stream.fetch()
            if not stream.has_more():  # a rank was faster
                return True
        goes_on = True
        while goes_on := self._frames.next():
            self._hand_over()
            if not stream.has_more():
                break
        self._pause()
        return goes_on

    # --- a rank that waits -----------------------------------------------------------------------------------
    def hear_what_is_there(self) -> bool:
        """See `lookout.Heard`."""
        if not self._reading.acquire(blocking=False):
            return False
        try:
            return self._has_left or self._hear_some_or_rouse()
        finally:
            self._reading.release()

    def _hear_some_or_rouse(self) -> bool:
        self._stream.waits = False
        try:
            heard_all = self._hear_some()
        except (OSError, EOFError, struct.error, MemoryError):  # the thread will meet it, too
            heard_all = False
        if not heard_all:
            self._rouse()
        return heard_all

    def _hear_some(self) -> bool:
        """Whether nothing is left but, perhaps, the beginning of a frame."""
        stream = self._stream
        all_there = stream.fetch(PORTION)
        self._hear_whole_frames()
        if stream.has_more() and not all_there:  # in the middle of one
            all_there = stream.fetch()
            self._hear_whole_frames()
        self._pause()
        return all_there

    def _hear_whole_frames(self) -> None:
        stream = self._stream
        while stream.has_more():
            mark = stream.mark()
            try:
                if not self._frames.next():
                    raise EOFError("the farewell")
            except NotYetThere:
                stream.back(mark)
                return
            except BaseException:
                stream.back(mark)
                raise
            self._hand_over()

    def _rouse(self) -> None:
        """Have the thread look at what is there: the kernel tells it again."""
        self.hush()
        self.heed()

    def hush(self) -> None:
        """See `lookout.Heard`. A thread that has no poll, or none yet, has not gone to sleep there: it looks at what is
        there by itself.
        """
        if self._poll is not None:
            try:
                self._poll.unregister(self._number)
            except (OSError, ValueError):  # it is, or has left: its file is closed after its poll
                return

    def heed(self) -> None:
        """See `lookout.Heard`."""
        if self._poll is not None:
            try:
                self._poll.register(self._number, IN_TURN)
            except (OSError, ValueError):  # it does, or has left
                return

    # --- both ----------------------------------------------------------------------------------------------
    def _hand_over(self) -> None:
        """A message. Without a reader the run would hang: a class that is not here, no more files, a SystemExit are
        told, and the next one is heard.
        """
        try:
            self._ears.on_message(self._frames.message())
        except BaseException as error:
            self._ears.on_error(self._peer, error)

    def _pause(self) -> None:
        self._frames.forget()  # while it waits for the next one, nothing here keeps slots taken
        try:
            self._ears.on_pause()
        except BaseException as error:
            self._ears.on_error(self._peer, error)


class Listener:
    """Accepts links from other hosts; one reading thread for each calls ``on_message(message)`` in order.

    ``on_pause()`` is called when all that had arrived was handed over.
    ``on_broken(host)`` is called when a peer's stream ends without a farewell, ``on_error(host, error)`` when one of
    its messages cannot be unpickled here, or handled; the messages after it are still heard. ``lookout``: where a rank
    that waits may hear them instead.
    ``outlives``: see `FrameReader`.
    """

    def __init__(
        self,
        host: str,
        on_message: Callable[[tuple], None],
        on_broken: Callable[[str], None],
        on_error: Callable[[str, BaseException], None],
        ip: str = "127.0.0.1",
        on_pause: Callable[[], None] = lambda: None,
        lookout: Lookout | None = None,
        outlives: bool = False,
    ) -> None:
        self._ears, self._on_broken, self._outlives = Ears(on_message, on_error, on_pause), on_broken, outlives
        self._closed, self._lookout = False, lookout
        self._left: set[str] = set()  # peers that have said farewell
        self._left_changed = threading.Condition()
        secret = secrets.token_bytes(32)
        name = f"\0rlinf_lab-{os.getpid()}-{secrets.token_hex(8)}"
        unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unix.bind(name)
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        tcp.bind((ip, 0))
        self.address = Address(
            host, node_id(), name, tcp.getsockname(), secret, gpus=visible_gpus(), process=os.getpid()
        )
        self._sockets: list[socket.socket] = [unix, tcp]
        for server in (unix, tcp):
            close_when_forked(server)
            server.listen(64)
            threading.Thread(target=self._accept, args=(server,), name=f"listen {host}", daemon=True).start()

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                server.close()
                return
            self._sockets.append(connection)
            if self._closed:  # meanwhile
                self.close()
            close_when_forked(connection)
            if connection.family == socket.AF_INET:
                notice_silence(connection)
            threading.Thread(target=self._read, args=(connection,), name="link", daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        peer = ""  # known when it has said its name: whoever hangs up before that is no host of ours
        incoming = receivers = None
        try:
            if connection.family == socket.AF_UNIX:
                _, uid, _ = struct.unpack(
                    "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                )
                if uid != os.getuid():
                    return
            stream = Stream(connection)
            if not secrets.compare_digest(stream.read(32), self.address.secret):
                return
            slots = SlotViews(connection, stream.read(GREETING.size))
            connection.send(b"\1" if slots.usable else b"\0")
            peer = stream.read(COUNT.unpack(stream.read(4))[0]).decode()
            transport = "unix" if connection.family == socket.AF_UNIX else "tcp"
            receivers = Receivers(LOOPBACK if connection.family == socket.AF_UNIX else connection.getsockname()[0])
            frames = FrameReader(stream, slots, receivers, transport, self._outlives)
            lookout = None if slots.probe == HEARD_ALONE else self._lookout
            incoming = Incoming(peer, connection, stream, frames, self._ears, lookout)
            incoming.hear()
            receivers.end(died=False)
            with self._left_changed:
                self._left.add(peer)
                self._left_changed.notify_all()
        except (
            OSError,
            EOFError,
            struct.error,
            MemoryError,
        ):  # without memory for a head: nobody knows where the next message begins
            if receivers is not None:
                receivers.end(died=True)
            if not self._closed and peer:
                self._on_broken(peer)
        finally:
            if incoming is not None:
                incoming.leave()
            connection.close()

    def wait_for_farewells(self, peers: set[str], seconds: float) -> bool:
        """Wait until everything these peers have sent was heard, and their farewell. False when the time
        passes first.
        """
        with self._left_changed:
            return self._left_changed.wait_for(lambda: peers <= self._left, seconds)

    def close(self) -> None:
        """Nothing more is heard. Each socket is closed by the thread that uses it: in between, its number could become
        somebody else's.
        """
        self._closed = True
        for each in list(self._sockets):
            with contextlib.suppress(OSError):  # it was not connected, or the other end was faster
                each.shutdown(socket.SHUT_RDWR)
