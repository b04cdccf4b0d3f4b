"""Workers leave their devices and come back: by the rank's own thread, while that waits."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from rlinf_lab.errors import WorkerError
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.runtime.host.state import parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.state.spans import SpanWriter
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.worker import Residence


class Residency:
    """Of one host. ``threads``: its scheduler."""

    def __init__(self, state: HostState, threads: parts.RankControl, post: parts.Post, spans: SpanWriter) -> None:
        self._state, self._threads, self._post, self._spans = state, threads, post, spans

    def order(self, process: Process, order: str) -> None:
        """Under the mutex: its own thread shall leave or come onto its device. It goes on waiting meanwhile."""
        process.order = order
        self._threads.begins()
        if process.parked:
            self._threads.let_go(process)

    def carry_out(self, process: Process) -> None:
        """Leave or come onto the device and report it. What the thread waits for stays what it was."""
        state, threads = self._state, self._threads
        with state.mutex:
            order, process.order = process.order, ""
            process.ordering, process.woken_outside = True, False
            awake = process.woken  # it was resumed in the same instant in which the order came
            if awake:
                threads.ends()  # one thread, counted twice
            process.waits_outside = waits_for = process.waits_for
            blocked_at, process.waits_for = process.blocked_at, ""
            mates = self.mates(process)
        start = state.clock.now_ns()
        coming = order == "onload"
        if coming and process.call is not None and start > process.lock_from:
            self._spans.add(process, SpanKind.LOCK, process.lock_from, start)
        moved, units = True, {}
        try:
            moved = switch(process, order, mates)
            units = self._shared_units(process, [*mates[0], *mates[1]])
        except BaseException as error:
            self._post.report(WorkerError.of(process.worker, process.rank, order, error, traceback.format_exc()))
        end = state.clock.now_ns()
        if moved:  # not what is there for another worker, which shares it
            self._spans.add(process, SpanKind.ONLOAD if coming else SpanKind.OFFLOAD, start, end, name=order)
        with state.mutex:
            process.ordering = False
            self._tell(process, units)
            process.lock_from = end if coming else process.lock_from
            has_call = waits_for == "call" and bool(process.calls or state.stopping or process.leaving)
            came = process.woken = awake or process.woken_outside or has_call
            process.waits_for, process.blocked_at = ("", "") if came else (waits_for, blocked_at)
            if not came:
                threads.ends()
            threads.report((process.index, Event.ONLOADED if coming else Event.OFFLOADED, -1, 0))
            threads.settle()
            process.parked = not process.woken
        self._post.flush()

    def share(self, process: Process) -> tuple[list[Process], list[Process]]:
        """Under the mutex: tell the engine which memory a newly built worker has in common. Returns its `mates`."""
        mates = self.mates(process)
        self._tell(process, self._shared_units(process, [*mates[0], *mates[1]]))
        return mates

    def mates(self, process: Process) -> tuple[list[Process], list[Process]]:
        """Under the mutex: other ranks here with workers. Those on their devices or about to come are first, the rest
        second.
        """
        found: tuple[list[Process], list[Process]] = [], []
        for other in self._state.processes:
            if other.instance is not None and other is not process:
                found[not self._state.engine.is_present(other.index)].append(other)
        return found

    def _tell(self, process: Process, units: dict[int, int]) -> None:
        for other, n in units.items():
            self._state.engine.share(process.index, other, n)

    @staticmethod
    def _shared_units(process: Process, mates: Sequence[Process]) -> dict[int, int]:
        """How much memory is the same, by processes that use a device of this one. It is the lesser of what either
        says, true of both.
        """
        mine, size = process.instance, process.machine.size
        found = {}
        for other in mates:
            theirs = other.instance
            shares_device = not set(process.machine.devices).isdisjoint(other.machine.devices)
            if mine is not None and theirs is not None and shares_device:
                units = size * Residence(mine).shared(theirs), other.machine.size * Residence(theirs).shared(mine)
                found[other.index] = int(min(units))
        return found


def switch(process: Process, order: str, mates: Sequence[Sequence[Process]]) -> bool:
    """Have its worker carry out "onload" or "offload", by its own thread; whether anything moved.

    ``mates``: present ones and absent ones.
    """
    present, absent = ([other.instance for other in some if other.instance is not None] for some in mates)
    instance = process.instance  # None: it is still to be built
    return instance is not None and Residence(instance).switch(order, present, absent)
