"""One call of a finished run once more, as a script: what its ranks did for which items, and for other batches of the
same items.

A batch that was taken before does again what it did. Another one takes what its items took: where runs lie between an
item's puts, those runs; else an equal part of what its batch took beyond what every batch takes (`batch_model.fit`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.fit.run_record import Recorded, Records
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.replay.batch_model import SLIGHT_SHARE, Consumption, Phase, components, cut, fit, learn
from rlinf_lab.planning.simulator.scripts import Script, Turn, get, put, run
from rlinf_lab.timeline.critical.gains import Times
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER, Step


class Deed(NamedTuple):
    """One operation of a recorded call, as `run_record.Operation`, and more. ``first``: number of its item; ``key``: of
    its queue, -1 for none.
    """

    kind: SpanKind
    channel: str
    items: int
    ns: int
    first: int
    key: int = -1


Part = Sequence[Deed]
"""what follows one get, until the next"""


@dataclass(frozen=True)
class Batch:
    """``items``: their numbers in the queue of the first channel; ``parts``: after the get of each channel of the
    phase.
    """

    items: tuple[int, ...]
    parts: tuple[Part, ...]


class Pieces:
    """The batches of one phase of a call, of all iterations and ranks."""

    def __init__(self, name: str, batches: Sequence[tuple[Hashable, Batch]]) -> None:
        """``batches``: with the queues in which their items are numbered. ``name``: of the call, for errors."""
        self._name = name
        self._of = {(queue, item): (batch, place) for queue, batch in batches for place, item in enumerate(batch.items)}
        found = [batch for _, batch in batches]
        self.guessed = False  # whether another batch has been asked for, and what it takes is not surely known
        self._costs = tuple(
            _Costs([(len(b.items), b.parts[k]) for b in found]) for k in range(len(found[0].parts) if found else 0)
        )

    def parts(self, queue: Hashable, items: Sequence[int]) -> tuple[Part, ...]:
        """What a batch of these items does after each of its gets. Raises `PlanError` for an item that nobody took."""
        found = [self._taken(queue, item) for item in items]
        whole = found[0][0]
        if whole.items == tuple(items):
            return whole.parts
        self.guessed = self.guessed or not all(costs.are_known for costs in self._costs)
        return tuple(
            costs.composed([(batch.parts[k], len(batch.items), place) for batch, place in found])
            for k, costs in enumerate(self._costs)
        )

    def _taken(self, queue: Hashable, item: int) -> tuple[Batch, int]:
        if (queue, item) not in self._of:
            raise PlanError(f"{self._name}: nobody took item {item} of {queue}, so what it takes is not known")
        return self._of[queue, item]


class _Costs:
    """What batches of a phase take after one of their gets, by their size."""

    def __init__(self, batches: Sequence[tuple[int, Part]]) -> None:
        self._by_item = any(n > 1 and _runs_between(part) for n, part in batches)
        sizes = np.array([n for n, _ in batches], float)
        times = np.array([_ends(part) for _, part in batches], float).reshape(-1, 2)
        if self._by_item:
            totals = np.array([sum(deed.ns for deed in part) for _, part in batches], float)
            self._fixed = (fit(sizes, totals)[0] if len(set(sizes)) > 1 else 0.0, 0.0)
            self.are_known = False  # how much of the first item's time is the batch's is a guess
        else:
            lines = [fit(sizes, times[:, end])[:2] for end in (0, 1)]
            self._fixed = (lines[0][0], lines[1][0])
            off = [
                abs(times[:, end] - fixed - each * sizes).max(initial=0.0) for end, (fixed, each) in enumerate(lines)
            ]
            self.are_known = len(set(sizes)) > 1 and max(off) <= SLIGHT_SHARE * times.sum(1).mean()

    def composed(self, items: Sequence[tuple[Part, int, int]]) -> Part:
        """``items``: of each, what its batch did, how many items that had, and its place among them."""
        before, after = self._fixed
        own: list[Deed] = []
        for part, n, place in items:
            deeds = _of_item(part, n, place)
            head, tail = _ends(part)
            if self._by_item:
                own += _less(deeds, round(self._fixed[0])) if place == 0 else deeds
            else:
                own += [deed for deed in deeds if deed.kind == SpanKind.PUT]
                before += (head - self._fixed[0]) / n
                after += (tail - self._fixed[1]) / n
        return [*_run(before), *own, *_run(after)]


def _run(ns: float) -> list[Deed]:
    return [Deed(SpanKind.RUN, "", 0, round(ns), -1)] if round(ns) > 0 else []


def _less(deeds: Sequence[Deed], ns: int) -> list[Deed]:
    """Without so much of its first run."""
    if not deeds or deeds[0].kind != SpanKind.RUN:
        return list(deeds)
    return [*_run(deeds[0].ns - ns), *deeds[1:]]


def _runs_between(part: Part) -> bool:
    """Whether something runs between two puts."""
    puts = [i for i, deed in enumerate(part) if deed.kind == SpanKind.PUT]
    return bool(puts) and any(deed.kind == SpanKind.RUN for deed in part[puts[0] : puts[-1]])


def _ends(part: Part) -> tuple[int, int]:
    """Nanoseconds before the first put (all, where there is none) and after it."""
    puts = [i for i, deed in enumerate(part) if deed.kind == SpanKind.PUT]
    first = puts[0] if puts else len(part)
    return sum(deed.ns for deed in part[:first]), sum(deed.ns for deed in part[first:])


def _of_item(part: Part, n: int, place: int) -> list[Deed]:
    """The operations of one item of n: up to the last of its share of the puts; the last item has what follows, too."""
    puts = [i for i, deed in enumerate(part) if deed.kind == SpanKind.PUT]
    if not puts:
        return []
    low, high = (len(puts) * at // n for at in (place, place + 1))
    begin = puts[low - 1] + 1 if low else 0
    end = len(part) if place == n - 1 else puts[high - 1] + 1 if high else 0
    return list(part[begin:end])


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
            batches = [
                (self._queue(it, phase.channels[0], rank), self._answering(b, it, rank, phase, keys))
                for (it, rank), t in of_ranks
                for b in t.batches
            ]
            self._pieces.append(Pieces(self.name, batches))

    @property
    def is_guessed(self) -> bool:
        return any(pieces.guessed for pieces in self._pieces)

    def questions(self) -> Iterator[list[int | None]]:
        """For each phase, other requests that its gets may have made than `learn` supposes."""
        for i, phase in enumerate(self._consumption.phases if self._consumption else ()):
            micro_batch, capacity = (
                self._layout.plan.micro_batch(phase.channels[0]),
                self._layout.capacity(phase.channels[0]),
            )
            sizes = [[len(b.items) for b in taken.batches] for taken in self._phases[i].values()]
            most = max((n for of_rank in sizes for n in of_rank), default=0)
            before_last = {n for of_rank in sizes for n in of_rank[:-1]}
            found: list[int | None] = []
            if phase.streams and most and phase.asks != ALL:
                micro_batches_alike = most == micro_batch and (capacity is None or capacity >= micro_batch)
                found += [None] if most <= micro_batch else []
                found += [most] if before_last <= {most} and not micro_batches_alike else []
                found += [ALL - 1] if not before_last else []  # more than there is: its end is waited for
            yield [ask for ask in found if ask != phase.asks]

    # --- keys ----------------------------------------------------------------------------------------------------
    def learn_keys(self, keys: Keys) -> None:
        """Tokens are treated in turn. What is put for an item answers to whom the item answers to."""
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
        return Batch(
            batch.items,
            tuple([d._replace(key=asked[id(d)]) if d.channel in keyed else d for d in part] for part in batch.parts),
        )

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
            for phase, ask_for, pieces, taken in zip(
                self._consumption.phases, self.asks, self._pieces, self._phases, strict=True
            ):
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
        """What the gets of a phase ask for. Who takes a fixed number of batches asks for as many items as it got, or
        for the plan's micro-batch.
        """
        if phase.streams:
            while True:
                yield ask_for
        if phase.asks == ALL:
            yield ALL
            return
        micro_batch, capacity = (
            self._layout.plan.micro_batch(phase.channels[0]),
            self._layout.capacity(phase.channels[0]),
        )
        for batch in here.batches:
            n = len(batch.items)
            cut_short = n < micro_batch and capacity is not None and capacity < micro_batch
            yield None if n == micro_batch or cut_short else n


def _taken(body: Sequence[tuple[Deed, list[Deed]]], channels: int) -> _Taken:
    """The rounds of a phase, then what follows the gets that found nothing more."""
    rounds = list(body)
    after: list[Deed] = []
    while rounds and not rounds[-1][0].items:
        after = [*rounds.pop()[1], *after]
    batches = []
    for i in range(0, len(rounds), channels):
        first = rounds[i][0]
        batches.append(
            Batch(
                tuple(range(first.first, first.first + first.items)),
                tuple(part for _, part in rounds[i : i + channels]),
            )
        )
    return _Taken(batches, after)


def _answers(batch: Batch) -> Iterator[tuple[Deed, int]]:
    """Puts after a batch, each with the item that it stands for: as many for each item, in order."""
    for channel in dict.fromkeys(d.channel for part in batch.parts for d in part if d.kind == SpanKind.PUT):
        puts = [d for part in batch.parts for d in part if d.kind == SpanKind.PUT and d.channel == channel]
        for i, deed in enumerate(puts):
            yield deed, batch.items[i * len(batch.items) // len(puts)]
