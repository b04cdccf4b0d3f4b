"""Items that nobody has read. Their iteration fails and names them, unless their channel's declaration says that the
rest is not wanted. So does one with streams into which nothing was put, though somebody was called to and somebody has
read them, unless the declaration says that this may be.

Each rank counts what it puts into and takes from the channels of its call, and the counts go to the driver with the end
of the call. So nothing is asked, no order of messages matters, and every executor says the same. What lies there while
producers go on is told by the channel's home (`stream_end`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlinf_lab.errors import WorkflowError
from rlinf_lab.runtime.host.state.messages import Moved
from rlinf_lab.workflow.graph import WorkflowGraph
from rlinf_lab.workflow.specs import ChannelSpec


@dataclass
class Unread:
    """The books of one iteration. ``taken``: by channel and by who could take it. ``asked``: by channel, who did ask
    for items. ``nothing``: by channel, calls that might have put something and did not; one whose own streams were
    empty could not. ``left_off``: channels of which calls that ended because nobody reads what they write may have left
    something.
    """

    put: Counter[str] = field(default_factory=Counter)
    taken: dict[str, Counter[str]] = field(default_factory=dict)
    asked: dict[str, list[str]] = field(default_factory=dict)
    nothing: dict[str, list[str]] = field(default_factory=dict)
    left_off: set[str] = field(default_factory=set)

    def count(self, who: str, ends: Sequence[Moved]) -> None:
        """One call has ended."""
        for end in ends:
            if end.reads:
                self.taken.setdefault(end.channel, Counter())[who] += end.items
                self.left_off |= {end.channel} if end.left_off else set()
                if end.asked and who not in (readers := self.asked.setdefault(end.channel, [])):
                    readers.append(who)
            else:
                self.put[end.channel] += end.items
                if not end.items and all(other.items for other in ends if other.reads):
                    self.nothing.setdefault(end.channel, []).append(who)

    def discards(self, spec: ChannelSpec) -> bool:
        """Whether what is left of a channel is all right."""
        return spec.discard_unread or spec.name in self.left_off

    def fault(self, graph: WorkflowGraph, iteration: int, ended: Sequence[str]) -> WorkflowError | None:
        """What is wrong with these channels, which everybody has read and written to the end. Items are left, or there
        were none.
        """
        specs = [graph.channel(name) for name in ended]
        left = [
            self._left(s, self.put[s.name])
            for s in specs
            if self.put[s.name] > self._taken(s.name).total() and not self.discards(s)
        ]
        if left:
            return WorkflowError(
                f"Iteration {iteration} of workflow {graph.name!r} ended with items that nobody has "
                f"read. {' '.join(left)}"
            )
        empty = [
            self._empty(s.name)
            for s in specs
            if not s.may_be_empty and not self.put[s.name] and s.name in self.nothing and s.name in self.asked
        ]
        return WorkflowError(f"Iteration {iteration} of workflow {graph.name!r}: {' '.join(empty)}") if empty else None

    def early(self, graph: WorkflowGraph, iteration: int, channel: str, left: int) -> WorkflowError:
        """The error for items left in a channel that was read to the end. Producers go on meanwhile."""
        text = self._left(graph.channel(channel), self._taken(channel).total() + left, " put so far")
        return WorkflowError(
            f"Iteration {iteration} of workflow {graph.name!r} was given up, with items that nobody will read. {text}"
        )

    def _empty(self, name: str) -> str:
        return (
            f"nothing was put into channel {name!r} ({_few(self.nothing[name])} ended without a put), so "
            f"{_few(self.asked[name])} read an empty stream. "
            f"Next: put what is to be read; or, where nothing may come, say so: flow.channel({name!r}, "
            "may_be_empty=True)."
        )

    def _taken(self, channel: str) -> Counter[str]:
        return self.taken.get(channel, Counter())

    def _left(self, spec: ChannelSpec, put: int, so_far: str = "") -> str:
        name, readers = spec.name, self._taken(spec.name)
        what = f"groups of {spec.group} items" if spec.group > spec.gathered else "items"
        who = (
            ", ".join(f"{reader} read {n}" for reader, n in sorted(readers.items()))
            or "no call of this iteration reads it"
        )
        advice = self._advice(readers)
        if spec.gathered > 1:
            advice = f"put {spec.group} items of each key (one that failed is an item, too), and {advice}"
        return (
            f"Channel {name!r}: {put - readers.total()} of {put} {what}{so_far} are left; {who}. Next: {advice}; or, "
            "where more is put than is wanted, say so: "
            f"flow.channel({name!r}, discard_unread=True)."
        )

    def _advice(self, readers: Counter[str]) -> str:
        if not readers:
            return "call a worker that reads it whenever something is put into it"
        idle = [reader for reader, n in readers.items() if not n and "[" in reader]
        if idle and any(n and reader.split("[")[0] == idle[0].split("[")[0] for reader, n in readers.items()):
            worker = idle[0].split("[")[0]
            return (
                f"have every rank of {worker!r} ask (of get_all() each rank of a call gets its share, what one does "
                "not ask for is nobody's; exchange() "
                f"gives all of them all shares), or a plan with one rank of it"
            )
        return "read to the end of the stream (`for batch in inbox`, or get() until it gives [])"


def _few(names: list[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
