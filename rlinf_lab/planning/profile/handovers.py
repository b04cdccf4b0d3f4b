"""Values that go from call to call. They are new weights from a learner to a rollout, or a batch from a loader to
whoever works on it.

A call without a channel that comes after everything its worker streams, and is given a value of another worker (or
gives its own to such a call), is a *handover*: `Profile.handovers`. Any other call that is given a value of another
worker begins when that worker has ended: an edge of the whole batch. For what the loop waits by itself, every later
call has waited.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlinf_lab.planning.profile.parts import ProfileFields
from rlinf_lab.workflow.graph import DRIVER, Step, WorkflowGraph


@dataclass(frozen=True)
class Values:
    """Of a workflow. ``handovers``: (worker, method, workers that have ended before), in program order; ``edges``:
    (producer, consumer) of values that the consumer waits for before it works; ``left_out``: what neither can say, for
    people."""

    handovers: tuple[tuple[str, str, tuple[str, ...]], ...]
    edges: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]

    @classmethod
    def of(cls, graph: WorkflowGraph) -> Values:
        """Read off the program of the dry run."""
        chosen = _handovers(graph)
        merged: dict[tuple[str, str], dict[str, None]] = {}
        for i in sorted(chosen):
            step = graph.program[i]
            before = {w: None for w in (graph.program[j].worker for j in _before(graph, i)) if w != step.worker}
            merged[step.worker, step.call.method] = {**merged.pop((step.worker, step.call.method), {}), **before}
        edges, left_out = _edges(graph, chosen)
        return cls(tuple((w, m, tuple(before)) for (w, m), before in merged.items()), edges, left_out)

    def methods(self, worker: str) -> tuple[str, ...]:
        """Of the handovers of a worker."""
        return tuple(m for w, m, _ in self.handovers if w == worker)


def _handovers(graph: WorkflowGraph) -> set[int]:
    """Positions in the program."""
    program = graph.program
    last = {s.worker: i for i, s in enumerate(program) if _streams(s)}
    late = {i for i, s in enumerate(program) if not _streams(s) and i > last.get(s.worker, len(program))}
    # Spans carry the name of the method: one that is called elsewhere too cannot be told apart.
    elsewhere = {(s.worker, s.call.method) for i, s in enumerate(program) if i not in late}
    late = {i for i in late if (program[i].worker, program[i].call.method) not in elsewhere}
    taking = {i for i in late if any(program[j].worker != program[i].worker for j in _before(graph, i))}
    found = taking | {j for i in taking for j in _before(graph, i) if j in late}
    for i in sorted(late, reverse=True):  # what such a call needs of its own worker
        if any(i in _before(graph, j) and program[j].worker == program[i].worker for j in found):
            found.add(i)
    first = {w: min(i for i in found if program[i].worker == w) for w in {program[i].worker for i in found}}
    return found | {i for i in late if i > first.get(program[i].worker, len(program))}


def _edges(graph: WorkflowGraph, handovers: set[int]) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    after: dict[str, set[str]] = {w: set() for w in graph.workers}
    for e in graph.edges:
        if DRIVER not in (e.producer, e.consumer):
            after[e.producer].add(e.consumer)
    found: dict[tuple[str, str], None] = {}
    left_out: dict[str, None] = {}
    for i, step in enumerate(graph.program):
        for giving in (graph.program[j] for j in _before(graph, i) if i not in handovers):
            producer, consumer = giving.worker, step.worker
            if producer == consumer:
                continue
            if _reaches(after, consumer, producer):
                left_out[f"that {consumer}.{step.call.method}() waits for {producer}.{giving.call.method}()"] = None
            else:
                found[producer, consumer] = None
                after[producer].add(consumer)
    return tuple(found), tuple(left_out)


def _before(graph: WorkflowGraph, i: int) -> tuple[int, ...]:
    """Earlier calls that have ended when a call begins. It is given their values, or the loop itself waits for them
    first.
    """
    return (*graph.program[i].after, *(step.call for step in graph.loop if step.kind == "wait" and step.before <= i))


def _streams(step: Step) -> bool:
    return bool(step.call.reads or step.call.writes)


def _reaches(after: Mapping[str, set[str]], start: str, end: str) -> bool:
    seen, open_ = {start}, [start]
    while open_:
        new = after[open_.pop()] - seen
        seen |= new
        open_ += new
    return end in seen


def handed_over(profile: ProfileFields, ends: Mapping[str, float]) -> dict[str, float]:
    """When each worker has handed over, from when it has ended what it streams. The same seconds in and out."""
    ready = dict(ends)
    for h in profile.handovers:
        ready[h.worker] = max(ready[w] for w in (h.worker, *h.after)) + h.seconds
    return ready


def tail(profile: ProfileFields) -> float:
    """Seconds by which the last handover ends later than everything else, at least. They are of chains that begin where
    all streams end.
    """
    if not profile.handovers:
        return 0.0
    ends = {w: 0.0 if above >= set(profile.workers) else -math.inf for w, above in _upstream(profile).items()}
    return max(0.0, *handed_over(profile, ends).values())


def is_closed(profile: ProfileFields) -> bool:
    """Whether a handover ends each iteration before the next one can begin, whatever staleness allows. Who feeds all
    others is handed a value by the last.
    """
    if not profile.handovers:
        return False
    upstream, everyone = _upstream(profile), set(profile.workers)
    ended = {w: set(above) for w, above in upstream.items()}
    for h in profile.handovers:
        ended[h.worker] |= set().union(*(ended[w] for w in h.after))
    return any(
        ended[h.worker] == everyone and all(h.worker in above for above in upstream.values()) for h in profile.handovers
    )


def _upstream(profile: ProfileFields) -> dict[str, set[str]]:
    """Of each worker those whose items come to it, through others too, and itself."""
    before: dict[str, Sequence[str]] = {
        w: [e.producer for e in profile.edges if e.consumer == w] for w in profile.workers
    }
    found = {}
    for worker in profile.workers:
        seen, open_ = {worker}, [worker]
        while open_:
            new = set(before[open_.pop()]) - seen
            seen |= new
            open_ += new
        found[worker] = seen
    return found
