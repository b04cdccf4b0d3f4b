"""What every call of a workflow did in a finished run, read off its spans.

Spans carry the method's name, not the call. Which call a span belongs to follows from the order: a rank does its calls
in program order. Where one method is called several times in a row, the end of a call is where two runs meet (inside a
call there is a get or a put between two runs), where a call waits for a value, or where channels begin that the call
before does not have. What stays in doubt is refused.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.schema.json_schema import listing
from rlinf_lab.timeline.account.tables import rows_of, whole_iterations
from rlinf_lab.timeline.record.span import Span, SpanKind
from rlinf_lab.timeline.record.store import SpanStore
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER, LoopStep, Step, WorkflowGraph

_KINDS = (SpanKind.RUN, SpanKind.GET, SpanKind.PUT, SpanKind.WAIT)
Operation = tuple[SpanKind, str, int, int]
"""kind, channel, items, nanoseconds of a run"""
Numbered = tuple[int, Step]
"""position in the program, call"""
Switches = dict[str, tuple[int | None, int | None]]


@dataclass(frozen=True)
class Recorded:
    """What one rank did in one call."""

    operations: tuple[Operation, ...]
    iteration: int = -1

    def runs(self) -> int:
        return sum(op[3] for op in self.operations)


@dataclass(frozen=True)
class LoopRecorded:
    """What the loop itself did in one iteration. For each step of the dry run it has the items of each of its puts or
    gets.
    """

    steps: tuple[tuple[LoopStep, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Records:
    """What the iterations that count recorded. ``calls`` by position in the program, ``loop`` by iteration, ``passed``:
    items taken, by (iteration, channel).

    ``switches``: nanoseconds of coming and leaving by worker, of all iterations; None where it never did.
    """

    calls: dict[int, list[Recorded]]
    loop: list[LoopRecorded]
    passed: dict[tuple[int, str], int]
    switches: Switches


def read(graph: WorkflowGraph, timeline: Timeline, wanted: Collection[int] | None) -> Records:
    """Read the wanted iterations that count. The first one warms up and is left out, as are those that did not come to
    their end. Raises `PlanError` naming the call that cannot be told apart.
    """
    timeline = timeline.snapshot()
    over = whole_iterations(timeline)
    looked = over if wanted is None else set(wanted) if over is None else over & set(wanted)
    rows = (
        row
        for row in timeline.rows()
        if row.kind in _KINDS and row.iteration >= 0 and (looked is None or row.iteration in looked)
    )
    spans = [s for row in rows for s in _one_by_one(row)]
    warm = set(sorted({s.iteration for s in spans})[1:])
    if not warm:
        raise PlanError(
            "The timeline has one iteration at most to look at, and the first one warms up. Next: run two iterations "
            "or more."
        )
    found = _records(graph, spans, warm, switch_ns(graph, timeline))
    for number, step in enumerate(graph.program):
        if not found.calls[number]:
            raise PlanError(
                f"The timeline has no span of {step.worker}.{step.call.method}() after its first iteration. Next: run "
                "two iterations or more of "
                f"workflow {graph.name!r}; with a mock clock, let the call compute something."
            )
    return found


def _records(graph: WorkflowGraph, spans: Sequence[Span], warm: set[int], switches: Switches) -> Records:
    groups: dict[tuple[int, str, int], list[Span]] = {}
    for span in sorted(spans, key=lambda s: (s.start_ns, s.end_ns)):
        if span.iteration in warm:
            groups.setdefault((span.iteration, span.track.worker, span.track.rank), []).append(span)
    found = Records({number: [] for number, _ in enumerate(graph.program)}, [], {}, switches)
    for (iteration, worker, rank), members in sorted(groups.items(), key=lambda group: group[0]):
        for span in members:
            if span.kind == SpanKind.GET:
                found.passed[iteration, span.channel] = found.passed.get((iteration, span.channel), 0) + span.items
        if worker != DRIVER:
            calls = [(number, step) for number, step in enumerate(graph.program) if step.worker == worker]
            for number, part in _calls(calls, members, f"{worker}[{rank}] in iteration {iteration}"):
                operations = tuple(
                    (s.kind, s.channel, s.items, s.end_ns - s.start_ns if s.kind == SpanKind.RUN else 0) for s in part
                )
                found.calls[number].append(Recorded(operations, iteration))
    found.loop.extend(
        _loop(graph, [s for s in groups.get((i, DRIVER, 0), []) if s.kind in (SpanKind.GET, SpanKind.PUT)])
        for i in sorted(warm)
    )
    return found


def _one_by_one(span: Span) -> list[Span]:
    """What is put together travels together; a simulated rank puts item by item."""
    if span.kind != SpanKind.PUT or span.items <= 1:
        return [span]
    return [dataclasses.replace(span, items=1, flow=span.flow + i if span.flow >= 0 else -1) for i in range(span.items)]


def switch_ns(graph: WorkflowGraph, timeline: SpanStore) -> Switches:
    """Median nanoseconds in which each worker came to its devices and left them. None where it never did."""
    took: dict[tuple[str, SpanKind], list[int]] = {}
    for span in rows_of(timeline, np.isin(timeline.spans["kind"], (SpanKind.ONLOAD, SpanKind.OFFLOAD))):
        took.setdefault((span.track.worker, span.kind), []).append(span.end_ns - span.start_ns)
    middle = {key: round(statistics.median(values)) for key, values in took.items()}
    return {w: (middle.get((w, SpanKind.ONLOAD)), middle.get((w, SpanKind.OFFLOAD))) for w in graph.workers}


# --- calls -------------------------------------------------------------------------------------------------------
def _calls(calls: Sequence[Numbered], spans: Sequence[Span], who: str) -> Iterator[tuple[int, list[Span]]]:
    """The spans of each call, in order, without waits for values."""
    expected = [(name, list(members)) for name, members in itertools.groupby(calls, key=lambda c: c[1].call.method)]
    seen = [(name, list(members)) for name, members in itertools.groupby(spans, key=lambda s: s.name)]
    if [name for name, _ in expected] != [name for name, _ in seen]:
        did, should = (listing([f"{name}()" for name, _ in part]) for part in (seen, expected))
        raise PlanError(
            f"{who} did {did}, but an iteration of the dry run does {should}: what the difference costs in another "
            "plan is not known. "
            f"Next: estimate(..., iterations=[...]) with the iterations that did the same as the dry run."
        )
    for (name, members), (_, run) in zip(expected, seen, strict=True):
        parts = _parts(members, run)
        if len(parts) != len(members):
            raise PlanError(
                f"{who}: {name}() is called {len(members)} times in a row, and its spans do not show where one call "
                "ends and the next begins. "
                f"Next: give the calls methods of their own (a second method that calls the first)."
            )
        for (number, _), part in zip(members, parts, strict=True):
            yield number, [s for s in part if s.kind != SpanKind.WAIT]


def _parts(members: Sequence[Numbered], spans: Sequence[Span]) -> list[list[Span]]:
    """Cut where a call surely begins."""
    if len(members) == 1:
        return [list(spans)]
    parts: list[list[Span]] = [[]]
    for span in spans:
        before = parts[-1][-1] if parts[-1] else None
        if before is not None and (
            span.kind == SpanKind.WAIT
            or span.kind == before.kind == SpanKind.RUN
            or _elsewhere(members, len(parts) - 1, span)
        ):
            parts.append([])
        parts[-1].append(span)
    return parts


def _elsewhere(members: Sequence[Numbered], here: int, span: Span) -> bool:
    """Whether a span is at a channel that only the next call has. That call must begin with a get: it may run before,
    otherwise.
    """
    if not span.channel or here + 1 >= len(members):
        return False
    this, following = members[here][1].call, members[here + 1][1].call
    return (
        span.channel not in (*this.reads, *this.writes)
        and span.channel in following.reads
        and not following.starts_on_device
    )


# --- the loop itself ---------------------------------------------------------------------------------------------
def _loop(graph: WorkflowGraph, spans: Sequence[Span]) -> LoopRecorded:
    """Each step of the dry run with what it did. The dry run does not know how often, the run does not know between
    which calls.
    """
    for step in graph.loop:
        if step.channel and graph.channel(step.channel).keyed:
            raise PlanError(
                f"The loop of workflow {graph.name!r} uses the keyed channel {step.channel!r} itself; its spans do not "
                "say with which keys. "
                f"Next: let a worker do that, or run the plan."
            )
    words = {SpanKind.GET: "get", SpanKind.PUT: "put"}
    runs = [
        (key, tuple(s.items for s in members))
        for key, members in itertools.groupby(spans, key=lambda s: (words[s.kind], s.channel))
    ]
    steps = [step for step in graph.loop if step.kind != "wait"]
    if [(s.kind, s.channel) for s in steps] == [key for key, _ in runs]:
        sizes = iter([items for _, items in runs])
        return LoopRecorded(tuple((step, () if step.kind == "wait" else next(sizes)) for step in graph.loop))
    places = {s.before for s in steps}
    at = [i for i, s in enumerate(graph.loop) if s.kind != "wait"]
    together = len(places) == 1 and at == list(range(at[0], at[-1] + 1))
    asked = {(s.kind, s.channel): s.items for s in steps}
    if not together or any(key not in asked for key, _ in runs):
        did, should = (
            listing([f"{kind} {channel!r}" for (kind, channel), _ in runs]),
            listing([f"{s.kind} {s.channel!r}" for s in steps]),
        )
        raise PlanError(
            f"The loop of workflow {graph.name!r} did {did} at channels, its dry run {should}: between which calls "
            "cannot be told. "
            f"Next: let the loop use its channels before all calls or after all calls, or run the plan."
        )
    own = [(LoopStep(kind, steps[0].before, channel, asked[kind, channel]), items) for (kind, channel), items in runs]
    return LoopRecorded((*((s, ()) for s in graph.loop[: at[0]]), *own, *((s, ()) for s in graph.loop[at[-1] + 1 :])))
