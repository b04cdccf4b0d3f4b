"""Items that nobody has read when an iteration has ended: it fails and names them, unless their channel's declaration says that the rest is not wanted.
And streams into which nothing was put, though somebody was called to and somebody has read them: a warning, unless the declaration says that this may be.

Each rank counts what it puts into and takes from the channels of its call, and the counts go to the driver with the end of the call. So nothing is asked, no
order of messages matters, and every executor says the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workflow.channel import ChannelSpec
from rlinf_lab.workflow.graph import WorkflowGraph


@dataclass(slots=True)
class Moved:
    """How many items have passed one end of a channel in a call. ``asked``: whether a reading end was asked for any."""

    channel: str
    reads: bool
    items: int = 0
    asked: bool = False


def moved(ports: Iterable[Any]) -> tuple[Moved, ...]:
    """What has passed these ends, which nobody uses any more."""
    return tuple(port.moved for port in ports)


@dataclass
class Unread:
    """The books of one iteration. ``taken``: by channel and by who could take it. ``asked``: by channel, who did ask for items. ``nothing``: by channel,
    calls that might have put something and did not; one whose own streams were empty could not.
    """

    put: Counter[str] = field(default_factory=Counter)
    taken: dict[str, Counter[str]] = field(default_factory=dict)
    asked: dict[str, list[str]] = field(default_factory=dict)
    nothing: dict[str, list[str]] = field(default_factory=dict)

    def count(self, who: str, ends: Sequence[Moved]) -> None:
        """One call has ended."""
        for end in ends:
            if end.reads:
                self.taken.setdefault(end.channel, Counter())[who] += end.items
                if end.asked and who not in (readers := self.asked.setdefault(end.channel, [])):
                    readers.append(who)
            else:
                self.put[end.channel] += end.items
                if not end.items and all(other.items for other in ends if other.reads):
                    self.nothing.setdefault(end.channel, []).append(who)

    def refuse(self, graph: WorkflowGraph, iteration: int) -> None:
        """`WorkflowError` for the channels of which something is left."""
        found = [self._left(spec) for spec in graph.channels if not spec.discard_unread and self.put[spec.name] > self._taken(spec.name).total()]
        if found:
            raise WorkflowError(f"Iteration {iteration} of workflow {graph.name!r} ended with items that nobody has read. {' '.join(found)}")

    def empty(self, graph: WorkflowGraph, iteration: int) -> dict[str, str]:
        """For each channel that nothing has passed, though it was written and read: what to tell of it."""
        return {
            spec.name: f"Iteration {iteration} of workflow {graph.name!r}: nothing was put into channel {spec.name!r} ({_few(self.nothing[spec.name])} ended "
            f"without a put), so {_few(self.asked[spec.name])} read an empty stream. Next: put what is to be read; or, where nothing may come, say so: "
            f"flow.channel({spec.name!r}, may_be_empty=True)."
            for spec in graph.channels
            if not spec.may_be_empty and not self.put[spec.name] and spec.name in self.nothing and spec.name in self.asked
        }

    def _taken(self, channel: str) -> Counter[str]:
        return self.taken.get(channel, Counter())

    def _left(self, spec: ChannelSpec) -> str:
        name, put, readers = spec.name, self.put[spec.name], self._taken(spec.name)
        what = f"groups of {spec.group} items" if spec.group > 1 else "items"
        who = ", ".join(f"{reader} read {n}" for reader, n in sorted(readers.items())) or "no call of this iteration reads it"
        advice = self._advice(readers)
        return (
            f"Channel {name!r}: {put - readers.total()} of {put} {what} are left; {who}. Next: {advice}; or, where more is put than is wanted, say so: "
            f"flow.channel({name!r}, discard_unread=True)."
        )

    def _advice(self, readers: Counter[str]) -> str:
        if not readers:
            return "call a worker that reads it whenever something is put into it"
        idle = [reader for reader, n in readers.items() if not n and "[" in reader]
        if idle and any(n and reader.split("[")[0] == idle[0].split("[")[0] for reader, n in readers.items()):
            worker = idle[0].split("[")[0]
            return (
                f"have every rank of {worker!r} ask (of get_all() each rank of a call gets its share, what one does not ask for is nobody's; exchange() "
                f"gives all of them all shares), or a plan with one rank of it"
            )
        return "read to the end of the stream (`for batch in inbox`, or get() until it gives [])"


def _few(names: list[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
