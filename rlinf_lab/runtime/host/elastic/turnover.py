"""Ranks that come and go while a run goes on: what a host does. `driver.members` is the driver's side.

A rank that leaves meets the end of the stream at its next get, where the ranks of its group take items from one channel
that they share: what it has not taken the others take. (Where it asks for everything it takes its share, which nobody
else would.) It ends its call, and so closes what it wrote. Other calls that it
has been given it does as ever. When there are none left its worker is closed and its thread ends. A rank that comes is
built in a thread of its own, as at the start of a run; devices on which workers take turns take none.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from rlinf_lab.errors import WorkerError
from rlinf_lab.runtime.host.elastic.exchange import Exchange
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.workflow.specs import READ


class Turnover:
    """Of one host. ``begin_thread(rank)``: start the thread of one that comes."""

    def __init__(
        self, state: HostState, control: parts.RankControl, post: parts.Post, exchange: Exchange
    ) -> None:
        self._state, self._control, self._post, self._exchange = state, control, post, exchange
        self.begin_thread: Callable[[Process], None] | None = None
        post.on(messages.Leave, self._leave)
        post.on(messages.Join, self._join)

    # --- leaving -----------------------------------------------------------------------------------------------
    def _leave(self, message: messages.Leave) -> None:
        """It takes nothing more but what it waits for already."""
        process = self._state.members[message.worker, message.rank]
        process.leaving = True
        if process.waits_for == "call":
            self._control.wake(process)

    def takes_nothing_more(self, process: Process) -> bool:
        """Whether its gets of its latest channel find the end of the stream."""
        call, queue = process.call, process.queue
        if not process.leaving or call is None or queue is None:
            return False
        return call.channels(READ) == [queue.name.channel] and self._state.is_streamed(call)

    def close(self, process: Process) -> None:
        """Its worker ends. What others go on with it leaves behind first. Raises what of that failed, when
        all is done.
        """
        farewells, process.farewells = process.farewells, {}
        if process.instance is None:
            return
        failed: list[BaseException] = []
        for say, place in farewells.items() if process.leaving else ():
            try:
                say()
            except BaseException as error:  # others may wait for what it was to leave behind
                failed.append(error)
                trace = "".join(traceback.format_exception(error))
                told = WorkerError.of(process.worker, process.rank, "leave", error, trace)
                self._exchange.leave_behind(process, place, None, told)
        try:
            process.instance.close()
        finally:
            if failed:
                raise failed[0]

    def left(self, process: Process) -> None:
        """In the thread of a rank that has closed its worker."""
        with self._state.mutex:
            self._state.engine.vacate(process.index)
            process.leaving, process.instance = False, None
            self._post.tell_driver(messages.Left(process.worker, process.rank))
            self._runs_no_more(process)
        self._post.flush()

    def _runs_no_more(self, process: Process) -> None:
        """Its thread ends; it may have been the last to run."""
        self._control.ends()
        self._control.settle()

    # --- coming ------------------------------------------------------------------------------------------------
    def _join(self, message: messages.Join) -> None:
        """Build it; `set_up` follows."""
        if self._state.stopping:  # it would be nobody's
            return
        process = self._state.members[message.worker, message.rank]
        process.joining, process.error = True, None
        self._control.begins()
        assert self.begin_thread is not None
        self.begin_thread(process)

    def set_up(self, process: Process, failure: WorkerError | None) -> None:
        """In the thread of a rank that has come."""
        with self._state.mutex:
            process.joining = False
            if failure is not None:
                process.instance = None
            self._post.tell_driver(messages.Joined(process.worker, process.rank, failure))
            if failure is not None:
                self._runs_no_more(process)
        self._post.flush()
