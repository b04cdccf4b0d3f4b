"""From a plan to processes and queues: the part of the micro flow that every driver needs before it starts.

A channel whose producer and consumer are fused has one queue for each unit (shard = rank); any other channel has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine import Engine
from rlinf_lab.planning.plan import ExecutionPlan, graph_in
from rlinf_lab.workflow.graph import DRIVER, WorkflowGraph
from rlinf_lab.workflow.workflow import Workflow


@dataclass(frozen=True)
class Layout:
    """``members``: (worker, rank) in engine order: the driver first, then workers in order of declaration, rank by rank."""

    graph: WorkflowGraph
    plan: ExecutionPlan

    @cached_property
    def members(self) -> tuple[tuple[str, int], ...]:
        return ((DRIVER, 0), *((w, r) for w in self.graph.workers for r in range(self.plan.ranks(w))))

    @cached_property
    def index(self) -> dict[tuple[str, int], int]:
        return {m: i for i, m in enumerate(self.members)}

    def devices(self, worker: str, rank: int) -> tuple[int, ...]:
        return () if worker == DRIVER else self.plan.placements[worker][rank]

    def device_names(self, worker: str, rank: int) -> tuple[str, ...]:
        return () if worker == DRIVER else self.plan.device_names(worker, rank)

    def graph_channels(self) -> list[str]:
        """Channels that somebody writes or reads."""
        return [c.name for c in self.graph.channels if self.graph.consumers(c.name)]

    def ranks(self, worker: str) -> int:
        return 1 if worker == DRIVER else self.plan.ranks(worker)

    def capacity(self, channel: str) -> int | None:
        spec = self.graph.channel(channel)
        if spec.whole:
            return None
        if channel in self.plan.capacities:
            return self.plan.capacities[channel]
        if any(self._share_a_device(p, q) for p in self.graph.producers(channel) for q in self.graph.consumers(channel)):
            # Producer and consumer take turns on one device: a bound would make them switch at every filling.
            return None
        return spec.capacity

    def sharded(self, channel: str) -> bool:
        """True when every producer and consumer of the channel are fused with each other."""
        pairs = [(p, q) for p in self.graph.producers(channel) for q in self.graph.consumers(channel)]
        return bool(pairs) and all(self.plan.is_fused(p, q) for p, q in pairs)

    def shards(self, channel: str) -> int:
        return self.ranks(self.graph.consumers(channel)[0]) if self.sharded(channel) else 1

    def shard(self, channel: str, rank: int) -> int:
        """The queue that rank ``rank`` of a producer or a consumer uses."""
        return rank if self.sharded(channel) else 0

    def key_owner(self, channel: str, key: int) -> tuple[str, int]:
        """Which consumer rank reads ``key``: keys are numbered rank by rank, as many a rank as it has sub-batches."""
        consumer = self.graph.consumers(channel)[0]
        tokens = 1 if consumer == DRIVER else self.plan.tokens(consumer)
        return consumer, (key // tokens) % self.ranks(consumer)

    def closes(self, channel: str, worker: str) -> int:
        """How many producers of one queue a call of ``worker`` stands for."""
        return 1 if self.sharded(channel) else self.ranks(worker)

    def fill(self, engine: Engine) -> None:
        """Add every process, in the order of `members`."""
        for worker, rank in self.members:
            self.add_process(engine, worker, rank)

    def add_process(self, engine: Engine, worker: str, rank: int) -> int:
        priority = self.graph.depth.get(worker, 0)
        return engine.add_process(self.devices(worker, rank), priority, self.plan.memory.get(worker, 0))

    def new_engine(self) -> Engine:
        return Engine(len(self.plan.devices), self.plan.device_memory)

    def __repr__(self) -> str:
        rooms = [f"{c} ≤ {n}" if (n := self.capacity(c)) is not None else c for c in self.graph_channels()]
        return (
            f"Layout(workflow {self.graph.name!r} under plan {self.plan.name!r}: {len(self.members) - 1} ranks on {len(self.plan.devices)} devices; "
            f"channels {', '.join(rooms) or 'none'})"
        )

    def _share_a_device(self, a: str, b: str) -> bool:
        used = [{d for r in range(self.ranks(w)) for d in self.devices(w, r)} for w in (a, b)]
        return bool(used[0] & used[1])


def checked_layout(flow: Workflow | WorkflowGraph, plan: ExecutionPlan) -> Layout:
    """A layout of a plan that fits the workflow. Raises `PlanError` otherwise."""
    graph = graph_in(flow)
    if not isinstance(plan, ExecutionPlan):
        raise PlanError(f"plan is {plan!r}; it must be an ExecutionPlan. Next: ExecutionPlan.temporal(flow, devices=[...]).")
    plan.validate(graph)
    return Layout(graph, plan)
