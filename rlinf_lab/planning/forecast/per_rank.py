"""Whose ranks a forecast simulates one by one, with the micro-batches of a run. They begin at different times, since
others have some of their devices.

A rank whose device is free takes the next batch while others wait for theirs, so such a worker is neither as early nor
as late as one worker group. Where those with whom a worker shares devices have the same ones, its ranks begin together,
and a worker group stands for them. Who has one rank is no worker group anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rlinf_lab.planning.costs.base import ROUNDING
from rlinf_lab.planning.placement.placement import Placement, Seat
from rlinf_lab.planning.placement.to_execution_plan import items_between, micro_batch_between
from rlinf_lab.planning.profile.profile import EdgeProfile

# of an iteration at most, else a worker group stands for the ranks of a worker: a simulation takes some 20 us for each
MAX_BATCHES = 1024


def by_rank(placement: Placement) -> frozenset[str]:
    """Workers whose ranks are simulated one by one, if they do not generate. Members of a cell, which go on step by
    step, and workers with too many batches are not among them.
    """
    stages, home = placement.setting.stages, placement.setting.home
    seats = [s for s in placement.seats.values() if s.devices and len(stages[home[s.worker]].members) == 1]
    return frozenset(
        s.worker
        for s in seats
        if s.ranks == 1
        or (s.ranks * s.micro_batches <= MAX_BATCHES and (begins_unevenly(placement, s) or has_a_rest(placement, s)))
    )


def has_a_rest(placement: Placement, seat: Seat) -> bool:
    """Whether ranks end at different times. The last call of a worker is of fewer items than the others, or shares of a
    source are not equal. Where iterations overlap it is another rank that has less in each: a worker group stands for
    their mean."""
    setting = placement.setting
    if setting.overlap:
        return False
    if seat.worker in setting.sources:
        return bool(setting.profile.items / setting.profile.group_size(seat.worker) % seat.ranks)
    calls = placement.calls(seat)
    return seat.worker in setting.in_whole_calls and bool(calls.rest < calls.full)


def begins_unevenly(placement: Placement, seat: Seat) -> bool:
    """Whether a worker shares devices with another one that has not the same ones."""
    own = set(seat.devices)
    return any(own & set(other.devices) and own != set(other.devices) for other in placement.seats.values())


def bundles_of_a_rank(placement: Placement, edge: EdgeProfile, bundles: int) -> int:
    """Of ``bundles`` in an iteration, those that a rank takes at a time. A rank of the consumer in a run of the plan;
    0: its share of everything."""
    micro_batch = micro_batch_between(placement, edge)
    return (
        min(bundles, max(1, math.ceil(bundles * micro_batch * edge.group / items_between(placement, edge) - ROUNDING)))
        if micro_batch
        else 0
    )


def seconds_of_a_rank(
    placement: Placement, name: str, micro_batch_s: float, ranks: int | None = None
) -> Callable[[float], float]:
    """Seconds that one rank takes for so many items. Or all of them with ``ranks`` 1, when all together take
    ``micro_batch_s`` for one of the plan's micro-batches."""
    setting, seat = placement.setting, placement.seats[name]
    model, on, times = (
        setting.models[name, placement.kind(seat)],
        np.array([len(seat.devices)]),
        seat.ranks if ranks is None else ranks,
    )
    calls = placement.calls(seat) if name in setting.in_whole_calls else None
    micro_batch = (
        float(model.seconds(on, setting.profile.items / seat.micro_batches)[0])
        if calls is None
        else float(calls.seconds(model, on)[0]) / seat.micro_batches
    )

    def seconds(items: float) -> float:
        over_all = items * times if calls is None or times > 1 else calls.counted(items)
        return micro_batch_s * float(model.seconds(on, over_all)[0]) / micro_batch if micro_batch else 0.0

    return seconds
