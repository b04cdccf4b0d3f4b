"""Streams that nobody reads any more, though somebody may go on putting into them. What follows is done as soon as it
is certain.

When the iteration function has returned the driver knows all calls, and it hears the end of each (`driver.ends`). When
the last one that reads a channel has ended it tells every host. Where the rest is not wanted (``discard_unread``) the
next put of a call ends that call without a word, as a broken pipe does, if nobody reads any of what it writes; what it
has not read itself is then not wanted either, so the ends go upstream. A call that returns something, or whose ranks
may meet, goes on to its end: its items are dropped. Elsewhere the home of the channel reports what lies there or comes,
and the iteration fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rlinf_lab.runtime.host.channels.credit import Credits
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.queues import Queue
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.workflow.declaration import returns_nothing
from rlinf_lab.workflow.specs import WRITE, CallSpec

GOES_ON_SECONDS = 10.0  # for which a call goes on in vain before that is told


class NobodyReads(BaseException):
    """Ends a call quietly. No `Exception`: a worker that goes on after every error of a put must end, too."""


class Unwanted:
    """Of one host: the streams that nobody reads any more. Under its mutex, but for `end_call`. ``may_meet``: whether
    the ranks of a worker may meet.
    """

    def __init__(
        self, state: HostState, post: parts.Post, credits: Credits, may_meet: Callable[[str], bool]
    ) -> None:
        self._state, self._post, self._credits, self._may_meet = state, post, credits, may_meet
        self.discarded: set[tuple[str, int]] = set()  # (channel, iteration): nobody minds
        self._missed: set[tuple[str, int]] = set()  # here something that comes is an error
        self._goes_on: dict[Process, tuple[int, float]] = {}  # in vain: which call, and since when
        self._remarked: set[str] = set()
        post.on(messages.NoReaders, lambda m: self._told(m.channel, m.iteration, m.discards))

    def _told(self, channel: str, iteration: int, discards: bool) -> None:
        """Nobody reads this stream any more."""
        state, stream = self._state, (channel, iteration)
        if state.is_over(iteration):
            return
        (self.discarded if discards else self._missed).add(stream)
        if state.name in state.router.homes(channel):
            self._report(stream)
            for queue in state.queues.abandon(channel, iteration, discards):
                if discards:
                    self._credits.let_go(queue)

    def came(self, queue: Queue) -> None:
        """Something was put into a queue that is abandoned."""
        self._report((queue.name.channel, queue.name.iteration))

    def _report(self, stream: tuple[str, int]) -> None:
        left = self._state.queues.left(*stream) if stream in self._missed else 0
        if left:
            self._missed.discard(stream)  # once
            self._post.tell_driver(messages.LeftOver(*stream, left))

    def is_wanted(self, process: Process, channel: str) -> bool:
        """In the thread of a rank that writes the channel: whether anybody may read it. Where nobody reads anything
        that its call writes, what that has not read is not wanted, either."""
        process.raise_if_interrupted()
        assert process.call is not None
        stream = channel, process.call.iteration
        if self._call_in_vain(process) is not None:
            self.leave_off(process)
        return stream not in self.discarded and stream not in self._missed

    def end_call(self, process: Process) -> None:
        """In a putting rank's thread: raise `NobodyReads` when nobody reads what its call writes."""
        if not self.discarded or (call := self._call_in_vain(process)) is None:
            return
        if not (why := self._why_it_goes_on(call)):
            raise NobodyReads
        self._remark(process, call, why)

    def _remark(self, process: Process, call: CallSpec, why: str) -> None:
        """Tell once of a call that has gone on in vain for long."""
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
            f"{who} goes on though nobody reads what it puts into {', '.join(map(repr, call.channels(WRITE)))}: {why}, "
            f"so its items are dropped until it returns. Next: nothing, if it will; else let it ask is_wanted() before "
            f"each put, or return nothing: then a put ends it."
        )
        with self._state.mutex:
            self._post.remark(f"{who} goes on", text, at_once=True)

    @staticmethod
    def leave_off(process: Process) -> None:
        """Its call has ended by that."""
        for port in process.ports:
            port.moved.left_off = True

    def _call_in_vain(self, process: Process) -> CallSpec | None:
        """Its call, if that writes and nobody reads any of it."""
        call = process.call
        if call is None or process.drives:
            return None
        writes = call.channels(WRITE)
        return call if writes and all((channel, call.iteration) in self.discarded for channel in writes) else None

    def _why_it_goes_on(self, call: CallSpec) -> str:
        """Why a call that writes in vain goes on, the same for all its ranks. "" if it is ended."""
        if self._may_meet(call.worker):  # one that is cut off within a collective breaks it for the others
            return "its ranks may meet"
        if returns_nothing(self._state.declarations[call.worker].function(call.method)):
            return ""
        return "it returns a value"

    def indices(self, stranded: Iterable[tuple[str, int]]) -> set[int]:
        """The engine's numbers of the queues of these streams that live here."""
        return {queue.index for stream in stranded for queue in self._state.queues.at_home(*stream)}

    def retire(self, iteration: int) -> None:
        self.discarded = {s for s in self.discarded if s[1] > iteration}
        self._missed = {s for s in self._missed if s[1] > iteration}
