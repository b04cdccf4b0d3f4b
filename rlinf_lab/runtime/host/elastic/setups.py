"""Setups of one process come one after another, and who will have to leave its device for others leaves it at once.

What does not fit there later does not fit there now. A setup that waits for a later one would wait for ever; here it is
found out.

A setup may take as long as it likes while it does something: loading a model computes, reads or receives. One during
which its process (with those it has started) does next to nothing for `IDLE_SECONDS`, while others are still to come
after it, is taken for one that waits for them. A download by another process of this machine counts as something: files
are fetched by one and awaited by the others behind a lock.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rlinf_lab.errors import ExecutorError, WorkerError
from rlinf_lab.runtime.host.control.residency import Residency, switch
from rlinf_lab.runtime.host.elastic.unfit import refuse_to_stay
from rlinf_lab.runtime.host.state import parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.machine.devices import finish_work, use_device
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.worker import Context, Residence

IDLE_SECONDS = 120.0
LOOKS = 20  # in that time
IDLE_SHARE = 0.05  # of one core: more than a loop needs that looks for something a hundred times a second
IDLE_BYTES = 1 << 20


class Setups:
    """Of one host; by the ranks' own threads."""

    def __init__(self, state: HostState, residency: Residency, post: parts.DriverLink) -> None:
        self._state, self._residency, self._post = state, residency, post

    def set_up(self, process: Process, context: Context) -> WorkerError | None:
        """Build its worker, and ask whether it can do what the plan wants. What went wrong, by the method that did."""
        state, method, in_truth = self._state, "__init__", self._state.mock is None  # else in a made-up time
        try:
            if in_truth:
                use_device(process.device, process.own_stream)
            instance = process.instance = state.declarations[process.worker].build(context)
            method = "setup"
            instance.setup()
            if in_truth and process.own_stream:
                finish_work(process.device, True)  # others may be given what it has made
            method = "can_leave"
            refuse_to_stay(state.layout, state.declarations, process.worker, instance)
            method = "onload" if process.joining else "offload"
            if process.joining:
                if process.machine.holding:
                    self._residency.bring_what_is_away(process)
            elif in_truth and process.machine.size and _can_leave(Residence(instance)):
                self._leave_if_others_need_the_place(process)
        except BaseException as error:
            return WorkerError.of(process.worker, process.rank, method, error, traceback.format_exc())
        return None

    def at_start(self) -> list[Process]:
        """Who is built then, in their order."""
        absent = self._state.layout.absent
        return [p for p in self._state.ranks if p.worker != DRIVER and (p.worker, p.rank) not in absent]

    def _leave_if_others_need_the_place(self, process: Process) -> None:
        """Where it shares memory with one that is still to be built it stays until that is: it is there once, and each
        would be given a copy of its own."""
        state, instance = self._state, process.instance
        assert instance is not None
        with state.mutex:
            present, absent = self._residency.share(process)
            if state.engine.is_room_for_all(process.index):
                return
        shares = Residence(instance).shares_with_given
        given = {w: shares(declared.arguments) for w, declared in state.declarations.items()}
        order = enumerate(self.at_start(), 1)
        until = max((n for n, other in order if other.instance is None and given.get(other.worker)), default=0)
        if until > state.built:
            process.stays_until = until
            return
        # nothing has brought it, but it is there since it was built
        present += [other for other in absent if not other.left_at_once]
        switch(process, "offload", (present, [other for other in absent if other.left_at_once]))
        process.left_at_once = True

    def leave_after_others(self, process: Process) -> None:
        """One that has stayed for others: the last of them is built. Those that have stayed leave one after another."""
        state = self._state
        with state.ready:
            state.ready.wait_for(lambda: state.stopping or next(self._leaving(), None) is process)
        start = state.clock.now_ns()
        try:
            if not state.stopping:
                self._leave_if_others_need_the_place(process)
        except BaseException as error:
            self._post.fail(WorkerError.of(process.worker, process.rank, "offload", error, traceback.format_exc()))
        name = state.recorder.name("setup")
        state.recorder.add(process.track, SpanKind.SETUP, name, start, state.clock.now_ns())
        with state.ready:
            process.stays_until = 0
            state.ready.notify_all()

    def _leaving(self) -> Iterator[Process]:
        """Who has stayed for others, and may go now."""
        return (p for p in self._state.ranks if 0 < p.stays_until <= self._state.built)

    def have_come(self, number: int) -> bool:
        """Whether so many are set up, or the host is stopped. Those that stayed for the last of them have left then."""
        return self._state.stopping or (self._state.built >= number and next(self._leaving(), None) is None)


def _can_leave(residence: Residence) -> bool:
    """As soon as it is built."""
    return residence.leaves_at_once() and not residence.why_it_stays()


class Work(NamedTuple):
    """``seconds``: of processors, by this process and those it has started; ``read``, ``received``: bytes, the latter
    by the machine; ``queued``: seconds for which a thread of this process could have run and had no core.
    """

    seconds: float
    read: int
    received: int
    queued: float = 0.0

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
        read = 0 if files is None else files.read_bytes + getattr(files, "read_chars", 0)
        return cls(seconds, read, received, _queued())

    def is_next_to_nothing_since(self, before: Work, elapsed: float) -> bool:
        """A child that has ended takes its seconds along: less than before is no idleness. Nor is to stand in line for
        a core, on a machine where others have them all.
        """
        done = self.seconds - before.seconds
        most = IDLE_SHARE * max(1.0, elapsed)
        return (
            0 <= done <= most
            and self.queued - before.queued <= most
            and max(self.read - before.read, self.received - before.received) <= IDLE_BYTES
        )


def _queued() -> float:
    """Seconds that threads of this process have waited for a core. 0.0 where the system does not say: not on Linux."""
    found = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            found += int(path.read_text().split()[1])
        except (OSError, IndexError, ValueError):  # it has ended meanwhile
            continue
    return found / 1e9


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


def wait_for(
    ready: threading.Condition, has_come: Callable[[], bool], process: Process, later: Sequence[Process]
) -> None:
    """Until ``has_come``, asked under ``ready``. Raises where the setup of ``process``, which is going on, waits for
    one of ``later``.
    """
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
        f"{label} has waited in its setup() for {IDLE_SECONDS:g} s without doing anything, and the setup of "
        f"{', '.join(later)} comes after it in the same process: if it waits for that it would do so for ever. Next: "
        "let "
        f"ranks meet in a call (self.exchange, RankGroup) instead of in setup(), or give them devices and processes of "
        f"their own; wait for what others do on other machines before the session, or in the first call.{where}"
    )
