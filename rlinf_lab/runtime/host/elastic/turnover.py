"""Ranks that come and go while a run goes on: what a host does. `members` is the driver's side.

A rank that leaves meets the end of the stream at its next get, where the ranks of its group take items from one channel that they share: what it
has not taken the others take. (Where it asks for everything it takes its share, which nobody else would; a rank that has come meanwhile has none.) It ends
its call, and so closes what it wrote. Other calls that it has been given it does as ever. When there are none left its worker is closed and its thread
ends. A rank that comes is built in a thread of its own, as at the start of a run; on a device that does not hold all in its turn, like a call.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from rlinf_lab.errors import Cancelled, WorkerError
from rlinf_lab.planning.engine.engine import ALL, Event
from rlinf_lab.runtime.host.elastic.exchange import leave_behind
from rlinf_lab.runtime.host.elastic.members import streamed
from rlinf_lab.runtime.host.rank import Process
from rlinf_lab.runtime.transport.routing import QueueId, StreamId
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.specs import READ, CallSpec

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host

_GET = int(Event.GET)


def leave(host: Host, worker: str, rank: int) -> None:
    """Under the mutex: it takes nothing more."""
    process = host._by_member[worker, rank]
    process.leaving = True
    if process.waits_for == "call":
        host._wake(process)
    elif process.queue is not None and process.getting and takes_nothing_more(host, process, process.queue.name.channel):
        _dismiss(host, process)


def takes_nothing_more(host: Host, process: Process, channel: str) -> bool:
    """Whether its gets of this channel find the end of the stream."""
    call = process.call
    return process.leaving and call is not None and call.channels(READ) == [channel] and streamed(host, call)


def _dismiss(host: Host, process: Process) -> None:
    """Its get, if it waits in one, ends without items."""
    pending = [e for e in host._pending if e[0] == process.index and e[1] == _GET]
    if any(e[3] == ALL for e in pending) or host._engine.waits_for_all(process.index):  # nobody else gets its share
        return
    if pending:  # of this very instant, with a mock clock
        host._pending.remove(pending[0])
        host._pending.append((process.index, _GET, pending[0][2], 0))
        return
    queue = process.queue
    if queue is None or not host._engine.is_getting(process.index):
        return
    if queue.stub:  # items may be on their way: its home says that nothing more comes
        host.say(queue.name.home, ("dismiss", queue.name, host.name, process.index, process.asked))
    else:
        host._apply(host._engine.dismiss(process.index))


def dismiss_reader(host: Host, name: QueueId, origin: str, there: int, asked: int) -> None:
    """Under the mutex: a rank of another host, which reads here, leaves."""
    if not host._queues.is_retired(name.iteration):
        host.far.dismiss(origin, there, asked)


def close(host: Host, process: Process) -> None:
    """Its worker ends. What the others go on with it leaves behind first, where they do. Raises what of that failed, when all is done."""
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
            leave_behind(host, process, place, None, WorkerError.of(process.worker, process.rank, "leave", error, trace))
    try:
        process.instance.close()
    finally:
        if failed:
            raise failed[0]


def left(host: Host, process: Process) -> None:
    """In the thread of a rank that has ended all its calls and closed its worker."""
    with host._mutex:
        host._engine.vacate(process.index)
        process.leaving, process.instance = False, None
        tell(host, ("left", process.worker, process.rank))
        _runs_no_more(host, process)
    host.flush()


def join(host: Host, worker: str, rank: int) -> None:
    """Under the mutex: build it; `set_up` follows."""
    if host.stopping:  # it would be nobody's
        return
    process = host._by_member[worker, rank]
    process.joining, process.error = True, None
    host._running += process.counts
    host._begin_thread(process)


def take_devices(host: Host, process: Process) -> Cancelled | None:
    """In the thread of a rank that comes, before it is built: others leave its devices if need be, as they do for a call of it. Why it is not to be built."""
    with host._mutex:
        if host._mock is not None or not process.machine.size or host._engine.is_room_for_all(process.index):
            return None
    try:
        host._post(process, Event.START, -1, 1, "its devices, to be built there")
    except Cancelled as error:
        return error
    return None


def set_up(host: Host, process: Process, failure: WorkerError | Cancelled | None) -> None:
    """In the thread of a rank that has come."""
    with host._mutex:
        process.joining = False
        host._apply(host._engine.built(process.index, failure is None))
        host._fill()
        if failure is not None:
            process.instance = None
        tell(host, ("joined", process.worker, process.rank, failure))
        if failure is not None:
            _runs_no_more(host, process)
    host.flush()


def _runs_no_more(host: Host, process: Process) -> None:
    """Under the mutex: its thread ends; it may have been the last to run."""
    host._running -= process.counts
    if host._running == 0:
        host._quiescent()


def take_part(host: Host, call: CallSpec, rank: int) -> None:
    """Under the mutex: a rank that has come takes part in a call under way."""
    host.submit(call, only=rank)


def admit(host: Host, number: int, iteration: int, channel: str, reads: bool) -> None:
    """Under the mutex: one rank more reads this channel, which lives here, or writes to it, unless that has ended."""
    ok = not host._queues.is_retired(iteration) and iteration not in host._given_up
    if ok and reads:
        ok = host._readers.admit(iteration, channel)
    elif ok:
        ok = host._engine.admit(host._queues.stream(StreamId(channel, iteration, 0, host.name)))
    tell(host, ("admitted", number, host.name, channel, reads, ok))


def give_up_place(host: Host, iteration: int, channel: str, reads: bool) -> None:
    """Under the mutex: it does not, after all."""
    if reads:
        host.reader_ended(channel, iteration)
    elif not host._queues.is_retired(iteration):
        host._apply(host._engine.close(host._queues.stream(StreamId(channel, iteration, 0, host.name))))


def tell(host: Host, message: tuple) -> None:
    """Under the mutex: to the driver's host."""
    if host.loop is not None:
        host.handle(message)
    else:
        host.say(host.place[DRIVER, 0], message)
