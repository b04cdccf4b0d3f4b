"""The processes executor: device hosts (`multi_process`) as plain child processes of this one. No Ray, one machine, set
up in a second.

Children are started anew, not forked: threads, locks and CUDA do not survive a fork. Their death is noticed at once,
and they end with this process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from typing import Any

from rlinf_lab.errors import ExecutorError
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.child import Child, ChildDied
from rlinf_lab.runtime.executors.device_host import gpus_of
from rlinf_lab.runtime.executors.multi_process import HostsExecutor
from rlinf_lab.runtime.executors.spares import Spares, environment_of_hosts
from rlinf_lab.runtime.machine.devices import refuse_missing, refuse_other_nodes
from rlinf_lab.workflow.workflow import Workflow


class ProcessExecutor(HostsExecutor):
    """See the module's docstring. ``emulate``: the plan may have more CPU slots than this machine has cores;
    ``spares``: processes that are there already; ``between_gpus``, ``check_items``: see `HostsExecutor`.
    """

    def __init__(
        self, flow: Workflow, plan: ExecutionPlan, emulate: bool = False,
        absent: Mapping[str, Sequence[int]] | None = None, between_gpus: str = "ipc", check_items: bool = False,
        spares: Spares | None = None,
    ) -> None:  # fmt: skip
        super().__init__(flow, plan, emulate, absent, between_gpus, check_items)
        refuse_other_nodes(plan, "processes executor has this machine")
        refuse_missing(plan, emulate)
        self._children: dict[str, Child] = {}
        self._spares = spares
        self.driver_host.state.ended_with = self._ended_with

    def start(self) -> None:
        """See `HostsExecutor.start`."""
        try:
            super().start()
        finally:
            if self._spares is not None:
                self._spares.close()

    def _launch(self, host: str, payload: bytes) -> None:
        environment = environment_of_hosts()
        gpus = gpus_of(set(self._device_names(host)))
        if gpus:
            names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(
                str(i) if names == [""] else names[i] for i in (Device.parse(d).index for d in gpus)
            )
        try:
            ready = None if self._spares is None else self._spares.take(environment)
            self._children[host] = ready or Child(environment)
        except OSError as error:
            raise ExecutorError(
                f"The system gave no process for host {host!r} ({self._members(host)}): {error}. Next: fewer hosts, or "
                "higher limits."
            ) from error
        self._children[host].become(host, payload)

    def _ask(self, host: str, method: str, *args: Any) -> Any:
        return host, self._children[host].ask(method, *args)

    def _answer(self, asked: Any, seconds: float | None = None) -> Any:
        host, future = asked
        try:
            return future.result(seconds)
        except TimeoutError as error:
            raise ExecutorError(
                f"Host {host!r} ({self._members(host)}) has not answered within {seconds:g} s. Next: look at what else "
                "this machine is doing."
            ) from error

    def _as_they_come(self, asked: list[Any]) -> Iterator[Any]:
        of = {future: host for host, future in asked}
        return ((of[future], future) for future in as_completed(of))

    def _explained(self, error: BaseException) -> str | None:
        if not isinstance(error, ChildDied):
            return None
        return (
            f"Host {error.args[0]!r} died while its workers were being set up{self._ended_with(error.args[0])} "
            f"(killed, crashed, or out of memory); {self._members(error.args[0])} "
            "lived there. Next: try the worker's setup() under executor='local'; what the process said last is on "
            "standard error."
        )

    def _ended_with(self, host: str) -> str:
        """For a message; "" where it is not known."""
        if (status := self._children[host].status()) is None:
            return ""
        return f" with signal {-status}" if status < 0 else f" with status {status}"

    def _reachable(self) -> list[str]:
        return list(self._children)

    def _end_processes(self) -> None:
        for child in list(self._children.values()):
            child.end()
