"""Who begins the rounds of a cell in which no channel is keyed, replayed from a finished run: its runs, puts and gets, one after the other.

Averages would not do: each round puts what the round before got back, and the last one puts nothing. What it gets between two puts is one get of as many
items, in whatever batches others answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.recorded import Operation, Recorded
from rlinf_lab.planning.scripts import Script, Turn, get, put, run
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.workflow.graph import Step, WorkflowGraph


def is_replayed(graph: WorkflowGraph, step: Step, recorded: Sequence[Recorded]) -> bool:
    """Whether each record of a call puts into the cell of its worker before it gets anything from it, and no key tells what it waits for."""
    inner = _inside(graph, step.worker)
    if not inner or any(graph.channel(c).keyed for c in step.call.reads):
        return False
    firsts = [next((op[0] for op in r.operations if op[1] in inner), None) for r in recorded]
    return bool(firsts) and all(kind == SpanKind.PUT for kind in firsts)


def replayed(graph: WorkflowGraph, step: Step, recorded: Sequence[Recorded], measured: ExecutionPlan, plan: ExecutionPlan) -> Callable[[Turn], Script]:
    """The script. Raises `PlanError` where another plan would have it do something else: other ranks, or other batches of what it is fed."""
    name = f"{step.worker}.{step.call.method}()"
    ranks, before = plan.ranks(step.worker), measured.ranks(step.worker)
    if ranks != before:
        raise PlanError(
            f"Plan {plan.name!r}: {name} begins the rounds of a cell on {before} ranks in the measured run; what each of {ranks} would put is not known. "
            f"Next: {before} ranks of {step.worker!r}, or measure this plan."
        )
    inner = _inside(graph, step.worker)
    for channel in step.call.reads:
        if channel not in inner and plan.chunk(channel) != measured.chunk(channel) and not all(_first(r.operations, channel, inner) for r in recorded):
            raise PlanError(
                f"Plan {plan.name!r}: {name} is not seen to take all of channel {channel!r} before its cell goes round, and this plan has other "
                f"batches of it ({plan.chunks.get(channel, 0) or 'all'}, not {measured.chunks.get(channel, 0) or 'all'}). Next: the same chunk, or measure "
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
    """Whether everything of a channel was taken before anything of the cell was moved, and it is sure that a part would not have done: there were several
    batches, or it met the end."""
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
