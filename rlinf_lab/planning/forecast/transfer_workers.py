"""Moving items between devices, in a forecast. A link is a worker without a device, between producer and consumer.

    producer ──sent──> link: message + latency + bytes / bandwidth for each batch ──> consumer

So moving overlaps with the work at both ends, batches of one edge follow each other, and who waits for a link is
starved by it on the timeline.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from rlinf_lab.planning.profile.profile import EdgeProfile, Message, Profile
from rlinf_lab.planning.simulator.scripts import Script, SimCall, Turn, get, put, run
from rlinf_lab.workflow.graph import Call, Node, Step, WorkflowGraph
from rlinf_lab.workflow.specs import ChannelSpec

METHOD = "move"


@dataclass(frozen=True)
class Links:
    """``seconds``: by channel, (of a batch, of one of its bundles)."""

    seconds: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, profile: Profile, edges: Mapping[EdgeProfile, Message | None], bundles: int) -> Links:
        """``edges``: those that are moved, and what a message of each costs. ``bundles``: into which the items of an
        iteration are gathered.
        """
        link, found = profile.link, {}
        for edge, message in edges.items():
            items = edge.items if edge.items is not None else profile.items
            latency = 0.0 if message is None else message.latency_s + 2 * message.busy_s
            if link is None or not edge.item_mib:
                found[edge.channel] = latency, 0.0
            else:
                found[edge.channel] = latency + link.latency_s, items / bundles * edge.item_mib / 1024 / link.gib_per_s
        return cls(found)

    def source(self, channel: str) -> str:
        """The channel into which the producer of ``channel`` puts."""
        return f"{channel}_sent" if channel in self.seconds else channel

    def placements(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Of the links: one rank each, without devices."""
        return {_name(channel): ((),) for channel in self.seconds}

    def inserted(self, graph: WorkflowGraph) -> WorkflowGraph:
        """The workflow with its links."""
        if not self.seconds:
            return graph
        moves = {_name(c): Call(METHOD, "()", (self.source(c),), (c,), False) for c in self.seconds}
        nodes = [dataclasses.replace(node, calls=tuple(map(self._redirected, node.calls))) for node in graph.nodes]
        steps = [dataclasses.replace(step, call=self._redirected(step.call)) for step in graph.program]
        return dataclasses.replace(
            graph,
            nodes=(*nodes, *(Node(name, "link", (call,)) for name, call in moves.items())),
            channels=(*graph.channels, *(ChannelSpec(self.source(c), None) for c in self.seconds)),
            program=(*steps, *(Step(name, call, ()) for name, call in moves.items())),
        )

    def _redirected(self, call: Call) -> Call:
        return dataclasses.replace(call, writes=tuple(map(self.source, call.writes)))

    def call(self, name: str) -> SimCall | None:
        """What the link of this name does; None for a worker that is none."""
        channel = next((c for c in self.seconds if _name(c) == name), None)
        if channel is None:
            return None
        latency, each = self.seconds[channel]
        source = self.source(channel)

        def move(turn: Turn) -> Script:
            while n := (yield get(source)):
                yield run(round((latency + each * n) * 1e9))
                yield put(channel, n)

        return SimCall(name, METHOD, move, (source,), (channel,), (), False)


def _name(channel: str) -> str:
    return f"link_{channel}"
