"""Ranks that read queues of another host. They ask its home for items; whoever asked first gets what comes next.

One message there and one back for each get, so batches are what makes it cheap. Every method runs under the host's
mutex.
"""

from __future__ import annotations

from rlinf_lab.planning.engine.engine import Event, Part
from rlinf_lab.runtime.host.liveness.failures import misunderstood
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.queues import Queue
from rlinf_lab.runtime.host.state.rank import FarReader, Process
from rlinf_lab.runtime.transport.item_batches import Parcel, Piece


class FarReaders:
    """Reading between one host and others, both ways. Its own ranks read elsewhere, and ranks of others read here."""

    def __init__(self, state: HostState, control: parts.RankControl, post: parts.Post) -> None:
        self._state, self._control, self._post = state, control, post
        self._readers: dict[tuple[str, int], FarReader] = {}
        post.on(messages.Get, self._serve)
        post.on(messages.Got, self._take)

    # --- a rank that lives here --------------------------------------------------------------------------
    def ask(self, process: Process, queue: Queue, wanted: int) -> None:
        """It gets items of a queue that lives elsewhere. Its thread waits until they have come."""
        process.asked += 1
        here, part = self._state.name, tuple(process.machine.part)
        self._post.say(
            queue.name.home, messages.Get(queue.name, here, process.index, process.asked, wanted, part)
        )

    def _take(self, message: messages.Got) -> None:
        """The answer. One to a get that was given up meanwhile is dropped (its iteration has failed)."""
        state, index = self._state, message.index
        if state.queues.is_retired(message.name.iteration):
            return
        process, queue = state.processes[index], state.queues.queue(message.name)
        if process.asked == message.asked and process.queue is queue and state.engine.is_getting(index):
            process.pieces = [Piece(Parcel(n, queue.name.home, content), 0, n) for n, content in message.parts]
            count = sum(n for n, _ in message.parts)
            self._control.apply(state.engine.granted(index, queue.index, message.first, count))

    # --- a rank of another host ----------------------------------------------------------------------------
    def _serve(self, message: messages.Get) -> None:
        """It gets items of a queue that lives here; `answer` follows when there are any."""
        state = self._state
        if state.queues.is_retired(message.name.iteration):
            return
        queue = state.queues.queue(message.name)
        reader = self._readers.get((message.origin, message.index)) or self._new(message.origin, message.index)
        self._withdraw(reader)
        reader.queue, reader.pieces, reader.asked = queue, [], message.asked
        reader.machine.part = Part(*message.part)
        self._control.apply(state.engine.settle([(reader.index, Event.GET, queue.index, message.wanted)]))

    def _new(self, host: str, there: int) -> FarReader:
        engine = self._state.engine
        index = engine.add_process()
        reader = FarReader("", 0, index, -1, engine.processes[index], host=host, there=there, getting=True, far=True)
        self._readers[host, there] = reader
        self._state.processes.append(reader)
        engine.settle([(index, Event.START, -1, 0)])
        return reader

    def answer(self, reader: Process) -> None:
        """Send it what it has got; nothing: the stream has ended."""
        assert isinstance(reader, FarReader)
        queue, pieces, reader.pieces = reader.queue, reader.pieces, []
        assert queue is not None
        try:
            found = [piece.content() for piece in pieces]
        except BaseException as error:  # a parcel that several ranks share does not open here
            self._post.report(misunderstood(self._state, pieces[0].parcel.origin, error))
            return
        first = reader.first if found else reader.machine.lo  # of none: how many there are, for who has asked that
        self._post.say(reader.host, messages.Got(queue.name, reader.there, reader.asked, first, found))

    def retire(self, iteration: int) -> None:
        """Nobody waits any more for items of this iteration and of those before it."""
        for reader in self._readers.values():
            if reader.queue is not None and reader.queue.name.iteration <= iteration:
                self._withdraw(reader)

    def _withdraw(self, reader: FarReader) -> None:
        if self._state.engine.is_getting(reader.index):
            self._state.engine.cancel(reader.index)
