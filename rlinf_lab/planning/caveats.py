"""Where a plan's seconds rest on ranks of a worker going on together, as data-parallel ones do: ranks that take items by themselves may take another time.
And where the search knows less than the simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinf_lab.planning.by_rank import by_rank
from rlinf_lab.planning.costs.base import of_a_rank
from rlinf_lab.planning.placement import Placement, Seat

WORTH = 0.02  # of a worker's seconds: less is not worth a word


def caveats(placement: Placement) -> tuple[str, ...]:
    """One sentence for each worker that it matters to."""
    found, simulated = [], by_rank(placement)
    for name, seat in placement.seats.items():
        setting = placement.setting
        unit = setting.units[setting.home[name]].members
        alone = len(unit) == 1
        if setting.profile.workers[name].in_turn:
            order = " and then ".join(producer for producer, _ in setting.profile.workers[name].in_turn)
            found.append(
                f"{name} takes all of {order}: plans are simulated so, but looked for as if it took a batch of each at a time; where one of those it waits for "
                f"takes turns with another, a run may be faster than said"
            )
        fed = any(e.consumer == name and e.producer not in unit for e in setting.profile.edges)  # who begins a cycle waits for nobody's items
        if setting.profile.workers[name].starts_on_device and fed and not seat.stays and (others := _on_its_devices(placement, seat, unit)):
            # In a cycle somebody has to put before it reads, so only who is in none is told to read first.
            advice = ". Next: read the inbox first, and compute then" if alone else ""
            found.append(
                f"{name} computes, or may compute, before its first get, so it takes its devices from {' and '.join(others)} before its input is there, and "
                f"once more when it is: plans are simulated so, but looked for as if it came once{advice}"
            )
        if seat.ranks > 1 and name in simulated and (said := _one_by_one(placement, seat)):
            found.append(f"{name}: {said}")
        if seat.ranks > 1 and alone and name not in simulated and setting.profile.workers[name].kind != "generation":  # whose ranks stream in the forecast too
            found += [f"{name}: {said}" for said in (_uneven(placement, name, seat), _staggered(placement, seat)) if said]
    return tuple(found)


def _on_its_devices(placement: Placement, seat: Seat, unit: Sequence[str]) -> list[str]:
    """Others, outside its cell, that use some of the devices of a worker."""
    return [n for n, other in placement.seats.items() if n not in unit and set(other.devices) & set(seat.devices)]


def _uneven(placement: Placement, name: str, seat: Seat) -> str:
    """Items that do not divide by the ranks: in each batch the rank with most items decides, in all of them together, or in all iterations, it need not."""
    setting, ranks = placement.setting, np.array([seat.ranks])
    if name in setting.sources:  # who has most is counted, in an iteration
        return ""
    items, unit = setting.profile.items, setting.profile.unit(name)
    alone = float(of_a_rank(items, ranks, unit)[0])
    if name in setting.in_whole_calls:  # whose calls are as in a run: only iterations that overlap are not
        less = 1 - items / seat.ranks / alone
        if not setting.overlap or less < WORTH:
            return ""
        what = f"{items / unit:.3g} groups" if unit > 1 else f"{items:.4g} items"
        return (
            f"{what} of an iteration do not divide by {seat.ranks} ranks, and each iteration is counted with the rank that has most; where iterations overlap "
            f"another one may have most in the next, and the worker needs up to {100 * less:.0f} % less"
        )
    together = float(seat.chunks * of_a_rank(items / seat.chunks, ranks, unit)[0])
    less = 1 - alone / together
    if less < WORTH:
        return ""
    return (
        f"chunks of {items / seat.chunks:.3g} items do not divide by {seat.ranks} ranks, which are counted as going on together, chunk by chunk; ranks that "
        f"take items by themselves may need up to {100 * less:.0f} % less"
    )


def _one_by_one(placement: Placement, seat: Seat) -> str:
    """Ranks that take turns with a source, and begin with what it hands over while it goes on."""
    setting, devices = placement.setting, set(seat.devices)
    fed = {setting.home[e.consumer] for e in setting.profile.edges}
    calls = placement.number_of_calls(seat) * seat.ranks
    for name in (e.producer for e in setting.profile.edges if e.consumer == seat.worker and setting.home[e.producer] not in fed):
        source = placement.seats[name]
        if source.chunks < calls and devices & set(source.devices) and devices - set(source.devices):
            how = "everything at once" if source.chunks == 1 else f"{source.chunks} parts"
            return (
                f"its ranks begin with what {name} hands over, which is counted as {how}; "
                f"where it puts items one by one, ranks on other devices begin earlier, in another order"
            )
    return ""


def _staggered(placement: Placement, seat: Seat) -> str:
    """Devices that are taken over from several workers, each on some of them."""
    own = set(seat.devices)
    there = {n: own & set(s.devices) for n, s in placement.seats.items() if n != seat.worker and own & set(s.devices)}
    several = [n for n, some in there.items() if some != own and any(not some & other for other in there.values())]
    if not several:
        return ""
    return f"takes turns with {' and '.join(several)}, each on some of its devices; counted as beginning when all are free, where ranks may begin one by one"
