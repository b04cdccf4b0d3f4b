"""Ranks that come to their devices and leave them, in virtual time. It also settles what then moves of weights that
several hold.

The rules of `workers.residence`: what who leaves holds together with somebody who is there, or about to come, stays.
Whoever leaves last takes it, whoever comes first brings it, and they move it one after another.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.planning.engine.state import Process
from rlinf_lab.planning.simulator.state import BITS, Rank, State
from rlinf_lab.timeline.record.span import SpanKind


class Switches:
    """``switch_ns``: for each worker the nanoseconds to (onload, offload). ``shared``: for each weights, of each worker
    that holds them, which part of what it moves they are.
    """

    def __init__(
        self, state: State, switch_ns: Mapping[str, tuple[int, int]], shared: Sequence[Mapping[str, float]]
    ) -> None:
        self._state, self._engine, self._switch_ns = state, state.engine, switch_ns
        self._held: dict[int, tuple[int, float]] = {}  # by process: number of the weights, and its part
        self._mates: dict[tuple[int, int], list[int]] = {}  # by weights and device: the processes there that hold them
        self._there: set[tuple[int, int]] = set()  # weights on devices
        self._busy: dict[tuple[int, int], int] = {}  # until when somebody moves them there, nanoseconds
        for number, parts in enumerate(shared):
            holders = {p.index: parts[p.worker] for p in state.ranks if p.worker in parts}
            for index, part in holders.items():
                self._held[index] = number, part
                for device in self._engine.processes[index].devices:
                    mates = self._mates.setdefault((number, device), [])
                    for other in mates:
                        self._share(index, other)
                    mates.append(index)

    def _share(self, one: int, other: int) -> None:
        """Of units of memory whole ones, as far as it is true of either."""
        sizes = [self._engine.processes[i].size * self._held[i][1] for i in (one, other)]
        self._engine.share(one, other, int(min(sizes)))

    def begin(self, p: Rank, coming: bool) -> None:
        """The rank leaves or comes while it goes on waiting. A timer stands for its own thread doing so."""
        state = self._state
        p.switching, p.coming, p.switch_from = True, coming, state.now
        if p in state.ready:  # resumed in this very instant: it switches first
            state.ready.remove(p)
            p.deferred = True
        if coming and p.call is not None and state.now > p.lock_from:
            state.add(p, SpanKind.LOCK, p.lock_from, state.now)
        onload, offload = self._switch_ns.get(p.worker, (0, 0))
        end, p.moves = self._moved(p.machine, coming, onload if coming else offload, state.now)
        heapq.heappush(state.timers, (end << BITS) + p.slot + 1)

    def end(self, p: Rank) -> None:
        state = self._state
        kind, name = (SpanKind.ONLOAD, "onload") if p.coming else (SpanKind.OFFLOAD, "offload")
        if p.moves:
            state.add(p, kind, p.switch_from, state.now, name)
        if p.coming:
            p.lock_from = state.now
        state.pending.append((p.index, Event.ONLOADED if p.coming else Event.OFFLOADED, -1, 0))
        p.switching = False
        if p.deferred:
            p.deferred = False
            state.ready.append(p)

    def _moved(self, process: Process, coming: bool, duration: int, now: int) -> tuple[int, bool]:
        """A switch of this process begins, of so many nanoseconds where all of it moves. Returns when it ends, and
        whether anything moves.
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
