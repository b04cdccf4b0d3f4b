"""Fillers in an executor: their threads, one step for each gap that the engine finds, and what they tell.

A filler that fails ends, and the iterations go on: its error is in ``fillers`` and ``status()`` meanwhile, and is
raised when the run ends.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from rlinf_lab.errors import Cancelled, WorkerError, WorkflowError
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Filled, Process
from rlinf_lab.runtime.machine.devices import finish_work
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.declaration import Declaration
from rlinf_lab.workflow.filler import Filler

PATIENCE_SECONDS = 30.0  # for which an iteration waits for the end of a step, of milliseconds, before that is told


class Patience:
    """Of one host: that the flow waits for a step without end is told, once for each filler.

    It may be in the middle of anything and end after all, so neither is it interrupted nor the iteration given up for
    it. A thread looks from the first wait for a step on.
    """

    def __init__(self, state: HostState, post: parts.Post) -> None:
        self._state, self._post = state, post
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._since: dict[Process, tuple[int, float]] = {}  # fillers in the way: in which step, known since when

    def begin(self) -> None:
        """Under the mutex: a step is in the way."""
        if self._thread is None and self._state.mock is None:  # mock time does not pass while nothing ends
            self._thread = threading.Thread(target=self._watch, name="patience with fillers", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Nobody looks any more."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(PATIENCE_SECONDS / 10):
            with self._state.mutex:
                self._look()
            self._post.flush()

    def _look(self) -> None:
        now, awaited = time.monotonic(), self._awaited()
        for process, waiting in awaited.items():
            assert process.filled is not None
            step, since = self._since.get(process, (-1, now))
            if step != process.filled.steps:
                self._since[process] = process.filled.steps, now
            elif now - since >= PATIENCE_SECONDS:
                self._since[process] = step, now
                method = self._state.layout.filler[process.worker].method
                self._post.remark(f"filler {process.label}", _without_end(process, method, waiting), at_once=True)
        self._since = {process: known for process, known in self._since.items() if process in awaited}

    def _awaited(self) -> dict[Process, list[str]]:
        """Fillers in a step, and who of the flow waits for their device."""
        engine, processes, found = self._state.engine, self._state.processes, dict[Process, list[str]]()
        for index, why, device in engine.waiting():
            holder = engine.holder(device) if why == "lock" else None
            if holder is not None and processes[holder].filled is not None:
                found.setdefault(processes[holder], []).append(processes[index].label)
        return found


def _without_end(process: Process, method: str, waiting: Sequence[str]) -> str:
    filled = process.filled
    assert filled is not None
    return (
        f"Filler {process.label} keeps {', '.join(waiting)} from {filled.device} for {PATIENCE_SECONDS:g} s: call "
        f"{filled.steps + 1} of its {method}() has not ended, and the iteration waits for it. Next: return from "
        f"{method}() every few milliseconds and go on in the next call; what cannot be cut belongs on a device outside "
        f"of the plan."
    )


class Fillers:
    """Of one host."""

    def __init__(self, state: HostState, control: parts.RankControl, post: parts.Post) -> None:
        self._state, self._control, self._post = state, control, post
        self._patience = Patience(state, post)
        self.end = self._patience.end
        post.on(messages.UnderWay, self._under_way)
        post.on(messages.CountDelay, lambda _: state.engine.count_delay())
        post.on(messages.Delayed, self._tell_others)

    def _under_way(self, message: messages.UnderWay) -> None:
        """They take steps meanwhile."""
        if message.begins:
            self._state.newest_iteration = message.iteration
            self._state.engine.begin(message.iteration)
        else:
            self._state.engine.over(message.iteration)

    def delayed(self) -> None:
        """Under the mutex: a step is in the way of the flow."""
        self._patience.begin()
        if not self._state.alone:
            self._post.tell_driver(messages.Delayed(self._state.name))

    def _tell_others(self, message: messages.Delayed) -> None:
        """At the driver's host: they count it."""
        for other in sorted(set(self._state.place.values()) - {self._state.name, message.origin}):
            self._post.say(other, messages.CountDelay())

    def keep_filling(self, process: Process, step_begins: Callable[[int], None]) -> None:
        """The life of a filler's thread between its setup and its end: a step for each gap, until there is no more.

        ``step_begins(iteration)``: what it logs from now on belongs to that one.
        """
        method = self._state.layout.filler[process.worker].method
        process.method = self._state.recorder.name(method)
        event = (process.index, int(Event.START), -1, 1)
        while self._gap(process, event):
            step_begins(self._state.newest_iteration)
            goes_on = self._step(process, method)
            event = (process.index, int(Event.DONE), -1, int(goes_on))
        with self._state.mutex:
            self._control.ends(process.counts)

    def _gap(self, process: Process, event: parts.Event) -> bool:
        """Report the end of a step and wait for the next gap. False when the run ends."""
        with self._state.mutex:
            if self._state.stopping:
                return False
            self._control.block(process, "gap", "", event)
        self._post.flush()
        self._control.park(process)
        return not self._state.stopping

    def _step(self, process: Process, method: str) -> bool:
        """One step; whether there is more to do."""
        state, filled, process.since = self._state, process.filled, self._state.clock.now_ns()
        assert filled is not None
        try:
            result = getattr(process.instance, method)()
            # kernels that were only launched would pile up before who wants the device
            finish_work(process.device, process.own_stream)
        except BaseException as error:
            if not (isinstance(error, Cancelled) and state.stopping):  # cut off at the end of the run
                self._failed(filled, method, error, traceback.format_exc())
            return False
        end = state.clock.now_ns()
        if end > process.since:
            state.recorder.add(process.track, SpanKind.RUN, process.method, process.since, end)
        filled.steps += 1
        filled.seconds += (end - process.since) / 1e9
        if result is False:
            filled.is_done = True
        else:
            filled.result = result
        return not filled.is_done

    def _failed(self, filled: Filled, method: str, error: BaseException, trace: str) -> None:
        filled.is_done = True
        filled.error = WorkerError.of(filled.name, filled.rank, method, error, trace)
        self._state.errors.append(filled.error)

    # --- telling -----------------------------------------------------------------------------------------------
    def all(self) -> list[Filled]:
        """What the fillers of this host have done so far."""
        return [p.filled for p in self._state.ranks if p.filled is not None]

    def news(self, told: dict[tuple[str, int], tuple[int, bool]]) -> list[Filled]:
        """What they have done since they ``told``, which is brought up to date. For the driver's. Results
        are packed.
        """
        found = []
        for filled in self.all():
            here = (filled.steps, filled.is_done)
            if told.get((filled.name, filled.rank)) != here:
                told[filled.name, filled.rank] = here
                found.append(self._travelling(filled))
        return found

    def _travelling(self, filled: Filled) -> Filled:
        """A copy, its result packed. One that does not pickle is the filler's error, and no more results are sent."""
        copy = dataclasses.replace(filled)
        try:
            copy.result = Packed.of(filled.result)
        except WorkflowError as error:
            if filled.error is None:
                method = self._state.layout.filler[filled.name].method
                self._failed(filled, method, error, f"what {method}() returned, on its way to the driver")
            copy.error, copy.is_done, copy.result = filled.error, True, None
        return copy


def opened(filled: Filled) -> Filled:
    """What `Fillers.news` has packed."""
    if isinstance(filled.result, Packed):
        filled.result = filled.result.open()
    return filled


def declarations_of(fillers: Sequence[Filler]) -> dict[str, Declaration]:
    """By name."""
    return {f.spec.name: f.declaration for f in fillers}
