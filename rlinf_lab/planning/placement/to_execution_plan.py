"""A plan of the search as the `ExecutionPlan` that an executor takes. It has ranks, micro-batches of every channel, and
who is switched out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.costs.base import ROUNDING
from rlinf_lab.planning.placement.cell_order import head
from rlinf_lab.planning.placement.free_memory import APART
from rlinf_lab.planning.placement.memory_units import Turns, priorities
from rlinf_lab.planning.placement.placement import Placement, Seat
from rlinf_lab.planning.placement.provenance import origin_of
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile
from rlinf_lab.planning.schema.json_schema import listing
from rlinf_lab.planning.search.plan_tree import TEMPORAL, meeting
from rlinf_lab.workflow.graph import DRIVER, Edge, WorkflowGraph

AHEAD_BATCHES = 2  # batches of a rank that a channel holds: one that is taken, and one that is made meanwhile


def execution_plan(placement: Placement, graph: WorkflowGraph, devices: Sequence[str], name: str) -> ExecutionPlan:
    """The plan for an executor. ``graph``: of the workflow that shall run; ``devices``: a name for each device of the
    placement.
    """
    same_workers(placement.setting.profile, graph)
    placements = {w: ranks_of(placement, w) for w in graph.workers}
    cells = [
        u.members
        for i, u in enumerate(placement.setting.stages)
        if len(u.members) > 1 and placement.arrangement.forms[i] != APART
    ]
    fused = tuple(members for members in cells if len({placements[m] for m in members}) == 1)
    micro_batches: dict[str, int] = {}
    for edge in graph.edges:
        if not edge.keyed and DRIVER not in (edge.producer, edge.consumer):
            micro_batch = micro_batch_between(placement, edge, fused)
            micro_batches[edge.channel] = (
                min(micro_batches.get(edge.channel, micro_batch) or micro_batch, micro_batch)
                if micro_batch
                else micro_batches.get(edge.channel, 0)
            )
    sub_batches = {w: s.sub_batches for w, s in placement.seats.items() if s.sub_batches > 1}
    in_flight = {
        members[0]: n
        for i, stage in enumerate(placement.setting.stages)
        if (n := placement.setting.cell(i).tokens) > 1 and (members := stage.members)
    }
    turns = _turns(placement)
    plan = ExecutionPlan(
        name, tuple(devices), placements, micro_batches, _rooms(placement, graph, micro_batches), sub_batches, fused,
        turns.memory, turns.device_memory,
        placement.setting.staleness, turns.working, priorities(placement, graph), in_flight, origin_of(placement),
    )  # fmt: skip
    plan.validate(graph)
    return plan


def _rooms(placement: Placement, graph: WorkflowGraph, micro_batches: Mapping[str, int]) -> dict[str, int]:
    """Room of channels that hold less than the plan needs. It is a batch for each rank of the consumers, and as much
    again while they work on it; all items where a bound would hold up more than the producer of that channel alone
    (`_Held`).

    A smaller bound would cut every batch to what it holds, and what a batch always takes would be paid so much oftener.
    """
    found: dict[str, int] = {}
    declared, seats, held = {c.name: c.capacity for c in graph.channels}, placement.seats, _Held.of(placement, graph)
    time_sharing = {
        e.channel
        for e in graph.edges
        if e.channel in micro_batches and set(seats[e.producer].devices) & set(seats[e.consumer].devices)
    }
    for edge in graph.edges:
        bound, micro_batch = declared[edge.channel], micro_batches.get(edge.channel)
        # between those there is no bound
        if bound is None or micro_batch is None or edge.whole or edge.channel in time_sharing:
            continue
        items = max(micro_batch, math.ceil(items_between(placement, edge) / edge.group))
        room = (
            min(items, AHEAD_BATCHES * micro_batch * seats[edge.consumer].ranks)
            if micro_batch and not held.more_than_the_producer_of(edge)
            else items
        )
        if room > max(bound, found.get(edge.channel, 0)):
            found[edge.channel] = room
    return found


@dataclass(frozen=True)
class _Held:
    """Whom a full channel keeps from going on. ``links``: (stage, stage, what goes from one to the other), channels and
    values.
    """

    placement: Placement
    links: frozenset[tuple[int, int, str]]

    @classmethod
    def of(cls, placement: Placement, graph: WorkflowGraph) -> _Held:
        home = placement.setting.home
        channels = {
            (home[e.producer], home[e.consumer], e.channel)
            for e in graph.edges
            if DRIVER not in (e.producer, e.consumer)
        }
        values = {
            (home[e.producer], home[e.consumer], f"the value of {e.producer}")
            for e in placement.setting.profile.edges
            if e.value
        }
        return cls(placement, frozenset(link for link in channels | values if link[0] != link[1]))

    def more_than_the_producer_of(self, edge: Edge) -> bool:
        """Whether a bound costs more than that a producer waits for a slower consumer. It does where others are fed by
        it, or by who feeds it; where its consumer waits for somebody else, too, or for its turn, and is fed no faster
        then; or where others have the producer's devices meanwhile.
        """
        producer, consumer = (self.placement.setting.home[name] for name in (edge.producer, edge.consumer))
        if producer == consumer:
            return False
        if (
            self._shares(producer)
            or self._shares(consumer)
            or len({what for _, to, what in self.links if to == consumer}) > 1
        ):
            return True
        return any(len({what for of, _, what in self.links if of == stage}) > 1 for stage in self._above(producer))

    def _above(self, stage: int) -> set[int]:
        """The stage, and all from which something comes to it."""
        found = {stage}
        while more := {of for of, to, _ in self.links if to in found} - found:
            found |= more
        return found

    def _shares(self, stage: int) -> bool:
        seats, names = self.placement.seats, self.placement.setting.stages[stage].members
        own = {d for name in names for d in seats[name].devices}
        return any(own & set(seat.devices) for name, seat in seats.items() if name not in names)


def _turns(placement: Placement) -> Turns:
    """None where everybody fits at once and nobody saves anything by leaving."""
    turns, workers = Turns.of(placement), placement.setting.profile.workers
    costly = any(workers[w].onload_s + workers[w].offload_s for w in turns.memory)
    return turns if turns.memory and (costly or not placement.all_fit_at_once()) else Turns()


def ranks_of(placement: Placement, worker: str) -> tuple[tuple[int, ...], ...]:
    """The devices of each rank."""
    seat = placement.seats[worker]
    if not len(seat.devices):
        return ((),)
    size = len(seat.devices) // seat.ranks
    return tuple(tuple(range(start, start + size)) for start in seat.devices[::size])


def micro_batch_between(placement: Placement, edge: Edge | EdgeProfile, fused: tuple[tuple[str, ...], ...] = ()) -> int:
    """Items (or groups) of one batch of a rank of the consumer; 0: everything."""
    producer, consumer = placement.seats[edge.producer], placement.seats[edge.consumer]
    stages = placement.setting.home[edge.producer], placement.setting.home[edge.consumer]
    if stages[0] == stages[1]:
        if (known := placement.setting.cell(stages[0]).tokens) > 1:
            return _in_cell(placement, known, consumer)
        tokens = producer.ranks * producer.sub_batches
        return 1 if any(edge.producer in f for f in fused) else max(1, tokens // consumer.ranks // consumer.sub_batches)
    node = meeting(placement.tree, *stages)
    items = items_between(placement, edge) / edge.group  # what such a channel carries is groups
    if edge.whole and consumer.micro_batches == 1:
        return 0  # each rank its share
    if (node.kind == TEMPORAL and node.grain == 0 and consumer.micro_batches == 1) or placement.setting.begins_with_all(
        edge.consumer
    ):
        at_once = consumer.ranks == 1 or (
            not placement.setting.begins_with_all(edge.consumer) and _would_interrupt(placement, consumer)
        )
        return 0 if at_once else max(1, math.ceil(items / consumer.ranks))
    part = (
        float(placement.calls(consumer).full) / placement.setting.profile.items
        if edge.consumer in placement.setting.in_whole_calls
        else 1 / consumer.micro_batches
    )
    return max(1, math.ceil(items * part / consumer.ranks - ROUNDING))


def _in_cell(placement: Placement, tokens: int, consumer: Seat) -> int:
    """A consumer's micro-batch of items that circulate together. ``tokens`` are those of a cell that has all of an
    iteration. In its parts they are as many parts, where these are alike; else it is one item.
    """
    profile, stage = placement.setting.profile, placement.setting.stages[placement.setting.home[consumer.worker]]
    first = placement.seats[head(profile, stage.members)]
    even = consumer.micro_batches == 1 or not (
        profile.items % (consumer.micro_batches * first.ranks) or tokens % (consumer.micro_batches * first.ranks)
    )
    return batch_of_tokens(tokens // consumer.micro_batches, consumer.ranks, consumer is first) if even else 1


def batch_of_tokens(tokens: int, ranks: int, is_head: bool) -> int:
    """Items that a member's rank takes of those put into a cell together. They are as many for each rank, so that none
    waits for a batch that does not fill. The head waits for its own share, which is the same for each of its ranks, or
    else item by item.
    """
    share = tokens // ranks
    if is_head:
        return share if tokens % ranks == 0 else 1
    return next(n for n in range(max(1, share), 0, -1) if tokens % n == 0)


def _would_interrupt(placement: Placement, consumer: Seat) -> bool:
    """Whether a rank that began with its first items would interrupt somebody above it. It would take the device of one
    to whom items stream from other devices and who waits for them just then; and with it from all for whom the worker
    itself waits: a batch of everything is long.
    """
    edges, home = placement.setting.profile.edges, placement.setting.home
    above, open_ = set[str](), [consumer.worker]
    while open_:
        name = open_.pop()
        producers = {e.producer for e in edges if e.consumer == name} - above
        above |= producers
        open_ += producers
    devices = {name: set(seat.devices) for name, seat in placement.seats.items()}
    streamed = [
        e.consumer
        for e in edges
        if home[e.producer] != home[e.consumer] and not devices[e.producer] & devices[e.consumer]
    ]
    return any(
        name in above and home[name] != home[consumer.worker] and devices[name] & devices[consumer.worker]
        for name in streamed
    )


def items_between(placement: Placement, edge: Edge | EdgeProfile) -> float:
    """Items of one iteration on a channel."""
    profile = placement.setting.profile
    known = [
        e.items
        for e in profile.edges
        if (e.producer, e.consumer) == (edge.producer, edge.consumer) and e.items is not None
    ]
    return known[0] if known else profile.items


def same_workers(profile: Profile, graph: WorkflowGraph) -> None:
    """Raise `PlanError` where a profile is not of this workflow. It has other workers, or in micro-batches what the
    workflow hands over at once.
    """
    missing = [w for w in graph.workers if w not in profile.workers]
    if missing:
        raise PlanError(
            f"Workflow {graph.name!r} has the workers {listing(missing)}, of which the profile knows nothing; it knows "
            f"{listing(list(profile.workers))}. "
            f"Next: lab.profile(flow), or add them to the profile."
        )
    more = [w for w in profile.workers if w not in graph.workers]
    if more:
        raise PlanError(
            f"The profile has the workers {listing(more)}, but workflow {graph.name!r} has {listing(graph.workers)}. "
            "Next: a profile of this flow."
        )
    _same_batches(profile, graph)


def _same_batches(profile: Profile, graph: WorkflowGraph) -> None:
    """Raise `PlanError` where what the workflow hands over at once has micro-batches in the profile."""
    known = {(e.producer, e.consumer): (i, e) for i, e in enumerate(profile.edges)}
    for edge in graph.edges:
        i, told = known.get((edge.producer, edge.consumer), (0, None))
        if (
            told is None
            or not edge.whole
            or any(edge.producer in cell and edge.consumer in cell for cell in graph.cells)
        ):
            continue
        # in the workflow that a profile describes, a value is a channel
        if not told.whole or (told.value and told.channel != edge.channel):
            raise PlanError(
                f"profile.edges[{i}] ({edge.producer} to {edge.consumer}) lets {edge.consumer} begin with a part, but "
                f"channel {edge.channel!r} of workflow "
                f"{graph.name!r} is declared whole and hands over everything at once. Next: 'whole': true (and no "
                "'value') in the profile."
            )
