"""Writing down what a rank did and what it waited for: the rules that the simulator follows too, so that both timelines are equal."""

from __future__ import annotations

from rlinf_lab.runtime.process import Process
from rlinf_lab.timeline.clock import Clock
from rlinf_lab.timeline.recorder import Recorder
from rlinf_lab.timeline.span import SpanKind

_RUN = int(SpanKind.RUN)


class SpanWriter:
    """Called by each rank's own thread, never under the host's mutex."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder, self._clock = recorder, clock

    def end_run(self, process: Process) -> int:
        """Close the running stretch; returns now, the start of what follows."""
        now = self._clock.now_ns()
        call = process.call
        if process.on_device and now > process.since and call is not None:
            self._recorder.add(process.track, _RUN, process.method, process.since, now, call.iteration)
        return now

    def resumed(self, process: Process, kind: SpanKind | None = None, start: int = 0, items: int = 0) -> None:
        """Write down the wait that has just ended; a running stretch begins."""
        # A put that found room never gave the device away: what it took is part of the running stretch.
        now = start if kind == SpanKind.PUT and process.bound_batch < 0 else self._clock.now_ns()
        end = process.bound_ns if process.lock_waited else now
        if kind is not None and process.queue is not None:
            iteration = process.call.iteration if process.call is not None else -1
            self._recorder.add(process.track, kind, process.method, start, max(start, end), iteration, items, 0, process.queue.number, process.first)
        if process.lock_waited and now > process.lock_from:
            self.add(process, SpanKind.LOCK, process.lock_from, now)
        process.since = now

    def add(self, process: Process, kind: SpanKind, start: int, end: int, name: str = "") -> None:
        call = process.call
        text = name or (call.method if call is not None else process.worker)
        iteration = call.iteration if call is not None else -1
        self._recorder.add(process.track, kind, self._recorder.name(text), start, end, iteration)
