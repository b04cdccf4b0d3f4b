"""A finished run's loop as scripts: its calls, the rounds of cells without keys, messages that were under way.

How long messages between processes were under way in a finished run, where somebody waited for them: between the
members of a cell.
put ── sent ──────> heard ── woken ──> get
       TRANSFER span        to the end of the reader's GET span

Who begins the rounds of a cell in which no channel is keyed, replayed from a finished run: its runs, puts and gets, one
after the other. Averages would not do: each round puts what the round before got back, and the last one puts nothing.
What it gets between two puts is one get of as many items, in whatever batches others answer.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.fit.run_record import LoopRecorded, Operation, Recorded
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.profile.profile import Message
from rlinf_lab.planning.simulator.scripts import Script, Turn, call, get, put, run, wait
from rlinf_lab.timeline.record.span import Span, SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import LoopStep, Step, WorkflowGraph


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
    """Median nanoseconds from a message's arrival to the end of the get that waited for it."""
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
    """What the loop does: its calls in order, and between them what it did itself; the recorded iterations in turn."""

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


def is_replayed(graph: WorkflowGraph, step: Step, recorded: Sequence[Recorded]) -> bool:
    """Whether each record puts into its cell before it gets anything from it. And no key tells what it waits for."""
    inner = _inside(graph, step.worker)
    if not inner or any(graph.channel(c).keyed for c in step.call.reads):
        return False
    firsts = [next((op[0] for op in r.operations if op[1] in inner), None) for r in recorded]
    return bool(firsts) and all(kind == SpanKind.PUT for kind in firsts)


def replayed(
    graph: WorkflowGraph, step: Step, recorded: Sequence[Recorded], measured: ExecutionPlan, plan: ExecutionPlan
) -> Callable[[Turn], Script]:
    """The script. Raises `PlanError` where another plan would have it do something else: other ranks, or other batches
    of what it is fed.
    """
    name = f"{step.worker}.{step.call.method}()"
    ranks, before = plan.ranks(step.worker), measured.ranks(step.worker)
    if ranks != before:
        raise PlanError(
            f"Plan {plan.name!r}: {name} begins the rounds of a cell on {before} ranks in the measured run; what each "
            f"of {ranks} would put is not known. "
            f"Next: {before} ranks of {step.worker!r}, or measure this plan."
        )
    inner = _inside(graph, step.worker)
    for channel in step.call.reads:
        if (
            channel not in inner
            and plan.micro_batch(channel) != measured.micro_batch(channel)
            and not all(_first(r.operations, channel, inner) for r in recorded)
        ):
            raise PlanError(
                f"Plan {plan.name!r}: {name} is not seen to take all of channel {channel!r} before its cell goes "
                "round, and this plan has other "
                f"batches of it ({plan.micro_batches.get(channel, 0) or 'all'}, not "
                f"{measured.micro_batches.get(channel, 0) or 'all'}). Next: the same "
                "micro-batch, or measure "
                f"this plan."
            )
    patterns = [list(_merged(r.operations)) for r in recorded]

    def script(turn: Turn) -> Script:
        for kind, channel, n, duration in patterns[(turn.iteration * turn.count + turn.position) % len(patterns)]:
            if kind == SpanKind.RUN:
                yield run(duration)
            elif kind == SpanKind.PUT:
                yield put(channel, n)
            elif n:
                yield get(channel, n)

    return script


def _inside(graph: WorkflowGraph, worker: str) -> set[str]:
    """Channels of its cell."""
    mates = next((c for c in graph.cells if worker in c), ())
    return {e.channel for e in graph.edges if e.producer in mates and e.consumer in mates}


def _first(operations: Sequence[Operation], channel: str, inner: Collection[str]) -> bool:
    """Whether everything of a channel was taken before anything of the cell was moved, and it is sure that a part would
    not have done: there were several batches, or it met the end."""
    begun = next((i for i, op in enumerate(operations) if op[1] in inner), len(operations))
    gets = [(i, op[2]) for i, op in enumerate(operations) if op[1] == channel]
    before = [n for i, n in gets if i < begun]
    return all(i < begun for i, n in gets if n) and (len(before) > 1 or not before)


def _merged(operations: Sequence[Operation]) -> list[Operation]:
    """Gets of one channel between two puts are one, and what ran between them follows it."""
    found: list[Operation] = []
    for is_put, some in itertools.groupby(operations, key=lambda op: op[0] == SpanKind.PUT):
        block = list(some)
        if is_put:
            found += block
            continue
        sums: dict[str, int] = {}
        for kind, channel, n, _ in block:
            if kind == SpanKind.GET:
                sums[channel] = sums.get(channel, 0) + n
        told = set[str]()
        for kind, channel, _, duration in block:
            if kind != SpanKind.GET:
                found.append((kind, channel, 0, duration))
            elif channel not in told:
                told.add(channel)
                found.append((kind, channel, sums[channel], duration))
    return found
