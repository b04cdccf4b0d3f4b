"""What executors with several processes have in common. One device host for each group of devices that worker ranks
share.

        your loop ── driver host ══ links ══ host0 (cpu:0) ══ links ══ host1 (cpu:1)
                           │                      │                         │
                           └── create, connect, start, stop ────────────────┘

Calls, items, credits, values and spans go straight from host to host, so nothing central is asked once per item. How a
process comes into being, is asked and ends, the kinds of executor know: `ray_executor`, `processes`.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from rlinf_lab.errors import Cancelled, ConfigError, ExecutorError, shown
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import checked_layout
from rlinf_lab.planning.plan.process_groups import place_hosts
from rlinf_lab.runtime.executors.device_host import pack
from rlinf_lab.runtime.executors.driver import Driver
from rlinf_lab.runtime.session.session import Ended
from rlinf_lab.runtime.transport.links import Address, Ways
from rlinf_lab.runtime.transport.pickling import unsendable
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.workflow import Declaration, Workflow

STOP_SECONDS = 10
LOOPBACK = "127.0.0.1"
BETWEEN_GPUS = ("ipc", "nccl", "host")


class HostsExecutor(ABC):
    """See the module's docstring and `session.Executor`. ``emulate``: the plan may have more CPU slots than a node has
    cores.

    ``absent``: ranks that are not there at first (`Session.join`), by worker; their hosts are, so that they come
    without a new connection.
    ``between_gpus``: how tensors on a GPU get to another process: ``"ipc"`` (they stay there, where it sees that GPU,
    else copies through host memory), ``"nccl"`` (from GPU to GPU where it does not) or ``"host"`` (always copies).
    ``check_items``: an item that is changed between its put and its get fails the call that gets it, where both ends
    are in one process; others get a copy.
    """

    def __init__(
        self, flow: Workflow, plan: ExecutionPlan, emulate: bool = False,
        absent: Mapping[str, Sequence[int]] | None = None, between_gpus: str = "ipc", check_items: bool = False,
    ) -> None:  # fmt: skip
        if between_gpus not in BETWEEN_GPUS:
            known = " or ".join(map(repr, BETWEEN_GPUS))
            raise ConfigError(
                f"between_gpus={shown(between_gpus)}: how tensors on a GPU get to other processes. Next: {known}."
            )
        self.flow, self._between_gpus, self._check_items = flow, between_gpus, check_items
        self.layout = checked_layout(flow.graph, plan, absent)
        self._emulate = emulate
        self._declarations = ship(flow.workers)
        self.place = place_hosts(self.layout)
        self.hosts = sorted(set(self.place.values()) - {"driver"})
        self.driver = Driver(self.layout, self.place, self.hosts, check_items)
        self.driver_host, self.news = self.driver.host, self.driver.news
        self._connected = False  # to the driver, all hosts
        self._stopping = threading.Lock()
        self._ended: Ended | None = None

    # --- what a kind of executor knows ---------------------------------------------------------------------
    def _prepare(self) -> str:
        """Where hosts on other nodes reach this process. Asked before the first process; returns when hosts can start.
        """
        return LOOPBACK

    def _ways(self) -> Ways:
        """How messages of this process get to the hosts."""
        return Ways(between_gpus=self._between_gpus)

    @abstractmethod
    def _launch(self, host: str, payload: bytes) -> None:
        """Have a process made that holds a `DeviceHost`."""

    @abstractmethod
    def _ask(self, host: str, method: str, *args: Any) -> Any:
        """Have a method of a host called; what `_answer` takes."""

    @abstractmethod
    def _answer(self, asked: Any, seconds: float | None = None) -> Any:
        """What the method returned. Raises what `_explained` understands when the process died, or says nothing for so
        many seconds.
        """

    @abstractmethod
    def _as_they_come(self, asked: list[Any]) -> Iterator[Any]:
        """What `_ask` gave, in the order in which the answers come."""

    @abstractmethod
    def _explained(self, error: BaseException) -> str | None:
        """Why nothing could be started; None for an error that is not about processes."""

    def _is_of_processes(self, error: BaseException) -> bool:
        """Whether it can be explained; asks nobody."""
        return self._explained(error) is not None

    @abstractmethod
    def _reachable(self) -> list[str]:
        """Hosts that were launched and can be asked to stop."""

    @abstractmethod
    def _end_processes(self) -> None:
        """Kill what is left; harmless when nothing is."""

    # --- life ------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Set up processes and workers.

        Raises the `WorkerError` of a worker that cannot be set up, `ExecutorError` when a process cannot be had.

        `Cancelled` when it is stopped meanwhile.
        """
        try:
            self._refuse_when_stopped()
            ip = self._prepare()
            address = self.driver.listen(ip)
            payload = pack(self.layout, self.place, ip == LOOPBACK, self._check_items)
            for name in self.hosts:
                self._refuse_when_stopped()
                self._launch(name, payload)
            self._connect_all(address)
            problem = self._set_up()
        except BaseException as error:
            stopped = self.driver_host.stopping
            self.stop()
            self._release()  # also what has come into being since somebody else has stopped it
            explained = self._explained(error)
            if explained is None:
                raise
            if stopped:
                raise Cancelled("The run was stopped while its processes were being set up.") from error
            raise ExecutorError(explained) from error
        if problem is not None:
            self.stop()
            raise problem

    def _connect_all(self, driver: Address) -> None:
        try:
            self._connect(driver)
        except OSError as error:
            if self.driver_host.stopping or self._is_of_processes(error):
                raise
            raise ExecutorError(
                f"The {len(self.hosts) + 1} processes of the run could not be connected: {type(error).__name__}: "
                f"{error}. Next: a higher limit of open files "
                f"(ulimit -n; each needs some ten for every other one), or a plan with fewer hosts."
            ) from error

    def _connect(self, driver: Address) -> None:
        """Everybody learns where everybody listens."""
        ways = self._ways()
        addresses = [dataclasses.replace(driver, ray_node=ways.ray_node)]
        for asked in [self._ask(name, "address") for name in self.hosts]:
            self._refuse_when_stopped()
            address, pid = self._answer(asked, self._process_seconds)
            self.driver.found(address, pid)
            addresses.append(address)
        self.driver.connect(addresses[1:], ways)
        self._refuse_when_stopped()
        self._ask_all("connect", addresses, ways)
        self._connected = True
        # once this way, so that no span comes before the first answer; then over the link, which is faster
        clocks = self.driver.clocks
        for name in clocks.hosts():
            before = time.monotonic_ns()
            clocks.heard(name, before, self._answer(self._ask(name, "clock")))
            clocks.ask(name)

    def _set_up(self) -> BaseException | None:
        """All hosts build their workers at once. The first problem is told when it comes: others may take minutes to
        load a model.
        """
        asked = [self._ask(name, "start", self._declarations) for name in self.hosts]
        return next((problem for one in self._as_they_come(asked) if (problem := self._answer(one)) is not None), None)

    _process_seconds = 60.0  # in which a process must have come into being

    def _ask_all(self, method: str, *args: Any) -> list[Any]:
        return [self._answer(asked) for asked in [self._ask(name, method, *args) for name in self.hosts]]

    def _refuse_when_stopped(self) -> None:
        if self.driver_host.stopping:
            raise Cancelled("The run was stopped while its processes were being set up.")

    def _members(self, host: str) -> str:
        return ", ".join(f"{w}[{r}]" for (w, r), h in self.place.items() if h == host)

    def _silent(self, host: str) -> list[str]:
        """Whom to name for a process that does not answer. These are its ranks that are in a call; where none is, the
        process and who lives there now.
        """
        loop = self.driver_host.loop
        assert loop is not None
        there = [f"{w}[{r}]" for (w, r), h in self.place.items() if h == host and r in loop.members.present(w)]
        return loop.under_way.ranks_at(host) or [f"{host} ({', '.join(there)})"]

    def stop(self) -> Ended:
        """End workers and processes."""
        with self._stopping:
            if self._ended is None:
                self._ended = self._stop()
            return self._ended

    def _stop(self) -> Ended:
        ended = Ended(self.driver_host.stop(), self.driver_host.state.errors)
        try:
            self._ask_to_stop(ended)
        finally:
            self._release()
        return ended

    def _ask_to_stop(self, ended: Ended) -> None:
        """Have every host that lives end its workers, and hear its last records."""
        answered: set[str] = set()
        asked = {name: self._ask(name, "stop") for name in self._reachable() if name not in self.driver_host.state.dead}
        deadline = time.monotonic() + STOP_SECONDS
        for name, reference in asked.items():
            try:
                theirs = self._answer(reference, max(0.1, deadline - time.monotonic()))
            except Exception as error:
                if not self._is_of_processes(error) and not isinstance(error, ExecutorError):
                    raise
                if isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError):
                    ended.late += self._silent(name)
                elif isinstance(error, ExecutorError):  # it has ended its workers; only how they ended is lost
                    logging.getLogger("rlinf_lab").warning(
                        "%s What its workers raised when they were closed is not known.", error
                    )
                    answered.add(name)
                continue  # it has died, or does not answer: it is killed below
            ended.late += theirs.late
            ended.errors += theirs.errors
            answered.add(name)
        if asked and self._connected:
            self.driver.wait_for_farewells(answered, 5)

    def _release(self) -> None:
        """End processes and links; harmless when they have ended."""
        self._end_processes()
        self.driver.close()

    def _device_names(self, host: str) -> list[str]:
        return sorted(
            {d for (w, r), h in self.place.items() if h == host and w != DRIVER for d in self.layout.device_names(w, r)}
        )

    def __repr__(self) -> str:
        hosts = ", ".join(f"{h} on {self._device_names(h)}" for h in self.hosts)
        return f"{type(self).__name__}({self.flow.name!r}, {len(self.hosts)} hosts: {hosts})"


def ship(declarations: dict[str, Declaration]) -> bytes:
    """Worker classes and their arguments, by value where they come from a notebook. `WorkflowError` names what cannot
    travel.
    """
    try:
        return cloudpickle.dumps(declarations)
    except Exception:
        for name, declaration in declarations.items():
            try:
                cloudpickle.dumps(declaration)
            except Exception as error:
                raise unsendable(f"Worker {name!r} ({declaration.class_name})", declaration, error) from error
        raise
