"""A widget's message as ipykernel would send it, written in a third of the time.

A run sends ten a second from a process that computes: with cold caches, ipywidgets, comm and `Session` take 0.25 ms for
each, most of it for traits that are read again, for packing empty parts and for options that are not used. The frames
are those of Jupyter's wire protocol 5 for a ``comm_msg`` without a parent.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Self

_encode = json.JSONEncoder(allow_nan=False).encode
_COPIED = 1 << 16  # bytes: larger messages are not copied on their way
_GONE_SECONDS = 1.0  # a beat that has not come for so long has stopped
_LEAST_REST = 0.02  # s between two beats
_NUMBERS = itertools.count()
_TWO_DIGITS = tuple(f"{number:02d}" for number in range(60))
_DONTWAIT, _SNDMORE = 1, 2  # of ZeroMQ


@functools.cache
def _zmq_send() -> Callable[..., int] | None:
    """libzmq's own function, called with the interpreter's lock held; None where it cannot be found.

    pyzmq lets go of the lock for each of the seven and more parts of a message, and a worker that computes in Python
    takes it each time: both threads change places as often, and the message is late. A socket that publishes never
    waits.
    """
    try:
        from zmq.backend.cython import _zmq

        send = ctypes.PyDLL(_zmq.__file__).zmq_send  # of the library that it is linked with
    except (ImportError, OSError, AttributeError):
        return None
    send.argtypes, send.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return send


class Express:
    """The way to the page of one comm. Made by `Express.of`."""

    def __init__(self, session: Any, socket: Any, comm: Any) -> None:
        self._comm, self._socket, self._topic, self._pid = comm, socket, comm.topic, os.getpid()
        self._sign = _signer(session.key, session.digest_mod) if session.auth is not None else lambda _: b""
        self._id = f"{session.session}_{self._pid}_{os.urandom(4).hex()}_"
        self._header = _encode(
            {"msg_type": "comm_msg", "username": session.username, "session": session.session, "version": "5.4"}
        )[1:]
        self._comm_id = _encode(comm.comm_id)
        self._minute, self._date = -1, ""
        self._thread: Any = getattr(socket, "io_thread", None)  # of ipykernel, which owns the socket
        self._piped = self._through = 0  # messages that went through its pipe, and those of them that have left it
        self._handed = self._sent = 0  # messages that its loop was given, and those of them that it has sent
        self._loop: Any = getattr(getattr(self._thread, "io_loop", None), "asyncio_loop", None)
        self._ident: int | None = getattr(getattr(self._thread, "thread", None), "ident", None)

    @classmethod
    def of(cls, comm: Any) -> Self | None:
        """None where this is no ipykernel that packs JSON as usual. The comm's own way is to be taken then."""
        here = kernel()
        session, socket = getattr(here, "session", None), getattr(here, "iopub_socket", None)
        packer = getattr(sys.modules.get("jupyter_client.session"), "json_packer", None)
        if session is None or socket is None or getattr(comm, "topic", None) is None:
            return None
        is_plain = session.pack is packer and not session.adapt_version and not session.debug
        return cls(session, socket, comm) if is_plain and session.pid == os.getpid() else None

    def carries(self, comm: Any) -> bool:
        """Whether this is still the comm, and the process, that it was made for."""
        return comm is self._comm and os.getpid() == self._pid

    def send(self, content: Mapping[str, Any] | str, buffers: Sequence[bytes]) -> None:
        """As `ipywidgets.Widget.send`; a text is JSON already. Raises ``ValueError`` for what JSON cannot hold
        (infinity).
        """
        self._hand_over([*self.frames(content), *buffers], sum(map(len, buffers)) < _COPIED)
        # The cell that created the widget has left its own (main) shell as the place to answer from: see `pushed`.
        vars(self._comm).pop("_reply_subshell_id", None)

    def _hand_over(self, frames: list[bytes], copy: bool) -> None:
        """To the thread that sends. Its loop is asked at once: through the pipe of ZeroMQ that ipykernel wakes it with,
        a message costs it twice as much.

        The first ones go through the pipe all the same, for the message that opens the comm may still be in there: a
        page that hears of a comm later than of what it says never hears that.
        """
        if self._piped > 0 and self._piped == self._through:  # as `_is_open`
            if self._handed == self._sent and threading.get_ident() == self._ident:
                self._send(frames, copy)
                return
            self._handed += 1
            try:
                self._loop.call_soon_threadsafe(self._send_handed, frames, copy)
                return
            except RuntimeError:  # the loop has been closed meanwhile: the kernel ends
                self._handed -= 1
        if self._loop is None or not self._thread.thread.is_alive():
            self._socket.send_multipart(frames, copy=copy)
            return
        self._piped += 1
        self._thread.schedule(functools.partial(self._come_through, frames, copy))

    def _is_open(self) -> bool:
        """The page has been told of the comm, as far as this process is concerned."""
        return self._piped > 0 and self._piped == self._through

    def every(self, seconds: float, work: Callable[[], bool]) -> Beat | None:
        """Have the thread that sends do ``work`` every so often, until it returns False. None before the first messages
        have left by the pipe.

        What it says then leaves at once: to have another thread say it, threads change places five times, and each time
        the worker that computes in Python waits.
        """
        return Beat(self._loop, seconds, work) if self._is_open() and self._thread.thread.is_alive() else None

    def _send_handed(self, frames: list[bytes], copy: bool) -> None:
        """In the thread that sends."""
        try:
            self._send(frames, copy)
        finally:
            self._sent += 1

    def _come_through(self, frames: list[bytes], copy: bool) -> None:
        """In the thread that sends."""
        try:
            self._send(frames, copy)
        finally:
            self._through += 1

    def _send(self, frames: list[bytes], copy: bool) -> None:
        """In the thread that sends."""
        socket, at_once = self._thread.socket, _zmq_send() if copy else None
        if at_once is None or socket is None or socket.closed or os.getpid() != self._pid:
            self._thread._really_send(frames, 0, copy)
            return
        handle, last = socket.underlying, len(frames) - 1
        for i, frame in enumerate(frames):
            if at_once(handle, bytes(frame), len(frame), _DONTWAIT | (_SNDMORE if i < last else 0)) < 0:
                raise OSError(f"ZeroMQ did not take part {i + 1} of {last + 1} of a widget's message")

    def frames(self, content: Mapping[str, Any] | str) -> list[bytes]:
        """Topic, delimiter, signature, header, parent, metadata, content."""
        now = str(time.time_ns())
        minute, second = divmod(int(now[:-9]), 60)
        # writing a date takes 40 us and more with cold caches: but for the seconds, once a minute
        if minute != self._minute:
            self._minute, self._date = minute, datetime.fromtimestamp(60 * minute, UTC).strftime("%Y-%m-%dT%H:%M:")
        date = f"{self._date}{_TWO_DIGITS[second]}.{now[-9:-3]}Z"
        header = f'{{"msg_id": "{self._id}{next(_NUMBERS)}", "date": "{date}", {self._header}'.encode()
        text = content if isinstance(content, str) else _encode(content)
        body = f'{{"comm_id": {self._comm_id}, "data": {{"method": "custom", "content": {text}}}}}'.encode()
        return [self._topic, b"<IDS|MSG>", self._sign(b"".join((header, b"{}{}", body))), header, b"{}", b"{}", body]


class Beat:
    """Work that the thread that sends does every so many seconds. Until it returns False or raises (``problem``)."""

    def __init__(self, loop: Any, seconds: float, work: Callable[[], bool]) -> None:
        self.problem: Exception | None = None
        self._loop, self._seconds, self._work = loop, seconds, work
        self._at = self._due = time.monotonic()
        self._is_over = False
        try:
            loop.call_soon_threadsafe(self._come)
        except RuntimeError:  # it has been closed: the kernel ends
            self._is_over = True

    def goes_on(self) -> bool:
        """Whether it may be relied on: it has come of late."""
        return not self._is_over and time.monotonic() - self._at < _GONE_SECONDS

    def stop(self) -> None:
        self._is_over = True

    def _come(self) -> None:
        """In the thread that sends."""
        if self._is_over:
            return
        try:
            if not self._work():
                self._is_over = True
                return
        except Exception as error:
            self.problem, self._is_over = error, True
            return
        self._at = time.monotonic()
        self._due = max(max(self._due, self._at - self._seconds) + self._seconds, self._at + _LEAST_REST)
        self._loop.call_later(self._due - self._at, self._come)


def _signer(key: bytes, digest: Callable[..., Any]) -> Callable[[bytes], bytes]:
    """HMAC (RFC 2104) by two hashes that have begun. With cold caches it takes two thirds of what the object of the
    standard library does.
    """
    block = digest().block_size
    padded = (key if len(key) <= block else digest(key).digest()).ljust(block, b"\0")
    inner, outer = (digest(bytes(byte ^ mask for byte in padded)) for mask in (0x36, 0x5C))

    def sign(data: bytes) -> bytes:
        within, around = inner.copy(), outer.copy()
        within.update(data)
        around.update(within.digest())
        return around.hexdigest().encode()

    return sign


def attended() -> bool:
    """Whether what runs this cell can show a widget. As far as that can be known: a program that runs a notebook for
    its file takes no input.
    """
    if os.environ.get("SERVER_SOFTWARE", "").startswith("voila/"):  # runs them so, and shows the widgets
        return True
    return bool(getattr(kernel(), "_allow_stdin", True))


def kernel() -> Any:
    """The ipykernel of this process, or None."""
    module = sys.modules.get("ipykernel.kernelbase")
    if module is None or not module.Kernel.initialized():
        return None
    return module.Kernel.instance()
