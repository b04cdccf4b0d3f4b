"""What executors with several processes have in common: one device host for each group of devices that worker ranks
share.

        your loop ── driver host ══ links ══ host0 (cpu:0) ══ links ══ host1 (cpu:1)
                           │                      │                         │
                           └── create, connect, start, stop ────────────────┘

Calls, items, credits, values and spans go straight from host to host, so nothing central is asked once per item. How a
process comes into being, is asked and ends, the kinds of executor know: `ray_executor`, `processes`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from rlinf_lab.errors import Cancelled, ConfigError, ExecutorError, WorkflowError, shown
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import checked_layout
from rlinf_lab.planning.plan.process_groups import place_hosts
from rlinf_lab.runtime.executors.device_host import pack
from rlinf_lab.runtime.executors.node_clocks import NodeClocks
from rlinf_lab.runtime.host.context import Logged
from rlinf_lab.runtime.host.elastic.fillers import declarations_of, opened
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.host.liveness.wait_graph import Wait
from rlinf_lab.runtime.host.state.rank import Filled
from rlinf_lab.runtime.session.session import Ended
from rlinf_lab.runtime.transport.links import Link, Ways
from rlinf_lab.runtime.transport.listener import Listener
from rlinf_lab.timeline.record.batch import SpanBatch
from rlinf_lab.timeline.record.clock import MonotonicClock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.workflow.filler import Filler, specs_of
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.workflow import Declaration, Workflow

STOP_SECONDS = 10
DEATH_SECONDS = 3
BETWEEN_GPUS = ("ipc", "nccl", "host")


class HostsExecutor:
    """See the module's docstring and `session.Executor`. ``emulate``: the plan may have more CPU slots than a node has
    cores.

    ``fillers``: work for the bubbles; each copy lives with the workers of its device. ``absent``: ranks that are not
    there at first (`Session.join`), by worker; their hosts are, so that they come without a new connection.
    ``between_gpus``: how tensors on a GPU get to another process: ``"ipc"`` (they stay there, where it sees that GPU,
    else copies through host memory), ``"nccl"`` (from GPU to GPU where it does not) or ``"host"`` (always copies).
    """

    def __init__(
        self, flow: Workflow, plan: ExecutionPlan, emulate: bool = False, fillers: Sequence[Filler] = (),
        absent: Mapping[str, Sequence[int]] | None = None, between_gpus: str = "ipc",
    ) -> None:  # fmt: skip
        if between_gpus not in BETWEEN_GPUS:
            known = " or ".join(map(repr, BETWEEN_GPUS))
            raise ConfigError(
                f"between_gpus={shown(between_gpus)}: how tensors on a GPU get to other processes. Next: {known}."
            )
        self.flow, self._between_gpus = flow, between_gpus
        self.layout = checked_layout(flow.graph, plan, specs_of(fillers), absent)
        self._emulate = emulate
        self._declarations = ship({**flow.workers, **declarations_of(fillers)})
        self.place = place_hosts(self.layout)
        self.hosts = sorted(set(self.place.values()) - {"driver"})
        self.recorder = Recorder("driver", MonotonicClock())
        self.driver_host = Host(
            "driver", self.layout, self.place, MonotonicClock(), self.recorder, self._send, self._sent
        )
        self._links: dict[str, Link] = {}
        self._pids: dict[str, int] = {}
        self._clocks = NodeClocks(time.monotonic_ns, self._ask_the_time)
        self._news: list[SpanBatch] = []
        self._metrics: list[Logged] = []
        self._rounds = dict.fromkeys(self.hosts, 0)
        self._waits: dict[str, list[Wait]] = {}
        self._channels: dict[str, list[dict[str, Any]]] = {}
        self._filled = {
            (f.name, r): Filled(f.name, r, device) for f in self.layout.fillers for r, device in enumerate(f.on)
        }
        self._transports: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._connected = False  # to the driver, all hosts
        self._stopping = threading.Lock()
        self._ended: Ended | None = None

    # --- what a kind of executor knows ---------------------------------------------------------------------
    def _prepare(self) -> None:
        """Before the first process; returns when they can be made."""

    def _ip(self) -> str:
        """Where hosts on other nodes reach this process."""
        return "127.0.0.1"

    def _is_one_node(self) -> bool:
        return True

    def _ways(self) -> Ways:
        """How messages of this process get to the hosts."""
        return Ways(between_gpus=self._between_gpus)

    def _launch(self, host: str, payload: bytes) -> None:
        """Have a process made that holds a `DeviceHost`."""
        raise NotImplementedError

    def _ask(self, host: str, method: str, *args: Any) -> Any:
        """Have a method of a host called; what `_answer` takes."""
        raise NotImplementedError

    def _answer(self, asked: Any, seconds: float | None = None) -> Any:
        """What the method returned. Raises what `_explained` understands when the process died, or says nothing for so
        many seconds.
        """
        raise NotImplementedError

    def _as_they_come(self, asked: list[Any]) -> Iterator[Any]:
        """What `_ask` gave, in the order in which the answers come."""
        raise NotImplementedError

    def _explained(self, error: BaseException) -> str | None:
        """Why nothing could be started; None for an error that is not about processes."""
        raise NotImplementedError

    def _is_of_processes(self, error: BaseException) -> bool:
        """Whether it can be explained; asks nobody."""
        return self._explained(error) is not None

    def _reachable(self) -> list[str]:
        """Hosts that were launched and can be asked to stop."""
        raise NotImplementedError

    def _end_processes(self) -> None:
        """Kill what is left; harmless when nothing is."""
        raise NotImplementedError

    # --- life ------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Raises the `WorkerError` of a worker that cannot be set up, `ExecutorError` when a process cannot be had.

        `Cancelled` when it is stopped meanwhile.
        """
        try:
            self._refuse_when_stopped()
            self._prepare()
            driver, ip = self.driver_host, self._ip()
            driver.state.address = ip
            self._listener = Listener(
                "driver", self._receive, self._broken, driver.unreadable, ip, driver.heard_all, outlives=True
            )
            payload = pack(self.layout, self.place, self._is_one_node())
            for name in self.hosts:
                self._refuse_when_stopped()
                self._launch(name, payload)
            self._connect_all(self._listener)
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

    def _connect_all(self, listener: Listener) -> None:
        try:
            self._connect(listener)
        except OSError as error:
            if self.driver_host.stopping or self._is_of_processes(error):
                raise
            raise ExecutorError(
                f"The {len(self.hosts) + 1} processes of the run could not be connected: {type(error).__name__}: "
                f"{error}. Next: a higher limit of open files "
                f"(ulimit -n; each needs some ten for every other one), or a plan with fewer hosts."
            ) from error

    def _connect(self, listener: Listener) -> None:
        """Everybody learns where everybody listens."""
        ways = self._ways()
        addresses = [dataclasses.replace(listener.address, ray_node=ways.ray_node)]
        for name, asked in {name: self._ask(name, "address") for name in self.hosts}.items():
            self._refuse_when_stopped()
            address, self._pids[name] = self._answer(asked, self._process_seconds)
            if address.node != addresses[0].node:
                self._clocks.add(name)
            addresses.append(address)
        for address in addresses[1:]:
            self._links[address.host] = Link(address, "driver", ways)
        self._refuse_when_stopped()
        self._ask_all("connect", addresses, ways)
        self._connected = True
        # once this way, so that no span comes before the first answer; then over the link, which is faster
        for name in self._clocks.hosts():
            before = time.monotonic_ns()
            self._clocks.heard(name, before, self._answer(self._ask(name, "clock")))
            self._clocks.ask(name)

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
        """Whom to name for a process that does not answer: its ranks that are in a call; where none is, the process and
        who lives there now.
        """
        loop = self.driver_host.loop
        assert loop is not None
        there = [
            f"{w}[{r}]"
            for (w, r), h in self.place.items()
            if h == host and (w not in self.layout.graph.workers or r in loop.members.present(w))
        ]
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
        """Have every host that lives end its workers, and hear the last that it has recorded."""
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
        if self._listener is not None and asked and self._connected:
            self._listener.wait_for_farewells(answered, 5)  # the last spans are on their way

    def _release(self) -> None:
        """End processes and links; harmless when they have ended."""
        self._end_processes()
        for link in list(self._links.values()):
            link.close()
        if self._listener is not None:
            self._listener.close()

    def _wait_for_death(self) -> None:
        """Of the processes of this node: they are gone when `stop` returns. One that has not ended by `DEATH_SECONDS`
        is killed.
        """
        here = [self._pids[name] for name, link in self._links.items() if link.transport == "unix"]
        deadline = time.monotonic() + DEATH_SECONDS
        while (left := [pid for pid in here if _runs(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    # --- messages --------------------------------------------------------------------------------------------
    def _send(self, host: str, message: tuple) -> None:
        link = self._links.get(host)
        if link is None:
            if self.driver_host.stopping:
                return
            raise ExecutorError(
                f"Host {host!r} is not connected: the executor was not started. Next: executor.start() first."
            )
        link.gather(message)

    def _sent(self) -> None:
        for link in list(self._links.values()):
            link.reclaim()
            with contextlib.suppress(ConnectionError):  # the end of its own stream to us says that it died
                link.flush()

    def _ask_the_time(self, host: str, asked_ns: int) -> None:
        with contextlib.suppress(ConnectionError):  # the end of its own stream to us says that it died
            self._links[host].send(("clock?", asked_ns))

    def _receive(self, message: tuple) -> None:
        if message[0] == "clock":
            self._clocks.heard(*message[1:])
            return
        if message[0] != "news":
            self.driver_host.receive(message)
            return
        _, host, spans, metrics, frames, waits, channels, quiet, transports, filled = message
        batch = self._clocks.aligned(SpanBatch.from_bytes(spans))
        with self._lock:
            self._news.append(batch)
            self._metrics += metrics
            self._rounds[host] += 1
            self._waits[host], self._channels[host], self._transports[host] = waits, channels, transports
            self._filled.update({(f.name, f.rank): opened(f) for f in filled})
        self.driver_host.told.frames.update(frames)
        self.driver_host.hear_news(host, quiet)

    def _broken(self, host: str) -> None:
        try:
            if host in self._links:
                self._links[host].peer_died()
        finally:  # whatever that raises: the run has to hear of the death
            if not self.driver_host.stopping:
                self.driver_host.lost(host)

    # --- looking -----------------------------------------------------------------------------------------
    def drain(self) -> list[SpanBatch]:
        with self._lock:
            news, self._news = self._news, []
        return [*self.recorder.batches(), *news]

    def rows(self, most: int) -> tuple[str, int, bytearray] | None:
        return None

    def undrained(self) -> int:
        with self._lock:
            return len(self.recorder) + sum(map(len, self._news))

    def metrics(self) -> list[Logged]:
        with self._lock:
            found, self._metrics = self._metrics, []
        return found

    def rounds(self) -> int:
        with self._lock:
            return min(self._rounds.values(), default=0)

    def frames(self) -> dict[str, Any]:
        return dict(self.driver_host.told.frames)

    def fillers(self) -> list[Filled]:
        with self._lock:
            return list(self._filled.values())

    def waits(self) -> list[Wait]:
        with self._lock:
            return [*self.driver_host.waits(), *(wait for waits in self._waits.values() for wait in waits)]

    def channels(self) -> list[dict[str, Any]]:
        with self._lock:
            return [row for rows in self._channels.values() for row in rows]

    def transports(self) -> list[dict[str, Any]]:
        with self._lock:
            return [*self.driver_host.transports(), *(row for rows in self._transports.values() for row in rows)]

    def _device_names(self, host: str) -> list[str]:
        return sorted(
            {d for (w, r), h in self.place.items() if h == host and w != DRIVER for d in self.layout.device_names(w, r)}
        )

    def __repr__(self) -> str:
        hosts = ", ".join(f"{h} on {self._device_names(h)}" for h in self.hosts)
        return f"{type(self).__name__}({self.flow.name!r}, {len(self.hosts)} hosts: {hosts})"


def _runs(pid: int) -> bool:
    """Whether a process is there. One that has ended is, where nobody takes note of that."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ship(declarations: dict[str, Declaration]) -> bytes:
    """Worker classes and their arguments, by value where they come from a notebook. `WorkflowError` names what cannot
    travel.
    """
    try:
        return cloudpickle.dumps(declarations)
    except Exception:
        for name, declaration in declarations.items():
            parts = {
                "the class": declaration.cls,
                **{f"argument {i}": a for i, a in enumerate(declaration.args)},
                **declaration.kwargs,
            }
            for part, value in parts.items():
                try:
                    cloudpickle.dumps(value)
                except Exception as error:
                    raise WorkflowError(
                        f"Worker {name!r} ({declaration.class_name}) cannot be sent to another process: {part} = "
                        f"{value!r} does not "
                        f"pickle ({type(error).__name__}: {error}). Next: pass plain values and open files, locks or "
                        "connections in setup()."
                    ) from error
        raise
