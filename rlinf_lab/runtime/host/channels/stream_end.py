"""Streams that nobody reads any more, though somebody may go on putting into them: what follows, as soon as it is certain.

When the iteration function has returned the driver knows all calls, and it hears the end of each (`Ends`). When the last one that reads a channel has ended
it tells every host. Where the rest is not wanted (``discard_unread``) the next put of a call ends that call without a word, as a broken pipe does, if nobody
reads any of what it writes; what it has not read itself is then not wanted either, so the ends go upstream. A call whose value may be wanted, or whose ranks
may meet, goes on to its end: its items are dropped. Elsewhere the home of the channel reports what lies there or comes, and the iteration fails.

A loop that has not returned may still call a reader. Where it waits, nothing else moves, a producer wants room in a channel, and all calls that read that
have ended, it is taken for certain, too (`Ends.stranded`): making room for ever would not end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlinf_lab.planning.plan.wait_graph import Wait
from rlinf_lab.runtime.host import protocol
from rlinf_lab.runtime.host.channels.queues import Queue
from rlinf_lab.runtime.host.elastic import turnover
from rlinf_lab.runtime.host.elastic.meetings import may_meet
from rlinf_lab.runtime.host.values import Unmade
from rlinf_lab.workflow.declaration import returns_nothing, says_none
from rlinf_lab.workflow.specs import READ, WRITE, CallSpec

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host
    from rlinf_lab.runtime.host.rank import Process


GOES_ON_SECONDS = 10.0  # for which a call goes on in vain before that is told


class NobodyReads(BaseException):
    """Ends a call quietly. No `Exception`: a worker that goes on after every error of a put must end, too."""


@dataclass
class Ends:
    """Of one iteration, at the driver: how many ranks' calls that read or write each channel have not ended. ``all_known``: no call will be added."""

    all_known: bool = False
    reading: Counter[str] = field(default_factory=Counter)
    writing: Counter[str] = field(default_factory=Counter)
    read: set[str] = field(default_factory=set)  # by any call so far, or by the loop
    told: set[str] = field(default_factory=set)  # that nobody reads it any more
    judged: set[str] = field(default_factory=set)  # who reads and who writes it has ended: it was found good or bad
    _of: dict[int, tuple[list[str], list[str]]] = field(default_factory=dict)  # by call: what it reads and writes

    def begin(self, call: CallSpec, ranks: int) -> None:
        """So many ranks do it."""
        reads, writes = self._of[call.call_id] = call.channels(READ), call.channels(WRITE)
        self.read.update(reads)
        self.reading.update(dict.fromkeys(reads, ranks))
        self.writing.update(dict.fromkeys(writes, ranks))

    def end(self, call_id: int) -> None:
        """One rank has done it."""
        reads, writes = self._of[call_id]
        self.reading.subtract(dict.fromkeys(reads, 1))
        self.writing.subtract(dict.fromkeys(writes, 1))

    def unread(self, channels: Iterable[str]) -> list[str]:
        """Those into which somebody may put, that nobody will read and of which that has not been told."""
        return [c for c in channels if self.all_known and not self.reading[c] and self.writing[c] and c not in self.told]

    def complete(self, channels: Iterable[str]) -> list[str]:
        """Those that have just been read and written to the end."""
        found = [c for c in channels if self.all_known and not self.reading[c] and not self.writing[c] and c not in self.judged]
        self.judged.update(found)
        return found

    def stranded(self) -> list[str]:
        """While the loop waits: channels whose readers have all ended, so that only a call that it cannot make now would read on."""
        return [] if self.all_known else [c for c in sorted(self.read) if not self.reading[c] and c not in self.told]


class Unwanted:
    """Of one host: the streams that nobody reads any more. Under its mutex, but for `end_call`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.discarded: set[tuple[str, int]] = set()  # (channel, iteration): nobody minds
        self._missed: set[tuple[str, int]] = set()  # here something that comes is an error
        self._wanted: dict[int, frozenset[int]] = {}  # by iteration whose loop has returned: the calls whose value somebody takes
        self._meets: dict[str, bool] = {}
        self._goes_on: dict[Process, tuple[int, float]] = {}  # in vain: which call, and since when
        self._remarked: set[str] = set()

    def told(self, channel: str, iteration: int, discards: bool) -> None:
        """Nobody reads this stream any more."""
        host, stream = self._host, (channel, iteration)
        if iteration in host._given_up or host._queues.is_retired(iteration):
            return
        (self.discarded if discards else self._missed).add(stream)
        if host.name in host._router.homes(channel):
            self._report(stream)
            protocol.abandon(host, channel, iteration)
        if discards:
            for process in host.ranks:
                if process.waits_for == "value" and process.exchanges and self._is_in_vain(process):  # for what another rank, which ends, does not give
                    host._interrupt(process, NobodyReads())
            for process in host.meetings.waiting():  # also one that is about to
                if process.error is None and self._is_in_vain(process):
                    host._interrupt(process, NobodyReads())

    def wanted(self, iteration: int, calls: frozenset[int]) -> None:
        """The loop has returned: the values of these calls are wanted, and no others."""
        if iteration in self._host._given_up or self._host._queues.is_retired(iteration):
            return
        self._wanted[iteration] = calls
        for channel, _ in [s for s in self.discarded if s[1] == iteration]:
            self.told(channel, iteration, True)

    def came(self, queue: Queue) -> None:
        """Something was put into a queue that is abandoned."""
        self._report((queue.name.channel, queue.name.iteration))

    def _report(self, stream: tuple[str, int]) -> None:
        left = self._host._queues.left(*stream) if stream in self._missed else 0
        if left:
            self._missed.discard(stream)  # once
            turnover.tell(self._host, ("unread", *stream, left))

    def end_call(self, process: Process) -> None:
        """In the thread of a rank that puts or is about to wait for others: raises `NobodyReads` when nobody reads anything that its call writes."""
        if not self.discarded or (call := self._call_in_vain(process)) is None:
            return
        if not (why := self._why_it_goes_on(call)):
            raise NobodyReads
        self._remark(process, call, why)

    def _remark(self, process: Process, call: CallSpec, why: str) -> None:
        """Tell once of a call that goes on in vain and has done so for long."""
        who = f"{call.worker}.{call.method}()"
        if who in self._remarked:
            return
        since = self._goes_on.get(process)
        if since is None or since[0] != call.call_id:
            since = self._goes_on[process] = call.call_id, time.monotonic()
        if time.monotonic() - since[1] < GOES_ON_SECONDS:
            return
        self._remarked.add(who)
        text = (
            f"{who} goes on though nobody reads what it puts into {', '.join(repr(c) for c in call.channels(WRITE))}: {why}, so its items are dropped until it "
            f"returns. Next: nothing, if it will; else let it put a number of items that it knows, or read them to the end."
        )
        with self._host._mutex:
            protocol.remark(self._host, f"{who} goes on", text, at_once=True)

    def leave_off(self, process: Process, call: CallSpec) -> Unmade | None:
        """Its call has ended by that. What stands for its value."""
        for port in process.ports:
            port.moved.left_off = True
        if returns_nothing(self._host._declarations[call.worker].function(call.method)):  # whoever waits for it only wants it to have ended
            return None
        return Unmade(f"{process.label}.{call.method}() of iteration {call.iteration}", tuple(call.channels(WRITE)))

    def _is_in_vain(self, process: Process) -> bool:
        return (call := self._call_in_vain(process)) is not None and not self._why_it_goes_on(call)

    def _call_in_vain(self, process: Process) -> CallSpec | None:
        """Its call, if that writes and nobody reads any of it."""
        call = process.call
        if call is None or process.drives:
            return None
        writes = call.channels(WRITE)
        return call if writes and all((channel, call.iteration) in self.discarded for channel in writes) else None

    def _why_it_goes_on(self, call: CallSpec) -> str:
        """Why a call that writes in vain is not ended, the same for all its ranks; "" if it is."""
        worker = call.worker
        if worker not in self._meets:
            self._meets[worker] = self._host.layout.ranks(worker) > 1 and may_meet(self._host._declarations[worker].cls)
        if self._meets[worker]:  # one that is cut off within a collective breaks it for the others
            return "its ranks may meet"
        if says_none(self._host._declarations[worker].function(call.method)):
            return ""
        wanted = self._wanted.get(call.iteration)
        return "the loop may still ask for its value" if wanted is None else "its value is wanted" if call.call_id in wanted else ""

    def indices(self, stranded: Iterable[tuple[str, int]]) -> set[int]:
        """The engine's numbers of the queues of these streams that live here."""
        return {queue.index for stream in stranded for queue in self._host._queues.at_home(*stream)}

    def retire(self, iteration: int) -> None:
        self.discarded = {s for s in self.discarded if s[1] > iteration}
        self._missed = {s for s in self._missed if s[1] > iteration}
        self._wanted = {i: calls for i, calls in self._wanted.items() if i > iteration}


def wait_for_room(channel: str, waits: Iterable[Wait]) -> bool:
    """Whether any of these is a producer's that is blocked at this channel."""
    return any(wait.what.startswith(f"room in channel {channel!r}") for wait in waits)


def is_read_by_the_loop(process: Process, channel: str) -> bool:
    """Whether the loop's thread waits for items of this channel right now."""
    return process.waits_for == "engine" and process.getting and process.queue is not None and process.queue.name.channel == channel
