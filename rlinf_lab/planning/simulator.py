"""The engine in virtual time: the same scheduler that runs the workers, fed with durations instead of work.

A call is described by a script (`planning.scripts`). With the durations that the workers really have, the simulated
timeline is equal to that of the local executor with a mock clock, span by span (`tests/planning`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine import ALL
from rlinf_lab.planning.layout import Layout, checked_layout
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.scripts import Op, Script, SimCall, Turn, get, put, run
from rlinf_lab.planning.virtual import VirtualHost
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER, WorkflowGraph


class Simulator:
    """Runs scripts under a plan in virtual time.

    ``switch_ns``: for each worker (onload, offload) in nanoseconds, paid when the plan's memory makes it leave the device.
    ``relieve``: let a channel exceed its capacity when nothing else can move (as the executors do); False raises instead.
    """

    def __init__(
        self, graph: WorkflowGraph, plan: ExecutionPlan, switch_ns: Mapping[str, tuple[int, int]] | None = None, relieve: bool = True
    ) -> None:
        self.layout: Layout = checked_layout(graph, plan)
        self._switch_ns = dict(switch_ns or {})
        self._relieve = relieve
        self.relieved = 0

    def simulate(self, calls: Sequence[SimCall], iterations: int = 1) -> Timeline:
        """``iterations`` times the calls of one iteration, with a barrier between iterations. Raises `DeadlockError`."""
        if iterations < 1:
            raise PlanError(f"simulate(iterations={iterations}): at least one.")
        for call in calls:
            self.layout.graph.node(call.worker)
            for channel in (*call.reads, *call.writes):
                self.layout.graph.channel(channel)
        host = VirtualHost(self.layout, calls, self._switch_ns, self._relieve)
        timeline = Timeline(self.layout.plan.devices)
        timeline.extend(host.run(iterations))
        self.relieved = host.relieved
        return timeline

    def __repr__(self) -> str:
        return f"Simulator(workflow {self.layout.graph.name!r} under plan {self.layout.plan.name!r}, {len(self.layout.plan.devices)} devices)"


__all__ = ["ALL", "DRIVER", "Op", "Script", "SimCall", "Simulator", "Turn", "get", "put", "run"]
