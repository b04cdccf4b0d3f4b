"""A function in a process of its own, with a limit of time: what hangs is killed, and the next call has a new one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.tasks.task import RewardResult, scored

START_SECONDS = 60.0
"""for the child to begin: importing what the function needs is not the function's own time"""


class Isolated:
    """``Isolated(reward, timeout_s=2.0)(problem, text)`` is a `RewardResult`, whatever the function does.

    It runs in a child process that is kept between calls. One that takes longer than ``timeout_s`` or dies is killed
    with everything it started, and recorded as ``error``. ``memory_mib`` bounds the child's address space.
    May be called from several threads; calls then wait for one another. `close` ends the child.
    """

    def __init__(self, function: Callable[..., Any], *, timeout_s: float = 5.0, memory_mib: int | None = None) -> None:
        if not timeout_s > 0:
            raise ConfigError(f"Isolated(timeout_s={shown(timeout_s)}): greater than 0.")
        self.timeout_s, self.memory_mib = timeout_s, memory_mib
        self._function = function
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __call__(self, *arguments: Any) -> RewardResult:
        try:
            message = cloudpickle.dumps(arguments)
        except Exception as error:
            return RewardResult(0.0, error=f"an argument does not pickle: {error}")
        with self._lock:
            try:
                connection = self._started()
                connection.send_bytes(message)
                if not connection.poll(self.timeout_s):
                    self.close()
                    return RewardResult(0.0, error=f"TimeoutError: no verdict after {self.timeout_s:g} s")
                result = connection.recv()
            except (EOFError, OSError, ConnectionError):
                code = self._ended()
                return RewardResult(0.0, error=f"ChildProcessError: the verifier's process died ({code})")
        return result if isinstance(result, RewardResult) else RewardResult(0.0, error=str(result))

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
        self._connection = Connection(ours.detach())
        self._connection.send_bytes(cloudpickle.dumps(self._function))
        if not self._connection.poll(START_SECONDS):
            raise EOFError
        self._connection.recv()
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


def serve() -> None:
    """The child: a function, then arguments, each answered by a `RewardResult`, until the connection ends."""
    connection = Connection(int(sys.argv[1]))
    if limit := int(sys.argv[2]):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))
    sys.stdout = sys.stderr  # a verifier that prints is not in the way of anything, but standard output is the run's
    function = cloudpickle.loads(connection.recv_bytes())
    connection.send(None)
    while True:
        try:
            arguments = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send(scored(function, *arguments))
