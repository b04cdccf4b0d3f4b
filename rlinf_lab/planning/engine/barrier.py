"""Ranks of a worker that wait for each other in the middle of their calls, and give their devices to others meanwhile.

Two workers whose ranks meet, on the same devices, would wait for each other for ever where one has the first device and
the other the second. So a rank that comes to a meeting steps aside, and when all are there they come back: on every
device in the order in which their meetings were complete, before anybody who waits for items. Of two meetings that want
the same devices each device then sees the same one first (the ordered acquisition of resources of Dijkstra, 1968), also
where each device has an engine of its own. Who keeps the order is the driver's affair; see
`runtime.host.elastic.meetings`.
"""

from __future__ import annotations

from rlinf_lab.planning.engine.state import Process


class Meeting:
    """This part of the engine."""

    processes: list[Process]
    _out: list[tuple[int, int, int, int]]

    def _release(self, p: Process) -> None:
        raise NotImplementedError

    def _want(self, p: Process) -> None:
        raise NotImplementedError

    def _flush(self) -> list[tuple[int, int, int, int]]:
        raise NotImplementedError

    def _step_aside(self, p: Process, do: int) -> None:
        """It has come to a meeting; ``do``: the instruction that says so."""
        p.state = "aside"
        self._release(p)
        self._out.append((do, p.index, 0, 0))

    def come_back(self, process: int, bound: int) -> list[tuple[int, int, int, int]]:
        """All are there: it wants its devices, before those who wait for them with items. Nothing for one that does not
        wait any more.

        ``bound``: `Do.BOUND`.
        """
        p = self.processes[process]
        if p.state != "aside":
            return []
        p.lo = p.hi = 0
        self._out.append((bound, p.index, 0, 0))
        iteration, p.iteration, priority, p.priority = p.iteration, -1, p.priority, 0
        self._want(p)
        p.iteration, p.priority = iteration, priority
        return self._flush()
