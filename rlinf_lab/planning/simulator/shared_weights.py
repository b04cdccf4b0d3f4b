"""Weights that several workers of a process hold, in virtual time: what of them is on a device, what of a switch is
left.

The rules of `workers.residence`: what who leaves holds together with somebody who is there, or about to come, stays.
Whoever leaves last takes it, whoever comes first brings it, and they move it one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlinf_lab.planning.engine.engine import Engine
from rlinf_lab.planning.engine.state import Process


class HeldTogether:
    """``ranks``: processes by (worker, rank). ``shared``: for each weights, of each worker that holds them, which part
    of what it moves they are.
    """

    def __init__(
        self, engine: Engine, ranks: Mapping[tuple[str, int], int], shared: Sequence[Mapping[str, float]]
    ) -> None:
        self._engine = engine
        self._held: dict[int, tuple[int, float]] = {}  # by process: number of the weights, and its part
        self._mates: dict[tuple[int, int], list[int]] = {}  # by weights and device: the processes there that hold them
        self._there: set[tuple[int, int]] = set()  # weights on devices
        self._busy: dict[tuple[int, int], int] = {}  # until when somebody moves them there, nanoseconds
        for number, parts in enumerate(shared):
            holders = {index: parts[worker] for (worker, _), index in ranks.items() if worker in parts}
            for index, part in holders.items():
                self._held[index] = number, part
                for device in engine.processes[index].devices:
                    mates = self._mates.setdefault((number, device), [])
                    for other in mates:
                        self._share(index, other)
                    mates.append(index)

    def _share(self, one: int, other: int) -> None:
        """Of units of memory whole ones, as far as it is true of either."""
        sizes = [self._engine.processes[i].size * self._held[i][1] for i in (one, other)]
        self._engine.share(one, other, int(min(sizes)))

    def switched(self, process: Process, coming: bool, duration: int, now: int) -> tuple[int, bool]:
        """A switch of this process begins, of so many nanoseconds where all of it moves: when it ends, and whether
        anything moves.
        """
        held = self._held.get(process.index)
        if held is None:
            return now + duration, True
        number, part = held
        rest, start, whole = round(duration * (1 - part)), now, False
        for device in process.devices:
            at = number, device
            is_there, others = (
                at in self._there,
                any(i != process.index and self._engine.is_present(i) for i in self._mates[at]),
            )
            start = max(start, self._busy.get(at, now))
            if coming and not is_there:
                self._there.add(at)
                whole = True
            elif not coming and is_there and not others:
                self._there.discard(at)
                whole = True
        end = start + (duration if whole else rest)
        self._busy.update({(number, device): end for device in process.devices})
        return end, whole or part < 1
