"""Where a plan's seconds rest on ranks of a worker going on together, as data-parallel ones do: ranks that take items by themselves may take another time.
And where the search knows less than the simulation."""

from __future__ import annotations

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
        alone = len(setting.units[setting.home[name]].members) == 1
        if setting.profile.workers[name].in_turn:
            order = " and then ".join(producer for producer, _ in setting.profile.workers[name].in_turn)
            found.append(
                f"{name} takes all of {order}: plans are simulated so, but looked for as if it took a batch of each at a time; where one of those it waits for "
                f"takes turns with another, a run may be faster than said"
            )
        if setting.profile.workers[name].starts_on_device and not seat.stays and (others := _on_its_devices(placement, seat)):
            found.append(
                f"{name} computes before its first get, so it takes its devices from {' and '.join(others)} before its input is there, and once more when it "
                f"is: plans are simulated so, but looked for as if it came once. Next: read the inbox first, and compute then"
            )
        if seat.ranks > 1 and alone and name not in simulated and setting.profile.workers[name].kind != "generation":  # whose ranks stream in the forecast too
            found += [f"{name}: {said}" for said in (_uneven(placement, name, seat), _staggered(placement, seat)) if said]
    return tuple(found)


def _on_its_devices(placement: Placement, seat: Seat) -> list[str]:
    """Others that use some of the devices of a worker."""
    return [n for n, other in placement.seats.items() if n != seat.worker and set(other.devices) & set(seat.devices)]


def _uneven(placement: Placement, name: str, seat: Seat) -> str:
    """Chunks that do not divide by the ranks: in each the rank with most items decides, in all of them together it need not."""
    items, ranks, unit = placement.setting.profile.items, np.array([seat.ranks]), placement.setting.profile.unit(name)
    together, alone = (float(n * of_a_rank(items / n, ranks, unit)[0]) for n in (seat.chunks, 1))
    less = 1 - alone / together
    if less < WORTH:
        return ""
    return (
        f"chunks of {items / seat.chunks:.3g} items do not divide by {seat.ranks} ranks, which are counted as going on together, chunk by chunk; ranks that "
        f"take items by themselves may need up to {100 * less:.0f} % less"
    )


def _staggered(placement: Placement, seat: Seat) -> str:
    """Devices that are taken over from several workers, each on some of them."""
    own = set(seat.devices)
    there = {n: own & set(s.devices) for n, s in placement.seats.items() if n != seat.worker and own & set(s.devices)}
    several = [n for n, some in there.items() if some != own and any(not some & other for other in there.values())]
    if not several:
        return ""
    return f"takes turns with {' and '.join(several)}, each on some of its devices; counted as beginning when all are free, where ranks may begin one by one"
