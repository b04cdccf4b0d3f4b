"""Durations from a finished run, so that other plans can be simulated before they are run. First form.

Every call of the workflow gets one of four descriptions, read off its spans (medians over iterations and ranks, the first
iteration left out because it warms up caches):

- *token holder*: it reads a keyed channel (a simulator). Its sequence of runs, gets and puts for one token is replayed, token
  by token; a plan may move tokens between ranks and sub-batches, but not change how many there are.
- *stream*: it reads batches (a policy). A batch of n items takes ``fixed + each * n`` nanoseconds, least squares over the
  batches seen; when all had one size, ``each`` is 0 and `Estimate.notes` says so.
- *source*: it only writes (a generator). Its runs and puts are replayed in order, so that consumers start as early as they would.
- *plain*: it neither reads nor writes (setting weights). Its total time.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine import ALL
from rlinf_lab.planning.layout import Layout, checked_layout
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.simulator import Script, SimCall, Simulator, Turn, get, put, run
from rlinf_lab.timeline.span import Span, SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import Step, WorkflowGraph

Operation = tuple[SpanKind, str, int, int]
"""kind, channel, items, nanoseconds of a run"""

SIMULATED = 4  # iterations of a prediction: recorded calls of different length take turns


@dataclass(frozen=True)
class Recorded:
    """What one rank did in one call."""

    operations: tuple[Operation, ...]

    def runs(self) -> int:
        return sum(op[3] for op in self.operations)


@dataclass(frozen=True)
class Estimate:
    """What the calls of a workflow cost, from a run under ``measured``. ``notes``: where a number is a guess, and why."""

    graph: WorkflowGraph
    measured: ExecutionPlan
    calls: dict[int, list[Recorded]]
    measured_seconds: float
    notes: tuple[str, ...] = field(default=())

    def simulate(self, plan: ExecutionPlan, iterations: int = 3) -> Timeline:
        """The predicted timeline of ``plan``. Raises `PlanError` when the measurement says nothing about it."""
        layout = checked_layout(self.graph, plan)
        return Simulator(self.graph, plan).simulate(self.sim_calls(layout), iterations)

    def iteration_seconds(self, plan: ExecutionPlan) -> float:
        """Predicted seconds of one iteration under ``plan``.

        Scaled so that the measured plan comes out as measured: messages and waking threads up are not simulated.
        """
        return self.overhead * self.simulate(plan, SIMULATED).elapsed_ns / SIMULATED / 1e9

    @cached_property
    def overhead(self) -> float:
        """Measured seconds over simulated seconds of the measured plan."""
        return self.measured_seconds / (self.simulate(self.measured, SIMULATED).elapsed_ns / SIMULATED / 1e9)

    def __repr__(self) -> str:
        head = f"Estimate of workflow {self.graph.name!r} from a run under plan {self.measured.name!r}: {self.measured_seconds:.4g} s an iteration"
        lines = [
            f"  {step.worker + '.' + step.call.method:<24} {_busy_seconds(self.calls[i]):.4g} s on each rank"
            for i, step in enumerate(self.graph.program)
        ]
        return "\n".join([head, *lines, *(f"  note: {note}" for note in self.notes)])

    def sim_calls(self, layout: Layout) -> list[SimCall]:
        found = []
        for number, step in enumerate(self.graph.program):
            script = self._script(number, step, layout)
            call = step.call
            found.append(SimCall(step.worker, call.method, script, call.reads, call.writes, step.after, call.starts_on_device))
        return found

    def _script(self, number: int, step: Step, layout: Layout) -> Callable[[Turn], Script]:
        recorded = self.calls[number]
        keyed = [c for c in step.call.reads if self.graph.channel(c).keyed]
        if keyed:
            return self._token_holder(recorded, step.worker, layout)
        if step.call.reads:
            return self._stream(recorded, step, layout)
        if step.call.writes:
            return _source(recorded)
        total = round(statistics.median(r.runs() for r in recorded))

        def plain(turn: Turn) -> Script:
            yield run(total)

        return plain

    def _token_holder(self, recorded: list[Recorded], worker: str, layout: Layout) -> Callable[[Turn], Script]:
        tokens, before = layout.plan.tokens(worker), self.measured.tokens(worker)
        total, was = tokens * layout.plan.ranks(worker), before * self.measured.ranks(worker)
        if total != was:
            raise PlanError(
                f"Plan {layout.plan.name!r}: {worker!r} would hold {total} tokens (ranks x sub-batches), but {was} were measured; how "
                f"long a token of another size takes is not known. Next: choose ranks and sub_batches with {was} tokens, or measure."
            )
        patterns = [_one_token(r, before) for r in recorded]
        calls = itertools.count()

        def script(turn: Turn) -> Script:
            # As it happened, call by call, rather than on average: where ranks wait for each other, the slower step counts.
            of_tokens = [patterns[(next(calls) * tokens + k) % len(patterns)] for k in range(tokens)]
            steps = [_steps(p) for p in of_tokens]
            for i in range(max(len(s) for s in steps)):
                for k in range(tokens):
                    for kind, channel, n, duration in steps[k][i] if i < len(steps[k]) else ():
                        if kind == SpanKind.RUN:
                            yield run(duration)
                        elif kind == SpanKind.GET:
                            yield get(channel, n, turn.rank * tokens + k if self.graph.channel(channel).keyed else -1)
                        else:
                            yield put(channel, n)

        return script

    def _stream(self, recorded: list[Recorded], step: Step, layout: Layout) -> Callable[[Turn], Script]:
        inbox = step.call.reads[0]
        fixed, each, rest = _affine(recorded)
        whole = self.graph.channel(inbox).whole
        ratio = {c: _ratio(recorded, inbox, c) for c in step.call.writes}
        slots = self._slots(step, layout)

        def stream(turn: Turn) -> Script:
            step = 0
            while n := (yield get(inbox, ALL if whole else None)):
                yield run(round(fixed + each * n))
                for channel, per_item in ratio.items():
                    for _ in range(round(per_item * n)):
                        mine = slots(turn.rank) if self.graph.channel(channel).keyed else [-1]
                        yield put(channel, 1, mine[step % len(mine)])
                        step += 1
                if whole:
                    break
            yield run(rest)

        return stream

    def _slots(self, step: Step, layout: Layout) -> Callable[[int], list[int]]:
        """The keys that a rank answers to, in turn: those of its unit when fused, else all."""
        keyed = [c for c in step.call.writes if self.graph.channel(c).keyed]
        if not keyed:
            return lambda rank: [-1]
        consumer = self.graph.consumers(keyed[0])[0]
        tokens = layout.plan.tokens(consumer)
        everyone = [r * tokens + k for r in range(layout.ranks(consumer)) for k in range(tokens)]
        if layout.sharded(keyed[0]):
            return lambda rank: [rank * tokens + k for k in range(tokens)]
        return lambda rank: everyone


def estimate(graph: WorkflowGraph, plan: ExecutionPlan, timeline: Timeline, iterations: Collection[int] | None = None) -> Estimate:
    """Read the cost of every call off a timeline that was recorded under ``plan``.

    ``iterations``: which to look at (None: all), for a run that sometimes did something else; the first of them warms up.
    """
    checked_layout(graph, plan)
    if not isinstance(timeline, Timeline):
        raise PlanError(f"estimate(..., timeline={timeline!r}): a Timeline is needed. Next: run.timeline of a run under that plan.")
    calls: dict[int, list[Recorded]] = {}
    notes: list[str] = []
    sequences = _sequences(timeline, iterations)
    for number, step in enumerate(graph.program):
        found = sequences.get((step.worker, step.call.method), [])
        if not found:
            raise PlanError(
                f"The timeline has no span of {step.worker}.{step.call.method}() after its first iteration; run two iterations or more."
            )
        calls[number] = found
        sizes = {op[2] for r in found for op in r.operations if op[0] == SpanKind.GET and op[2]}
        if step.call.reads and not any(graph.channel(c).keyed for c in step.call.reads) and len(sizes) == 1:
            notes.append(f"{step.worker}.{step.call.method}: every batch had {sizes.pop()} items; assumed to take as long at other sizes")
    seconds = timeline.iterations().set_index("iteration")["seconds"]
    warm = sorted(i for i in seconds.index if iterations is None or i in iterations)[1:]
    return Estimate(graph, plan, calls, float(seconds.loc[warm].median()), tuple(notes))


def _sequences(timeline: Timeline, wanted: Collection[int] | None) -> dict[tuple[str, str], list[Recorded]]:
    spans = [s for s in timeline.rows() if s.kind in (SpanKind.RUN, SpanKind.GET, SpanKind.PUT)]
    iterations = sorted({s.iteration for s in spans if s.iteration >= 0 and (wanted is None or s.iteration in wanted)})
    warm = set(iterations[1:])
    groups: dict[tuple[str, int, str, int], list[Span]] = {}
    for span in sorted(spans, key=lambda s: (s.start_ns, s.end_ns)):
        if span.iteration in warm:
            groups.setdefault((span.track.worker, span.track.rank, span.name, span.iteration), []).append(span)
    found: dict[tuple[str, str], list[Recorded]] = {}
    for (worker, _, method, _), members in groups.items():
        operations = tuple((s.kind, s.channel, s.items, s.end_ns - s.start_ns if s.kind == SpanKind.RUN else 0) for s in members)
        found.setdefault((worker, method), []).append(Recorded(operations))
    return found


def _source(recorded: list[Recorded]) -> Callable[[Turn], Script]:
    calls = itertools.count()

    def source(turn: Turn) -> Script:
        for kind, channel, n, duration in recorded[next(calls) % len(recorded)].operations:
            yield run(duration) if kind == SpanKind.RUN else put(channel, n)

    return source


def _one_token(recorded: Recorded, tokens: int) -> list[Operation]:
    """Of a rank that treats ``tokens`` tokens in turn: what it did for the first of them.

    They take turns from get to get. What is put before the first get and after the last step is put token by token.
    """
    operations = list(recorded.operations)
    gets = [i for i, op in enumerate(operations) if op[0] == SpanKind.GET]
    if tokens == 1 or not gets:
        return operations
    turns = [operations[i:j] for i, j in itertools.pairwise([*gets, len(operations)])]
    last = turns.pop()  # the last token's: its get, its step, then what all tokens put at the end
    step = 2 if len(last) > 1 and last[1][0] == SpanKind.RUN else 1
    mine = [op for turn in turns[::tokens] for op in turn]
    return [*_share(operations[: gets[0]], tokens), *mine, *_share(last[step:], tokens)]


def _share(operations: list[Operation], tokens: int) -> list[Operation]:
    """The first token's part of puts that are made token by token, with the runs before them."""
    blocks: list[list[Operation]] = [[]]
    for op in operations:
        blocks[-1].append(op)
        if op[0] == SpanKind.PUT:
            blocks.append([])
    return [op for block in blocks[::tokens] for op in block]


def _steps(pattern: list[Operation]) -> list[list[Operation]]:
    """Cut before every get: a rank with several tokens treats one up to its next get, then turns to the next."""
    steps: list[list[Operation]] = [[]]
    for op in pattern:
        if op[0] == SpanKind.GET:
            steps.append([])
        steps[-1].append(op)
    return steps


def _affine(recorded: list[Recorded]) -> tuple[float, float, int]:
    """(fixed, each, rest): nanoseconds of a batch of n items, and of what follows the last batch."""
    sizes: list[int] = []
    durations: list[int] = []
    rests = []
    for r in recorded:
        current, rest = 0, 0
        open_ = False
        for kind, _, n, duration in r.operations:
            if kind == SpanKind.GET:
                if open_:
                    durations.append(rest)
                open_, rest, current = n > 0, 0, n
                if open_:
                    sizes.append(current)
            else:
                rest += duration
        if open_:
            durations.append(rest)
            rest = 0
        rests.append(rest)
    rest_ns = round(statistics.median(rests)) if rests else 0
    if len(set(sizes)) > 1:
        each, fixed = np.polyfit(np.asarray(sizes, float), np.asarray(durations, float), 1)
        if each >= 0 and fixed >= 0:
            return float(fixed), float(each), rest_ns
    return statistics.fmean(durations) if durations else 0.0, 0.0, rest_ns


def _busy_seconds(recorded: list[Recorded]) -> float:
    return statistics.fmean(r.runs() for r in recorded) / 1e9 if recorded else 0.0


def _puts(r: Recorded, channel: str) -> int:
    return sum(op[2] for op in r.operations if op[0] == SpanKind.PUT and op[1] == channel)


def _ratio(recorded: list[Recorded], inbox: str, outbox: str) -> float:
    got = sum(op[2] for r in recorded for op in r.operations if op[0] == SpanKind.GET and op[1] == inbox)
    return sum(_puts(r, outbox) for r in recorded) / got if got else 0.0
