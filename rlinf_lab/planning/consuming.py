"""What a call that reads batches does: phases of gets, what each batch costs, when it puts. `consumed` learns it from a record.

A phase is a channel read on its own (``for batch in inbox``, or one ``get_all()``), or several in step: for each batch of the first one a get of
each of the others (``for batch in left: right.get(len(batch))``). Gets in any other order are refused: what they wait for is not known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine import ALL
from rlinf_lab.planning.layout import Layout
from rlinf_lab.planning.scripts import Script, Turn, get, put, run


@dataclass(frozen=True)
class Work:
    """What happens between two gets, for n items: ``fixed + each * n`` nanoseconds and puts.

    ``per_item`` and ``once``: items put into each channel, for each item taken and whatever was taken. ``head``: part of the time before the first
    put, ``tail``: after the last one.
    """

    fixed: float = 0.0
    each: float = 0.0
    per_item: tuple[tuple[str, float], ...] = ()
    once: tuple[tuple[str, int], ...] = ()
    head: float = 1.0
    tail: float = 0.0

    def seconds(self, n: float) -> float:
        return (self.fixed + self.each * n) / 1e9


@dataclass(frozen=True)
class Phase:
    """``channels``: the first one counts the batches, ``ratios``: of each further one, items for each of the first's. ``works``: after each get.

    ``asks``: what each get asks for: None for the plan's chunk, `ALL`, or a number; of one get only when not ``streams``. ``sizes``: batches of
    every recorded call that is no stream. ``closing``: channels whose end is looked at after the first one's. ``after``: what follows.
    """

    channels: tuple[str, ...]
    ratios: tuple[float, ...]
    works: tuple[Work, ...]
    streams: bool
    asks: int | None
    sizes: tuple[tuple[int, ...], ...]
    closing: tuple[str, ...]
    after: Work


@dataclass(frozen=True)
class Consumption:
    """A call that reads batches. ``notes``: what is assumed of it."""

    name: str
    lead: Work
    phases: tuple[Phase, ...]
    notes: tuple[str, ...] = ()

    def check(self, layout: Layout, measured: Layout, worker: str) -> None:
        """Raises `PlanError` where the record does not say what the call would do under a plan."""
        moved = layout.plan.ranks(worker) != measured.plan.ranks(worker)
        for phase in self.phases:
            first = phase.channels[0]
            if phase.streams or phase.asks == ALL:
                continue
            if moved:
                raise PlanError(
                    f"{self.name}() takes {_some(phase.sizes)} items of channel {first!r} on each of {measured.plan.ranks(worker)} ranks; how many it would "
                    f"take on {layout.plan.ranks(worker)} is not known. Next: a plan with as many ranks of {worker!r}, or measure this one."
                )
            chunk = measured.plan.chunk(first)
            if chunk != layout.plan.chunk(first) and any(n == chunk for sizes in phase.sizes for n in sizes):
                raise PlanError(
                    f"{self.name}() took one batch of {chunk} items of channel {first!r}, the chunk of the measured plan; whether it asked for a chunk or for "
                    f"{chunk} items is not known. Next: the same chunk for {first!r}, or measure plan {layout.plan.name!r}."
                )

    def script(self, slots: Callable[[str, int], Sequence[int]], tokens: Callable[[Turn, str, int], list[int]]) -> Callable[[Turn], Script]:
        """``slots``: for a channel and a rank the keys that it answers to, in turn. ``tokens``: the keys of the n items that a rank has just got from a
        channel, ``[]`` where they have none; those it answers to instead."""
        turns = itertools.count()

        def consume(turn: Turn) -> Script:
            number = next(turns)
            write = _Writer(turn.rank, slots)
            yield from write.work(self.lead, 1, 0)
            for phase in self.phases:
                total = 0
                sizes = phase.sizes[number % len(phase.sizes)] if phase.sizes else ()
                for ask in _asks(phase, sizes):
                    n = yield get(phase.channels[0], ask)
                    if not n:
                        break
                    write.asked = tokens(turn, phase.channels[0], n)
                    yield from write.work(phase.works[0], n, total)
                    for channel, ratio, work in zip(phase.channels[1:], phase.ratios, phase.works[1:], strict=True):
                        m = math.floor(ratio * (total + n) + 1e-9) - math.floor(ratio * total + 1e-9)
                        if m:
                            yield get(channel, m)
                        yield from write.work(work, n, total)
                    total += n
                for channel in phase.closing:
                    yield get(channel, ALL)
                yield from write.work(phase.after, total, 0)

        return consume


class _Writer:
    """Puts items as a rank does, and remembers the keys it has answered to."""

    def __init__(self, rank: int, slots: Callable[[str, int], Sequence[int]]) -> None:
        self._rank, self._slots = rank, slots
        self._step = 0
        self.asked: list[int] = []  # keys of the batch that is being answered

    def work(self, work: Work, n: int, before: int) -> Script:
        """``before``: items that were taken earlier in the phase."""
        puts = [(c, math.floor(r * (before + n) + 1e-9) - math.floor(r * before + 1e-9)) for c, r in work.per_item]
        order = _in_turn([*puts, *work.once])
        duration = work.fixed + work.each * n
        done = 0
        for i, channel in enumerate(order):
            part = work.head + (1 - work.head - work.tail) * (i / (len(order) - 1) if len(order) > 1 else 0.0)
            if round(duration * part) > done:
                yield run(round(duration * part) - done)
                done = round(duration * part)
            yield put(channel, 1, self._key(channel))
        if round(duration) > done:
            yield run(round(duration) - done)


    def _key(self, channel: str) -> int:
        keys = self._slots(channel, self._rank)
        if not keys:
            return -1
        if self.asked:
            return self.asked.pop(0)
        self._step += 1
        return keys[(self._step - 1) % len(keys)]


def _in_turn(puts: Iterable[tuple[str, int]]) -> list[str]:
    """The channel of each put: several channels are served in turn, evenly."""
    marks = [((k + 0.5) / count, i, channel) for i, (channel, count) in enumerate(puts) for k in range(count)]
    return [channel for _, _, channel in sorted(marks)]


def _asks(phase: Phase, sizes: Sequence[int]) -> Iterable[int | None]:
    if not phase.streams:
        return [ALL] if phase.asks == ALL else sizes
    return iter(lambda: phase.asks, ())


def _some(sizes: Iterable[Sequence[int]]) -> str:
    return ", ".join(map(str, sorted({n for s in sizes for n in s})[:5]))
