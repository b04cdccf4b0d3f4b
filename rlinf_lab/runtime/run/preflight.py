"""What can be known before a launch. Does the plan fit the workflow, machines, memory, packages and ports; would it
hang?
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rlinf_lab.errors import (
    ConfigError,
    PlanError,
    RlinfLabError,
    UnknownNameError,
    counted,
    refuse_old_names,
    said,
    shown,
)
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import Layout, checked_layout
from rlinf_lab.planning.plan.process_groups import place_hosts
from rlinf_lab.planning.planner.planner import Planned
from rlinf_lab.runtime.executors.import_probe import problems_in_a_child
from rlinf_lab.runtime.executors.node_probe import NodeFacts, facts_here, facts_of, reach
from rlinf_lab.runtime.executors.ray_nodes import wait_for_nodes
from rlinf_lab.runtime.executors.ray_start import check_address, ensure_ray
from rlinf_lab.runtime.host.elastic.unfit import refuse_unfit_workers
from rlinf_lab.runtime.machine.devices import devices_here, refuse_missing, refuse_other_nodes
from rlinf_lab.runtime.run.checklist import BROKEN, OK, OPTIONAL, Check, Report
from rlinf_lab.runtime.run.run import check_executor, check_workflow, run
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.workflow.workflow import Workflow


def check(
    flow: Workflow,
    plan: ExecutionPlan | Planned | None = None,
    executor: str = "local",
    *,
    address: str | None = None,
    emulate: bool = False,
    absent: Mapping[str, Sequence[int]] | None = None,
    iterations: int = 0,
    inputs: Iterable[Any] | None = None,
    **options: Any,
) -> Report:
    """Look at everything that can be known before a launch. Starts no worker, unless it shall run ``iterations``.

    With executor="ray" it starts a Ray, or the connection to one. ``iterations`` with ``inputs``, as in `run`: how many
    to run when all else is well. An item that is changed between its put and its get fails them
    (``check_items``): it would arrive changed where both ends are in one process, and unchanged elsewhere, so under
    one plan and not under another. With executor="local" all are.

    ``address``, ``emulate``, ``absent``: as in `run`. Returns a `Report` of plan, workers, devices, and for other
    processes pickling, packages and ports of every node; ``report.ok`` says whether a launch can succeed. Never raises
    for what it finds, only for arguments that are none.
    """
    gone = "lab.plan(flow, devices, profile), whose plans fit into the memory of their devices"
    refuse_old_names("check", options, {"profile": gone})
    if options:
        known = list(inspect.signature(check).parameters)[:-1]
        raise UnknownNameError.of("argument of check()", next(iter(options)), known)
    check_workflow("check", flow)
    check_executor(executor)
    check_address(address)
    wanted = plan.execution if isinstance(plan, Planned) else plan or ExecutionPlan.temporal(flow, devices_here())
    if not isinstance(iterations, int) or iterations < 0:
        raise ConfigError(f"check(iterations={shown(iterations)}): how many to run. Next: iterations=1, or 0 for none.")
    looking = _Looking(flow, wanted, emulate, executor, absent)
    checks = [looking.plan()]
    if checks[0].status != BROKEN:
        checks += [looking.workers(), *(looking.cluster(address) if executor == "ray" else looking.here())]
    if all(one.status != BROKEN for one in checks):
        checks.append(looking.items(iterations, inputs, {} if address is None else {"address": address}))
    return Report(f"workflow {flow.name!r} under plan {wanted.name!r}, executor {executor!r}", tuple(checks))


class _Looking:
    def __init__(
        self, flow: Workflow, plan: ExecutionPlan, emulate: bool, executor: str,
        absent: Mapping[str, Sequence[int]] | None,
    ) -> None:  # fmt: skip
        self.flow, self.wanted, self.emulate, self.executor = flow, plan, emulate, executor
        self.absent = absent

    # --- the plan and the workers -----------------------------------------------------------------------------
    def plan(self) -> Check:
        """Names, ranks, granularity, and whether it would stand still."""

        def look() -> str:
            self.layout: Layout = checked_layout(self.flow.graph, self.wanted, self.absent)
            workers = self.flow.graph.workers
            ranks = counted(sum(map(self.layout.ranks, workers)), "rank")
            away = (
                f", {', '.join(f'{w}[{r}]' for w, r in sorted(self.layout.absent))} not there at first"
                if self.layout.absent
                else ""
            )
            return (
                f"{ranks} of {counted(len(workers), 'worker')} on "
                f"{counted(len(self.wanted.devices), 'device')}{away}"
            )

        return _tried("plan", look)

    def workers(self) -> Check:
        """Each worker says whether it can work with these ranks (`Worker.preflight`)."""

        def look() -> str:
            place = (
                dict.fromkeys(self.layout.members, "local") if self.executor == "local" else place_hosts(self.layout)
            )
            refuse_unfit_workers(self.flow, self.layout, place)
            return "every worker accepts its ranks and sub-batches"

        return _tried("workers", look)

    def items(self, iterations: int, inputs: Iterable[Any] | None, options: dict[str, Any]) -> Check:
        """Whether any is changed between its put and its get."""
        if not iterations:
            return Check("items", OPTIONAL, "not looked at: no iteration was run", "lab.check(..., iterations=1)")
        options |= {"emulate": self.emulate, "absent": self.absent, "check_items": True}

        def look() -> str:
            run(self.flow, self.wanted, iterations, self.executor, inputs, False, **options).wait()
            return f"none was changed after its put in {counted(iterations, 'iteration')}"

        return _tried("items", look)

    # --- this machine ---------------------------------------------------------------------------------------------
    def here(self) -> list[Check]:
        def look() -> str:
            refuse_other_nodes(self.wanted, f"{self.executor} executor has this machine")
            refuse_missing(self.wanted, self.emulate)
            return ", ".join(self.wanted.devices[:8]) + " …" * (len(self.wanted.devices) > 8)

        travelling: list[Check] = []
        if self.executor != "local":
            pickling, packed = self._pickling()
            travelling = [pickling, _tried("imports", lambda: self._imports(packed)), self._ports({})]
        return [_tried("devices", look), *travelling]

    def _imports(self, packed: dict[str, Packed]) -> str:
        """Every worker can be unpickled in a process of its own."""
        if problems := problems_in_a_child(packed):
            worker, problem = next(iter(problems.items()))
            raise PlanError(
                f"worker {worker!r} cannot be made in another process: {problem}. Next: put its class into a module on "
                "sys.path whose import succeeds in a "
                f"Python of its own, or define it in a notebook cell or the script itself (it then travels by value)."
            )
        return f"{counted(len(packed), 'worker')} can be made in another process"

    # --- several processes ----------------------------------------------------------------------------------------
    def cluster(self, address: str | None) -> list[Check]:
        found: dict[int, str] = {}

        def look() -> str:
            ensure_ray(address)
            refuse_missing(self.wanted, self.emulate)
            found.update(wait_for_nodes(self.wanted.devices, lambda: False, 0.0, emulate=self.emulate))
            return f"{counted(len(self.wanted.devices), 'device')} on {counted(len(found), 'node')}"

        devices = _tried("devices", look)
        if devices.status == BROKEN:
            return [devices, self._pickling()[0]]
        pickling, packed = self._pickling()
        facts = {number: facts_of(node, packed, sys.path) for number, node in sorted(found.items())}
        return [devices, pickling, *self._packages(facts), self._ports(found)]

    def _pickling(self) -> tuple[Check, dict[str, Packed]]:
        packed: dict[str, Packed] = {}

        def look() -> str:
            for name, declaration in self.flow.workers.items():
                try:
                    packed[name] = Packed.of(declaration)
                except RlinfLabError as error:
                    raise PlanError(f"worker {name!r} cannot travel: {said(error)}") from error
            return (
                f"{counted(len(self.flow.workers), 'worker')}, "
                f"{sum(p.nbytes for p in packed.values()) / 1024:.1f} KiB"
            )

        return _tried("pickling", look), packed

    def _packages(self, facts: dict[int, NodeFacts]) -> list[Check]:
        """The same versions as here, and every worker can be unpickled there."""
        checks = []
        mine = facts_here()
        for number, node in facts.items():
            name, there = f"packages of node {number}", node.versions
            other = [
                f"{p} {v or 'missing'} (here {mine.versions[p]})" for p, v in there.items() if v != mine.versions[p]
            ]
            if node.problems:
                worker, problem = next(iter(node.problems.items()))
                checks.append(
                    Check(
                        name,
                        BROKEN,
                        f"worker {worker!r} cannot be made there: {problem}",
                        "install there what it imports",
                    )
                )
            elif other:
                status = BROKEN if None in there.values() else OPTIONAL
                checks.append(Check(name, status, ", ".join(other), "pip install the same versions there"))
            else:
                checks.append(Check(name, OK, f"{len(there)} packages as here"))
        return checks

    def _ports(self, nodes: dict[int, str]) -> Check:
        """Hosts of different nodes speak TCP with each other, in both directions."""
        pairs = [pair for number in nodes if number for pair in ((0, number), (number, 0))]
        closed = [
            f"node {a} cannot open a connection to node {b} ({problem})"
            for a, b in pairs
            if (problem := reach(nodes[a], nodes[b]))
        ]
        if closed:
            return Check("ports", BROKEN, "; ".join(closed), "let TCP through between the nodes")

        def look() -> str:
            if not hasattr(os, "memfd_create"):
                raise PlanError("memory files cannot be made here. Next: Linux 3.17 or newer.")
            return (
                f"node 0 and {counted(len(nodes) - 1, 'other node')} reach each other"
                if len(nodes) > 1
                else "unix sockets and memory files"
            )

        return _tried("ports", look)


def _tried(name: str, look: Callable[[], str]) -> Check:
    """What ``look`` says; broken with the error's text, whose "Next: ..." is what mends it."""
    try:
        return Check(name, OK, look())
    except RlinfLabError as error:
        found, _, mend = said(error).partition(" Next: ")
        return Check(name, BROKEN, found, mend)
