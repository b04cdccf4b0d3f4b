"""Processes that are there before anybody knows which hosts they will be.

To start Python and to import torch and a simulator takes seconds, in which a run can go on elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future

import cloudpickle
import psutil

from rlinf_lab.runtime.executors.child import Child
from rlinf_lab.runtime.executors.device_host import import_path

READY_SECONDS = 30.0  # then whoever waits for them goes on
MEMORY = 1 << 30  # bytes free for each: with torch and a simulator in it a process has half of that


def environment_of_hosts() -> dict[str, str]:
    """Of a process of this machine that sees every GPU."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class Spares:
    """Processes that call ``prepare`` on ``cores`` and wait.

    As many as ``count``, as there is memory for and as the system gives. `ProcessExecutor` (``spares=``) takes of them
    what it can use, and ends the rest when it has started.
    """

    def __init__(self, count: int, prepare: Callable[[], object], cores: Collection[int]) -> None:
        packed = cloudpickle.dumps(prepare)
        self._lock = threading.Lock()
        self._waiting: dict[Child, Future[None]] = {}
        self._until = time.monotonic() + READY_SECONDS
        with contextlib.suppress(OSError):
            for _ in range(min(count, psutil.virtual_memory().available // MEMORY)):
                child = Child(environment_of_hosts())
                self._waiting[child] = child.prepare(packed, cores)

    def are_ready(self) -> bool:
        """Whether all are, or have failed; or `READY_SECONDS` have passed."""
        return time.monotonic() > self._until or all(future.done() for future in list(self._waiting.values()))

    def take(self, environment: Mapping[str, str]) -> Child | None:
        """One that is ready and as new, or None. It was started as a host with this ``environment`` would be now."""
        with self._lock:
            for child, prepared in self._waiting.items():
                as_new = child.environment == environment and child.paths == import_path()
                if as_new and prepared.done() and child.is_alive():
                    del self._waiting[child]
                    return child
        return None

    def close(self) -> None:
        """End those that nobody has taken."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for child in waiting:
            child.end(at_once=True)

    def __repr__(self) -> str:
        return f"Spares({', '.join(f'process {child.pid}' for child in list(self._waiting)) or 'none left'})"
