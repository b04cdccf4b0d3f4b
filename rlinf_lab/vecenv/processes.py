"""A vector whose environments live in processes.

Each steps a share of them, arrays are in shared memory, and a step costs a ring to each.

    actions ──> shared memory ──ring──> process 0: environments 0..3 ──┐
                             └─ring──> process 1: environments 4..7 ──┴─ring──> observations, rewards, ends

A process that raises, exits, dies or does not come back is told as an `EnvError` with the environment that was being stepped; the others are then ended,
too. Nothing is left behind: memory has no name, and the kernel ends the processes when this one is gone (`environment_process`).

Legend: N environments, K processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import ConfigError, EnvError, shown
from rlinf_lab.records import EnvStep
from rlinf_lab.trees import Tree, assign, map_tree, rows
from rlinf_lab.vecenv.base import EnvSpec, VecEnv
from rlinf_lab.vecenv.bell import Bell
from rlinf_lab.vecenv.environment_process import BUSY, CALL, CLOSE, FAILED, RESET, STEP
from rlinf_lab.vecenv.framing import receive, send
from rlinf_lab.vecenv.loop import check_state, checked_actions, described
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

END_SECONDS = 3.0
_START = "import sys; sys.path[:] = {paths!r}; from rlinf_lab.vecenv.environment_process import main; main(*{descriptors!r})"


class _Child:
    """One process and its share of the environments."""

    def __init__(self, number: int, share: slice, done: Bell) -> None:
        self.number, self.share, self.go = number, share, Bell()
        (self.control, theirs), (self._lifeline, end) = socket.socketpair(), socket.socketpair()
        with theirs, end:
            passed = [theirs.fileno(), end.fileno(), self.go.descriptor, done.descriptor]
            command = [sys.executable, "-c", _START.format(paths=[str(Path(p).absolute()) for p in sys.path], descriptors=passed)]
            environment = {"OMP_NUM_THREADS": "1", **os.environ}
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=passed, env=environment)
        self.ended = os.pidfd_open(self.process.pid)
        _keep_from_forks(self.control, self._lifeline)

    def __str__(self) -> str:
        first, last = self.share.start, self.share.stop - 1
        return f"environment {first}" if first == last else f"environments {first} to {last}"

    def end(self, seconds: float) -> None:
        """Wait so long for its end, then kill it."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.control.close()
        self._lifeline.close()
        self.go.close()
        os.close(self.ended)


class ProcessVecEnv:
    """See `base.VecEnv` for the contract. Environment ``i`` has the seed ``seed + i``, as everywhere, whichever process it is in.

    ``make(num_envs)`` makes a vector of a share; it travels by cloudpickle, so it may be of a notebook cell. ``timeout``: seconds that a step, a reset or
    the making may take.
    """

    def __init__(self, make: Callable[[int], VecEnv], num_envs: int, processes: int, timeout: float = 120.0) -> None:
        if not 1 <= processes <= num_envs:
            raise ConfigError(f"ProcessVecEnv(num_envs={num_envs}, processes={processes}): from 1 process to one for each environment.")
        if not timeout > 0:
            raise ConfigError(f"ProcessVecEnv(timeout={shown(timeout)}): seconds, more than 0.")
        self.num_envs, self.cores, self._timeout = num_envs, processes, timeout
        self._spins = processes < len(os.sched_getaffinity(0))
        self._done = Bell(spins=self._spins)
        bounds = np.linspace(0, num_envs, processes + 1).round().astype(int).tolist()
        self._children: list[_Child] = []
        self._finalizer = weakref.finalize(self, _end, self._children, 0.0)
        self._why_closed = ""
        self.spec: EnvSpec = None  # type: ignore[assignment]  # until the first process has told it
        self._arrays: SharedArrays = None  # type: ignore[assignment]
        self._owed = 0  # answers to a step that was interrupted
        for k in range(processes):
            self._children.append(_Child(k, slice(bounds[k], bounds[k + 1]), self._done))
        self.spec = self._make(cloudpickle.dumps(make))
        self._arrays = SharedArrays(self.spec, num_envs, processes)
        for child in self._children:
            socket.send_fds(child.control, [b"m"], [self._arrays.descriptor])
        self._poll = select.poll()
        for descriptor in (self._done.descriptor, *(child.ended for child in self._children)):
            self._poll.register(descriptor, select.POLLIN)
        self._started = False

    def _make(self, make: bytes) -> EnvSpec:
        common = {"make": make, "num_envs": self.num_envs, "processes": len(self._children), "spins": self._spins}
        for child in self._children:
            told = {**common, "number": child.number, "first": child.share.start, "count": child.share.stop - child.share.start}
            with contextlib.suppress(OSError):  # it has died; its answer says so
                send(child.control, told)
        specs = [self._told(child, "while it was being made") for child in self._children]
        return specs[0]

    # --- the contract -------------------------------------------------------------------------------------------------------
    def reset(self, *, seed: int | None = None) -> Tree:
        self._ready()
        for child in self._children:
            notes_8 = self._arrays.notes_K8[child.number]
            notes_8[HAS_SEED] = seed is not None
            notes_8[SEED] = 0 if seed is None else seed + child.share.start
        self._run(RESET)
        self._started = True
        return map_tree(np.copy, self._arrays.obs_N)

    def step(self, action_N: Tree) -> EnvStep:
        self._ready()
        assign(self._arrays.action_N, slice(None), checked_actions(self.spec, self.num_envs, action_N, self._started))
        self._run(STEP)
        arrays = self._arrays
        obs_N = map_tree(np.copy, arrays.obs_N)
        has_final = bool(arrays.notes_K8[:, HAS_FINAL].any())
        return EnvStep(
            obs_N, arrays.reward_N.copy(), arrays.terminated_N.copy(), arrays.truncated_N.copy(), self._optional(arrays.success_N, HAS_SUCCESS),
            self._final(obs_N) if has_final else obs_N, self._optional(arrays.reset_only_N, HAS_RESET_ONLY),
        )  # fmt: skip

    def _final(self, obs_N: Tree) -> Tree:
        final_N = map_tree(np.copy, obs_N)
        for child in self._children:
            if self._arrays.notes_K8[child.number, HAS_FINAL]:
                assign(final_N, child.share, rows(self._arrays.final_N, child.share))
        return final_N

    def _optional(self, array_N: NDArray, column: int) -> NDArray | None:
        """What some processes wrote; False where they did not."""
        told_K = self._arrays.notes_K8[:, column]
        if not told_K.any():
            return None
        found_N = array_N.copy()
        for child in self._children:
            if not told_K[child.number]:
                found_N[child.share] = False
        return found_N

    def render(self) -> NDArray[np.uint8] | None:
        """The first environment."""
        picture: NDArray[np.uint8] | None = self._call_of(self._children[0], "render") if self.spec.renders else None
        return picture

    def close(self) -> None:
        if self._finalizer.alive:
            self._why_closed = self._why_closed or "it was closed"
            with contextlib.suppress(OSError):
                for child in self._children:
                    self._arrays.notes_K8[child.number, ORDER] = CLOSE
                    child.go.ring()
            self._end(END_SECONDS if not self._owed else 0.0)

    # --- leaving ------------------------------------------------------------------------------------------------------------
    def cannot_leave(self) -> str:
        """See `base.cannot_leave`."""
        return str(self._call_of(self._children[0], "cannot_leave"))

    def save_state(self) -> dict[str, Any]:
        """See `base.Restorable`."""
        saved = [self._call_of(child, "save_state") for child in self._children]
        return {"of": self._kind(), "runner": "processes", "started": self._started, "processes": saved}

    def restore_state(self, state: dict[str, Any]) -> None:
        """`EnvError` when the state is that of other environments, or of other shares."""
        check_state(state, self._kind(), "processes")
        if len(state["processes"]) != len(self._children):
            raise EnvError(
                f"{self.spec.id}: a state of {len(state['processes'])} processes cannot go on in {len(self._children)}. Next: cores={len(state['processes'])}."
            )
        for child, saved in zip(self._children, state["processes"], strict=True):
            self._call_of(child, "restore_state", saved)
        self._started = state["started"]

    def _kind(self) -> tuple[str, int, int | None]:
        return self.spec.id, self.num_envs, self.spec.max_episode_steps

    # --- the processes ------------------------------------------------------------------------------------------------------
    def _ready(self) -> None:
        if self._why_closed:
            raise EnvError(f"{self._name}: {self._why_closed}. Next: make it anew.")
        if self._owed:
            self._collect()  # of a step that was interrupted here and went on there

    def _run(self, order: int) -> None:
        self._arrays.notes_K8[:, ORDER] = order
        self._owed = len(self._children)
        for child in self._children:
            child.go.ring()
        self._collect()

    def _collect(self) -> None:
        """Wait for all answers. `EnvError` when a process has raised, ended, or does not come back."""
        deadline = time.monotonic() + self._timeout
        while self._owed:
            self._done.spin()
            ready = dict(self._poll.poll(max(0.0, 1e3 * (deadline - time.monotonic()))))
            if ready.pop(self._done.descriptor, None):
                self._owed -= self._done.wait()
            for child in self._children:
                if child.ended in ready:
                    raise self._failed(child, self._how_it_ended(child), "")
            if not ready and self._owed and time.monotonic() > deadline:
                raise self._failed(self._who_is_late(), f"has not come back for {self._timeout:g} s", "")
        for child in self._children:
            if self._arrays.notes_K8[child.number, ANSWER] == FAILED:
                _, what, where = receive(child.control)
                raise self._failed(child, what, where)

    def _who_is_late(self) -> _Child:
        """The first whose environment is being stepped."""
        return next((child for child in self._children if self._arrays.notes_K8[child.number, ANSWER] == BUSY), self._children[0])

    def _call_of(self, child: _Child, name: str, *arguments: Any) -> Any:
        """What a method of the vector in that process gives."""
        self._ready()
        try:
            self._arrays.notes_K8[child.number, ORDER] = CALL
            send(child.control, (name, arguments))
            child.go.ring()
            found = self._told(child, f"in {name}()")
            self._done.wait()
        except KeyboardInterrupt:
            self._end(0.0)
            self._why_closed = f"{name}() was interrupted"
            raise
        return found

    def _told(self, child: _Child, when: str) -> Any:
        """The next message of that process."""
        ready, _, _ = select.select([child.control.fileno(), child.ended], [], [], self._timeout)
        if not ready:
            raise self._failed(child, f"has not come back for {self._timeout:g} s {when}", "")
        try:
            kind, *rest = receive(child.control)
        except (EOFError, OSError):
            child.process.wait(END_SECONDS)
            raise self._failed(child, f"{self._how_it_ended(child)} {when}", "") from None
        if kind == "failed":
            raise self._failed(child, f"{rest[0]} {when}", rest[1])
        return rest[0]

    def _how_it_ended(self, child: _Child) -> str:
        status = child.process.wait(END_SECONDS)
        if status >= 0:
            return f"ended its process with exit code {status}"
        return f"ended its process with {signal.Signals(-status).name}"

    def _failed(self, child: _Child, what: str, where: str) -> EnvError:
        """All processes are ended, for the environments are not in step any more."""
        who, among = str(child), ""
        at = -1 if self._arrays is None else int(self._arrays.notes_K8[child.number, AT])
        if at >= 0:
            who, among = f"environment {child.share.start + at}", f" (a process steps {child})" if child.share.stop - child.share.start > 1 else ""
        self._end(0.0)
        self._why_closed = f"{who} {what}"
        error = EnvError(f"{self._name}: {who} {what}{among}. Next: make_vec(..., runner='loop') steps it here, where a debugger sees it.")
        if where:
            error.add_note(f"In its process:\n{where}")
        return error

    @property
    def _name(self) -> str:
        return self.spec.id if self.spec is not None else "ProcessVecEnv"

    def _end(self, seconds: float) -> None:
        self._finalizer.detach()
        _end(self._children, seconds)
        self._done.close()
        if self._arrays is not None:
            self._arrays.close()
            self._arrays = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        processes = f"{self.cores} process{'es' if self.cores > 1 else ''}"
        return described(self.spec, self.num_envs, f", {self._why_closed or processes}")


def _end(children: list[_Child], seconds: float) -> None:
    if not seconds:
        for child in children:
            child.process.kill()
    for child in children:
        child.end(seconds or END_SECONDS)


_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _keep_from_forks(*connections: socket.socket) -> None:
    """Their end says that this process is gone. One that it forks shall not keep them open."""
    _OPEN.update(connections)


def _close_in_fork() -> None:
    for connection in list(_OPEN):
        connection.close()


os.register_at_fork(after_in_child=_close_in_fork)
