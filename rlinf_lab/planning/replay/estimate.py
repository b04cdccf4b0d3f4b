"""Durations from a finished run. With them other plans can be simulated before they are run.

Every call of the workflow gets one of four descriptions, read off its spans (the first iteration left out because it
warms up caches):

- *token holder*: it reads a keyed channel (a simulator). Its sequence of runs, gets and puts for one token is replayed,
  token by token; a plan may move tokens between ranks and sub-batches, but not change how many there are.
- *consumer*: it reads batches (a policy, a learner, a join); see `batch_model`. A batch of n items takes ``fixed + each
  * n`` nanoseconds, least squares over the batches seen; `Estimate.notes` says where that is a guess.
- *source*: it only writes (a generator). Its runs and puts are replayed in order, so that consumers start as early as
  they would.
- *plain*: it neither reads nor writes (setting weights). Its total time.

What the loop itself puts, gets and waits for is replayed between its calls; what it computes meanwhile is part of
`Estimate.overhead`. A plan about which the record says nothing is refused with a `PlanError` that names the call.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.fit.crowding import checked_factors, stretched
from rlinf_lab.planning.fit.run_record import LoopRecorded, Operation, Recorded, read
from rlinf_lab.planning.forecast.message_costs import Hops
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.fields import shown
from rlinf_lab.planning.plan.layout import Layout, checked_layout
from rlinf_lab.planning.profile.profile import Message
from rlinf_lab.planning.replay.batch_model import Consumption, learn
from rlinf_lab.planning.replay.loop_script import loop_script, seen_messages
from rlinf_lab.planning.schema.json_schema import listing
from rlinf_lab.planning.simulator.messages import Flights
from rlinf_lab.planning.simulator.scripts import Script, SimCall, Turn, get, put, run
from rlinf_lab.planning.simulator.simulator import Simulator
from rlinf_lab.timeline.account.tables import whole_iterations
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER, Step, WorkflowGraph
from rlinf_lab.workflow.workflow import Workflow

TOLD_APART = 0.02  # of an iteration: readings that are nearer say the same
SIMULATED_ITERATIONS = 4  # iterations of a prediction: recorded calls of different length time-share


@dataclass(frozen=True)
class Estimate:
    """What the calls of a workflow cost, from a run under ``measured``. ``notes``: where a number is a guess, and why.

    ``messages``: what messages between processes cost (`Profile.messages`), with the flights that the measured run had;
    plans are then predicted for an executor of processes. ``in_processes``: whether the measured run was one.
    ``crowding``: see `stretched`.
    """

    graph: WorkflowGraph
    measured: ExecutionPlan
    calls: Mapping[int, Sequence[Recorded]]
    loop: Sequence[LoopRecorded]
    consumers: Mapping[int, Consumption]
    switches: Mapping[str, tuple[int | None, int | None]]
    measured_seconds: float
    messages: tuple[Message, ...] = ()
    in_processes: bool = False
    crowding: tuple[float, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note for c in self.consumers.values() for note in c.notes)

    def simulate(self, plan: ExecutionPlan, iterations: int = 3) -> Timeline:
        """The predicted timeline of ``plan``. Raises `PlanError` when the measurement says nothing about it."""
        return self._simulated(plan, iterations, True)

    def _simulated(self, plan: ExecutionPlan, iterations: int, in_processes: bool) -> Timeline:
        layout = checked_layout(self.graph, plan)
        plan = layout.plan
        hops = Hops(layout, self.messages) if self.messages and in_processes else None
        calls, loop = self.sim_calls(layout, hops), loop_script(self.graph, self.loop)
        if hops is not None:
            before = Hops(checked_layout(self.graph, self.measured), self.messages) if self.in_processes else None
            calls = [replace(c, script=hops.carried(c.worker, c.script, before)) for c in calls]
            loop = hops.carried(DRIVER, loop, before)
        return stretched(
            Simulator(self.graph, plan, self._switch_ns(plan), flights=hops).simulate(calls, iterations, loop),
            self.crowding,
        )

    def iteration_seconds(self, plan: ExecutionPlan) -> float:
        """Predicted seconds of one iteration under ``plan``.

        Scaled so that the measured plan comes out as measured: waking threads up is not simulated, nor are messages
        whose cost is not known. Warns where batches of one size leave open what others take, and says both readings.
        """
        seconds, other = (
            self.overhead * reading.simulate(plan, SIMULATED_ITERATIONS).elapsed_ns / SIMULATED_ITERATIONS / 1e9
            for reading in (self, self._other_reading())
        )
        if abs(other - seconds) > TOLD_APART * seconds:
            alone = {c.name: c for c in self.consumers.values() if any(w.alone for p in c.phases for w in p.works)}
            warnings.warn(
                f"Plan {plan.name!r}: {seconds:.3g} s an iteration if batches take time in proportion to their items, "
                f"{other:.3g} s if they take as long at any size. Which, cannot be told: in the measured run all "
                f"batches of {listing(alone)} had one size. Next: plan with lab.profile(flow), which measures two "
                "sizes, or run this plan.",
                stacklevel=2,
            )
        return seconds

    def _other_reading(self) -> Estimate:
        """See `Work.whatever_its_size`."""
        consumers = {
            i: replace(
                c, phases=tuple(replace(p, works=tuple(w.whatever_its_size() for w in p.works)) for p in c.phases)
            )
            for i, c in self.consumers.items()
        }
        return replace(self, consumers=consumers)

    @cached_property
    def overhead(self) -> float:
        """Measured seconds over simulated seconds of the measured plan."""
        return self.measured_seconds / (
            self._simulated(self.measured, SIMULATED_ITERATIONS, self.in_processes).elapsed_ns
            / SIMULATED_ITERATIONS
            / 1e9
        )

    def __repr__(self) -> str:
        head = (
            f"Estimate of workflow {self.graph.name!r} from a run under plan {self.measured.name!r}: "
            f"{self.measured_seconds:.4g} s an iteration"
        )
        lines = [
            f"  {step.worker + '.' + step.call.method:<24} "
            f"{statistics.fmean([r.runs() for r in self.calls[i]] or [0]) / 1e9:.4g} s on each rank"
            for i, step in enumerate(self.graph.program)
        ]
        return "\n".join([head, *lines, *(f"  note: {note}" for note in self.notes)])

    def _switch_ns(self, plan: ExecutionPlan) -> dict[str, tuple[int, int]]:
        """Nanoseconds of a switch, also of one that was not measured. Who never left in the measured run is taken to
        leave as fast as it came; who never came, under a plan that makes it, is refused.
        """
        found = {}
        for worker, need in plan.memory.items():
            on, off = self.switches[worker]
            if plan.device_memory is not None and need and on is None and any(plan.placements[worker]):
                raise PlanError(
                    f"Plan {plan.name!r} may move {worker!r} off its devices and back; in the measured run it stayed, "
                    "so what that costs is not known. "
                    f"Next: measure under a plan with device_memory={plan.device_memory}, or predict plans without it."
                )
            if on is not None:
                found[worker] = on, on if off is None else off
        return found

    def sim_calls(self, layout: Layout, flights: Flights | None = None) -> list[SimCall]:
        found, waiting = [], _Waiting(layout, flights)
        for number, step in enumerate(self.graph.program):
            made, script = step.call, self._script(number, step, layout, waiting)
            found.append(
                SimCall(step.worker, made.method, script, made.reads, made.writes, step.after, made.starts_on_device)
            )
        return found

    def _script(self, number: int, step: Step, layout: Layout, waiting: _Waiting) -> Callable[[Turn], Script]:
        recorded = self.calls[number]
        if any(self.graph.channel(c).keyed for c in step.call.reads):
            return self._token_holder(recorded, step.worker, layout, waiting)
        if number in self.consumers:
            consumer = self.consumers[number]
            consumer.check(layout, Layout(self.graph, self.measured), step.worker)
            return consumer.script(lambda channel, rank: self._slots(channel, rank, layout), waiting.take)
        if step.call.writes:
            return self._source(recorded, step, layout)
        total = round(statistics.median(r.runs() for r in recorded))

        def plain(turn: Turn) -> Script:
            yield run(total)

        return plain

    def _token_holder(
        self, recorded: Sequence[Recorded], worker: str, layout: Layout, waiting: _Waiting
    ) -> Callable[[Turn], Script]:
        tokens, before = layout.plan.tokens(worker), self.measured.tokens(worker)
        total, was = tokens * layout.plan.ranks(worker), before * self.measured.ranks(worker)
        if total != was:
            raise PlanError(
                f"Plan {layout.plan.name!r}: {worker!r} would hold {total} tokens (ranks x sub-batches), but {was} "
                "were measured; how "
                f"long a token of another size takes is not known. Next: choose ranks and sub_batches with {was} "
                "tokens, or measure."
            )
        # by iteration and token, whichever rank held it
        patterns = [_one_token(r, before, k) for r in recorded for k in range(before)]

        def script(turn: Turn) -> Script:
            # As it happened, call by call, rather than on average: where ranks wait for each other, the slower step
            # counts.
            of_tokens = [
                patterns[(turn.iteration * total + turn.rank * tokens + k) % len(patterns)] for k in range(tokens)
            ]
            steps = [_steps(p) for p in of_tokens]
            for i in range(max(len(s) for s in steps)):
                for k in range(tokens):
                    for kind, channel, n, duration in steps[k][i] if i < len(steps[k]) else ():
                        if kind == SpanKind.RUN:
                            yield run(duration)
                        elif kind == SpanKind.GET:
                            yield get(channel, n, turn.rank * tokens + k if self.graph.channel(channel).keyed else -1)
                        else:
                            waiting.add(turn, worker, channel, turn.rank * tokens + k, n)
                            yield put(channel, n)

        return script

    def _source(self, recorded: Sequence[Recorded], step: Step, layout: Layout) -> Callable[[Turn], Script]:
        ranks, before = layout.plan.ranks(step.worker), self.measured.ranks(step.worker)
        if ranks != before:
            raise PlanError(
                f"Plan {layout.plan.name!r}: {step.worker}.{step.call.method}() makes items on {before} ranks in the "
                f"measured run; how many each of {ranks} "
                f"would make is not known. Next: {before} ranks of {step.worker!r}, or measure this plan."
            )
        for channel in step.call.writes:
            if self.graph.channel(channel).keyed:
                raise PlanError(
                    f"{step.worker}.{step.call.method}() puts into the keyed channel {channel!r} without reading one; "
                    "its spans do not say with which keys. "
                    f"Next: run plan {layout.plan.name!r} instead of predicting it."
                )
        calls = itertools.count()

        def source(turn: Turn) -> Script:
            for kind, channel, n, duration in recorded[next(calls) % len(recorded)].operations:
                yield run(duration) if kind == SpanKind.RUN else put(channel, n)

        return source

    def _slots(self, channel: str, rank: int, layout: Layout) -> Sequence[int]:
        """The keys of a channel that a rank answers to, in turn. They are those of its unit when fused, else all; none
        for a channel without keys.
        """
        if not self.graph.channel(channel).keyed:
            return ()
        consumer = self.graph.consumers(channel)[0]
        tokens = layout.plan.tokens(consumer)
        ranks = [rank] if layout.sharded(channel) else range(layout.ranks(consumer))
        return [r * tokens + k for r in ranks for k in range(tokens)]


class _Waiting:
    """The tokens of cells on their way to whoever answers them. Items have no contents here, but an answer goes to the
    key that asked.

    In the order in which they arrive; of two that block at the same time the order may be the other one, which changes
    nobody's seconds.
    """

    def __init__(self, layout: Layout, flights: Flights | None) -> None:
        self._layout, self._flights = layout, flights
        self._queues: dict[tuple[int, str, int], list[tuple[int, int, int]]] = {}  # arrival, number of the put, key
        self._untaken: dict[tuple[int, str, int], set[tuple[int, int, int]]] = {}
        self._numbers = itertools.count()

    def add(self, turn: Turn, worker: str, channel: str, key: int, n: int) -> None:
        queue, flight = (
            self._queue(turn, channel),
            0 if self._flights is None else self._flights.put_ns(worker, turn.rank, channel),
        )
        arriving, untaken = self._queues.setdefault(queue, []), self._untaken.setdefault(queue, set())
        for _ in range(n):
            entry = turn.now() + flight, next(self._numbers), key
            bisect.insort(arriving, entry)
            untaken.add(entry)

    def take(self, turn: Turn, channel: str, n: int) -> list[int]:
        """The keys of the n items that a get has just brought. Fewer where items without a key came too."""
        queue = self._queue(turn, channel)
        arriving, untaken = self._queues.get(queue, []), self._untaken.get(queue, set())
        found = []
        for number in range(turn.first(), turn.first() + n):
            entry = (
                arriving[number]
                if number < len(arriving) and arriving[number] in untaken
                else min(untaken, default=None)
            )
            if entry is not None:
                untaken.remove(entry)
                found.append(entry[2])
        return found

    def _queue(self, turn: Turn, channel: str) -> tuple[int, str, int]:
        return turn.iteration, channel, self._layout.shard(channel, turn.rank)


def estimate(
    flow: Workflow | WorkflowGraph, plan: ExecutionPlan | None = None, timeline: Timeline | None = None,
    iterations: Collection[int] | None = None,
    messages: Sequence[Message] = (), crowding: Sequence[float] = (),
) -> Estimate:  # fmt: skip
    """Read the cost of every call off a timeline that was recorded under ``plan``.

    ``iterations``: which to look at (None: all), for a run that sometimes did something else; the first of them warms
    up. ``messages``: what messages between processes cost (``profile.messages``, or `lab.profiling.message_costs`), for
    predicting plans that an executor of processes will run. How long they fly is read off the run where cells sent any;
    without ``messages`` they then cost no computing. ``crowding``: how many times longer work takes when 1, 2, ...
    cores are busy (`lab.profiling.crowding`), for machines whose cores slow each other down.

    Raises `PlanError` naming the call whose record cannot be understood.
    """
    if plan is None or not isinstance(timeline, Timeline):
        raise PlanError(
            f"estimate({shown(flow)}, plan={shown(plan)}, timeline={shown(timeline)}): costs are read off a finished "
            "run; the plan and the Timeline of that "
            f"run are needed. Next: run = lab.run(flow, plan, 4); run.wait(); lab.estimate(flow, plan, run.timeline)."
        )
    measured, timeline = checked_layout(flow, plan), timeline.snapshot()
    graph, plan = measured.graph, measured.plan
    for cell in graph.cells:
        if not any(e.keyed for e in graph.edges if e.producer in cell and e.consumer in cell):
            raise PlanError(
                f"{' and '.join(map(repr, cell))} answer each other in a cell in which no channel is keyed: what a "
                "round waits for under another plan is not seen in spans. Next: lab.planning.planned(flow, plan, "
                "profile) with profile = lab.planning.profile_from_run(flow, plan, run.timeline)."
            )
    records = read(graph, timeline, iterations)
    consumers = {}
    for number, step in enumerate(graph.program):
        keyed = [c for c in step.call.reads if graph.channel(c).keyed]
        if step.call.reads and not keyed:
            consumers[number] = learn(step, records, records.calls[number], measured)
        for channel in step.call.writes:
            if graph.channel(channel).keyed and DRIVER in graph.consumers(channel):
                raise PlanError(
                    f"The loop of workflow {graph.name!r} reads the keyed channel {channel!r}: that cannot be "
                    "predicted. Next: run the plan."
                )
    seconds, over = timeline.iterations().set_index("iteration")["seconds"], whole_iterations(timeline) or set()
    warm = sorted(i for i in over if iterations is None or i in iterations)[1:]
    in_processes = any(
        row.track.worker in graph.workers and row.track.host not in ("local", "simulated") for row in timeline.rows()
    )
    costs, median = seen_messages(graph, timeline, warm, messages), float(seconds.loc[warm].median())
    return Estimate(
        graph,
        plan,
        records.calls,
        records.loop,
        consumers,
        records.switches,
        median,
        costs,
        in_processes,
        checked_factors(crowding),
    )


def _one_token(recorded: Recorded, tokens: int, k: int) -> list[Operation]:
    """What a rank that treats ``tokens`` tokens in turn did for the k-th of them.

    They time-share from get to get. What is put before the first get and after the last step is put token by token.
    """
    operations = list(recorded.operations)
    gets = [i for i, op in enumerate(operations) if op[0] == SpanKind.GET]
    if tokens == 1 or not gets:
        return operations
    turns = [operations[i:j] for i, j in itertools.pairwise([*gets, len(operations)])]
    last = turns.pop()  # the last token's: its get, its step, then what all tokens put at the end
    step = 2 if len(last) > 1 and last[1][0] == SpanKind.RUN else 1
    mine = [op for turn in [*turns, last[:step]][k::tokens] for op in turn]
    return [*_share(operations[: gets[0]], tokens, k), *mine, *_share(last[step:], tokens, k)]


def _share(operations: list[Operation], tokens: int, k: int) -> list[Operation]:
    """The k-th token's part of puts made token by token, with the runs before them."""
    blocks: list[list[Operation]] = [[]]
    for op in operations:
        blocks[-1].append(op)
        if op[0] == SpanKind.PUT:
            blocks.append([])
    return [op for block in blocks[k::tokens] for op in block]


def _steps(pattern: list[Operation]) -> list[list[Operation]]:
    """Cut before every get. A rank with several tokens treats one up to its next get, then turns to the next."""
    steps: list[list[Operation]] = [[]]
    for op in pattern:
        if op[0] == SpanKind.GET:
            steps.append([])
        steps[-1].append(op)
    return steps
