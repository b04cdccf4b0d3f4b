"""Writing down what a rank did and what it waited for. The simulator follows the same rules, so that both timelines are
equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.timeline.record.clock import Clock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind

_RUN, _LOCK, _GET = int(SpanKind.RUN), int(SpanKind.LOCK), int(SpanKind.GET)
_WAITS = {int(Event.GET): SpanKind.GET, int(Event.PUT): SpanKind.PUT, int(Event.ASIDE): SpanKind.WAIT}


class SpanWriter:
    """Called by each rank's own thread, never under the host's mutex. Thousands of times a second, with what it needs
    no more in the caches: nothing is looked up twice, and rows are left to be packed by whoever drains them
    (`Recorder.loose`)."""

    def __init__(self, recorder: Recorder, clock: Clock) -> None:
        self._recorder, self._loose, self._write, self._now = (
            recorder,
            recorder.loose,
            recorder.loose.extend,
            clock.now_ns,
        )

    def end_run(self, process: Process, at: int | None = None) -> int:
        """Close the running stretch, now or ``at`` (ns). Returns when, the start of what follows (and of the next
        stretch, if nothing does).
        """
        now, since, call = self._now() if at is None else at, process.since, process.call
        if process.on_device and now > since and call is not None:
            self._write((since, now, 0, -1, process.track, process.method, -1, call.iteration, 0, _RUN))
        # looked at once a stretch, which has two waits at most, also of a driver and of stretches of no time
        if len(self._loose) >= self._recorder.most_loose:
            self._recorder.pack_up()
        process.since = now
        return now

    def resumed(self, process: Process, kind: int = -1, items: int = 0) -> None:
        """Write down the wait that has just ended; a running stretch begins.

        A get or a put is over when the items were taken or stored, by the clock under the host's mutex: what a channel
        holds by its spans is what it held. Until its thread goes on a rank waits for its device, or for a processor.
        What was there at once never gave the device away: it took no time, and what it cost is part of the running
        stretch.
        """
        start, queue, call = process.since, process.queue, process.call
        if process.waited:
            now = self._now()
            end = process.bound_ns or now
        else:
            now = end = process.bound_ns or start
        iteration = call.iteration if call is not None else -1
        if kind >= 0 and queue is not None:
            end = end if end > start else start
            self._write(
                (start, end, 0, process.first, process.track, process.method, queue.number, iteration, items, kind)
            )
        if (
            process.on_device
            and now > process.lock_from
            and (process.lock_waited or (process.waited and process.bound_ns))
        ):
            self._write((process.lock_from, now, 0, -1, process.track, process.method, -1, iteration, 0, _LOCK))
        process.since = now

    def found_nothing(self, process: Process, kind: int) -> None:
        """A get that does not wait found nothing, or a put completed nothing. That is no wait, unless there was one."""
        asked = kind == _GET and process.queue is not None and process.queue.stub
        self.resumed(process, kind if asked or (process.waited and self._now() > process.since) else -1)

    def broke_off(self, process: Process, event: int) -> None:
        """Write down a wait that was interrupted: nothing came of it. A running stretch begins, to the end
        of the call.
        """
        start, call, channel = process.since, process.call, -1 if process.queue is None else process.queue.number
        if event not in _WAITS or call is None:
            return
        process.since = now = self._now()
        if now > start:
            self._recorder.add(
                process.track, _WAITS[event], process.method, start, now, call.iteration, 0, 0, channel, -1
            )

    @contextmanager
    def wait(self, process: Process) -> Iterator[None]:
        """The body is a wait that has nothing to do with channels."""
        start = self.end_run(process)
        try:
            yield
        finally:
            process.since = self._now()
            if process.since > start:
                self.add(process, SpanKind.WAIT, start, process.since)

    def add(self, process: Process, kind: SpanKind, start: int, end: int, name: str = "") -> None:
        call = process.call
        text = name or (call.method if call is not None else process.worker)
        iteration = call.iteration if call is not None else -1
        self._recorder.add(process.track, kind, self._recorder.name(text), start, end, iteration)
