"""What runs in a process of `processes.ProcessVecEnv`.

A vector of some of the environments, driven through shared memory.

Standard input is empty, ``exit()`` and exceptions are told to the parent, and the process ends when the parent does, whatever it is doing then:
the kernel sends it a signal when the other end of its lifeline is closed.

The parent starts it with ``main(control, lifeline, go, done)``: the descriptors of a socket, of a socket on which nothing is said, and of two bells.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import signal
import socket
import traceback
from functools import partial
from typing import Any

from rlinf_lab.errors import said
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import assign, rows
from rlinf_lab.vecenv.base import cannot_leave
from rlinf_lab.vecenv.bell import Bell
from rlinf_lab.vecenv.framing import receive, send
from rlinf_lab.vecenv.shared_arrays import (
    ANSWER,
    AT,
    HAS_FINAL,
    HAS_RESET_ONLY,
    HAS_SEED,
    HAS_SUCCESS,
    ORDER,
    SEED,
    SharedArrays,
)

STEP, RESET, CALL, CLOSE = range(4)
WELL, FAILED, BUSY = range(3)


class EnvironmentProcess:
    """One of the processes of a vector.

    ``told``: the number of this process, of all of them, of its first environment, of its environments and of all; what
    makes them.
    """

    def __init__(self, control: socket.socket, go: Bell, done: Bell, told: dict[str, Any]) -> None:
        self._control, self._go, self._done = control, go, done
        self._share = slice(told["first"], told["first"] + told["count"])
        self._env = told["make"](told["count"])
        send(control, ("made", self._env.spec))
        descriptor = socket.recv_fds(control, 1, 1)[1][0]
        self._arrays = SharedArrays(self._env.spec, told["num_envs"], told["processes"], descriptor)
        self._notes_8 = self._arrays.notes_K8[told["number"]]
        self._notes_8[AT] = -1
        if hasattr(self._env, "stepping"):
            self._env.stepping = self._notes_8[AT : AT + 1]

    def serve(self) -> None:
        """Until the parent says `CLOSE`."""
        while True:
            self._go.wait()
            order = int(self._notes_8[ORDER])
            if order == CLOSE:
                return
            try:
                self._notes_8[ANSWER] = BUSY
                (self._step, self._reset, self._call)[order]()
                self._notes_8[ANSWER] = WELL
            except BaseException as error:  # exit() too
                self._notes_8[ANSWER] = FAILED
                send(self._control, failure(error))
            self._done.ring()

    def _step(self) -> None:
        arrays, mine = self._arrays, self._share
        step: EnvStep = self._env.step(rows(arrays.action_N, mine))
        assign(arrays.obs_N, mine, step.obs_N)
        arrays.reward_N[mine], arrays.terminated_N[mine], arrays.truncated_N[mine] = step.reward_N, step.terminated_N, step.truncated_N
        notes_8 = self._notes_8
        notes_8[HAS_FINAL] = step.final_obs_N is not step.obs_N
        if notes_8[HAS_FINAL]:
            assign(arrays.final_N, mine, step.final_obs_N)
        notes_8[HAS_SUCCESS] = step.success_N is not None
        if step.success_N is not None:
            arrays.success_N[mine] = step.success_N
        notes_8[HAS_RESET_ONLY] = step.reset_only_N is not None
        if step.reset_only_N is not None:
            arrays.reset_only_N[mine] = step.reset_only_N

    def _reset(self) -> None:
        seed = int(self._notes_8[SEED]) if self._notes_8[HAS_SEED] else None
        assign(self._arrays.obs_N, self._share, self._env.reset(seed=seed))

    def _call(self) -> None:
        """Anything that is rare: a method by name, what it takes, and what it gives."""
        name, arguments = receive(self._control)
        what = partial(cannot_leave, self._env) if name == "cannot_leave" else getattr(self._env, name)
        send(self._control, ("gave", what(*arguments) if callable(what) else what))

    def close(self) -> None:
        self._env.close()


def failure(error: BaseException) -> tuple[str, str, str]:
    """What the parent is told, in one line. It says where in the environment's code it was."""
    if isinstance(error, SystemExit):
        text = f"called exit({error.code!r})"
    elif isinstance(error, EOFError):
        text = f"raised EOFError: {said(error)} (it asked for input, and there is none)"
    else:
        text = f"raised {type(error).__name__}: {said(error)}"
    return "failed", text, "".join(traceback.format_exception(error))


def end_with(lifeline: int) -> None:
    """The kernel ends this process when the other end is closed. Even in the middle of C code that never comes back."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):  # nothing is ever written
        os.set_blocking(lifeline, False)
        if not os.read(lifeline, 1):  # it was closed before the kernel was told to say so
            os._exit(1)


def main(control: int, lifeline: int, go: int, done: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the notebook is the parent's
    end_with(lifeline)
    connection = socket.socket(fileno=control)
    try:
        told = receive(connection)
        told["make"] = pickle.loads(told["make"])
        process = EnvironmentProcess(connection, Bell(go, told["spins"]), Bell(done), told)
    except BaseException as error:  # exit() too
        send(connection, failure(error))
        return
    process.serve()
    process.close()
