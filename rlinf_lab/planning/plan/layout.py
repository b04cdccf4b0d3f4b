"""From a plan to processes and queues. Every driver needs this part of the micro flow before it starts.

A channel whose producer and consumer are fused has one queue for each unit (shard = rank); any other channel has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rlinf_lab.errors import PlanError, PlanNameError, counted, shown
from rlinf_lab.planning.cached_method import cached_method
from rlinf_lab.planning.engine.engine import Engine, Part
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan, execution_in, graph_in
from rlinf_lab.workflow.graph import DRIVER, WorkflowGraph
from rlinf_lab.workflow.workflow import Workflow


@dataclass(frozen=True)
class Layout:
    """The ranks of a plan and the queues between them. ``members``: (worker, rank) in engine order: the driver first,
    then workers in order of declaration, rank by rank.
    """

    graph: WorkflowGraph
    plan: ExecutionPlan
    absent: frozenset[tuple[str, int]] = frozenset()  # who is not there when a run begins

    @cached_property
    def members(self) -> tuple[tuple[str, int], ...]:
        return ((DRIVER, 0), *((w, r) for w in self.graph.workers for r in range(self.plan.ranks(w))))

    @cached_property
    def index(self) -> dict[tuple[str, int], int]:
        return {m: i for i, m in enumerate(self.members)}

    def devices(self, worker: str, rank: int) -> tuple[int, ...]:
        return () if worker == DRIVER else self.plan.placements[worker][rank]

    def device_names(self, worker: str, rank: int) -> tuple[str, ...]:
        return tuple(self.plan.devices[d] for d in self.devices(worker, rank))

    def graph_channels(self) -> list[str]:
        """Channels that somebody writes or reads."""
        return [c.name for c in self.graph.channels if self.graph.consumers(c.name)]

    def ranks(self, worker: str) -> int:
        return 1 if worker == DRIVER else self.plan.ranks(worker)

    @cached_method  # asked for every queue, twice a second
    def capacity(self, channel: str) -> int | None:
        spec = self.graph.channel(channel)
        if spec.whole:
            return None
        if channel in self.plan.capacities:
            return self.plan.capacities[channel]
        if any(self.share_a_device(p, q) for p in self.graph.producers(channel) for q in self.graph.consumers(channel)):
            # Producer and consumer time-share on one device: a bound would make them switch at every filling.
            return None
        return spec.capacity

    @cached_method  # asked for every call of a simulation
    def sharded(self, channel: str) -> bool:
        """True when every producer and consumer of the channel are fused with each other."""
        pairs = [(p, q) for p in self.graph.producers(channel) for q in self.graph.consumers(channel)]
        return bool(pairs) and all(self.plan.is_fused(p, q) for p, q in pairs)

    def is_shared(self, channel: str) -> bool:
        """Whether all ranks of a consumer read one queue: no shards, and no keys."""
        return not self.sharded(channel) and not self.graph.channel(channel).keyed

    def part(self, worker: str, position: int, count: int) -> Part:
        """Of a rank in a call: its place among those that take part."""
        return Part(self.index[worker, 0], position, count)

    def shards(self, channel: str) -> int:
        return self.ranks(self.graph.consumers(channel)[0]) if self.sharded(channel) else 1

    def shard(self, channel: str, rank: int) -> int:
        """The queue that rank ``rank`` of a producer or a consumer uses."""
        return rank if self.sharded(channel) else 0

    def key_owner(self, channel: str, key: int) -> tuple[str, int]:
        """Which consumer rank reads ``key``. Keys are numbered rank by rank, as many a rank as it has sub-batches."""
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
        plan = self.plan
        priority = plan.priorities.get(worker, self.graph.depth.get(worker, 0))
        cell = next((i for i, members in enumerate(self.graph.cells) if worker in members), None)
        return engine.add_process(
            self.devices(worker, rank),
            priority,
            plan.memory.get(worker, 0),
            working=plan.working.get(worker, 0),
            cell=cell,
        )

    def new_engine(self) -> Engine:
        return Engine(len(self.plan.devices), self.plan.device_memory)

    def __repr__(self) -> str:
        rooms = [f"{c} ≤ {n}" if (n := self.capacity(c)) is not None else c for c in self.graph_channels()]
        return (
            f"Layout(workflow {self.graph.name!r} under plan {self.plan.name!r}: "
            f"{counted(len(self.members) - 1, 'rank')} on {counted(len(self.plan.devices), 'device')}; "
            f"channels {', '.join(rooms) or 'none'})"
        )

    def share_a_device(self, a: str, b: str) -> bool:
        """Whether ranks of two workers sit on the same device."""
        used = [{d for r in range(self.ranks(w)) for d in self.devices(w, r)} for w in (a, b)]
        return bool(used[0] & used[1])


def checked_layout(
    flow: Workflow | WorkflowGraph, plan: ExecutionPlan, absent: Mapping[str, Sequence[int]] | None = None
) -> Layout:
    """A layout of a plan that fits the workflow, with ranks that may be absent. Raises `PlanError` otherwise."""
    graph, plan = graph_in(flow), execution_in(plan)
    if not isinstance(plan, ExecutionPlan):
        raise PlanError(
            f"plan is {shown(plan)}; it must be an ExecutionPlan. Next: ExecutionPlan.temporal(flow, devices=[...])."
        )
    plan.validate(graph)
    layout = Layout(graph, plan)
    if absent is None:
        return layout
    if not isinstance(absent, Mapping) or any(
        isinstance(ranks, str) or not isinstance(ranks, Sequence) for ranks in absent.values()
    ):
        raise PlanError(
            f"absent={shown(absent)}: for workers the ranks that are not there at first. Next: absent={{'rollout': [1, "
            f"2]}}."
        )
    for worker, ranks in absent.items():
        for rank in ranks:
            refuse_fixed_place(layout, f"absent={shown(absent)}", worker, rank)
    return replace(layout, absent=frozenset((w, r) for w, ranks in absent.items() for r in ranks))


def refuse_fixed_place(layout: Layout, what: str, worker: str, rank: int) -> None:
    """Raise `PlanError` for a rank that cannot come or go while a run goes on. ``what``: who wants it."""
    if worker not in layout.graph.workers:
        raise PlanNameError.of("worker", worker, layout.graph.workers, what)
    ranks = layout.ranks(worker)
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < ranks:
        raise PlanError(
            f"{what}: {worker!r} has no rank {shown(rank)}, plan {layout.plan.name!r} has places for {ranks} (0 to "
            f"{ranks - 1}). Next: a plan with as many "
            f"places as there can be ranks; those that are not there yet are absent={{{worker!r}: [...]}}."
        )
    if rank == 0:
        raise PlanError(
            f"{what}: rank 0 of {worker!r} stays: the values that the loop uses are its, and weights are published by "
            "it. Next: another rank."
        )
    if any(worker in group for group in layout.plan.fused):
        raise PlanError(
            f"{what}: {worker!r} is fused with others under plan {layout.plan.name!r}, rank by rank. Next: a plan that "
            "does not fuse it."
        )
    if layout.plan.may_have_to_leave(worker):
        raise PlanError(
            f"{what}: workers take turns on {', '.join(layout.device_names(worker, rank))} for want of memory, and a "
            f"rank that comes is built beside all others there. Next: a larger device_memory, or other devices for "
            f"{worker!r}."
        )
    keyed = [c.name for c in layout.graph.channels if c.keyed and worker in layout.graph.consumers(c.name)]
    if keyed:
        raise PlanError(
            f"{what}: each rank of {worker!r} reads its own keys of channel {keyed[0]!r}, which nobody else would. "
            "Next: a worker without keys."
        )
