"""Setups of one process come one after another. Who will have to leave its device for others leaves it at once.

What does not fit there later does not fit there now. A setup may take as long as it likes: it loads a model. One that
waits for a later one would do so for ever, and cannot be told from that; so where it stands is logged when it lasts.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence

from rlinf_lab.errors import WorkerError
from rlinf_lab.runtime.host.control.residency import Residency, switch
from rlinf_lab.runtime.host.elastic.unfit import refuse_to_stay
from rlinf_lab.runtime.host.state import parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.machine.devices import finish_work, use_device
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.worker import Context, Residence

TOLD_AFTER_SECONDS = 120.0


class Setups:
    """Of one host; by the ranks' own threads."""

    def __init__(self, state: HostState, residency: Residency, post: parts.Post) -> None:
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
            method = "offload"
            residence = Residence(instance)
            if in_truth and process.machine.size and residence.leaves_at_once() and not residence.why_it_stays():
                self._leave_if_others_need_the_place(process)
        except BaseException as error:
            return WorkerError.of(process.worker, process.rank, method, error, traceback.format_exc())
        return None

    def at_start(self) -> list[Process]:
        """Who is built then, in their order."""
        absent = self._state.layout.absent
        return [p for p in self._state.ranks if p.worker != DRIVER and (p.worker, p.rank) not in absent]

    def _leave_if_others_need_the_place(self, process: Process) -> None:
        """Leave the device if others need the place. Where it shares memory with one that is still to be built it stays
        until that is: it is there once, and each would be given a copy of its own.
        """
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


def wait_for(
    ready: threading.Condition, has_come: Callable[[], bool], process: Process, later: Sequence[Process],
    tell: Callable[[str, str], None],
) -> None:  # fmt: skip
    """Until ``has_come``, asked under ``ready``. Tells where the setup of ``process``, which is going on, stands when
    it lasts and others come after it: it may wait for one of them.
    """
    with ready:
        told = not later or ready.wait_for(has_come, TOLD_AFTER_SECONDS)
    if not told:
        tell(f"the setup of {process.label}", lasting(process.label, process.thread, [p.label for p in later]))
    with ready:
        ready.wait_for(has_come)


def lasting(label: str, thread: int, later: Sequence[str]) -> str:
    """``thread``: that of the setup; ``later``: whose setups come after it."""
    frame = sys._current_frames().get(thread)
    where = "" if frame is None else "\n" + "".join(traceback.format_stack(frame))
    return (
        f"{label} has been in its setup() for {TOLD_AFTER_SECONDS:g} s, and the setup of {', '.join(later)} comes "
        "after it in the same process. Next: nothing, if it loads or downloads something; if it waits for those it "
        "would do so for ever: let ranks meet in a call (self.exchange, RankGroup) instead of in setup(), or give them "
        "devices and processes of their own; wait for what others do on other machines before the session, or in the "
        f"first call.{where}"
    )
