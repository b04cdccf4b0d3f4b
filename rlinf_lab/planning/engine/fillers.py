"""Fillers in the engine: processes that take a device for one step, where nobody of the flow is on it or waits for it.

- A filler holds its device for exactly one step; nobody is interrupted. Who wants the device meanwhile waits for the
  end of that step.
- The drivers let steps begin when an instant has settled (`Engine.fill`), so the flow goes first also among events of
  one instant.
- A step that somebody of the flow had to wait for is counted, once, for every iteration that is under way. A filler
  begins no step while an iteration under way has waited for as many as it may (its ``delays``). All steps that were
  going on when the first one was in the way end within one step's length from then, on whichever devices they are, so
  an iteration waits for at most one step's length with ``delays=1``.

What follows from such a wait is the schedule's: where ranks compete for a device, another order of coming can cost more
than the wait (or less), as any rank that is late can (anomalies of list scheduling: Graham 1969, SIAM J. Appl. Math.
17).
"""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_lab.planning.engine.state import Process


class Fillers:
    """``holders``, ``queues``: of the engine, by device: who has it, and who of the flow waits for it."""

    def __init__(self, holders: Sequence[Process | None], queues: Sequence[Sequence[Process]]) -> None:
        self._holders, self._queues = holders, queues
        self._waiting: list[Process] = []  # for their next step, in the order of their asking
        self.running: dict[Process, bool] = {}  # in a step; whether that was counted
        self._under_way: dict[int, int] = {}  # iterations: for how many steps they have waited

    def begin(self, iteration: int) -> None:
        """An iteration begins: from now on fillers may take steps, until `over`. A step that is in the way of earlier
        ones may be in its way, too.
        """
        self._under_way.setdefault(iteration, int(any(self.running.values())))

    def over(self, iteration: int) -> None:
        self._under_way.pop(iteration, None)

    def ask(self, p: Process) -> None:
        """It has a step to do."""
        p.state = "ready"
        self._waiting.append(p)

    def leave(self, p: Process) -> None:
        """Its step has ended."""
        del self.running[p]

    def next(self) -> list[Process]:
        """Those that may begin a step now, one for a device."""
        if not self._waiting or not self._under_way:
            return []
        waited, taken, found = max(self._under_way.values()), set[int](), []
        for p in self._waiting:
            free = all(self._holders[d] is None and not self._queues[d] and d not in taken for d in p.devices)
            if free and waited < p.delays:
                taken.update(p.devices)
                found.append(p)
                self.running[p] = False
        if found:
            self._waiting = [p for p in self._waiting if p not in self.running]
        return found

    def newly_in_the_way(self) -> list[Process]:
        """Those in a step that somebody of the flow has begun to wait for. Their steps are counted."""
        found = [p for p, counted in self.running.items() if not counted and self._is_awaited(p)]
        for p in found:
            self.running[p] = True
            self.count()
        return found

    def reserve(self) -> None:
        """Who would have a device, were it not for a step, gets it first then. Whoever else has come meanwhile."""
        held = {d for p in self.running for d in p.devices}
        waiting = {p.index: p for d in held for p in self._queues[d]}.values()
        taken = {d for p in waiting if p.lock_key[0] < 0 for d in p.devices}
        for p in sorted((p for p in waiting if p.lock_key[0] >= 0), key=lambda p: p.lock_key):
            if all((d in held or self._holders[d] is None) and d not in taken for d in p.devices):
                p.lock_key = (-1, *p.lock_key[1:])
                taken.update(p.devices)

    def count(self) -> None:
        """A step here or on another host is in the way."""
        for iteration in self._under_way:
            self._under_way[iteration] += 1

    def are_in_the_way(self) -> bool:
        """Whether somebody of the flow waits for the end of a step: then something moves. May be asked while steps
        begin and end.
        """
        return any(map(self._is_awaited, list(self.running)))

    def _is_awaited(self, p: Process) -> bool:
        return any(self._queues[d] for d in p.devices)
