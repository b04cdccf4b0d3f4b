"""The process of one device host, and how the driver speaks with it.

Both ends hold one socket. A request is answered by a thread of its own, for `stop` must get through while `start` still
waits. When the stream ends the child ends: nobody is left to work for. The driver's end is closed in processes that it
forks (`links`), so its death is noticed. A worker that holds the interpreter's lock lets no thread see that: a second
socket, on which nothing is said, has Linux kill the child when the driver is gone.

A process may be there before it is known which host it will be (`Child.become`), and import meanwhile what it will need
(`Child.prepare`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from rlinf_lab.errors import ExecutorError, said, shown
from rlinf_lab.runtime.executors.device_host import DeviceHost, import_path
from rlinf_lab.runtime.transport.links import close_when_forked

DEATH_SECONDS = 3.0
_BECOME, _PREPARE = "become", "prepare"  # requests that are not for the host: it may not be there yet
_HEAD = struct.Struct("<Qq")  # of a message: bytes, and the number of the request
_START = (
    "import sys; sys.path[:] = {paths!r}; from rlinf_lab.runtime.executors.child import main; main({fd}, {leash})"
)


class ChildDied(Exception):
    """The process of a host, its argument, has ended before it could answer."""


class Child:
    """The driver's handle of a host's process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises `OSError` when the system gives no process."""
        self.name = "nobody yet"
        self.environment, self.paths = dict(environment), import_path()
        (mine, theirs), (leash, end) = socket.socketpair(), socket.socketpair()
        with theirs, end:
            passed = [theirs.fileno(), end.fileno()]
            command = [
                sys.executable,
                "-c",
                _START.format(paths=self.paths, fd=passed[0], leash=passed[1]),
            ]
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=passed, env=self.environment
                )
            except BaseException:
                mine.close()
                leash.close()
                raise
        close_when_forked(mine)
        close_when_forked(leash)
        self._leash = leash
        self.pid = self._process.pid
        self._socket = mine
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._asked = 0
        self._gone = False
        threading.Thread(target=self._hear, name=f"answers of process {self.pid}", daemon=True).start()

    def prepare(self, packed: bytes, cores: Collection[int]) -> Future[None]:
        """Have it call what is ``packed`` on these ``cores`` before it becomes a host. A failure there changes nothing:
        what fails once more when it matters is told then.
        """
        return self.ask(_PREPARE, packed, list(cores))

    def become(self, name: str, payload: bytes) -> None:
        """It is the host ``name`` from now on. ``payload``: see `device_host.pack`."""
        self.name = name
        self.ask(_BECOME, name, payload)

    def ask(self, method: str, *args: Any) -> Future[Any]:
        """Have a method called there. The future raises `ChildDied` when the process ends before it has answered."""
        future: Future[Any] = Future()
        with self._lock:
            self._asked += 1
            number = self._asked
            if not self._gone:
                self._waiting[number] = future
                try:
                    _send(self._socket, number, pickle.dumps((method, args)))
                    return future
                except OSError:
                    del self._waiting[number]
                except BaseException:  # an argument that does not pickle is the caller's error
                    del self._waiting[number]
                    raise
        future.set_exception(ChildDied(self.name))
        return future

    def _hear(self) -> None:
        try:
            while (answer := _receive(self._socket)) is not None:
                number, data = answer
                with self._lock:
                    future = self._waiting.pop(number)
                _settle(future, data, self.name)
        except OSError:  # it was killed
            pass
        with self._lock:
            self._gone = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for future in waiting:
            future.set_exception(ChildDied(self.name))

    def status(self) -> int | None:
        """Of a process that has ended, as `subprocess.Popen.returncode`; None: it goes on."""
        try:
            return self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return None

    def is_alive(self) -> bool:
        return not self._gone and self._process.poll() is None

    def end(self, at_once: bool = False) -> None:
        """It ends when its stream does. One that does not within `DEATH_SECONDS`, or ``at_once``, is killed. Waits
        until it is gone.
        """
        if at_once:
            self._process.kill()
        with contextlib.suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:  # a worker holds the interpreter's lock
            self._process.kill()
            self._process.wait()
        self._leash.close()
        self._socket.close()

    def __repr__(self) -> str:
        return f"Child({self.name!r}, process {self.pid})"


def _die_with(leash: socket.socket) -> None:
    """Linux kills this process when the other end is closed, whatever its threads do. On other systems one that holds
    the interpreter's lock goes on.
    """
    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(leash, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):
        leash.recv(1, socket.MSG_DONTWAIT)
        os._exit(0)  # it is closed already


def _prepared(packed: bytes, cores: list[int]) -> None:
    """Call what is packed there, on the ``cores``. Threads that this began may go anywhere afterwards."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(Exception):
            pickle.loads(packed)()
        return
    before = os.sched_getaffinity(0)
    with contextlib.suppress(Exception):
        os.sched_setaffinity(0, cores)
        pickle.loads(packed)()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended by now
            os.sched_setaffinity(int(thread.name), before)


def main(fd: int, end: int) -> None:
    """Of the child's process."""
    leash = socket.socket(fileno=end)
    close_when_forked(leash)
    _die_with(leash)
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the driver, which stops its children
    connection = socket.socket(fileno=fd)
    close_when_forked(connection)
    host: Future[DeviceHost] = Future()
    lock, name = threading.Lock(), "nobody yet"

    def answer(number: int, method: str, args: tuple[Any, ...]) -> None:
        nonlocal name
        value, error = None, None
        try:
            if method == _PREPARE:
                _prepared(*args)
            elif method == _BECOME:
                name = args[0]
                host.set_result(DeviceHost(*args))
            else:
                value = getattr(host.result(), method)(*args)
        except BaseException as raised:
            error = raised
            if method == _BECOME:  # it is the answer to everything
                host.set_exception(raised)
        data = _answer(name, method, value, error)
        with lock, contextlib.suppress(OSError):  # nobody is left who asked; what is read next says so too
            _send(connection, number, data)

    while True:
        try:
            request = _receive(connection)
        except OSError:
            request = None
        if request is None:
            os._exit(0)
        number, data = request
        method, args = pickle.loads(data)
        if method in (_BECOME, _PREPARE):  # on this thread: those that are made later stay on its cores
            answer(number, method, args)
        else:
            threading.Thread(target=answer, args=(number, method, args), name=method, daemon=True).start()


def _answer(name: str, method: str, value: Any, error: BaseException | None) -> bytes:
    """What a method returned or raised, as bytes that can be read again. Else an error that says so. The call is
    answered whatever it was.
    """
    try:
        data = pickle.dumps((value, error))
        pickle.loads(data)
    except BaseException as problem:  # also a __reduce__ that leaves
        found = shown(value) if error is None else f"{type(error).__name__}: {said(error)}"
        told = (
            f"Host {name!r} could not answer {method}(): {found} cannot be sent to another process "
            f"({type(problem).__name__}: {said(problem)})."
        )
        data = pickle.dumps((None, ExecutorError(told)))
    return data


def _settle(future: Future[Any], data: bytes, name: str) -> None:
    try:
        value, error = pickle.loads(data)
    except BaseException as problem:  # a class that only the child has: this answer is lost, the next ones are heard
        value, error = (
            None,
            ExecutorError(
                f"An answer of host {name!r} cannot be read here: {type(problem).__name__}: {said(problem)}."
            ),
        )
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


def _send(connection: socket.socket, number: int, data: bytes) -> None:
    connection.sendall(_HEAD.pack(len(data), number) + data)


def _receive(connection: socket.socket) -> tuple[int, bytes] | None:
    """The number and the bytes of the next message; None when the stream has ended."""
    head = _exactly(connection, _HEAD.size)
    if head is None:
        return None
    size, number = _HEAD.unpack(head)
    data = _exactly(connection, size)
    return None if data is None else (number, data)


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(1 << 20, size - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)
