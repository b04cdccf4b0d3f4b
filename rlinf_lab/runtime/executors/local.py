"""The local executor: every worker is a thread of this process. Breakpoints, `%debug` and print work."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import checked_layout
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.machine.devices import refuse_missing, refuse_other_nodes, torch_device
from rlinf_lab.runtime.session.news import News
from rlinf_lab.runtime.session.session import Ended
from rlinf_lab.timeline.record.clock import Clock, MonotonicClock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.workflow.workflow import Workflow


class LocalExecutor:
    """Threads in this process, one for each rank. See `session.Executor` for the methods.

    ``emulate``: the plan may have more CPU slots than this machine has cores. With a ``clock`` of its own it may have
    any devices: time is made up.
    ``absent``: ranks that are not there at first (`Session.join`), by worker;
    ``check_items``: an item that is changed between its put and its get fails the call that gets it.
    """

    def __init__(
        self, flow: Workflow, plan: ExecutionPlan, clock: Clock | None = None, emulate: bool = False,
        absent: Mapping[str, Sequence[int]] | None = None, check_items: bool = False,
    ) -> None:  # fmt: skip
        self.flow = flow
        self.layout = checked_layout(flow.graph, plan, absent)
        refuse_other_nodes(plan, "local executor has this process")
        if clock is None:
            refuse_missing(plan, emulate)
        self.clock = clock or MonotonicClock()
        place = dict.fromkeys(self.layout.members, "local")
        self._stopping = threading.Lock()
        self._ended: Ended | None = None
        self.driver_host = Host(
            "local", self.layout, place, self.clock, Recorder("local", self.clock), check_items=check_items
        )
        self.news = News(self.driver_host)

    def __repr__(self) -> str:
        return (
            f"LocalExecutor({self.flow.name!r}, plan {self.layout.plan.name!r}, {len(self.layout.members) - 1} ranks)"
        )

    def start(self) -> None:
        self.driver_host.start(self.flow.workers, torch_device)

    def stop(self) -> Ended:
        with self._stopping:
            if self._ended is None:
                self._ended = Ended(self.driver_host.stop(), self.driver_host.state.errors)
            return self._ended
