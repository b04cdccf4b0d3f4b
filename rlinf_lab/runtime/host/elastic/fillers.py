"""Fillers in an executor: their threads, one step for each time that the engine finds a gap, and what they tell.

A filler that fails ends, and the iterations go on: its error is in ``fillers`` and ``status()`` meanwhile, and is raised when the run ends.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlinf_lab.errors import Cancelled, WorkerError, WorkflowError
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.runtime.host import protocol
from rlinf_lab.runtime.host.rank import Filled, HostContext, Process
from rlinf_lab.runtime.machine.devices import finish_work
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.declaration import Declaration
from rlinf_lab.workflow.filler import Filler

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host


PATIENCE_SECONDS = 30.0  # for which an iteration waits for the end of a step, which takes milliseconds, before that is told


class Patience:
    """Of one host: that the flow waits for a step without end is told, once for each filler. (It may be in the middle of anything and end after all, so
    neither is it interrupted nor the iteration given up for it.) A thread looks from the first wait for a step on."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._since: dict[Process, tuple[int, float]] = {}  # fillers in the way: in which step, and since when that is known

    def begin(self) -> None:
        """Under the mutex: a step is in the way."""
        if self._thread is None and self._host._mock is None:  # mock time does not pass while nothing ends
            self._thread = threading.Thread(target=self._watch, name="patience with fillers", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(PATIENCE_SECONDS / 10):
            with self._host._mutex:
                self._look()
            self._host.flush()

    def _look(self) -> None:
        now, awaited = time.monotonic(), self._awaited()
        for process, waiting in awaited.items():
            assert process.filled is not None
            step, since = self._since.get(process, (-1, now))
            if step != process.filled.steps:
                self._since[process] = process.filled.steps, now
            elif now - since >= PATIENCE_SECONDS:
                self._since[process] = step, now
                protocol.remark(self._host, f"filler {process.label}", _without_end(self._host, process, waiting), at_once=True)
        self._since = {process: known for process, known in self._since.items() if process in awaited}

    def _awaited(self) -> dict[Process, list[str]]:
        """Fillers in a step, and who of the flow waits for their device."""
        host, found = self._host, dict[Process, list[str]]()
        for index, why, device in host._engine.waiting():
            holder = host._engine.holder(device) if why == "lock" else None
            if holder is not None and host._processes[holder].filled is not None:
                found.setdefault(host._processes[holder], []).append(host._processes[index].label)
        return found


def _without_end(host: Host, process: Process, waiting: Sequence[str]) -> str:
    method, filled = host.layout.filler[process.worker].method, process.filled
    assert filled is not None
    return (
        f"Filler {process.label} keeps {', '.join(waiting)} from {filled.device} for {PATIENCE_SECONDS:g} s: call {filled.steps + 1} of its {method}() has "
        f"not ended, and the iteration waits for it. Next: return from {method}() every few milliseconds and go on in the next call; what cannot be cut "
        f"belongs on a device outside of the plan."
    )


def keep_filling(host: Host, process: Process, context: HostContext) -> None:
    """The life of a filler's thread between its setup and its end: a step for each gap, until there is no more to do."""
    method = host.layout.filler[process.worker].method
    process.method = host.recorder.name(method)
    event: tuple[int, int, int, int] | None = (process.index, Event.START, -1, 1)
    while _gap(host, process, event):
        goes_on = _step(host, process, context, method)
        event = (process.index, Event.DONE, -1, int(goes_on))
    with host._mutex:
        host._running -= process.counts


def _gap(host: Host, process: Process, event: tuple[int, int, int, int] | None) -> bool:
    """Report the end of a step and wait for the next gap; False when the run ends."""
    with host._mutex:
        if host.stopping:
            return False
        host._block(process, "gap", "", event)
    host.flush()
    host._park(process)
    return not host.stopping


def _step(host: Host, process: Process, context: HostContext, method: str) -> bool:
    """One step; whether there is more to do."""
    filled, process.since = process.filled, host.clock.now_ns()
    assert filled is not None
    context.logs_to = host.newest_iteration
    try:
        result = getattr(process.instance, method)()
        finish_work(process.device)  # a launch of kernels returns at once: they would pile up in front of who wants the device
    except BaseException as error:
        if not (isinstance(error, Cancelled) and host.stopping):  # cut off at the end of the run
            failed(host, filled, method, error, traceback.format_exc())
        return False
    end = host.clock.now_ns()
    if end > process.since:
        host.recorder.add(process.track, SpanKind.RUN, process.method, process.since, end)
    filled.steps += 1
    filled.seconds += (end - process.since) / 1e9
    if result is False:
        filled.is_done = True
    else:
        filled.result = result
    return not filled.is_done


def failed(host: Host, filled: Filled, method: str, error: BaseException, trace: str) -> None:
    filled.is_done = True
    filled.error = WorkerError.of(filled.name, filled.rank, method, error, trace)
    host.errors.append(filled.error)


def news_of(host: Host, told: dict[tuple[str, int], tuple[int, bool]]) -> list[Filled]:
    """What the fillers of this host have done, for the driver's; those that have since ``told``, which is brought up to date. Results are packed."""
    found = []
    for filled in host.filled():
        here = (filled.steps, filled.is_done)
        if told.get((filled.name, filled.rank)) != here:
            told[filled.name, filled.rank] = here
            found.append(_travelling(host, filled))
    return found


def _travelling(host: Host, filled: Filled) -> Filled:
    """A copy with its result packed; one that does not pickle is the filler's error, and no more results are sent."""
    copy = dataclasses.replace(filled)
    try:
        copy.result = Packed.of(filled.result)
    except WorkflowError as error:
        if filled.error is None:
            method = host.layout.filler[filled.name].method
            failed(host, filled, method, error, f"what {method}() returned, on its way to the driver")
        copy.error, copy.is_done, copy.result = filled.error, True, None
    return copy


def opened(filled: Filled) -> Filled:
    """What `news_of` has packed."""
    if isinstance(filled.result, Packed):
        filled.result = filled.result.open()
    return filled


def declarations_of(fillers: Sequence[Filler]) -> dict[str, Declaration]:
    return {f.spec.name: f.declaration for f in fillers}
