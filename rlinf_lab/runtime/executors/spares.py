"""Processes that are there before anybody knows which hosts they will be: to start Python and to import torch and a
simulator takes seconds, in which a run goes on elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future

from rlinf_lab.runtime.executors.child import Child
from rlinf_lab.runtime.executors.device_host import import_path

READY_SECONDS = 30.0  # then whoever waits for them goes on


def environment_of_hosts() -> dict[str, str]:
    """Of a process of this machine that sees every GPU."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class Spares:
    """``count`` processes, or as many as the system gives, that call ``prepare`` on ``cores`` and wait.

    `ProcessExecutor` (``spares=``) takes of them what it can use, and ends the rest when it has started.
    """

    def __init__(self, count: int, prepare: Callable[[], object], cores: Collection[int]) -> None:
        self._waiting: list[Child] = []
        self._preparing: list[Future[None]] = []
        self._until = time.monotonic() + READY_SECONDS
        with contextlib.suppress(OSError):
            for _ in range(count):
                self._waiting.append(Child(environment_of_hosts()))
                self._preparing.append(self._waiting[-1].prepare(prepare, cores))

    def are_ready(self) -> bool:
        """Whether all are, or have failed; or `READY_SECONDS` have passed."""
        return time.monotonic() > self._until or all(future.done() for future in self._preparing)

    def take(self, environment: Mapping[str, str]) -> Child | None:
        """One that was started as a host with this ``environment`` would be started now; None where there is none."""
        for child in self._waiting:
            if child.environment == environment and child.paths == import_path() and child.is_alive():
                self._waiting.remove(child)
                return child
        return None

    def close(self) -> None:
        """End those that nobody has taken."""
        waiting, self._waiting = self._waiting, []
        for child in waiting:
            child.end(at_once=True)

    def __repr__(self) -> str:
        return f"Spares({', '.join(f'process {child.pid}' for child in self._waiting) or 'none left'})"
