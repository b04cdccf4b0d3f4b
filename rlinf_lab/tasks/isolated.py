"""A function in a process of its own, with a limit of time. What hangs is killed, and the next call has a new one."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from rlinf_lab.errors import ConfigError, said, shown
from rlinf_lab.tasks.task import RewardResult, scored

START_SECONDS = 60.0
"""for the child to begin: importing what the function needs is not the function's own time"""
VERDICT_BYTES = 1 << 20
"""that a verdict may have"""


class Isolated:
    """``Isolated(reward, timeout_s=2.0)(problem, text)`` is a `RewardResult`, whatever the function does.

    It runs in a child process that is kept between calls. One that takes longer than ``timeout_s`` or dies is killed
    with everything it started, and recorded as ``error``. ``memory_mib`` bounds the child's address space.
    A verdict comes back as JSON, a number and two texts: nothing that the function made is unpickled here.
    May be called from several threads; calls then wait for one another. `close` ends the child.
    """

    def __init__(self, function: Callable[..., Any], *, timeout_s: float = 5.0, memory_mib: int | None = None) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"Isolated(timeout_s={shown(timeout_s)}): greater than 0.")
        self.timeout_s, self.memory_mib = timeout_s, memory_mib
        self._function = function
        self._lock = threading.Lock()
        self._calls = 0  # of this child
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __call__(self, *arguments: Any) -> RewardResult:
        try:
            message = cloudpickle.dumps(arguments)
        except Exception as error:
            return RewardResult(0.0, error=f"an argument does not pickle: {said(error)}")
        with self._lock:
            try:
                connection = self._started()
                connection.send_bytes(message)
                self._calls += 1
                return scored(RewardResult, *_read(_line(connection, self.timeout_s), self._calls))
            except TimeoutError:
                self.close()
                return RewardResult(0.0, error=f"TimeoutError: no verdict after {self.timeout_s:g} s")
            except (ValueError, RecursionError) as error:
                self.close()
                return RewardResult(0.0, error=f"no verdict came from the verifier's process: {error}")
            except (EOFError, OSError, ConnectionError):
                code = self._ended()
                return RewardResult(0.0, error=f"ChildProcessError: the verifier's process died ({code})")

    def _started(self) -> Connection:
        if self._connection is not None and self._child is not None and self._child.poll() is None:
            return self._connection
        self.close()
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", "from rlinf_lab.tasks.isolated import serve; serve()"]
        arguments = [str(theirs.fileno()), str(self.memory_mib or 0)]
        search = os.pathsep.join(filter(None, sys.path))  # what is imported here can be imported there
        with theirs:
            self._child = subprocess.Popen(
                [*command, *arguments],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": search},
            )
        self._calls = 0
        self._connection = Connection(ours.detach())
        self._connection.send_bytes(cloudpickle.dumps(self._function))
        try:
            _line(self._connection, START_SECONDS)
        except (TimeoutError, ValueError):
            raise EOFError from None
        return self._connection

    def _ended(self) -> str:
        child = self._child
        try:
            code = child.wait(1.0) if child is not None else None
        except subprocess.TimeoutExpired:
            code = None
        self.close()
        return (
            "closed its connection"
            if code is None
            else f"exit code {code}"
            if code >= 0
            else signal.Signals(-code).name
        )

    def close(self) -> None:
        """Kill the child and what it started; the next call begins a new one."""
        if self._connection is not None:
            self._connection.close()
        if self._child is not None:
            kill_group(self._child)
        self._child = self._connection = None

    def __getstate__(self) -> dict[str, Any]:
        return {"function": cloudpickle.dumps(self._function), "limits": (self.timeout_s, self.memory_mib)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        timeout_s, memory_mib = state["limits"]
        self.__init__(cloudpickle.loads(state["function"]), timeout_s=timeout_s, memory_mib=memory_mib)  # type: ignore[misc]

    def __del__(self) -> None:
        if hasattr(self, "_child"):
            self.close()

    def __repr__(self) -> str:
        name = getattr(self._function, "__name__", repr(self._function))
        return (
            f"Isolated({name}, timeout_s={self.timeout_s:g}, {'running' if self._child is not None else 'not running'})"
        )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a child that leads a session, and all in its group. Returns when it has been reaped."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


def _line(connection: Connection, seconds: float) -> bytes:
    """What the child writes next. `TimeoutError` where it is not whole in time, `ValueError` for more than a verdict."""
    end = time.monotonic() + seconds
    told = bytearray()
    while b"\n" not in told:
        left = end - time.monotonic()
        if (told and left <= 0) or not connection.poll(max(0.0, left)):
            raise TimeoutError
        part = os.read(connection.fileno(), 1 << 16)
        if not part:
            raise EOFError
        told += part
        if len(told) > VERDICT_BYTES:
            raise ValueError(f"more than {VERDICT_BYTES:,} bytes")
    if told.index(b"\n") != len(told) - 1:
        raise ValueError("more than one line")
    return bytes(told)


def _read(line: bytes, call: int) -> tuple[Any, Any, Any]:
    """Value, detail and error. `ValueError` for what is no verdict on this call: the function may have written, too."""
    told = json.loads(line)
    if not isinstance(told, dict) or told.keys() != {"call", "value", "detail", "error"} or told["call"] != call:
        raise ValueError(shown(told))
    return told["value"], told["detail"], told["error"]


def _written(verdict: RewardResult, call: int) -> bytes:
    told = {"call": call, "value": verdict.value, "detail": verdict.detail, "error": verdict.error}
    line = json.dumps(told).encode() + b"\n"
    if len(line) <= VERDICT_BYTES:
        return line
    return _written(RewardResult(0.0, error=f"the verdict has {len(line):,} bytes, more than {VERDICT_BYTES:,}"), call)


def _judged(function: Callable[..., Any], arguments: tuple[Any, ...]) -> RewardResult:
    try:
        return scored(function, *arguments)
    except KeyboardInterrupt:  # this process is in a session of its own, which no keyboard interrupts
        return RewardResult(0.0, error="KeyboardInterrupt in the verifier")


def serve() -> None:
    """The child: a function, then arguments, until the connection ends. Each is answered by a line of JSON."""
    connection = Connection(int(sys.argv[1]))
    if limit := int(sys.argv[2]):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))
    sys.stdout = sys.stderr  # a verifier that prints is not in the way of anything, but standard output is the run's
    function = cloudpickle.loads(connection.recv_bytes())
    answers = open(connection.fileno(), "wb", closefd=False)  # noqa: SIM115 - for as long as the process lives
    answers.write(b"\n")
    answers.flush()
    for call in itertools.count(1):
        try:
            arguments = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        answers.write(_written(_judged(function, arguments), call))
        answers.flush()
