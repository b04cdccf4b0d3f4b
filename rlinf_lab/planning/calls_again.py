"""One call of a finished run once more, as a script: what its ranks did for which items, and before and after. See `rerun`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.consumed import components, cut, learn
from rlinf_lab.planning.consuming import Consumption, Phase
from rlinf_lab.planning.engine import ALL
from rlinf_lab.planning.layout import Layout
from rlinf_lab.planning.pieces import Batch, Deed, Part, Pieces
from rlinf_lab.planning.recorded import Recorded, Records
from rlinf_lab.planning.scripts import Script, Turn, get, put, run
from rlinf_lab.timeline.gains import Times
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER, Step

Queue = tuple[int, str, int]
"""iteration, channel, shard"""
Keys = dict[tuple[Queue, int], int]
"""by item: the key that an answer to it goes to"""


class Items:
    """Which item of the record stands where in the queues of a rerun."""

    def __init__(self) -> None:
        self.going: dict[tuple[str, int], tuple[Queue, int]] = {}  # by rank: what it is putting
        self._came = defaultdict[Queue, dict[int, int]](dict)  # by its number now

    def stored(self, worker: str, rank: int, number: int) -> None:
        if worker != DRIVER:  # who alone fills its channels, in the order of the record
            queue, item = self.going[worker, rank]
            self._came[queue][number] = item

    def taken(self, queue: Queue, first: int, n: int) -> list[int]:
        came = self._came[queue]
        return [came.get(number, number) for number in range(first, first + n)]


@dataclass
class _Taken:
    """What one rank did in one phase of a call."""

    batches: list[Batch]
    after: Part


class CallAgain:
    """One call of the program: what each rank did in each iteration."""

    def __init__(self, layout: Layout, records: Records, place: dict[int, int], number: int, step: Step) -> None:
        self.step, self._layout = step, layout
        self._deeds = {(place[r.iteration], r.rank): self._read(r) for r in records.calls[number]}
        keyed = any(layout.graph.channel(c).keyed for c in step.call.reads)
        self._consumption: Consumption | None = None
        self._lead: dict[tuple[int, int], Part] = {}
        self._phases: list[dict[tuple[int, int], _Taken]] = []
        self._pieces: list[Pieces] = []
        self.asks: list[int | None] = []  # by phase: what each get of a stream asks for
        if step.call.reads and not keyed and self._deeds:
            self._consumption = learn(step, records, records.calls[number], layout)
            self.asks = [phase.asks for phase in self._consumption.phases]
            self._cut(self._consumption)

    @property
    def name(self) -> str:
        return f"{self.step.worker}.{self.step.call.method}()"

    def _read(self, recorded: Recorded) -> list[Deed]:
        deeds = [Deed(*op, first) for op, first in zip(recorded.operations, recorded.firsts, strict=True)]
        unnumbered = [d.channel for d in deeds if d.kind != SpanKind.RUN and d.items and d.first < 0]
        if unnumbered:
            raise PlanError(f"{self.name}: spans at channel {unnumbered[0]!r} do not say which items they moved")
        return deeds

    def _queue(self, iteration: int, channel: str, rank: int) -> Queue:
        return iteration, channel, self._layout.shard(channel, rank)

    # --- what was done for which items ---------------------------------------------------------------------------
    def _cut(self, consumption: Consumption) -> None:
        self._phases = [{} for _ in consumption.phases]
        for key, deeds in self._deeds.items():
            lead, parts = cut(deeds)
            self._lead[key] = lead
            for channels, body in components(parts):
                which = next((i for i, phase in enumerate(consumption.phases) if list(phase.channels) == channels), -1)
                if which >= 0:  # else a rank that came too late and found nothing
                    self._phases[which][key] = _taken(body, len(channels))

    def close(self, keys: Keys) -> None:
        """All keys are known: put together what is done for items, with the keys that it answers to."""
        consumption = self._consumption
        for i, phase in enumerate(consumption.phases if consumption else ()):
            of_ranks = self._phases[i].items()
            batches = [(self._queue(it, phase.channels[0], rank), self._answering(b, it, rank, phase, keys)) for (it, rank), t in of_ranks for b in t.batches]
            self._pieces.append(Pieces(self.name, batches))

    @property
    def is_guessed(self) -> bool:
        return any(pieces.guessed for pieces in self._pieces)

    def questions(self) -> Iterator[list[int | None]]:
        """For each phase what its gets may have asked for instead of what `learn` takes for likely."""
        for i, phase in enumerate(self._consumption.phases if self._consumption else ()):
            chunk, capacity = self._layout.plan.chunk(phase.channels[0]), self._layout.capacity(phase.channels[0])
            sizes = [[len(b.items) for b in taken.batches] for taken in self._phases[i].values()]
            most = max((n for of_rank in sizes for n in of_rank), default=0)
            before_last = {n for of_rank in sizes for n in of_rank[:-1]}
            found: list[int | None] = []
            if phase.streams and most and phase.asks != ALL:
                chunks_alike = most == chunk and (capacity is None or capacity >= chunk)
                found += [None] if most <= chunk else []
                found += [most] if before_last <= {most} and not chunks_alike else []
                found += [ALL - 1] if not before_last else []  # more than there is: its end is waited for
            yield [ask for ask in found if ask != phase.asks]

    # --- keys ----------------------------------------------------------------------------------------------------
    def learn_keys(self, keys: Keys) -> None:
        """Tokens are treated in turn; what is put for an item answers to whom the item answers to."""
        if self._consumption is None:
            tokens = self._layout.plan.tokens(self.step.worker)
            for (iteration, rank), deeds in self._deeds.items():
                counts = defaultdict[tuple[SpanKind, str], int](int)
                for i, deed in enumerate(deeds):
                    if deed.kind != SpanKind.RUN:
                        key = rank * tokens + counts[deed.kind, deed.channel] % tokens
                        counts[deed.kind, deed.channel] += 1
                        if deed.kind == SpanKind.PUT:
                            keys[self._queue(iteration, deed.channel, rank), deed.first] = key
                        elif self._layout.graph.channel(deed.channel).keyed:
                            deeds[i] = deed._replace(key=key)
            return
        for phase, taken in zip(self._consumption.phases, self._phases, strict=True):
            for (iteration, rank), mine in taken.items():
                queue = self._queue(iteration, phase.channels[0], rank)
                for batch in mine.batches:
                    for deed, item in _answers(batch):
                        if (queue, item) in keys:
                            keys[self._queue(iteration, deed.channel, rank), deed.first] = keys[queue, item]

    def _answering(self, batch: Batch, iteration: int, rank: int, phase: Phase, keys: Keys) -> Batch:
        keyed = {c for c in self.step.call.writes if self._layout.graph.channel(c).keyed}
        if not keyed:
            return batch
        queue = self._queue(iteration, phase.channels[0], rank)
        asked = {id(deed): keys.get((queue, item), -1) for deed, item in _answers(batch)}
        return Batch(batch.items, tuple([d._replace(key=asked[id(d)]) if d.channel in keyed else d for d in part] for part in batch.parts))

    # --- scripts ---------------------------------------------------------------------------------------------------
    def script(self, items: Items, times: Times) -> Callable[[Turn], Script]:
        worker, method = self.step.worker, self.step.call.method

        def done(turn: Turn, deeds: Part) -> Script:
            factor = times(worker, turn.rank, method)
            for kind, channel, n, ns, first, key in deeds:
                if kind == SpanKind.RUN:
                    yield run(round(ns / factor))
                elif kind == SpanKind.PUT:
                    items.going[worker, turn.rank] = self._queue(turn.iteration, channel, turn.rank), first
                    yield put(channel, 1, key)
                else:
                    yield get(channel, n or None, key)

        def same(turn: Turn) -> Script:
            yield from done(turn, self._deeds.get((turn.iteration, turn.rank), ()))

        def consume(turn: Turn) -> Script:
            assert self._consumption is not None
            mine = turn.iteration, turn.rank
            yield from done(turn, self._lead.get(mine, ()))
            for phase, ask_for, pieces, taken in zip(self._consumption.phases, self.asks, self._pieces, self._phases, strict=True):
                total, here = 0, taken.get(mine, _Taken([], ()))
                queue = self._queue(turn.iteration, phase.channels[0], turn.rank)
                for ask in self._asks(phase, ask_for, here):
                    n = yield get(phase.channels[0], ask)
                    if not n:
                        break
                    parts = pieces.parts(queue, items.taken(queue, turn.first(), n))
                    yield from done(turn, parts[0])
                    for channel, ratio, part in zip(phase.channels[1:], phase.ratios, parts[1:], strict=True):
                        m = math.floor(ratio * (total + n) + 1e-9) - math.floor(ratio * total + 1e-9)
                        if m:
                            yield get(channel, m)
                        yield from done(turn, part)
                    total += n
                for channel in phase.closing:
                    yield get(channel, ALL)
                yield from done(turn, here.after)

        return same if self._consumption is None else consume

    def _asks(self, phase: Phase, ask_for: int | None, here: _Taken) -> Iterator[int | None]:
        """What the gets of a phase ask for. Who takes a fixed number of batches asks for as many items as it got, or for the plan's chunk."""
        if phase.streams:
            while True:
                yield ask_for
        if phase.asks == ALL:
            yield ALL
            return
        chunk, capacity = self._layout.plan.chunk(phase.channels[0]), self._layout.capacity(phase.channels[0])
        for batch in here.batches:
            n = len(batch.items)
            cut_short = n < chunk and capacity is not None and capacity < chunk
            yield None if n == chunk or cut_short else n


def _taken(body: Sequence[tuple[Deed, list[Deed]]], channels: int) -> _Taken:
    """The rounds of a phase, then what follows the gets that found nothing more."""
    rounds = list(body)
    after: list[Deed] = []
    while rounds and not rounds[-1][0].items:
        after = [*rounds.pop()[1], *after]
    batches = []
    for i in range(0, len(rounds), channels):
        first = rounds[i][0]
        batches.append(Batch(tuple(range(first.first, first.first + first.items)), tuple(part for _, part in rounds[i : i + channels])))
    return _Taken(batches, after)


def _answers(batch: Batch) -> Iterator[tuple[Deed, int]]:
    """Puts after a batch, each with the item that it stands for: as many for each item, in order."""
    for channel in dict.fromkeys(d.channel for part in batch.parts for d in part if d.kind == SpanKind.PUT):
        puts = [d for part in batch.parts for d in part if d.kind == SpanKind.PUT and d.channel == channel]
        for i, deed in enumerate(puts):
            yield deed, batch.items[i * len(batch.items) // len(puts)]
