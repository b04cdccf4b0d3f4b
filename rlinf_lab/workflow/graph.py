"""The workflow graph. It has workers, the channels between them, the values they hand on, and the cycles (cells).

Frozen; traced from a dry run of the user's own loop (`trace.py`). Roles are never known by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from rlinf_lab.errors import UnknownNameError, WorkflowError, counted
from rlinf_lab.workflow.specs import ChannelSpec

DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Call:
    """One call site of the loop: a method with the channels it reads and writes.

    ``starts_on_device``: it computes, or may compute, before its first get. ``batched``: channels that it reads in the
    plan's batches only.
    """

    method: str
    signature: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    starts_on_device: bool
    batched: tuple[str, ...] = ()

    def __repr__(self) -> str:
        ends = "".join(f", reads {c}" for c in self.reads) + "".join(f", writes {c}" for c in self.writes)
        return f"Call({self.method}{self.signature}{ends})"


@dataclass(frozen=True, slots=True)
class Node:
    """A worker (or the driver) with its call sites in program order."""

    name: str
    class_name: str
    calls: tuple[Call, ...]

    def __repr__(self) -> str:
        return (
            f"Node({self.name!r}: {self.class_name}, calls "
            f"{', '.join(dict.fromkeys(c.method for c in self.calls)) or 'nothing'})"
        )


@dataclass(frozen=True, slots=True)
class Edge:
    """One producer and one consumer of a channel."""

    channel: str
    producer: str
    consumer: str
    keyed: bool
    whole: bool
    capacity: int | None
    group: int = 1

    def __repr__(self) -> str:
        return f"Edge({self.producer} --{self.channel}--> {self.consumer})"


@dataclass(frozen=True, slots=True)
class ValueEdge:
    """A value that goes from one call's result to another call's argument, once per iteration."""

    producer: str
    consumer: str
    label: str

    def __repr__(self) -> str:
        return f"ValueEdge({self.producer} ..{self.label}..> {self.consumer})"


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the loop in program order. ``after``: positions of the earlier calls whose values it is given."""

    worker: str
    call: Call
    after: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Step({self.worker}.{self.call.method}{f', after {list(self.after)}' if self.after else ''})"


@dataclass(frozen=True, slots=True)
class LoopStep:
    """What the loop does itself between its calls. ``kind``: "put", "get" or "wait"; ``before``: so many calls were
    made until then.

    ``items`` of a get: how many it asks for, "all", or None for a micro-batch. ``call``: position of the call that is
    waited for, ``part``: for a part of rank 0's value only.
    """

    kind: str
    before: int
    channel: str = ""
    items: int | str | None = None
    call: int = -1
    part: bool = False

    def __repr__(self) -> str:
        what = f"call {self.call}" if self.kind == "wait" else self.channel
        return f"LoopStep({self.kind} {what}, after {self.before} calls)"


@dataclass(frozen=True)
class WorkflowGraph:
    """Nodes, edges and cells of one workflow. ``flow.graph`` displays it as a picture.

    ``program``: the calls of one iteration in order, along the path with the most calls that the dry run has seen (with
    the iteration function's defaults); ``loop``: what the loop itself does between them at channels, and for what it
    waits.
    """

    name: str
    nodes: tuple[Node, ...]
    channels: tuple[ChannelSpec, ...]
    value_edges: tuple[ValueEdge, ...]
    program: tuple[Step, ...] = ()
    loop: tuple[LoopStep, ...] = ()

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """One edge for every (producer, consumer) pair of every channel, in order of declaration."""
        return tuple(
            Edge(c.name, p, q, c.keyed, c.whole, c.capacity, c.group)
            for c in self.channels
            for p in self.producers(c.name)
            for q in self.consumers(c.name)
        )

    @cached_property
    def workers(self) -> tuple[str, ...]:
        return tuple(n.name for n in self.nodes if n.name != DRIVER)

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise UnknownNameError.of("worker", name, self.workers)

    def channel(self, name: str) -> ChannelSpec:
        if name not in self._channel_of:
            raise UnknownNameError.of("channel", name, [c.name for c in self.channels])
        return self._channel_of[name]

    def channels_by_name(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.channels)

    def producers(self, channel: str) -> tuple[str, ...]:
        return self._ends[0].get(channel, ())

    def consumers(self, channel: str) -> tuple[str, ...]:
        return self._ends[1].get(channel, ())

    @cached_property
    def _channel_of(self) -> dict[str, ChannelSpec]:
        return {spec.name: spec for spec in self.channels}

    @cached_property
    def _ends(self) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """Who writes each channel, and who reads it, in order of declaration. Every item of a simulation asks for it.
        """
        found: tuple[dict[str, dict[str, None]], ...] = ({}, {})
        for node in self.nodes:
            for call in node.calls:
                for side, channels in zip(found, (call.writes, call.reads), strict=True):
                    for channel in channels:
                        side.setdefault(channel, {})[node.name] = None
        writes, reads = ({channel: tuple(names) for channel, names in side.items()} for side in found)
        return writes, reads

    @cached_property
    def cells(self) -> tuple[tuple[str, ...], ...]:
        """Cycles of channel edges, as strongly connected components of two or more. A simulator and its policy are
        one.
        """
        return tuple(c for c in self._components if len(c) > 1)

    @cached_property
    def depth(self) -> dict[str, int]:
        """Longest path from a source over the collapsed graph; members of a cell share one. Smaller is further
        upstream.
        """
        home = {w: i for i, members in enumerate(self._components) for w in members}
        above: dict[int, set[int]] = {i: set() for i in range(len(self._components))}
        for edge in self.edges:
            if home[edge.producer] != home[edge.consumer] and edge.consumer != DRIVER:
                above[home[edge.consumer]].add(home[edge.producer])
        level: dict[int, int] = {}

        def of(i: int) -> int:
            if i not in level:
                level[i] = 1 + max((of(j) for j in above[i]), default=-1)
            return level[i]

        return {w: of(home[w]) for w in home}

    @cached_property
    def _components(self) -> tuple[tuple[str, ...], ...]:
        reach = {n.name: self._ways(n.name) for n in self.nodes}
        found = dict.fromkeys(tuple(m for m in reach if m == n or (m in reach[n] and n in reach[m])) for n in reach)
        return tuple(found)

    def _ways(self, start: str) -> dict[str, Edge]:
        """The last edge of the shortest way from ``start`` to each worker along channels."""
        came: dict[str, Edge] = {}
        front = [start]
        for here in front:
            for edge in self.edges:
                # The loop feeds channels and reads others; that it does both makes no cell of it and its workers.
                if edge.producer == here and edge.consumer not in came and edge.consumer != DRIVER:
                    came[edge.consumer] = edge
                    front.append(edge.consumer)
        return came

    def ring_over(self, edge: Edge) -> str:
        """The shortest way over an edge and further channels back to its producer. So ``a --x--> b --y--> a``."""
        came = self._ways(edge.consumer)
        way: list[Edge] = []
        here = edge.producer
        while here in came and (here != edge.consumer or not way):
            way.append(came[here])
            here = came[here].producer
        return edge.producer + "".join(f" --{e.channel}--> {e.consumer}" for e in (edge, *way[::-1]))

    def validate(self) -> None:
        """Raises `WorkflowError` naming the channel that nobody reads or nobody writes."""
        for spec in self.channels:
            writers, readers = self.producers(spec.name), self.consumers(spec.name)
            if writers and not readers:
                raise WorkflowError(
                    f"Channel {spec.name!r} of workflow {self.name!r} is written by {_names(writers)} but nobody reads "
                    "it: "
                    "its producers would wait for ever. Next: pass it to a worker as an Inbox, or do not pass it at "
                    "all."
                )
            if readers and not writers:
                raise WorkflowError(
                    f"Channel {spec.name!r} of workflow {self.name!r} is read by {_names(readers)} but nobody writes "
                    "it. "
                    f"Next: pass it to a worker as an Outbox, or put into it in the iteration."
                )

    def __repr__(self) -> str:
        lines = [
            f"Workflow {self.name!r}: {counted(len(self.workers), 'worker')}, {counted(len(self.channels), 'channel')}"
        ]
        lines += [f"  {e.producer} --{e.channel}--> {e.consumer}" for e in self.edges]
        lines += [f"  {v.producer} ..{v.label}..> {v.consumer}" for v in self.value_edges]
        lines += [f"  cell: {' <-> '.join(c)}" for c in self.cells]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from rlinf_lab.workflow.drawing.graph_svg import graph_html, graph_svg

        return graph_html(graph_svg(self.nodes, self.edges, self.value_edges, self.cells))


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(n) for n in names)
