"""Setups of one process come one after another (`host.Host.start`), and who will have to leave its device for others leaves it at once: what does not fit
there later does not fit there now. A setup that waits for a later one would wait for ever; here it is found out.

A setup may take as long as it likes while it does something: loading a model computes, reads or receives. One during which its process (with
those it has started) does next to nothing for `IDLE_SECONDS`, while others are still to come after it, is taken for one that waits for them. A
download by another process of this machine counts as something: files are fetched by one and awaited by the others behind a lock.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rlinf_lab.errors import ExecutorError, WorkerError
from rlinf_lab.runtime.host.elastic.unfit import refuse_to_stay
from rlinf_lab.runtime.host.rank import Process
from rlinf_lab.runtime.host.scheduler import switch
from rlinf_lab.runtime.machine.devices import use_device
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.worker import Context

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host

IDLE_SECONDS = 120.0
LOOKS = 20  # in that time
IDLE_SHARE = 0.05  # of one core: more than a loop needs that looks for something a hundred times a second
IDLE_BYTES = 1 << 20


def set_up(host: Host, process: Process, context: Context, in_truth: bool) -> WorkerError | None:
    """In the rank's own thread: build its worker, and ask whether it can do what the plan wants. What went wrong, by the method that did.

    ``in_truth``: on the devices that are named, not in a made-up time.
    """
    layout, declarations, method = host.layout, host._declarations, "__init__"
    try:
        if in_truth:
            use_device(process.device)
        process.instance = declarations[process.worker].build(context)
        method = "setup"
        process.instance.setup()
        method = "can_leave"
        refuse_to_stay(layout, declarations, process.worker, process.instance)
        method = "onload" if process.joining else "offload"
        if process.joining and process.machine.holding:
            _bring_what_is_away(host, process)
        elif in_truth and process.machine.size and not process.joining and process.instance._leaves_at_once() and not process.instance._why_it_stays():
            _leave_if_others_need_the_place(host, process)
    except BaseException as error:
        return WorkerError.of(process.worker, process.rank, method, error, traceback.format_exc())
    return None


def built_at_start(host: Host) -> list[Process]:
    """In their order."""
    return [p for p in host.ranks if p.worker != DRIVER and (p.worker, p.rank) not in host.layout.absent]


def _leave_if_others_need_the_place(host: Host, process: Process) -> None:
    """Where it shares memory with one that is still to be built it stays until that is: it is there once, and each would be given a copy of its own."""
    assert process.instance is not None
    with host._mutex:
        present, absent = host._mates(process)
        for other, units in host._shared_units(process, [*present, *absent]).items():
            host._engine.share(process.index, other, units)
        if host._engine.is_room_for_all(process.index):
            return
    given = {worker: process.instance._shares_with_given(declared.arguments) for worker, declared in host._declarations.items()}
    order = built_at_start(host)
    until = max((n for n, other in enumerate(order, 1) if other.instance is None and given.get(other.worker)), default=0)
    if until > host._set_up:
        process.stays_until = until
        return
    present += [other for other in absent if not other.left_at_once]  # nothing has brought it, but it is there since it was built
    switch(process, "offload", (present, [other for other in absent if other.left_at_once]))
    process.left_at_once = True


def _bring_what_is_away(host: Host, process: Process) -> None:
    """It has its devices, and was built there; what it shares with others may have left with them."""
    with host._mutex:
        mates = host._mates(process)
    switch(process, "onload", mates)
    with host._mutex:
        for other, units in host._shared_units(process, [*mates[0], *mates[1]]).items():
            host._engine.share(process.index, other, units)


def leave_after_others(host: Host, process: Process) -> None:
    """In the thread of a rank that has stayed for others: the last of them is built. Those that have stayed leave one after another."""
    with host._ready:
        host._ready.wait_for(lambda: host.stopping or (process.stays_until <= host._set_up and next(_leaving(host)) is process))
    start = host.clock.now_ns()
    try:
        if not host.stopping:
            _leave_if_others_need_the_place(host, process)
    except BaseException as error:
        host._fail(WorkerError.of(process.worker, process.rank, "offload", error, traceback.format_exc()))
    host.recorder.add(process.track, SpanKind.SETUP, host.recorder.name("setup"), start, host.clock.now_ns())
    with host._ready:
        process.stays_until = 0
        host._ready.notify_all()


def _leaving(host: Host) -> Iterator[Process]:
    """Who has stayed for others, and may go now."""
    return (p for p in host.ranks if 0 < p.stays_until <= host._set_up)


def have_come(host: Host, number: int) -> bool:
    """Whether so many are set up, and those that stayed for the last of them have left; or the host is stopped."""
    return host.stopping or (host._set_up >= number and next(_leaving(host), None) is None)


class Work(NamedTuple):
    """``seconds``: of processors, by this process and those it has started; ``read``, ``received``: bytes, the latter by the machine."""

    seconds: float
    read: int
    received: int

    @classmethod
    def so_far(cls) -> Work:
        import psutil

        me, seconds = psutil.Process(), 0.0
        for process in [me, *me.children(recursive=True)]:
            try:
                times = process.cpu_times()
            except psutil.Error:  # it has ended meanwhile
                continue
            seconds += times.user + times.system
        files = me.io_counters() if hasattr(me, "io_counters") else None  # there is none on a Mac
        received = sum(found.bytes_recv for name, found in psutil.net_io_counters(pernic=True).items() if name != "lo")
        return cls(seconds, 0 if files is None else files.read_bytes + getattr(files, "read_chars", 0), received)

    def is_next_to_nothing_since(self, before: Work, elapsed: float) -> bool:
        """A child that has ended takes its seconds along: less than before is no idleness."""
        done = self.seconds - before.seconds
        return 0 <= done <= IDLE_SHARE * max(1.0, elapsed) and max(self.read - before.read, self.received - before.received) <= IDLE_BYTES


class Idleness:
    """For how long next to nothing has been done here."""

    def __init__(self) -> None:
        self._since, self._before = time.monotonic(), Work.so_far()

    def seconds(self) -> float:
        elapsed, now = time.monotonic() - self._since, Work.so_far()
        if not now.is_next_to_nothing_since(self._before, elapsed):
            self._since, self._before = time.monotonic(), now
            return 0.0
        return elapsed


def wait_for(ready: threading.Condition, has_come: Callable[[], bool], process: Process, later: Sequence[Process]) -> None:
    """Until ``has_come``, asked under ``ready``. Raises where the setup of ``process``, which is going on, waits for one of ``later``."""
    idleness: Idleness | None = None  # looked at only where a setup lasts: a look takes ten milliseconds
    with ready:
        while not has_come():
            if ready.wait(IDLE_SECONDS / LOOKS) or not later:
                continue
            idleness = idleness or Idleness()
            if idleness.seconds() >= IDLE_SECONDS:
                raise waits_for_others(process.label, process.thread, [p.label for p in later])


def waits_for_others(label: str, thread: int, later: Sequence[str]) -> ExecutorError:
    """``thread``: that of the setup; ``later``: whose setups come after it."""
    frame = sys._current_frames().get(thread)
    where = "" if frame is None else "\n" + "".join(traceback.format_stack(frame))
    return ExecutorError(
        f"{label} has waited in its setup() for {IDLE_SECONDS:g} s without doing anything, and the setup of {', '.join(later)} comes after it in the same "
        f"process: if it waits for that it would do so for ever. Next: let ranks meet in a call (self.exchange, RankGroup) instead of in setup(), or give them "
        f"devices and processes of their own; wait for what others do on other machines before the session, or in the first call.{where}"
    )
