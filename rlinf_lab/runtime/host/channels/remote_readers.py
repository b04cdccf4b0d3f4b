"""Ranks that read queues of another host: they ask its home for items and wait; whoever asked first gets what comes next.

One message there and one back for each get, so batches are what makes it cheap. Every method runs under the host's mutex.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_lab.planning.engine.engine import Event, Part
from rlinf_lab.runtime.host.channels.queues import Queue
from rlinf_lab.runtime.host.rank import FarReader, Process
from rlinf_lab.runtime.transport.item_batches import Parcel, Piece

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host


class FarReaders:
    """Of one host, both ways: its own ranks that read elsewhere, and ranks of others that read here."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._readers: dict[tuple[str, int], FarReader] = {}

    # --- a rank that lives here --------------------------------------------------------------------------
    def ask(self, process: Process, queue: Queue, wanted: int) -> None:
        """It gets items of a queue that lives elsewhere; its thread waits until `take`."""
        process.asked += 1
        self._host.say(queue.name.home, ("get", queue.name, self._host.name, process.index, process.asked, wanted, tuple(process.machine.part)))

    def take(self, queue: Queue, index: int, asked: int, first: int, parts: list[tuple[int, Any]]) -> None:
        """The answer has come; one to a get that was given up meanwhile is dropped (its iteration has failed)."""
        host = self._host
        process = host._processes[index]
        if process.asked == asked and process.queue is queue and host._engine.is_getting(index):
            process.pieces = [Piece(Parcel(n, queue.name.home, content), 0, n) for n, content in parts]
            host._apply(host._engine.granted(index, queue.index, first, sum(n for n, _ in parts)))

    # --- a rank of another host ----------------------------------------------------------------------------
    def serve(self, queue: Queue, host: str, there: int, asked: int, wanted: int, part: Part) -> None:
        """It gets items of a queue that lives here; `answer` follows when there are any."""
        reader = self._readers.get((host, there)) or self._new(host, there)
        self._withdraw(reader)
        reader.queue, reader.pieces, reader.asked, reader.machine.part = queue, [], asked, part
        self._host._apply(self._host._engine.settle([(reader.index, Event.GET, queue.index, wanted)]))

    def _new(self, host: str, there: int) -> FarReader:
        engine = self._host._engine
        index = engine.add_process()
        reader = self._readers[host, there] = FarReader("", 0, index, -1, engine.processes[index], host=host, there=there, getting=True, far=True)
        self._host._processes.append(reader)
        engine.settle([(index, Event.START, -1, 0)])
        return reader

    def answer(self, reader: Process) -> None:
        """Send it what it has got; nothing: the stream has ended."""
        assert isinstance(reader, FarReader)
        queue, pieces, reader.pieces = reader.queue, reader.pieces, []
        assert queue is not None
        try:
            parts = [piece.content() for piece in pieces]
        except BaseException as error:  # a parcel that several ranks share does not open here
            self._host.misunderstood(pieces[0].parcel.origin, error)
            return
        self._host.say(reader.host, ("got", queue.name, reader.there, reader.asked, reader.first, parts))

    def dismiss(self, host: str, there: int, asked: int) -> None:
        """It takes nothing more: the get that it waits in is answered with nothing."""
        reader = self._readers.get((host, there))
        if reader is not None and reader.asked == asked and self._host._engine.is_getting(reader.index):
            self._host._apply(self._host._engine.dismiss(reader.index))

    def left(self, host: str, there: int) -> None:
        """Its call has ended: what it asked for last and did not wait for (the call was given up) goes to others."""
        if reader := self._readers.get((host, there)):
            self._withdraw(reader)

    def retire(self, iteration: int) -> None:
        """Nobody waits any more for items of this iteration and of those before it."""
        for reader in self._readers.values():
            if reader.queue is not None and reader.queue.name.iteration <= iteration:
                self._withdraw(reader)

    def _withdraw(self, reader: FarReader) -> None:
        if self._host._engine.is_getting(reader.index):
            self._host._engine.cancel(reader.index)
