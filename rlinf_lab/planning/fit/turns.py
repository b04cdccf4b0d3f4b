"""What each rank did in an iteration of a run. It has batches, puts and gets, and seconds that belong to none."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass, field

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.fit.habits import Moments
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.profile.handovers import Values
from rlinf_lab.planning.schema.json_schema import listing
from rlinf_lab.timeline.account.tables import whole_iterations
from rlinf_lab.timeline.record.span import Span, SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER, WorkflowGraph


@dataclass
class Turn:
    """What one rank did in one iteration. Times in seconds, outputs relative to its first work."""

    busy: float = 0.0
    batches: list[tuple[int, float]] = field(default_factory=list)  # (items, seconds)
    keyed: dict[str, int] = field(default_factory=dict)  # channel: tokens that came back to it
    # items that it put into its cell, or (below 0) got from it, in order
    moves: list[int] = field(default_factory=list)
    rest: float = 0.0  # belongs to no batch
    handed: dict[str, float] = field(default_factory=dict)  # method: seconds of a handover
    puts: dict[str, list[tuple[float, int]]] = field(default_factory=dict)  # channel: (seconds, items)
    gets: dict[str, int] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)  # channel: seconds from its gets on
    reading: str = ""  # channel of the last get
    ended: set[str] = field(default_factory=set)  # channels that were read to their end
    mixed: bool = False  # a channel was begun before the one before had ended
    began: int = -1
    method: str = ""  # of the batch that is being worked on; "" between batches
    moments: Moments = field(default_factory=Moments)


def turns_of(
    graph: WorkflowGraph, plan: ExecutionPlan, timeline: Timeline, first: int | None = None
) -> dict[str, dict[int, dict[int, Turn]]]:
    """Of the iterations that came to their end; of the ``first`` so many, if given. Raises `PlanError` when the
    timeline has no second one, or lacks a worker.
    """
    timeline = timeline.snapshot()
    over = whole_iterations(timeline)
    those = range(sys.maxsize if first is None else first)
    kinds = (SpanKind.RUN, SpanKind.GET, SpanKind.PUT)
    spans = [s for s in timeline.rows() if s.kind in kinds and s.iteration in those]
    warm = set(sorted({s.iteration for s in spans if over is None or s.iteration in over})[1:])
    if not warm:
        raise PlanError(
            "The timeline has one iteration at most that came to its end, and the first one warms up. Next: run "
            "two iterations or more."
        )
    seen = {s.track.worker for s in spans if s.iteration in warm}
    missing = [w for w in graph.workers if w not in seen]
    if missing:
        called = {step.worker for step in graph.program}
        never = listing([repr(w) for w in missing if w not in called])
        raise PlanError(
            f"The timeline has no span of {listing([repr(w) for w in missing])} in the {len(warm)} iterations "
            "after its first one"
            + (
                f"; the dry run of workflow {graph.name!r} does not call {never} either"
                if any(w not in called for w in missing)
                else ""
            )
            + ". Next: more iterations (lab.profile(iterations=...)) where it is called in some only, else call "
            "it, or leave it out of the workflow."
        )
    _refuse_other_places(plan, timeline)
    turns: dict[str, dict[int, dict[int, Turn]]] = {}
    values = Values.of(graph)
    inside = {e.channel for e in graph.edges if any(e.producer in c and e.consumer in c for c in graph.cells)}
    handing = {w: values.methods(w) for w in graph.workers}
    for span in sorted(spans, key=lambda s: (s.start_ns, s.end_ns, s.kind != SpanKind.RUN)):
        if span.iteration in warm and span.track.worker != DRIVER:
            of = turns.setdefault(span.track.worker, {}).setdefault(span.iteration, {})
            turn = of.setdefault(span.track.rank, Turn())
            if span.kind == SpanKind.RUN and span.name in handing[span.track.worker]:
                turn.handed[span.name] = turn.handed.get(span.name, 0.0) + (span.end_ns - span.start_ns) / 1e9
            else:
                _see(turn, span, graph, inside)
    return turns


def _refuse_other_places(plan: ExecutionPlan, timeline: Timeline) -> None:
    """Refuse a run on other devices than the plan's. Its seconds would be counted as seconds on as many as the plan
    has.
    """
    for track in timeline.tracks:
        if track.worker in plan.placements and track.devices:
            here = plan.device_names(track.worker, track.rank) if track.rank < plan.ranks(track.worker) else ()
            if set(here) != set(track.devices):
                where = f"has it on {listing(here)}" if here else f"has {plan.ranks(track.worker)} ranks of it"
                raise PlanError(
                    f"In the timeline {track.worker}[{track.rank}] worked on {listing(track.devices)}; plan "
                    f"{plan.name!r} {where}. Next: the plan that was run."
                )


def _see(turn: Turn, span: Span, graph: WorkflowGraph, inside: Collection[str]) -> None:
    """``inside``: channels of the cells."""
    seconds = (span.end_ns - span.start_ns) / 1e9
    if span.kind == SpanKind.RUN:
        turn.moments.computed(seconds)
        turn.began = span.start_ns if turn.began < 0 else turn.began
        turn.busy += seconds
        if turn.reading:
            turn.spent[turn.reading] = turn.spent.get(turn.reading, 0.0) + seconds
        if turn.method == span.name:
            n, before = turn.batches[-1]
            turn.batches[-1] = (n, before + seconds)
        elif not turn.keyed:
            turn.rest += seconds
    elif span.kind == SpanKind.PUT:
        turn.moments.gave(span.channel, max(1, span.items))
        if span.channel in inside:
            turn.moves.append(max(1, span.items))
        since = (span.start_ns - turn.began) / 1e9 if turn.began >= 0 else 0.0
        turn.puts.setdefault(span.channel, []).append((since, max(1, span.items)))
    elif span.channel and graph.channel(span.channel).keyed:
        turn.keyed[span.channel] = turn.keyed.get(span.channel, 0) + span.items
    elif not span.items:
        turn.moments.got(span.channel, 0)
        turn.method = ""  # the end of the stream: what follows belongs to no batch
        turn.ended.add(span.channel)
    else:
        if span.channel in inside:
            turn.moves.append(-span.items)
        turn.moments.got(span.channel, span.items)
        turn.mixed |= span.channel not in turn.gets and not turn.ended.issuperset(turn.gets)
        turn.reading = span.channel
        turn.gets[span.channel] = turn.gets.get(span.channel, 0) + span.items
        if span.channel == next(iter(turn.gets)):  # of several inputs, the first one counts the batches
            turn.batches.append((span.items, 0.0))
            turn.method = span.name
