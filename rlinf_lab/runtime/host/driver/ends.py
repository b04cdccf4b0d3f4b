"""Which streams of one iteration have ended. For each channel it counts ranks' calls that read or write it and have not
ended.

A loop that has not returned may still call a reader. Where it waits, nothing else moves, a producer wants room in a
channel, and all calls that read that have ended, it is taken for certain that nobody will (`Ends.stranded`): making
room for ever would not end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rlinf_lab.planning.plan.wait_graph import Wait
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.workflow.specs import READ, WRITE, CallSpec


@dataclass
class Ends:
    """See the module's docstring. ``all_known``: no call will be added."""

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
        """Those that somebody may write and nobody will read, of which that is not told."""
        return [
            c for c in channels if self.all_known and not self.reading[c] and self.writing[c] and c not in self.told
        ]

    def complete(self, channels: Iterable[str]) -> list[str]:
        """Those that have just been read and written to the end."""
        found = [
            c
            for c in channels
            if self.all_known and not self.reading[c] and not self.writing[c] and c not in self.judged
        ]
        self.judged.update(found)
        return found

    def stranded(self) -> list[str]:
        """While the loop waits: channels whose readers have all ended. Only a call that it cannot make now would read
        on.
        """
        return [] if self.all_known else [c for c in sorted(self.read) if not self.reading[c] and c not in self.told]


def wait_for_room(channel: str, waits: Iterable[Wait]) -> bool:
    """Whether any of these is a producer's that is blocked at this channel."""
    return any(wait.what.startswith(f"room in channel {channel!r}") for wait in waits)


def is_read_by_the_loop(process: Process, channel: str) -> bool:
    """Whether the loop's thread waits for items of this channel right now."""
    if process.waits_for != "engine" or not process.getting or process.queue is None:
        return False
    return process.queue.name.channel == channel
