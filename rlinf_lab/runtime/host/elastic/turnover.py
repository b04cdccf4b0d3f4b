"""Ranks that come and go while a run goes on: what a host does. `driver.members` is the driver's side.

A rank that leaves meets the end of the stream at its next get, where the ranks of its group take items from one channel
that they share: what it has not taken the others take. (Where it asks for everything it takes its share, which nobody
else would; a rank that has come meanwhile has none.) It ends its call, and so closes what it wrote. Other calls that it
has been given it does as ever. When there are none left its worker is closed and its thread ends. A rank that comes is
built in a thread of its own, as at the start of a run; on a device that does not hold all in its turn, like a call.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

from rlinf_lab.errors import Cancelled, WorkerError
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.runtime.host.channels.credit import Credits
from rlinf_lab.runtime.host.control.instants import Instants
from rlinf_lab.runtime.host.elastic.exchange import Exchange
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.transport.routing import StreamId
from rlinf_lab.workflow.specs import READ


class Turnover:
    """Of one host. ``begin_thread(rank)``: start the thread of one that comes."""

    def __init__(
        self,
        state: HostState,
        control: parts.RankControl,
        instants: Instants,
        post: parts.Post,
        credits: Credits,
        exchange: Exchange,
    ) -> None:
        self._state, self._control, self._instants, self._post = state, control, instants, post
        self._credits, self._exchange = credits, exchange
        self.begin_thread: Callable[[Process], None] | None = None
        post.on(messages.Leave, self._leave)
        post.on(messages.Join, self._join)
        post.on(messages.Admit, self._admit)
        post.on(messages.GiveUpPlace, self._give_up_place)

    # --- leaving -----------------------------------------------------------------------------------------------
    def _leave(self, message: messages.Leave) -> None:
        """It takes nothing more."""
        process = self._state.members[message.worker, message.rank]
        process.leaving = True
        if process.waits_for == "call":
            self._control.wake(process)
        elif process.getting and self.takes_nothing_more(process) and self._instants.dismiss(process):
            queue = process.queue  # items may be on their way: its home says that nothing more comes
            assert queue is not None
            here = self._state.name
            self._post.say(queue.name.home, messages.Dismiss(queue.name, here, process.index, process.asked))

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

    def take_devices(self, process: Process) -> Cancelled | None:
        """In the thread of a rank that comes, before it is built: others leave its devices if need be, as they do for a
        call of it. Why it is not to be built."""
        state = self._state
        with state.mutex:
            fits = state.mock is not None or not process.machine.size or state.engine.is_room_for_all(process.index)
        if fits:
            return None
        try:
            self._control.post(process, Event.START, -1, 1, "its devices, to be built there")
        except Cancelled as error:
            return error
        return None

    def set_up(self, process: Process, failure: WorkerError | Cancelled | None) -> None:
        """In the thread of a rank that has come."""
        with self._state.mutex:
            process.joining = False
            self._control.apply(self._state.engine.built(process.index, failure is None))
            if failure is not None:
                process.instance = None
            self._post.tell_driver(messages.Joined(process.worker, process.rank, failure))
            if failure is not None:
                self._runs_no_more(process)
        self._post.flush()

    def _admit(self, message: messages.Admit) -> None:
        """One rank more reads this channel, which lives here, or writes to it, unless that has ended."""
        state, channel, iteration = self._state, message.channel, message.iteration
        ok = not state.is_over(iteration)
        if ok and message.reads:
            ok = state.readers.admit(iteration, channel)
        elif ok:
            ok = state.engine.admit(state.queues.stream(StreamId(channel, iteration, 0, state.name)))
        self._post.tell_driver(messages.Admitted(message.number, state.name, channel, message.reads, ok))

    def _give_up_place(self, message: messages.GiveUpPlace) -> None:
        """It does not, after all."""
        state, channel, iteration = self._state, message.channel, message.iteration
        if message.reads:
            self._credits.reader_ended(channel, iteration)
        elif not state.queues.is_retired(iteration):
            stream = state.queues.stream(StreamId(channel, iteration, 0, state.name))
            self._control.apply(state.engine.close(stream))
