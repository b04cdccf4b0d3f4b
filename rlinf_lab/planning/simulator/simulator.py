"""The engine in virtual time. This is the same scheduler that runs the workers, fed with durations instead of work.

A call is described by a script (`planning.simulator.scripts`). With the durations that the workers really have, the
simulated timeline is equal to that of the local executor with a mock clock, span by span (`tests/planning`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlinf_lab.errors import PlanError, counted
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import Layout, checked_layout
from rlinf_lab.planning.simulator.messages import Flights
from rlinf_lab.planning.simulator.scripts import (
    Op,
    Script,
    SimCall,
    Turn,
    all_at_once,
    call,
    get,
    put,
    run,
    wait,
)
from rlinf_lab.planning.simulator.virtual_host import VirtualHost
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER, WorkflowGraph
from rlinf_lab.workflow.workflow import Workflow


class Simulator:
    """Runs scripts under a plan in virtual time.

    ``switch_ns``: for each worker (onload, offload) in nanoseconds, paid when the plan's memory makes it leave the
    device.
    ``relieve``: let a channel exceed its capacity when nothing else can move (as the executors do); False raises
    instead.
    ``flights``: of messages, where hosts are processes.
    ``shared``: weights that several workers hold: of each of them, which part of what it moves they are (1: all of it).
    """

    def __init__(
        self, flow: Workflow | WorkflowGraph, plan: ExecutionPlan,
        switch_ns: Mapping[str, tuple[int, int]] | None = None, relieve: bool = True,
        flights: Flights | None = None, shared: Sequence[Mapping[str, float]] = (),
    ) -> None:  # fmt: skip
        self.layout: Layout = checked_layout(flow, plan)
        self._switch_ns = dict(switch_ns or {})
        self._relieve, self._flights, self._shared = relieve, flights, tuple(shared)
        self.relieved = 0

    def simulate(
        self,
        calls: Sequence[SimCall],
        iterations: int = 1,
        loop: Callable[[Turn], Script] | None = None,
    ) -> Timeline:
        """``iterations`` times the calls of one iteration. As many of them overlap as the plan's ``staleness`` allows.

        ``loop``: the script of the iteration function itself: `call` for each position in ``calls``, `wait` for one of
        them, `put` and `get` at channels of its own. Default: all calls, in order, at once.

        Raises `DeadlockError`; `PlanError` for a loop that feeds or reads a channel, without its script.
        """
        if iterations < 1:
            raise PlanError(f"simulate(iterations={iterations}): at least one. Next: iterations=3.")
        for of in calls:
            self.layout.graph.node(of.worker)
            for channel in (*of.reads, *of.writes):
                self.layout.graph.channel(channel)
        if loop is None:
            self._refuse_silent_loop()
        host = VirtualHost(
            self.layout, calls, loop or all_at_once(len(calls)), self._switch_ns, self._relieve,
            self._flights, self._shared,
        )  # fmt: skip
        timeline = Timeline(self.layout.plan.devices)
        timeline.extend(host.run(iterations))
        self.relieved = host.relieved
        return timeline

    def _refuse_silent_loop(self) -> None:
        graph = self.layout.graph
        own = {c: "feeds" for c in graph.channels_by_name() if DRIVER in graph.producers(c)}
        own |= {c: "reads" for c in graph.channels_by_name() if DRIVER in graph.consumers(c)}
        for channel, does in own.items():
            raise PlanError(
                f"The loop of workflow {graph.name!r} {does} channel {channel!r} itself. Next: say what it does there, "
                f"simulate(calls, loop=script) with a script such as: yield put({channel!r}, 8); yield call(0)."
            )

    def __repr__(self) -> str:
        return (
            f"Simulator(workflow {self.layout.graph.name!r} under plan {self.layout.plan.name!r}, "
            f"{counted(len(self.layout.plan.devices), 'device')})"
        )


__all__ = [
    "ALL",
    "DRIVER",
    "Op",
    "Script",
    "SimCall",
    "Simulator",
    "Turn",
    "call",
    "get",
    "put",
    "run",
    "wait",
]
