"""The Ray executor: one device host (an actor) for each group of devices that worker ranks share.

        your loop ── driver host ══ links ══ host0 (cpu:0) ══ links ══ host1 (cpu:1)
                           │                      │                         │
                           └── Ray: create, connect, start, stop ──────────┘

Ray makes the processes, finds their nodes and cleans up after crashes. Calls, items, credits, values and spans go straight from
host to host, so nothing central is asked once per item.

A Ray that was already initialised here, or one named by ``address`` or ``RAY_ADDRESS``, is used and left running. Otherwise a private
one is started; it stays warm for the next run of this process and ends with `shutdown` or with the process.

A device's name says its node (`planning.device`), and the host is put there; a node that has not joined yet is waited for.

A host of CPU devices asks Ray for no CPUs (it is pinned to its cores instead), so it never waits for others' logical ones. A host
with k GPUs asks for k, and Ray chooses which: the plan's numbers tell GPUs apart, they are not those of `nvidia-smi`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle

from rlinf_lab.errors import Cancelled, ExecutorError, WorkflowError
from rlinf_lab.planning.device import Device
from rlinf_lab.planning.layout import Layout, checked_layout
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.runtime.cluster import wait_for_nodes
from rlinf_lab.runtime.devices import refuse_missing
from rlinf_lab.runtime.host import Host
from rlinf_lab.runtime.links import Link, Listener
from rlinf_lab.runtime.process import Frame
from rlinf_lab.runtime.ray_host import DeviceHost, failed, pack
from rlinf_lab.runtime.ray_library import load_ray
from rlinf_lab.runtime.ray_start import check_address, ensure_ray, is_private
from rlinf_lab.runtime.session import Ended
from rlinf_lab.runtime.waits import Wait
from rlinf_lab.timeline.batch import SpanBatch
from rlinf_lab.timeline.clock import MonotonicClock
from rlinf_lab.timeline.recorder import Recorder
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.workflow import Declaration, Workflow

PROCESS_SECONDS = 120  # a cluster may have to start a node
STOP_SECONDS = 10
DEATH_SECONDS = 3


class RayExecutor:
    """See the module's docstring and `session.Executor`. ``address``: of an existing cluster, as Ray writes it.

    ``emulate``: the plan may have more CPU slots than a node has cores.
    """

    def __init__(self, flow: Workflow, plan: ExecutionPlan, address: str | None = None, emulate: bool = False) -> None:
        check_address(address)
        self.flow = flow
        self.layout = checked_layout(flow.graph, plan)
        refuse_missing(plan, emulate, ("cpu",))  # Ray counts the GPUs
        self._emulate = emulate
        self._declarations = ship(flow.workers)
        self._address = address
        self.place = place_hosts(self.layout)
        self.hosts = sorted(set(self.place.values()) - {"driver"})
        self.recorder = Recorder("driver", MonotonicClock())
        self.driver_host = Host("driver", self.layout, self.place, MonotonicClock(), self.recorder, self._send)
        self.transports: dict[str, dict[str, str]] = {}
        self._links: dict[str, Link] = {}
        self._actors: dict[str, Any] = {}
        self._pids: dict[str, int] = {}
        self._nodes: dict[int, str] = {}
        self._offsets: dict[str, int] = {}
        self._news: list[tuple[SpanBatch, int]] = []
        self._metrics: list[tuple[str, int, int, dict[str, float]]] = []
        self._rounds = dict.fromkeys(self.hosts, 0)
        self._waits: dict[str, list[Wait]] = {}
        self._channels: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._listener: Listener | None = None
        self._stopping = threading.Lock()
        self._ended: Ended | None = None

    # --- life ------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Raises the `WorkerError` of a worker that cannot be set up, `ExecutorError` when Ray cannot give a process.

        `Cancelled` when it is stopped meanwhile.
        """
        ray = load_ray()

        ensure_ray(self._address)
        try:
            self._refuse_when_stopped()
            used = sorted({d for host in self.hosts for d in self._device_names(host)})
            self._nodes = wait_for_nodes(used, lambda: self.driver_host.stopping, emulate=self._emulate)
            ip = "127.0.0.1" if is_private() else ray.util.get_node_ip_address()
            self._listener = Listener("driver", self._receive, self._broken, self.driver_host.unreadable, ip)
            self._create(ray)
            answers = ray.get([actor.start.remote(self._declarations) for actor in self._actors.values()])
        except BaseException as error:
            stopped = self.driver_host.stopping
            self.stop()
            self._release()  # also what has come into being since somebody else has stopped it
            if stopped and isinstance(error, ray.exceptions.RayError):
                raise Cancelled("The run was stopped while its processes were being set up.") from error
            if isinstance(error, ray.exceptions.RayError):
                raise ExecutorError(self._why_no_start(error)) from error
            raise
        problem = failed(answers)
        if problem is not None:
            self.stop()
            raise problem

    def _why_no_start(self, error: Exception) -> str:
        """Ray names actors by numbers; the user knows workers."""
        actor = getattr(error, "actor_id", None)
        for name, handle in self._actors.items():
            if actor is not None and handle._actor_id.hex() == actor:
                members = ", ".join(f"{w}[{r}]" for (w, r), h in self.place.items() if h == name)
                return (
                    f"Host {name!r} died while its workers were being set up (killed, crashed, or out of memory); {members} lived there. "
                    f"Next: try the worker's setup() under executor='local'. Ray says: {error}"
                )
        return f"Ray could not set up the device hosts: {error}"

    def _create(self, ray: Any) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = ray.remote(DeviceHost)
        payload = pack(self.layout, self.place, one_node=is_private())
        for name in self.hosts:
            self._refuse_when_stopped()
            names = self._device_names(name)
            node = NodeAffinitySchedulingStrategy(self._nodes[Device.node_of(names)], soft=False)
            gpus = sum(Device.parse(d).kind == "cuda" for d in names)
            # A method of setting up at a time is enough; `stop` must get through while `start` still waits.
            options = {
                "num_cpus": 0, "num_gpus": gpus, "max_concurrency": 4, "scheduling_strategy": node,
                "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}},
            }  # fmt: skip
            self._actors[name] = remote.options(**options).remote(name, payload)
        addresses = [self._listener.address] if self._listener else []
        for name, actor in list(self._actors.items()):
            self._refuse_when_stopped()
            asked = time.monotonic_ns()
            try:
                address, self._pids[name], theirs = ray.get(actor.address.remote(), timeout=PROCESS_SECONDS)
            except ray.exceptions.GetTimeoutError as error:
                raise ExecutorError(
                    f"Ray gave no process for host {name!r} ({', '.join(self._device_names(name))}) within {PROCESS_SECONDS} s. Free now: "
                    f"{ray.available_resources()}. Next: stop what else runs on this Ray, or give it more nodes."
                ) from error
            middle = (asked + time.monotonic_ns()) // 2
            same = address.node == addresses[0].node
            self._offsets[name] = 0 if same else middle - theirs
            addresses.append(address)
        for address in addresses[1:]:
            self._links[address.host] = Link(address, "driver")
        self._refuse_when_stopped()
        connected = ray.get([actor.connect.remote(addresses) for actor in self._actors.values()])
        self.transports = dict(zip(self._actors, connected, strict=True))

    def _refuse_when_stopped(self) -> None:
        if self.driver_host.stopping:
            raise Cancelled("The run was stopped while its processes were being set up.")

    def stop(self) -> Ended:
        """End workers and processes; a Ray of others is left alone."""
        with self._stopping:
            if self._ended is None:
                self._ended = self._stop()
            return self._ended

    def _stop(self) -> Ended:
        ray = load_ray()

        ended = Ended(self.driver_host.stop(), self.driver_host.close_errors)
        answered: set[str] = set()
        actors = dict(self._actors)
        if ray.is_initialized():
            asked = {name: actor.stop.remote() for name, actor in actors.items() if name not in self.driver_host.dead}
            deadline = time.monotonic() + STOP_SECONDS
            for name, reference in asked.items():
                with contextlib.suppress(ray.exceptions.RayError):
                    theirs = ray.get(reference, timeout=max(0.1, deadline - time.monotonic()))
                    ended.late += theirs.late
                    ended.errors += theirs.errors
                    answered.add(name)
            if self._listener is not None:
                self._listener.wait_for_farewells(answered, 5)  # the last spans are on their way
        self._release()
        return ended

    def _release(self) -> None:
        """End processes and links; harmless when they have ended."""
        ray = load_ray()

        if ray.is_initialized():
            for actor in list(self._actors.values()):
                with contextlib.suppress(Exception):  # it is dead already
                    ray.kill(actor, no_restart=True)
            self._wait_for_death()
        for link in list(self._links.values()):
            link.close()
        if self._listener is not None:
            self._listener.close()

    def _wait_for_death(self) -> None:
        """Ray ends a process a little after it was told to; those of this node are gone when `stop` returns."""
        here = [self._pids[name] for name, link in self._links.items() if link.transport == "unix"]
        deadline = time.monotonic() + DEATH_SECONDS
        while any(Path(f"/proc/{pid}").exists() for pid in here) and time.monotonic() < deadline:
            time.sleep(0.02)

    # --- messages --------------------------------------------------------------------------------------------
    def _send(self, host: str, message: tuple) -> None:
        link = self._links.get(host)
        if link is None:
            if self.driver_host.stopping:
                return
            raise ExecutorError(f"Host {host!r} is not connected: the executor was not started.")
        with contextlib.suppress(ConnectionError):  # the end of its own stream to us says that it died
            link.send(message)

    def _receive(self, message: tuple) -> None:
        if message[0] != "news":
            self.driver_host.receive(message)
            return
        _, host, spans, metrics, frames, waits, channels, quiet = message
        with self._lock:
            self._news.append((SpanBatch.from_bytes(spans), self._offsets.get(host, 0)))
            self._metrics += metrics
            self._rounds[host] += 1
            self._waits[host], self._channels[host] = waits, channels
        for source, image in frames.items():
            self.driver_host.report_frame(Frame(source, image))
        self.driver_host.hear_news(host, quiet)

    def _broken(self, host: str) -> None:
        if not self.driver_host.stopping:
            self.driver_host.lost(host)

    # --- looking -----------------------------------------------------------------------------------------
    def drain(self) -> list[tuple[SpanBatch, int]]:
        with self._lock:
            news, self._news = self._news, []
        return [*((batch, 0) for batch in self.recorder.batches()), *news]

    def metrics(self) -> list[tuple[str, int, int, dict[str, float]]]:
        with self._lock:
            found, self._metrics = self._metrics, []
        return found

    def rounds(self) -> int:
        with self._lock:
            return min(self._rounds.values(), default=0)

    def frames(self) -> dict[str, Any]:
        return dict(self.driver_host.frames)

    def waits(self) -> list[Wait]:
        with self._lock:
            return [*self.driver_host.waits(), *(wait for waits in self._waits.values() for wait in waits)]

    def channels(self) -> list[dict[str, Any]]:
        with self._lock:
            return [row for rows in self._channels.values() for row in rows]

    def _device_names(self, host: str) -> list[str]:
        return sorted({d for (w, r), h in self.place.items() if h == host and w != DRIVER for d in self.layout.device_names(w, r)})

    def __repr__(self) -> str:
        return f"RayExecutor({self.flow.name!r}, {len(self.hosts)} hosts: {', '.join(f'{h} on {self._device_names(h)}' for h in self.hosts)})"


def place_hosts(layout: Layout) -> dict[tuple[str, int], str]:
    """A host for every rank: ranks whose device sets overlap live in one process (a connected component)."""
    groups: list[tuple[set[int], list[tuple[str, int]]]] = []
    for member in layout.members[1:]:
        mine, members = set(layout.devices(*member)), [member]
        for group in [g for g in groups if g[0] & mine]:
            groups.remove(group)
            mine |= group[0]
            members = group[1] + members
        groups.append((mine, members))
    groups.sort(key=lambda g: min(g[0], default=0))
    place = {member: f"host{i}" for i, (_, members) in enumerate(groups) for member in members}
    return {(DRIVER, 0): "driver", **place}


def ship(declarations: dict[str, Declaration]) -> bytes:
    """Worker classes and their arguments, by value where they come from a notebook. `WorkflowError` names what cannot travel."""
    try:
        return cloudpickle.dumps(declarations)
    except Exception:
        for name, declaration in declarations.items():
            parts = {"the class": declaration.cls, **{f"argument {i}": a for i, a in enumerate(declaration.args)}, **declaration.kwargs}
            for part, value in parts.items():
                try:
                    cloudpickle.dumps(value)
                except Exception as error:
                    raise WorkflowError(
                        f"Worker {name!r} ({declaration.class_name}) cannot be sent to another process: {part} = {value!r} does not "
                        f"pickle ({type(error).__name__}: {error}). Next: pass plain values and open files, locks or connections in setup()."
                    ) from error
        raise
