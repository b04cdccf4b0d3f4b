"""What an execution of the iteration function has done. It has its calls, its ends of channels, streams that it has
ended.
"""

from __future__ import annotations

from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.runtime.host.driver.loop import Loop
from rlinf_lab.runtime.host.host import Host
from rlinf_lab.runtime.host.state.messages import SealStreams
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.specs import READ, WRITE, CallSpec


class IterationBody:
    """Of iteration ``now``. ``traced``: (channel, direction, worker) that the graph is known to have, of all."""

    def __init__(
        self, host: Host, loop: Loop, layout: Layout, traced: set[tuple[str, str, str]], now: int
    ) -> None:
        self._host, self._loop, self._layout, self._traced, self._now = host, loop, layout, traced, now
        self.calls: list[CallSpec] = []
        self.sealed: set[str] = set()
        self.ports: dict[tuple[str, str], Any] = {}

    def port(self, channel: str, direction: str) -> Any:
        """The loop's own end of a channel."""
        if (channel, direction) not in self.ports:
            made = self._host.ports.outbox if direction == WRITE else self._host.ports.inbox
            self.ports[channel, direction] = made(self._host.driver, channel, self._now)
        return self.ports[channel, direction]

    def feeding(self, channel: str) -> set[str]:
        """This one, and those `behind` the calls that write to it."""
        return {channel} | self.behind([call for call in self.calls if channel in call.channels(WRITE)])

    def behind(self, calls: list[CallSpec]) -> set[str]:
        """The channels that are read by calls which have to end before these can. Each rank does its own in order, and
        a call waits for its arguments and for who puts what it reads.
        """
        found: set[str] = set()
        open_, seen = list(calls), set[int]()
        while open_:
            one = open_.pop()
            if one.call_id not in seen:
                seen.add(one.call_id)
                reads, wanted = set(one.channels(READ)), {ref.call_id for ref in one.refs()}
                found |= reads
                for other in self.calls:
                    is_before = other.worker == one.worker and other.call_id < one.call_id
                    if is_before or other.call_id in wanted or reads & set(other.channels(WRITE)):
                        open_.append(other)
        return found

    def seal(self, channels: set[str]) -> None:
        """No call that writes to these follows: say so, and end the loop's own."""
        new = channels - self.sealed
        if not new:
            return
        self.sealed |= new
        graph, expected = self._layout.graph, {}
        for channel in sorted(new):
            calls = [c for c in self.calls for name in c.channels(WRITE) if name == channel]
            sharded = self._layout.sharded(channel)
            expected[channel] = sum(1 if sharded else len(c.taken_by(self._layout.ranks(c.worker))) for c in calls)
            if DRIVER in graph.producers(channel):
                expected[channel] += 1
                if (channel, WRITE) in self.ports:
                    self.ports[channel, WRITE].refuse_incomplete()
                self._loop.close_channel(channel, self._now)
        self._loop.broadcast(SealStreams(self._now, expected))

    def refuse_untraced(self, channel: str, direction: str, worker: str, who: str) -> None:
        """The plan has no place for what the dry run has not seen."""
        if (channel, direction, worker) in self._traced:
            return
        graph = self._layout.graph
        names = graph.channels_by_name()
        seen = (
            () if channel not in names else graph.consumers(channel) if direction == READ else graph.producers(channel)
        )
        if worker not in seen:
            does = "reads from" if direction == READ else "writes to"
            others = f"; there, {', '.join(seen)} did" if seen else ""
            raise WorkflowError(
                f"{who} {does} channel {channel!r}, which it did not do in the dry run of workflow {graph.name!r} "
                f"(repr(flow.graph)){others}. The "
                "plan was made for that. Next: let branches depend on arguments and on values as they are "
                "(`value.wait() > 3`: both ways are "
                f"tried), not on variables outside, random numbers, len(value) or float(value)."
            )
        self._traced.add((channel, direction, worker))

    def refuse_sealed(self, channel: str, who: str) -> None:
        """Whoever writes there comes too late."""
        if channel in self.sealed:
            raise WorkflowError(
                f"{who} writes to channel {channel!r} after the loop waited for something downstream of it: its stream "
                "of this "
                f"iteration has ended. Next: make the call before the wait()."
            )
