"""The Ray that runs use. It is this process's, the one named, or a private one that stays warm until `shutdown`."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from rlinf_lab.errors import ConfigError, ExecutorError, shown
from rlinf_lab.runtime.machine.devices import cores
from rlinf_lab.runtime.machine.ray_library import load_ray
from rlinf_lab.runtime.threads.main_thread_guard import aside

_RAY = threading.RLock()  # Ray is initialised by one thread at a time: runs start in the background


def check_address(address: object) -> None:
    """Raises `ConfigError` for what cannot be the address of a cluster."""
    if address is not None and (not isinstance(address, str) or not address):
        raise ConfigError(
            f"address={shown(address)}: of a Ray cluster. Next: 'auto' (the one that runs here), 'host:port', or None "
            "(a private Ray)."
        )


def ensure_ray(address: str | None) -> None:
    """Use the Ray of this process or the one named; else start a private one."""
    ray = load_ray()

    with _RAY:
        if ray.is_initialized():
            if address is not None:
                current, mine = ray.get_runtime_context().gcs_address, is_private()
                # "auto" means a cluster, which a private Ray is not
                if address != current and (mine or address != "auto"):
                    ours, end = (
                        (", a private Ray of earlier runs", "rlinf_lab.shutdown()") if mine else ("", "ray.shutdown()")
                    )
                    raise ExecutorError(
                        f"Ray is already initialised here with {current!r}{ours}, not {address!r}. Next: {end} first."
                    )
            if is_private() and (gone := why_private_is_gone()):
                raise ExecutorError(f"{gone} Next: rlinf_lab.shutdown(); the next run starts another.")
            return
        named = address or os.environ.get("RAY_ADDRESS")
        if named:
            # Aside: on the main thread Ray would leave a signal handler.
            aside(
                lambda: ray.init(
                    address=named,
                    namespace=f"rlinf_lab-{os.getpid()}",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            )
            return
        global _PRIVATE
        if _PRIVATE is not None:  # somebody has shut it down, or its start was interrupted
            _PRIVATE.close()
        _PRIVATE = PrivateRay()
        _PRIVATE.wait()


def is_private() -> bool:
    """Whether the Ray that this process uses now is the one that we have started."""
    return _PRIVATE is not None and _PRIVATE.is_current()


def has_one_thread_each() -> bool:
    """Whether actors of this Ray compute in one thread unless told otherwise. Then they need no environment of their
    own.

    For such a one Ray starts a process that imports Ray and then another that imports it again, and lets those lie idle
    that it has started before.
    """
    # not set, Ray sets 1 in an actor without CPUs
    return is_private() and _PRIVATE is not None and _PRIVATE.threads in (None, "1")


def why_private_is_gone() -> str:
    """What has died of the private Ray without which it starts no processes. "" where it lives."""
    dead = {kind: process.pid for kind, process in load_ray()._private.worker._global_node.dead_processes()}
    return (
        f"The private Ray of this process is gone: its raylet (process {dead['raylet']}) was killed or has crashed."
        if "raylet" in dead
        else ""
    )


class PrivateRay:
    """A Ray of our own. It is started by a thread of its own that lives as long as it: the kernel ends Ray's processes
    with the *thread* that started them, and the thread of a run is gone after the run. (No signal handler is installed
    off the main thread.)
    """

    def __init__(self) -> None:
        self._close = threading.Event()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._address = ""
        self.threads = os.environ.get("OMP_NUM_THREADS")  # what its processes inherit
        self._thread = threading.Thread(target=self._main, name="private ray", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until it runs. Raises `ExecutorError` when it cannot be started."""
        self._ready.wait()
        if self._error is not None:
            raise ExecutorError(
                f"A private Ray could not be started: {self._error}. Next: rlinf-lab doctor."
            ) from self._error

    def is_current(self) -> bool:
        """False as well after somebody has shut it down and initialised another one."""
        ray = load_ray()

        return bool(self._address) and ray.is_initialized() and ray.get_runtime_context().gcs_address == self._address

    def _main(self) -> None:
        ray = load_ray()

        try:
            # address="local" never joins somebody else's Ray that happens to run on this node.
            with _quiet():
                ray.init(
                    address="local", num_cpus=max(len(cores()), 2), include_dashboard=False, log_to_driver=False,
                    logging_level=logging.ERROR, namespace=f"rlinf_lab-{os.getpid()}", configure_logging=False,
                )  # fmt: skip
            self._address = ray.get_runtime_context().gcs_address
        except BaseException as error:
            self._error = error
            self._ready.set()
            return
        self._ready.set()
        self._close.wait()
        if self.is_current():
            begotten = _begotten_by_raylet()
            ray.shutdown()
            _end(begotten)

    def close(self) -> None:
        self._close.set()
        self._thread.join(30)


def _begotten_by_raylet() -> list[Any]:
    """Processes that Ray does not know by itself. The raylet has started them, and ends them if it is ended in good
    order.
    """
    import psutil

    found: list[Any] = []
    for each in load_ray()._private.worker._global_node.all_processes.get("raylet", ()):
        with contextlib.suppress(psutil.Error):
            found += psutil.Process(each.process.pid).children(recursive=True)
    return found


def _end(processes: Iterable[Any]) -> None:
    """Kill those that have not ended. Where Ray's control service is gone its agents ask for it for another minute."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()  # never one that has its number by now


_PRIVATE: PrivateRay | None = None


def shutdown() -> None:
    """End the private Ray that earlier runs have started; somebody else's is left alone."""
    global _PRIVATE
    with _RAY:
        if _PRIVATE is not None:
            _PRIVATE.close()
        _PRIVATE = None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without Ray's remarks on how it was started, which its own setting does not reach."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
