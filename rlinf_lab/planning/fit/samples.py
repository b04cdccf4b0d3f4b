"""Samples of a profile, read off the timelines of finished runs.

Of every worker and iteration: how long each batch took, how many items it held, when outputs left, how long what
belongs to no batch took (other calls, an optimiser step after the last batch; shared out over the batches). The first
iteration warms up and does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from rlinf_lab.planning.fit.habits import Circulation, agreed, begins
from rlinf_lab.planning.fit.turns import Turn, turns_of
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.fields import MAX_TOKENS
from rlinf_lab.planning.profile.handovers import Values
from rlinf_lab.planning.profile.profile import EdgeProfile, Sample
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER, Edge, WorkflowGraph

CURVE_POINTS = 16  # points of an output curve
RATE_FACTOR = 1.25  # so many times more or fewer items than go round: a member is not asked once for each


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
    def of(
        cls, graph: WorkflowGraph, plan: ExecutionPlan, timeline: Timeline, first: int | None = None
    ) -> Observed:
        """Read the iterations that came to their end, or the ``first`` so many. Raises `PlanError` as `turns_of`."""
        return cls(graph, plan, turns_of(graph, plan, timeline, first))

    # --- of the whole flow -------------------------------------------------------------------------------
    def items(self, channel: str) -> float:
        """Items that pass a channel in an iteration; members where it has groups."""
        producers = [ranks for worker in self.graph.producers(channel) for ranks in self.turns_by_rank(worker)]
        consumers = [ranks for worker in self.graph.consumers(channel) for ranks in self.turns_by_rank(worker)]
        put = [sum(n for t in ranks.values() for _, n in t.puts.get(channel, ())) for ranks in producers]
        got = [sum(t.gets.get(channel, 0) for t in ranks.values()) for ranks in consumers]
        return self.graph.channel(channel).group * max(statistics.median(put or [0]), statistics.median(got or [0]))

    def cell(self, members: Sequence[str]) -> ObservedCell:
        return ObservedCell(self, tuple(members))

    def devices(self, worker: str) -> int:
        return sum(len(r) for r in self.plan.placements[worker])

    def turns_by_rank(self, worker: str) -> Iterator[Mapping[int, Turn]]:
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
            return self.cell(cell).samples(worker, items, beside, tokens)
        each, curve = self.devices(worker) // self.plan.ranks(worker), self.outputs(worker)
        found: dict[tuple[int, int], list[float]] = {}
        for turns in self.turns_by_rank(worker):
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

    def outputs(self, worker: str) -> tuple[tuple[float, float], ...]:
        """(seconds since it began, fraction of its outputs) of a typical iteration. Empty for a worker without outputs,
        or with all at once.
        """
        channels = [c.name for c in self.graph.channels if worker in self.graph.producers(c.name) and not c.keyed]
        curves = []
        for ranks in self.turns_by_rank(worker):
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
        return tuple({moments[i]: (i + 1) / count for i in at}.items())  # of those at one moment the last

    def iterations(self, worker: str | None = None) -> int:
        """How many iterations were seen; in which so many a worker did anything."""
        return (
            len(self.turns.get(worker, {}))
            if worker is not None
            else len({i for turns in self.turns.values() for i in turns})
        )

    def handover_seconds(self, worker: str, method: str) -> list[float]:
        """Of each iteration in which it was called: of the rank that took longest."""
        took = [
            [t.handed[method] for t in ranks.values() if method in t.handed] for ranks in self.turns_by_rank(worker)
        ]
        return [max(ranks) for ranks in took if ranks]

    def in_turn(self, worker: str) -> tuple[tuple[str, float], ...]:
        """(producer, part of the seconds) of a worker that reads channel after channel, in order. Each to its end
        before it begins the next; else empty."""
        turns = [t for ranks in self.turns_by_rank(worker) for t in ranks.values() if t.gets]
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
        """Of each turn, whether the worker took all of a channel before any work. See `Moments.takes_all`."""
        micro_batch = self.plan.micro_batches.get(channel, 0)
        return [t.moments.takes_all(channel, micro_batch) for t in self.every_turn(worker) if channel in t.gets]

    def tells_given(self, worker: str, channel: str) -> list[bool | None]:
        """Of each turn, whether the worker put all of a channel at its end. See `Moments.gives_at_end`."""
        fed = inputs(self.graph, worker)
        return [t.moments.gives_at_end(channel, fed) for t in self.every_turn(worker) if channel in t.puts]

    def was_fed(self, worker: str) -> bool:
        """Whether anything came to it, if others feed it."""
        fed = inputs(self.graph, worker)
        return not fed or any(t.gets.get(c) for t in self.every_turn(worker) for c in fed)

    def every_turn(self, worker: str) -> list[Turn]:
        """Of all its ranks in all iterations."""
        return [t for ranks in self.turns_by_rank(worker) for t in ranks.values()]

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
        counts = [self.items(c) for c in outside] + [self.cell(c).tokens for c in self.graph.cells]
        return max(1, round(max(counts, default=1)))


@dataclass(frozen=True)
class ObservedCell:
    """What one run tells of one of its cells."""

    run: Observed
    members: tuple[str, ...]

    @cached_property
    def tokens(self) -> int:
        """Tokens that circulate in it: of the member that keeps them, rank by rank."""
        return self.run.plan.ranks(self.head) * self.tokens_of_rank

    @property
    def tokens_of_rank(self) -> int:
        """Tokens of each rank of the head. They are as the plan says, or where nothing is keyed as many as were in
        flight.
        """
        return self.run.plan.tokens(self.head) if self._answers else self.circulation.tokens

    @cached_property
    def head(self) -> str:
        """The member of a cell to which answers come back by key. Where nothing is keyed, the one that begins the
        round.
        """
        if self._answers:
            return self._answers[0].consumer
        moved = {
            m: [t.moves for ranks in self.run.turns_by_rank(m) for t in ranks.values() if t.moves] for m in self.members
        }
        return next((m for m, every in moved.items() if every and all(map(begins, every))), self.members[0])

    @property
    def steps(self) -> float:
        """How often each token goes round in an iteration."""
        head = self.head
        if self.is_counted:
            return self.circulation.steps
        # of several answers to each token, those of one channel
        channels = {e.channel for e in self._answers if e.consumer == head}
        rounds = [
            max(sum(t.keyed.get(c, 0) for t in ranks.values()) for c in channels)
            for ranks in self.run.turns_by_rank(head)
        ]
        return max(1.0, statistics.median(rounds) / self.tokens)

    @cached_property
    def circulation(self) -> Circulation:
        """Of a cell in which nothing is keyed."""
        return Circulation.of(
            [{rank: t.moves for rank, t in ranks.items()} for ranks in self.run.turns_by_rank(self.head)]
        )

    @property
    def in_one_batch(self) -> int:
        """Items that the head's ranks put into a cell in each round and wait for. 0 where batches of all of them do not
        come together on every channel."""
        if not self.is_counted or not (seen := self.circulation).together:
            return 0
        inside = (e.channel for e in self.run.graph.edges if e.producer in self.members and e.consumer in self.members)
        even = all(abs(self.run.items(c) - self.tokens * seen.steps) < 0.5 for c in inside)
        return self.tokens if self.tokens <= MAX_TOKENS and even else 0

    @property
    def is_counted(self) -> bool:
        """Whether its tokens were counted from what was moved, for no key tells them."""
        return not self._answers

    @property
    def follows_plan(self) -> bool:
        """Whether more than one token goes round by itself, as many as the plan says."""
        seen, said = self.circulation, self.run.plan.tokens(self.head)
        return seen.tokens == said > 1 and not seen.waits

    @cached_property
    def _answers(self) -> list[Edge]:
        return [
            e for e in self.run.graph.edges if e.keyed and e.producer in self.members and e.consumer in self.members
        ]

    def samples(self, worker: str, items: int, beside: tuple[str, ...], together: int) -> list[Sample]:
        """Of one member; ``together``: tokens that circulate in one batch when it has all items."""
        steps, tokens, devices, head = self.steps, self.tokens, self.run.devices(worker), self.head
        if together > 1:
            tokens = max(together, tokens)
        own = self.is_counted and self.tokens_of_rank > 1 and not self.follows_plan
        if together > 1 and worker == head:  # with a part of all items, a part of the tokens
            return [replace(s, items=s.items * self.tokens / tokens) for s in self._in_all(worker, items, beside)]
        if (own and together == 1) or (worker != head and self._asked_at_another_rate(worker, steps * self.tokens)):
            return self._in_all(worker, items, beside)
        found: dict[float, list[float]] = {}
        for turns in self.run.turns_by_rank(worker):
            some: dict[float, list[float]] = {}
            for turn in turns.values():
                if worker == head:
                    of = self.tokens_of_rank
                    some.setdefault(items / of, []).append(turn.busy / of / steps)
                    continue
                taken = sum(m for m, _ in turn.batches)
                for n, seconds in turn.batches:
                    share = min(float(items), n * self.run.plan.ranks(worker) * items / tokens)
                    some.setdefault(share, []).append(seconds + turn.rest * n / taken)
            # batches of later steps may take longer: together they take what they took
            for share, every in some.items():
                found.setdefault(share, []).append(statistics.fmean(every))
        return [Sample(devices, n, statistics.median(s), beside) for n, s in sorted(found.items())]

    def _asked_at_another_rate(self, worker: str, passing: float) -> bool:
        """Whether a member takes clearly more or fewer items an iteration than tokens go round. None at all counts as
        well.
        """
        took = statistics.median(
            [sum(n for t in turns.values() for n, _ in t.batches) for turns in self.run.turns_by_rank(worker)] or [0.0]
        )
        return not passing / RATE_FACTOR <= took <= passing * RATE_FACTOR

    def _in_all(self, worker: str, items: int, beside: tuple[str, ...]) -> list[Sample]:
        """What a member did in a step when its batches do not tell. It is a step's part of all that it did: of tokens
        that go round by themselves one of each rank of the head, and all of them.
        """
        steps, each, heads = self.steps, self.tokens_of_rank, self.run.plan.ranks(self.head)
        spent = statistics.median(
            [sum(t.busy for t in turns.values()) for turns in self.run.turns_by_rank(worker)] or [0.0]
        )
        together = self.is_counted and self.circulation.waits
        made = []
        for parts in sorted({1 if together else each, 1}, reverse=True):
            at_once = min(self.run.plan.ranks(worker), heads * each // parts)
            made.append(Sample(self.run.devices(worker), items / parts, spent / steps / parts / at_once, beside))
        return made


def inputs(graph: WorkflowGraph, worker: str) -> list[str]:
    """Channels on which others feed a worker. Without those of its own cell and of the loop."""
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
    """Workers outside all cells that take more while something is in the making."""
    outside = [w for w in runs[0].graph.workers if not any(w in cell for cell in runs[0].graph.cells)]
    return {w for w in outside if any(t.moments.refills() for run in runs for t in run.every_turn(w))}


def together(runs: Sequence[Observed], cell: Sequence[str]) -> int:
    """Items that circulate together in a cell that has all of an iteration. As in the first run; 1 where they do not.
    Another run may have had parts of them, for the head was given its inputs in parts, or as many for each rank of the
    head."""
    seen = [run.cell(cell).in_one_batch for run in runs]
    return (
        seen[0]
        if seen[0] > runs[0].plan.ranks(runs[0].cell(cell).head)
        and all(n and (seen[0] % n == 0 or n % seen[0] == 0) for n in seen)
        else 1
    )


def giving_at_end(runs: Sequence[Observed]) -> set[tuple[str, str]]:
    """(worker, channel) on which it puts everything at its end."""
    ends = {(e.producer, e.channel) for e in runs[0].graph.edges if not e.keyed and e.producer != DRIVER}
    return {(w, c) for w, c in ends if agreed(t for run in runs for t in run.tells_given(w, c))}


def within(curve: tuple[tuple[float, float], ...], seconds: float) -> tuple[tuple[float, float], ...]:
    """A curve of outputs of a call that took about so long. Where it ends later (another call, a wait on its way), it
    is scaled in proportion.
    """
    if not curve or not seconds:
        return ()
    shorter = min(1.0, seconds / curve[-1][0]) if curve[-1][0] else 1.0
    return tuple((min(at * shorter, seconds), part) for at, part in curve)
