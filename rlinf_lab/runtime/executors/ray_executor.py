"""The Ray executor: device hosts (`multi_process`) as actors, on one node or many.

Ray makes the processes, finds their nodes and cleans up after crashes. It is asked nothing per call or item.

A Ray that was already initialised here, or one named by ``address`` or ``RAY_ADDRESS``, is used and left running.
Otherwise a private one is started; it stays warm for the next run of this process and ends with `shutdown` or with the
process.

A device's name says its node (`planning.plan.device`), and the host is put there; a node that has not joined yet is
waited for.

On a Ray of others what the plan needs of each node is reserved first (`placement_group`). A host of CPU devices itself
asks Ray for no CPUs: it is pinned to its cores. A host with k GPUs asks for k, and Ray chooses which: the plan's
numbers tell GPUs apart, they are not those of `nvidia-smi`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlinf_lab.errors import ConfigError, ExecutorError, PlanError, shown
from rlinf_lab.planning.plan.device import Device, whole
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.multi_process import LOOPBACK, HostsExecutor
from rlinf_lab.runtime.executors.placement_group import Reservation
from rlinf_lab.runtime.executors.ray_host import RayHost
from rlinf_lab.runtime.executors.ray_nodes import wait_for_nodes, why_gone
from rlinf_lab.runtime.executors.ray_start import (
    check_address,
    ensure_ray,
    has_one_thread_each,
    is_private,
    why_private_is_gone,
)
from rlinf_lab.runtime.machine.devices import refuse_missing
from rlinf_lab.runtime.machine.ray_library import load_ray
from rlinf_lab.runtime.transport.links import Ways
from rlinf_lab.workflow.workflow import Workflow

BETWEEN_NODES = ("stream", "gloo")


class RayExecutor(HostsExecutor):
    """See the module's docstring. ``address``: of an existing cluster, as Ray writes it.

    ``emulate``: the plan may have more CPU slots than a node has cores.
    ``between_nodes``: ``"stream"`` (TCP from host to host), or torch's ``"gloo"``, which then carries arrays of a MiB
    and more. ``between_gpus``, ``check_items``: see `HostsExecutor`.
    """

    _process_seconds = 120.0  # a cluster may have to start a node

    def __init__(
        self, flow: Workflow, plan: ExecutionPlan, address: str | None = None, emulate: bool = False,
        absent: Mapping[str, Sequence[int]] | None = None, between_nodes: str = "stream", between_gpus: str = "ipc",
        check_items: bool = False,
    ) -> None:  # fmt: skip
        check_address(address)
        check_between_nodes(between_nodes)
        super().__init__(flow, plan, emulate, absent, between_gpus, check_items)
        refuse_missing(plan, emulate, ("cpu",))  # Ray counts the GPUs
        self._address, self._between_nodes = address, between_nodes
        self._actors: dict[str, Any] = {}
        self._nodes: dict[int, str] = {}
        self._reservation: Reservation | None = None

    def _prepare(self) -> str:
        ensure_ray(self._address)
        self._refuse_when_stopped()
        used = sorted({d for host in self.hosts for d in self._device_names(host)})
        if is_private() and (far := [d for d in used if Device.parse(d).node]):  # nobody can join it
            raise PlanError(
                f"The plan uses {', '.join(far)}, and the Ray of this run is a private one of this process, with one "
                "node. Next: the address= of a cluster "
                f"(after rlinf_lab.shutdown(), if a private one is up), or a plan on lab.devices()."
            )
        self._nodes = wait_for_nodes(used, lambda: self.driver_host.stopping, emulate=self._emulate)
        if not is_private():
            self._reservation = Reservation.of(used, self._nodes, emulate=self._emulate)
            self._reservation.wait(lambda: self.driver_host.stopping)
        return LOOPBACK if is_private() else load_ray().util.get_node_ip_address()

    def _ways(self) -> Ways:
        return (
            super()
            ._ways()
            ._replace(between_nodes=self._between_nodes, ray_node=str(load_ray().get_runtime_context().get_node_id()))
        )

    def _launch(self, host: str, payload: bytes) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        names = self._device_names(host)
        number = Device.node_of(names)
        if self._reservation is not None:
            node = self._reservation.on(number)
        else:
            node = NodeAffinitySchedulingStrategy(self._nodes[number], soft=False)
        gpus = len({whole(d) for d in names if Device.parse(d).kind == "cuda"})
        # A method of setting up at a time is enough; `stop` must get through while `start` still waits.
        options: dict[str, Any] = {"num_cpus": 0, "num_gpus": gpus, "max_concurrency": 4, "scheduling_strategy": node}
        if not has_one_thread_each():
            options["runtime_env"] = {"env_vars": {"OMP_NUM_THREADS": "1"}}
        self._actors[host] = load_ray().remote(RayHost).options(**options).remote(host, payload)

    def _ask(self, host: str, method: str, *args: Any) -> Any:
        return host, getattr(self._actors[host], method).remote(*args)

    def _answer(self, asked: Any, seconds: float | None = None) -> Any:
        ray = load_ray()

        host, reference = asked
        try:
            return ray.get(reference, timeout=seconds)
        except ray.exceptions.GetTimeoutError as error:
            if self.driver_host.stopping:
                raise
            raise ExecutorError(
                f"Ray gave no process for host {host!r} ({', '.join(self._device_names(host))}) within {seconds:g} s. "
                "Free now: "
                f"{ray.available_resources()}. Next: stop what else runs on this Ray, or give it more nodes."
            ) from error

    def _as_they_come(self, asked: list[Any]) -> Iterator[Any]:
        of = {reference: host for host, reference in asked}
        while of:
            (reference, *_), _ = load_ray().wait(list(of))
            yield of.pop(reference), reference

    def _explained(self, error: BaseException) -> str | None:
        """Ray names actors by numbers; the user knows workers."""
        if not self._is_of_processes(error):
            return None
        actor = getattr(error, "actor_id", None)
        for name, handle in self._actors.items():
            if actor is not None and handle._actor_id.hex() == actor:
                number = Device.node_of(self._device_names(name))
                if is_private() and (why := why_private_is_gone()):
                    return (
                        f"{why} {self._members(name)} of host {name!r} could not be set up. Next: "
                        "rlinf_lab.shutdown(); the next run starts another."
                    )
                gone = why_gone(self._nodes[number]) if number else ""  # 0: this one
                why, advice = "killed, crashed, or out of memory", "try the worker's setup() under executor='local'"
                if gone:
                    why, advice = (
                        gone,
                        (
                            "look at that node's memory and logs; then a plan on lab.devices(address='auto'), where a "
                            "node that joins has a new number"
                        ),
                    )
                return (
                    f"Host {name!r} died while its workers were being set up ({why}); {self._members(name)} lived "
                    f"there. Next: {advice}. Ray says: {error}"
                )
        return (
            f"Ray could not set up the device hosts: {error} Next: `ray status` tells which nodes there are and what "
            "is free; then run again."
        )

    def _is_of_processes(self, error: BaseException) -> bool:
        return isinstance(error, load_ray().exceptions.RayError)

    def _reachable(self) -> list[str]:
        return list(self._actors) if load_ray().is_initialized() else []

    def _end_processes(self) -> None:
        """A Ray of others is left alone, but for what was reserved there."""
        ray = load_ray()

        if ray.is_initialized():
            for actor in list(self._actors.values()):
                with contextlib.suppress(Exception):  # it is dead already
                    ray.kill(actor, no_restart=True)
            if self._reservation is not None:
                self._reservation.remove()
            self.driver.wait_for_deaths()


def check_between_nodes(way: object) -> None:
    """Raises `ConfigError` for what is no way between nodes."""
    if way not in BETWEEN_NODES:
        raise ConfigError(
            f"between_nodes={shown(way)}: how items get to another node. Next: {' or '.join(map(repr, BETWEEN_NODES))}."
        )
