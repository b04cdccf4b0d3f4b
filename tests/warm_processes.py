"""Processes for tests of the processes executor: forked from one that has imported torch, where Python started anew takes 2 to 4 s of a processor for that.

What a host's process is given is what `subprocess.Popen` would give it: the code of ``python -c``, its environment, its files, this process as its
parent. Of the library nothing is imported before, and no thread has been started, so nothing of ours is ever forked. Tests marked ``fresh`` or ``gpu`` have
Python started anew, as the product does; so have all where RLINF_LAB_FRESH_PROCESSES is set. `Nursery.run` runs a script of a test so (fixture ``warm_python``);
what such a script starts is started anew.

    test process ── code, environment, files (SCM_RIGHTS) ──> nursery ── fork ──> in between ── fork ──> host
                 <──────────── the host's pid ───────────────                     ends at once: the host's parent is then the test process (`_reaping`)
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

IMPORTED = ["numpy", "torch", "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", "cloudpickle", "psutil", "pytest", "hypothesis"]
LIMITS = [resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE]
_HEAD = struct.Struct("<Q")
_PR_SET_CHILD_SUBREAPER = 36


class Nursery:
    """The process that forks, as its user sees it. It is started when it is first asked, and ends with its user."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def popen(
        self, command: Sequence[str], stdin: int, pass_fds: Sequence[int], env: Mapping[str, str], cwd: str | Path = ".", out: int = 1, err: int = 2
    ) -> subprocess.Popen[bytes]:
        """As `subprocess.Popen` of ``[python, "-c", code, *arguments]``, whose methods the returned object has."""
        _, option, code, *arguments = command
        assert option == "-c" and stdin == subprocess.DEVNULL
        limits = {limit: resource.getrlimit(limit) for limit in LIMITS}
        told = pickle.dumps((code, arguments, list(pass_fds), dict(env), str(Path(cwd).resolve()), os.sched_getaffinity(0), limits))
        with self._lock, _reaping():
            connection = self._connection()
            socket.send_fds(connection, [_HEAD.pack(len(told))], [out, err, *pass_fds])
            connection.sendall(told)
            answer = connection.recv(_HEAD.size, socket.MSG_WAITALL)
        assert len(answer) == _HEAD.size, "the process that forks has ended: see its standard error. Next: RLINF_LAB_FRESH_PROCESSES=1"
        (pid,) = _HEAD.unpack(answer)
        return _handle(command, pid)

    def run(self, code: str, *arguments: str, cwd: str | Path = ".", env: Mapping[str, str] | None = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """A program as `subprocess.run` of ``python -c`` would run it, and what it has said. Raises `subprocess.TimeoutExpired`, and ends it."""
        command = [sys.executable, "-c", code, *arguments]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = self.popen(command, subprocess.DEVNULL, (), env or os.environ, cwd, out.fileno(), err.fileno())
            try:
                process.wait(timeout)
            except BaseException:
                process.kill()
                process.wait()
                raise
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command, process.returncode, out.read(), err.read())

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair()
            with theirs:
                environment = {**os.environ, "OMP_NUM_THREADS": "1"}
                subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
        return self._socket

    def close(self) -> None:
        """Let the process that forks end; hosts go on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def run_anew(code: str, *arguments: str, cwd: str | Path = ".", env: Mapping[str, str] | None = None, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """What `Nursery.run` does, by Python started anew."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)


@contextlib.contextmanager
def _reaping() -> Iterator[None]:
    """Meanwhile a process below this one whose parent ends becomes a child of this one."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _handle(command: Sequence[str], pid: int) -> subprocess.Popen[bytes]:
    """That of a child which somebody else has forked."""
    handle = subprocess.Popen.__new__(subprocess.Popen)
    handle.args, handle.pid, handle.returncode = command, pid, None
    handle.stdin = handle.stdout = handle.stderr = None
    vars(handle).update(_child_created=True, _waitpid_lock=threading.Lock(), _sigint_wait_secs=0.25, _communication_started=False, _input=None)
    return handle


def instead_of(module: Any, nursery: Nursery) -> Any:
    """What ``module`` shall know as `subprocess`."""
    return types.SimpleNamespace(**{**vars(module.subprocess), "Popen": nursery.popen})


# --- the process that forks -----------------------------------------------------------------------------------
def _main(connection: socket.socket) -> str | None:
    """The code of a host, in its process; None in the nursery, when its user is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for its user
    for name in IMPORTED:
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would not survive the fork"
    gc.collect()
    gc.freeze()
    while True:
        head, files, _, _ = socket.recv_fds(connection, _HEAD.size, 16)
        if not head:
            return None
        told = connection.recv(_HEAD.unpack(head)[0], socket.MSG_WAITALL)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            host = os.fork()
            if host == 0:
                connection.close()
                os.close(reading)
                os.close(writing)
                return _become(pickle.loads(told), files)
            os.write(writing, _HEAD.pack(host))
            os._exit(0)
        os.waitpid(between, 0)  # its child has another parent now
        connection.sendall(os.read(reading, _HEAD.size))
        for each in (reading, writing, *files):
            os.close(each)


def _become(told: tuple[Any, ...], files: list[int]) -> str:
    """Be as if started anew."""
    code, arguments, numbers, environment, folder, processors, limits = told
    _place(dict(zip([1, 2, *numbers], files, strict=True)))
    before = _searched(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = ["", *_searched(environment), *(path for path in sys.path[1:] if path not in before)]
    os.chdir(folder)
    os.sched_setaffinity(0, processors)
    for limit, values in limits.items():
        resource.setrlimit(limit, values)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules["numpy"].random.seed()  # or all would draw the same numbers
    sys.argv = ["-c", *arguments]
    sys.modules["__main__"] = types.ModuleType("__main__")
    return code


def _searched(environment: Mapping[str, str]) -> list[str]:
    """Folders that are told to Python before its own."""
    return [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]


def _place(files: dict[int, int]) -> None:
    """Files under the numbers that they are to have, and no others."""
    above = max([*files, *files.values()]) + 1
    for i, (number, file) in enumerate(list(files.items())):
        os.dup2(file, above + i)
        files[number] = above + i
    for number, file in files.items():
        os.dup2(file, number)
    for each in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
        if each > 2 and each not in files:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(each)


if __name__ == "__main__":
    _code = _main(socket.socket(fileno=int(sys.argv[1])))
    if _code is not None:
        exec(compile(_code, "<string>", "exec"), sys.modules["__main__"].__dict__)
