"""Who is on a device while somebody works there. It is counted in units of memory that an executor time-shares by.

Units of turns, not bytes: those who leave fill a device, a cell all of it together, so that one of them is there at a
time; what those who stay keep is no part of it. Somebody who stays and has no room to work beside those who leave fills
the device while it works.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from rlinf_lab.planning.placement.placement import Placement
from rlinf_lab.planning.search.plan_tree import Leaf, nodes
from rlinf_lab.workflow.graph import WorkflowGraph


@dataclass(frozen=True)
class Turns:
    """The fields of an `ExecutionPlan` that decide turns. ``memory`` while resident, ``working`` besides, and what a
    device has (None: nobody ever leaves).
    """

    memory: dict[str, int] = field(default_factory=dict)
    working: dict[str, int] = field(default_factory=dict)
    device_memory: int | None = None

    @classmethod
    def of(cls, placement: Placement) -> Turns:
        """The fields as the search has it. Whoever leaves is away while others work, and whoever stays is there."""
        leaving = {
            name: _mates(placement, name) for name, seat in placement.seats.items() if seat.devices and not seat.stays
        }
        whole = math.lcm(1, *leaving.values())
        return cls(
            {name: whole // mates for name, mates in leaving.items()}, dict.fromkeys(_alone(placement), whole), whole
        )


def priorities(placement: Placement, graph: WorkflowGraph) -> dict[str, int]:
    """Everybody's place in the plan's turns, where the graph's depths would say otherwise. Of two who share a device:
    nothing links them."""
    stages = [n.worker for n in nodes(placement.tree) if isinstance(n, Leaf)]
    place = {m: i for i, stage in enumerate(stages) for m in placement.setting.stages[stage].members}
    for one, other in itertools.permutations(place, 2):
        if place[one] < place[other] and graph.depth[one] >= graph.depth[other] and _meet(placement, one, other):
            return place
    return {}


def _mates(placement: Placement, name: str) -> int:
    """How many members of its cell, itself too, share a device with a worker. Members may sit apart, or on the host."""
    stage = placement.setting.stages[placement.setting.home[name]]
    return sum(_meet(placement, name, mate) for mate in stage.members)


def _meet(placement: Placement, one: str, other: str) -> bool:
    """Whether two have a device in common."""
    a, b = (placement.seats[name].devices for name in (one, other))
    return max(a.start, b.start) < min(a.stop, b.stop)


def _alone(placement: Placement) -> list[str]:
    """Those who stay and lack memory for work where a leaving stage has not left."""
    return [
        name for name, seat in placement.seats.items() if seat.devices and seat.stays and placement.is_crowded(name)
    ]
