"""Calls that would wait for each other for ever, found from the program alone, before anything runs.

What is certain is followed, call by call: a call begins when those before it of the same worker have ended, when the
values that it is given are there, and when the loop has got past the `wait()`s in front of it. It puts when something
is there of each channel that it surely gets something of before (`Call.awaits_first`), and ends when that is so for
each channel that it surely gets something of at all (`Call.awaits`): somebody puts, or nobody writes it; of a channel
that is declared whole, all who write it have ended. What no order of events can end stands still, and the calls that
hold each other up form a ring.

What stays open: what a method does where its code leaves a doubt (branches, decorators, whatever it calls with an
outbox), and how many items a worker asks for (`get(n)`, `take(key=...)`) and puts. That is seen when the program is
simulated with the counts of a profile or a run, and otherwise while it runs: both name the ring in their
`DeadlockError`. Bounds of channels hold nobody up for good: when nothing else can move, they give way
(`Engine.relieve`).
"""

from __future__ import annotations

from collections.abc import Iterator

from rlinf_lab.errors import PlanError
from rlinf_lab.workflow.graph import DRIVER, Edge, WorkflowGraph


def refuse_standstill(plan: str, graph: WorkflowGraph) -> None:
    """Raises `PlanError` that names the ring of calls."""
    if ring := ring_of_calls(graph):
        raise PlanError(
            f"Plan {plan!r}: workflow {graph.name!r} would stand still, under every plan: {'; '.join(ring)}. Next: "
            "make these calls in another "
            f"order, or have one call read and write what belongs together."
        )


def ring_of_calls(graph: WorkflowGraph) -> list[str]:
    """The calls that hold each other up, a sentence each; empty when the program can end."""
    return _Program(graph).ring()


def ring_of_channels(graph: WorkflowGraph, edge: Edge) -> str:
    """The shortest way from the edge's producer over it, and over further channels, back to the producer: ``a --x--> b
    --y--> a``.
    """
    came: dict[str, Edge] = {}
    front = [edge.consumer]
    while front and edge.producer not in came:
        later = []
        for worker in front:
            for onward in graph.edges:
                if onward.producer == worker and onward.consumer not in came and onward.consumer != DRIVER:
                    came[onward.consumer] = onward
                    later.append(onward.consumer)
        front = later
    way: list[Edge] = []
    here = edge.producer
    while here in came and (here != edge.consumer or not way):
        way.append(came[here])
        here = came[here].producer
    return edge.producer + "".join(f" --{e.channel}--> {e.consumer}" for e in (edge, *way[::-1]))


class _Program:
    """The calls of one iteration, and which of them can begin and end."""

    def __init__(self, graph: WorkflowGraph) -> None:
        self._graph, self._steps = graph, graph.program
        self._whole = {c.name for c in graph.channels if c.whole}
        self._begun: set[int] = set()
        self._puts: set[int] = set()
        self._ended: set[int] = set()
        self._last = self._ends_of_streams()

    def ring(self) -> list[str]:
        while self._goes_on():
            pass
        stuck = [i for i in range(len(self._steps)) if i not in self._ended]
        if not stuck:
            return []
        seen: dict[int, str] = {}
        here = stuck[0]
        while here not in seen:
            after, why = next(self._holds(here))
            seen[here] = why
            here = after
        names = list(seen)
        return [seen[i] for i in names[names.index(here) :]]

    def _goes_on(self) -> bool:
        """Whether another call can begin or end."""
        before = len(self._begun) + len(self._puts) + len(self._ended)
        for i, step in enumerate(self._steps):
            if next(self._holds_back(i), None) is None:
                self._begun.add(i)
            if i in self._begun and all(self._lacks(i, c) is None for c in step.call.awaits_first):
                self._puts.add(i)
            if i in self._begun and next(self._keeps(i), None) is None:
                self._ended.add(i)
        return len(self._begun) + len(self._puts) + len(self._ended) > before

    def _holds(self, i: int) -> Iterator[tuple[int, str]]:
        """Why a call does not end: another one, and how."""
        return self._holds_back(i) if i not in self._begun else self._keeps(i)

    def _holds_back(self, i: int) -> Iterator[tuple[int, str]]:
        """Why it does not begin."""
        step, mine = self._steps[i], self._name(i)
        for j in range(i):
            if j not in self._ended and self._steps[j].worker == step.worker:
                yield j, f"{mine} begins when {self._name(j)} has ended"
        for j in step.after:
            if j not in self._ended:
                yield j, f"{mine} needs the value of {self._name(j)}"
        for wait in self._graph.loop:
            if wait.kind == "wait" and wait.before <= i and wait.call not in self._ended:
                yield wait.call, f"{mine} is called when the loop has waited for {self._name(wait.call)}"

    def _keeps(self, i: int) -> Iterator[tuple[int, str]]:
        """Why it has begun and does not end."""
        for channel in self._steps[i].call.awaits:
            if (lack := self._lacks(i, channel)) is not None:
                yield lack

    def _lacks(self, i: int, channel: str) -> tuple[int, str] | None:
        """Why a call gets nothing of a channel; None when it gets something, or the end."""
        writers = [j for j, step in enumerate(self._steps[: self._last[channel]]) if channel in step.call.writes]
        if DRIVER in self._graph.producers(channel) or not writers:
            return None
        if channel in self._whole:
            late = next((j for j in writers if j not in self._ended), None)
            return (
                None
                if late is None
                else (late, f"{self._name(i)} waits for all items of {channel!r}, until {self._name(late)} has ended")
            )
        if any(j in self._puts for j in writers):
            return None
        return writers[0], f"{self._name(i)} waits for items of {channel!r}, which {self._name(writers[0])} puts"

    def _name(self, i: int) -> str:
        step = self._steps[i]
        return f"{step.worker}.{step.call.method}()"

    def _ends_of_streams(self) -> dict[str, int]:
        """For each channel how many calls were made when the loop waited for what depends on its end: later ones write
        nothing into it.
        """
        last = dict.fromkeys(self._graph.channels_by_name(), len(self._steps))
        for wait in self._graph.loop:
            open_ = (
                [wait.channel]
                if wait.kind == "get"
                else list(self._steps[wait.call].call.reads)
                if wait.kind == "wait"
                else []
            )
            above: set[str] = set()
            while open_:
                channel = open_.pop()
                if channel not in above:
                    above.add(channel)
                    last[channel] = min(last[channel], wait.before)
                    open_ += [
                        c for step in self._steps[: wait.before] if channel in step.call.writes for c in step.call.reads
                    ]
        return last
