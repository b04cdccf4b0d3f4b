"""A finished run's loop as a script, and messages that were under way.

How long messages between processes were under way in a finished run, where somebody waited for them: between the
members of a cell.
put ── sent ──────> heard ── woken ──> get
       TRANSFER span        to the end of the reader's GET span
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.fit.run_record import LoopRecorded
from rlinf_lab.planning.profile.profile import Message
from rlinf_lab.planning.simulator.scripts import Script, Turn, call, get, put, wait
from rlinf_lab.timeline.record.span import Span, SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import LoopStep, WorkflowGraph


def seen_messages(
    graph: WorkflowGraph, timeline: Timeline, iterations: Collection[int], known: Sequence[Message]
) -> tuple[Message, ...]:
    """``known`` costs of messages, with the flights that this run had where it had any. Without known ones they cost no
    computing.

    The mean over all messages: a cell goes round after round, and what its rounds take adds up. The time to wake the
    reader up is a median: some gets wait for other items, too.
    """
    inside = {e.channel for cell in graph.cells for e in graph.edges if e.producer in cell and e.consumer in cell}
    spans = [s for s in timeline.rows() if s.channel in inside and s.iteration in iterations]
    flights: dict[str, list[Span]] = {}
    for span in spans:
        if span.kind == SpanKind.TRANSFER:
            flights.setdefault("tcp" if span.name == "tcp" else "unix", []).append(span)
    found = {m.transport: m for m in known}
    for transport, way in flights.items():
        seconds = (statistics.fmean(s.end_ns - s.start_ns for s in way) + _waking(way, spans)) / 1e9
        found[transport] = replace(found.get(transport, Message(transport, 0.0)), latency_s=seconds)
    return tuple(found.values())


def _waking(flights: Iterable[Span], spans: Iterable[Span]) -> float:
    """Median nanoseconds from a message's arrival to the end of the get awaiting it."""
    gets: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for span in spans:
        if span.kind == SpanKind.GET:
            gets.setdefault((span.track.host, span.channel), []).append((span.end_ns, span.start_ns))
    waits = []
    for ended in gets.values():
        ended.sort()
    for flight in flights:
        ended = gets.get((flight.track.host, flight.channel), [])
        at = bisect.bisect_left(ended, (flight.end_ns, -1))
        if at < len(ended) and ended[at][1] < flight.end_ns:
            waits.append(ended[at][0] - flight.end_ns)
    return statistics.median(waits) if waits else 0.0


def loop_script(graph: WorkflowGraph, loops: Sequence[LoopRecorded]) -> Callable[[Turn], Script]:
    """What the loop does, with the recorded iterations in turn. It makes its calls in order, and between them what it
    did itself.
    """

    def loop(turn: Turn) -> Script:
        made = 0
        for step, items in loops[turn.iteration % len(loops)].steps:
            for number in range(made, step.before):
                yield call(number)
            made = step.before
            if step.kind == "wait":
                yield wait(step.call, step.part)
            elif step.kind == "put":
                yield put(step.channel, sum(items))
            else:
                yield from _gets(step, items)
        for number in range(made, len(graph.program)):
            yield call(number)

    return loop


def _gets(step: LoopStep, items: Sequence[int]) -> Script:
    """The gets of one step of the loop."""
    if step.items is None and items[-1] == 0:  # until the end, in the micro-batches of whatever plan
        while (yield get(step.channel)):
            pass
        return
    for _ in items:
        yield get(step.channel, ALL if step.items == "all" else step.items if isinstance(step.items, int) else None)
