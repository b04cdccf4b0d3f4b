"""Samples of a profile, read off the timelines of finished runs.

Of every worker and iteration: how long each batch took, how many items it held, when outputs left, how long what
belongs to no batch took (other calls, an optimiser step after the last batch; shared out over the batches). The first
iteration warms up and does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.fit.habits import Circulation, Moments, agreed, begins
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.fields import MAX_TOKENS
from rlinf_lab.planning.profile.handovers import Values
from rlinf_lab.planning.profile.profile import EdgeProfile, Sample
from rlinf_lab.planning.schema.json_schema import listing
from rlinf_lab.timeline.account.tables import whole_iterations
from rlinf_lab.timeline.record.span import Span, SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER, Edge, WorkflowGraph

CURVE_POINTS = 16  # points of an output curve
RATE_FACTOR = 1.25  # so many times more or fewer items than go round: a member is not asked once for each


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


@dataclass(frozen=True)
class Observed:
    """One finished run: its plan and what every rank did in each warm iteration, ``turns[worker][iteration][rank]``.

    ``peaks``: where memory was watched, the most GiB of a device while each worker worked there.
    """

    graph: WorkflowGraph
    plan: ExecutionPlan
    turns: Mapping[str, Mapping[int, Mapping[int, Turn]]]
    peaks: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: WorkflowGraph, plan: ExecutionPlan, timeline: Timeline) -> Observed:
        """Of the iterations that came to their end. Raises `PlanError` when the timeline has no second one, or lacks a
        worker.
        """
        timeline = timeline.snapshot()
        over = whole_iterations(timeline)
        spans = [
            s for s in timeline.rows() if s.kind in (SpanKind.RUN, SpanKind.GET, SpanKind.PUT) and s.iteration >= 0
        ]
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
        return cls(graph, plan, turns)

    # --- of the whole flow -------------------------------------------------------------------------------
    def items(self, channel: str) -> float:
        """Items that pass a channel in an iteration; members where it has groups."""
        producers = [ranks for worker in self.graph.producers(channel) for ranks in self._iterations(worker)]
        consumers = [ranks for worker in self.graph.consumers(channel) for ranks in self._iterations(worker)]
        put = [sum(n for t in ranks.values() for _, n in t.puts.get(channel, ())) for ranks in producers]
        got = [sum(t.gets.get(channel, 0) for t in ranks.values()) for ranks in consumers]
        return self.graph.channel(channel).group * max(statistics.median(put or [0]), statistics.median(got or [0]))

    def tokens(self, cell: Sequence[str]) -> int:
        """Tokens that circulate in a cell: of the member that keeps them, rank by rank."""
        head = self.head(cell)
        return self.plan.ranks(head) * self.tokens_of_rank(cell)

    def tokens_of_rank(self, cell: Sequence[str]) -> int:
        """Of the head's ranks each: as the plan says, or where nothing is keyed as many as were in flight."""
        return self.plan.tokens(self.head(cell)) if self._answers(cell) else self.circulation(cell).tokens

    def head(self, cell: Sequence[str]) -> str:
        """The member of a cell to which answers come back by key. Where nothing is keyed, the one that begins the
        round.
        """
        answers = self._answers(cell)
        if answers:
            return answers[0].consumer
        moved = {m: [t.moves for ranks in self._iterations(m) for t in ranks.values() if t.moves] for m in cell}
        return next((m for m, every in moved.items() if every and all(map(begins, every))), cell[0])

    def steps(self, cell: Sequence[str]) -> float:
        """How often each token goes round in an iteration."""
        head, answers = self.head(cell), self._answers(cell)
        if not answers:
            return self.circulation(cell).steps
        # of several answers to each token, those of one channel
        channels = {e.channel for e in answers if e.consumer == head}
        rounds = [
            max(sum(t.keyed.get(c, 0) for t in ranks.values()) for c in channels) for ranks in self._iterations(head)
        ]
        return max(1.0, statistics.median(rounds) / self.tokens(cell))

    def circulation(self, cell: Sequence[str]) -> Circulation:
        """Of a cell in which nothing is keyed."""
        return Circulation.of(
            [{rank: t.moves for rank, t in ranks.items()} for ranks in self._iterations(self.head(cell))]
        )

    def in_one_batch(self, cell: Sequence[str]) -> int:
        """Items that the head's ranks put into a cell in each round and wait for, where batches of all of them come
        together on every channel; else 0.
        """
        if not self.is_counted(cell) or not (seen := self.circulation(cell)).together:
            return 0
        tokens = self.tokens(cell)
        inside = (e.channel for e in self.graph.edges if e.producer in cell and e.consumer in cell)
        return (
            tokens
            if tokens <= MAX_TOKENS and all(abs(self.items(c) - tokens * seen.steps) < 0.5 for c in inside)
            else 0
        )

    def is_counted(self, cell: Sequence[str]) -> bool:
        """Whether its tokens were counted from what was moved, for no key tells them."""
        return not self._answers(cell)

    def follows_plan(self, cell: Sequence[str]) -> bool:
        """Whether the tokens that were counted are as many as the plan says, more than one, and go round by
        themselves.
        """
        seen, said = self.circulation(cell), self.plan.tokens(self.head(cell))
        return seen.tokens == said > 1 and not seen.waits

    def _answers(self, cell: Sequence[str]) -> list[Edge]:
        return [e for e in self.graph.edges if e.keyed and e.producer in cell and e.consumer in cell]

    def devices(self, worker: str) -> int:
        return sum(len(r) for r in self.plan.placements[worker])

    def _iterations(self, worker: str) -> Iterator[Mapping[int, Turn]]:
        return iter(self.turns.get(worker, {}).values())

    # --- samples -----------------------------------------------------------------------------------------
    def samples(
        self, worker: str, items: int, beside: tuple[str, ...] = (), takes_all: bool = False, tokens: int = 1
    ) -> list[Sample]:
        """Of one worker, in units of the profile's ``items`` of an iteration. ``takes_all``: all its batches are one,
        for it works when it has them, or takes more while it works on others.
        ``tokens``: more than one: so many circulate in its cell together when it has all items (`in_one_batch`)."""
        cell = next((c for c in self.graph.cells if worker in c), ())
        if cell:
            return self._in_cell(worker, cell, items, beside, tokens)
        each, curve = self.devices(worker) // self.plan.ranks(worker), self.outputs(worker)
        found: dict[tuple[int, int], list[float]] = {}
        for turns in self._iterations(worker):
            total = sum(n for t in turns.values() for n, _ in t.batches)
            working = [t for t in turns.values() if t.batches or not total]
            for turn in working:
                if not total:
                    found.setdefault((len(working), items), []).append(turn.busy)
                own = sum(m for m, _ in turn.batches)
                for n, seconds in [(own, turn.busy - turn.rest)] if takes_all and own else turn.batches:
                    share = max(1, min(items, round(items * n * len(working) / total)))
                    found.setdefault((len(working), share), []).append(seconds + turn.rest * n / own)
        made = []
        for (count, n), every in sorted(found.items()):
            seconds = statistics.median(every)
            made.append(
                Sample(count * each, float(n), seconds, beside, outputs=within(curve, seconds) if n == items else ())
            )
        return made

    def _in_cell(
        self, worker: str, cell: Sequence[str], items: int, beside: tuple[str, ...], together: int
    ) -> list[Sample]:
        steps, tokens, devices, head = self.steps(cell), self.tokens(cell), self.devices(worker), self.head(cell)
        if together > 1:
            tokens = max(together, tokens)
        own = self.is_counted(cell) and self.tokens_of_rank(cell) > 1 and not self.follows_plan(cell)
        if together > 1 and worker == head:  # with a part of all items, a part of the tokens
            return [
                replace(s, items=s.items * self.tokens(cell) / tokens)
                for s in self._in_all(worker, cell, items, beside)
            ]
        if (own and together == 1) or (
            worker != head and self._asked_at_another_rate(worker, steps * self.tokens(cell))
        ):
            return self._in_all(worker, cell, items, beside)
        found: dict[float, list[float]] = {}
        for turns in self._iterations(worker):
            some: dict[float, list[float]] = {}
            for turn in turns.values():
                if worker == head:
                    of = self.tokens_of_rank(cell)
                    some.setdefault(items / of, []).append(turn.busy / of / steps)
                    continue
                taken = sum(m for m, _ in turn.batches)
                for n, seconds in turn.batches:
                    share = min(float(items), n * self.plan.ranks(worker) * items / tokens)
                    some.setdefault(share, []).append(seconds + turn.rest * n / taken)
            # batches of later steps may take longer: together they take what they took
            for share, every in some.items():
                found.setdefault(share, []).append(statistics.fmean(every))
        return [Sample(devices, n, statistics.median(s), beside) for n, s in sorted(found.items())]

    def _asked_at_another_rate(self, worker: str, passing: float) -> bool:
        """Whether a member takes clearly more or fewer items in an iteration than tokens go round: none at all counts
        as well.
        """
        took = statistics.median(
            [sum(n for t in turns.values() for n, _ in t.batches) for turns in self._iterations(worker)] or [0.0]
        )
        return not passing / RATE_FACTOR <= took <= passing * RATE_FACTOR

    def _in_all(self, worker: str, cell: Sequence[str], items: int, beside: tuple[str, ...]) -> list[Sample]:
        """Of a member whose batches do not tell which part of a step they are: a step's part of all that it did. Of
        tokens that go round by themselves one of each rank of the head, and all of them."""
        steps, each, heads = self.steps(cell), self.tokens_of_rank(cell), self.plan.ranks(self.head(cell))
        spent = statistics.median([sum(t.busy for t in turns.values()) for turns in self._iterations(worker)] or [0.0])
        together = self.is_counted(cell) and self.circulation(cell).waits
        made = []
        for parts in sorted({1 if together else each, 1}, reverse=True):
            at_once = min(self.plan.ranks(worker), heads * each // parts)
            made.append(Sample(self.devices(worker), items / parts, spent / steps / parts / at_once, beside))
        return made

    def outputs(self, worker: str) -> tuple[tuple[float, float], ...]:
        """(seconds since it began, fraction of its outputs) of a typical iteration. Empty for a worker without outputs,
        or with all at once.
        """
        channels = [c.name for c in self.graph.channels if worker in self.graph.producers(c.name) and not c.keyed]
        curves = []
        for ranks in self._iterations(worker):
            moments = sorted(
                at for t in ranks.values() for c in channels for at, n in t.puts.get(c, ()) for _ in range(n)
            )
            if len(moments) > 1 and moments[0] < 0.98 * moments[-1]:
                curves.append(moments)
        if not curves:
            return ()
        moments = sorted(curves, key=lambda m: m[-1])[len(curves) // 2]
        count = len(moments)
        at = sorted({round(k * (count - 1) / (CURVE_POINTS - 1)) for k in range(CURVE_POINTS)})
        return _rising([(moments[i], (i + 1) / count) for i in at])

    def iterations(self, worker: str | None = None) -> int:
        """How many iterations were seen; in which so many a worker did anything."""
        return (
            len(self.turns.get(worker, {}))
            if worker is not None
            else len({i for turns in self.turns.values() for i in turns})
        )

    def handover_seconds(self, worker: str, method: str) -> list[float]:
        """Of each iteration in which it was called: of the rank that took longest."""
        took = [[t.handed[method] for t in ranks.values() if method in t.handed] for ranks in self._iterations(worker)]
        return [max(ranks) for ranks in took if ranks]

    def in_turn(self, worker: str) -> tuple[tuple[str, float], ...]:
        """(producer, part of the seconds), in order, of a worker that reads each of several channels to its end before
        it begins the next; else empty.
        """
        turns = [t for ranks in self._iterations(worker) for t in ranks.values() if t.gets]
        orders = {tuple(t.gets) for t in turns}
        channels, spent = max(orders, key=len, default=()), sum(sum(t.spent.values()) for t in turns)
        producers = [self.graph.producers(c) for c in channels]
        feeding = {e.producer for e in self.graph.edges if e.consumer == worker} | {
            p for p, c in Values.of(self.graph).edges if c == worker
        }
        one_each = (
            all(len(p) == 1 for p in producers)
            and len(set(producers)) == len(channels)
            and feeding == {name for p in producers for name in p}
        )
        if (
            len(orders) != 1
            or len(channels) < 2
            or not one_each
            or any(t.mixed for t in turns)
            or not spent
            or DRIVER in feeding
        ):
            return ()
        return tuple(
            (p[0], sum(t.spent.get(c, 0.0) for t in turns) / spent) for c, p in zip(channels, producers, strict=True)
        )

    # --- edges -------------------------------------------------------------------------------------------
    def tells_taken(self, worker: str, channel: str) -> list[bool | None]:
        """Of each turn of a worker, whether it took all of a channel before any work: see `Moments.takes_all`."""
        micro_batch = self.plan.micro_batches.get(channel, 0)
        return [t.moments.takes_all(channel, micro_batch) for t in self.every_turn(worker) if channel in t.gets]

    def tells_given(self, worker: str, channel: str) -> list[bool | None]:
        """Of each turn of a worker, whether it put all of a channel at its end: see `Moments.gives_at_end`."""
        fed = inputs(self.graph, worker)
        return [t.moments.gives_at_end(channel, fed) for t in self.every_turn(worker) if channel in t.puts]

    def was_fed(self, worker: str) -> bool:
        """Whether anything came to it, if others feed it."""
        fed = inputs(self.graph, worker)
        return not fed or any(t.gets.get(c) for t in self.every_turn(worker) for c in fed)

    def every_turn(self, worker: str) -> list[Turn]:
        """Of all its ranks in all iterations."""
        return [t for ranks in self._iterations(worker) for t in ranks.values()]

    def edges(
        self,
        items: int,
        taken: Collection[str] = (),
        given: Collection[tuple[str, str]] = (),
        asked: Mapping[str, int] = MappingProxyType({}),
    ) -> tuple[EdgeProfile, ...]:
        """Who feeds whom; several channels between two workers are one edge. Who waits for another one's value waits
        for all that it does.

        ``taken``: workers that take everything before they work; ``given``: (worker, channel) on which it puts
        everything at its end; ``asked``: how many items those ask for at a time that do (`own_batches`).
        """
        found: dict[tuple[str, str], EdgeProfile] = {}
        for edge in self.graph.edges:
            if DRIVER in (edge.producer, edge.consumer):
                continue
            inside = any(edge.producer in c and edge.consumer in c for c in self.graph.cells)
            passing = self.items(edge.channel)
            ends = edge.producer, edge.consumer
            before = found.get(ends)
            whole = not inside and (edge.whole or edge.consumer in taken or (before is not None and before.whole))
            at_end = not inside and ((edge.producer, edge.channel) in given or (before is not None and before.at_end))
            group = max(
                edge.group,
                before.group if before is not None else 1,
                1 if inside or whole else asked.get(edge.consumer, 1),
            )
            other = None if inside or not passing or passing == items else float(passing)
            found[ends] = EdgeProfile(*ends, group, whole, items=other, at_end=at_end)
        for ends in Values.of(self.graph).edges:
            there = found.get(ends, EdgeProfile(*ends))
            found[ends] = replace(there, whole=True, value=not there.whole)
        return tuple(found.values())

    def most_items(self) -> int:
        """Of the channels outside cells, the one with the most items in an iteration. Of a flow with cells only, its
        tokens.
        """
        outside = [
            e.channel
            for e in self.graph.edges
            if not any(e.producer in c and e.consumer in c for c in self.graph.cells)
        ]
        counts = [self.items(c) for c in outside] + [self.tokens(c) for c in self.graph.cells]
        return max(1, round(max(counts, default=1)))


def inputs(graph: WorkflowGraph, worker: str) -> list[str]:
    """Channels on which others feed a worker, without those of its own cell and of the loop."""
    mates = next((c for c in graph.cells if worker in c), ())
    return list(
        dict.fromkeys(e.channel for e in graph.edges if e.consumer == worker and e.producer not in (*mates, DRIVER))
    )


def taking_all(runs: Sequence[Observed]) -> set[str]:
    """Workers that take everything of all their inputs before they work."""
    graph = runs[0].graph
    fed = {w: found for w in graph.workers if (found := inputs(graph, w))}
    return {
        w
        for w, channels in fed.items()
        if all(agreed(t for run in runs for t in run.tells_taken(w, c)) for c in channels)
    }


def refilling(runs: Sequence[Observed]) -> set[str]:
    """Workers outside all cells that take more while what they took before is in the making."""
    outside = [w for w in runs[0].graph.workers if not any(w in cell for cell in runs[0].graph.cells)]
    return {w for w in outside if any(t.moments.refills() for run in runs for t in run.every_turn(w))}


def together(runs: Sequence[Observed], cell: Sequence[str]) -> int:
    """Items that circulate in a cell in one batch when it has all of an iteration, as in the first run; 1 where they do
    not. Another run may have had parts of them, for the head was given its inputs in parts, or as many for each rank of
    the head."""
    seen = [run.in_one_batch(cell) for run in runs]
    return (
        seen[0]
        if seen[0] > runs[0].plan.ranks(runs[0].head(cell))
        and all(n and (seen[0] % n == 0 or n % seen[0] == 0) for n in seen)
        else 1
    )


def giving_at_end(runs: Sequence[Observed]) -> set[tuple[str, str]]:
    """(worker, channel) on which it puts everything at its end."""
    ends = {(e.producer, e.channel) for e in runs[0].graph.edges if not e.keyed and e.producer != DRIVER}
    return {(w, c) for w, c in ends if agreed(t for run in runs for t in run.tells_given(w, c))}


def _refuse_other_places(plan: ExecutionPlan, timeline: Timeline) -> None:
    """Seconds on other devices than the plan's would be counted as seconds on as many as it has."""
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


def within(curve: tuple[tuple[float, float], ...], seconds: float) -> tuple[tuple[float, float], ...]:
    """A curve of outputs of a call that took about so long: where it ends later (another call, a wait on its way) in
    proportion.
    """
    if not curve or not seconds:
        return ()
    shorter = min(1.0, seconds / curve[-1][0]) if curve[-1][0] else 1.0
    return tuple((min(at * shorter, seconds), part) for at, part in curve)


def _rising(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Strictly later points only; of those at one moment the last."""
    kept: list[tuple[float, float]] = []
    for at, fraction in points:
        if kept and at <= kept[-1][0]:
            kept[-1] = kept[-1][0], fraction
        else:
            kept.append((at, fraction))
    return tuple(kept)
