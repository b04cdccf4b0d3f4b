"""What a call that reads batches does, and how that is learnt from a record. It has phases of gets, what each batch
costs, and when it puts.

A phase is a channel read on its own (``for batch in inbox``, or one ``get_all()``), or several in step: for each batch
of the first one a get of each of the others (``for batch in left: right.get(len(batch))``). Gets in any other order are
refused: what they wait for is not known.

A call that takes more while what it took before is in the making (`Moments.refills`) counts as one batch of all that it
took, which takes as long as its items do.

Whether a get asked for the plan's micro-batch or for a number of its own is seen by its sizes. Where that number is the
very micro-batch of the measured plan, it counts as the micro-batch.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.engine.engine import ALL
from rlinf_lab.planning.fit.habits import Moments
from rlinf_lab.planning.fit.run_record import Operation, Recorded, Records
from rlinf_lab.planning.plan.layout import Layout
from rlinf_lab.planning.simulator.scripts import Script, Turn, get, put, run
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import Step


@dataclass(frozen=True)
class Work:
    """What happens between two gets, for n items. It takes ``fixed + each * n`` nanoseconds and makes puts.

    ``per_item`` and ``once``: items put into each channel, for each item taken and whatever was taken. ``head``: part
    of the time before the first put, ``tail``: after the last one. ``alone``: the n of every recorded batch where all
    had one, else 0.
    """

    fixed: float = 0.0
    each: float = 0.0
    per_item: tuple[tuple[str, float], ...] = ()
    once: tuple[tuple[str, int], ...] = ()
    head: float = 1.0
    tail: float = 0.0
    alone: int = 0

    def whatever_its_size(self) -> Work:
        """As if each batch took as long at any size. It is the other reading where all had one."""
        return replace(self, fixed=self.fixed + self.each * self.alone, each=0.0 if self.alone else self.each)


@dataclass(frozen=True)
class Phase:
    """A phase of gets. ``channels``: the first one counts the batches, ``ratios``: of each further one, items for each
    of the first's. ``works``: after each get.

    ``asks``: what each get asks for: None for the plan's micro-batch, `ALL`, or a number; of one get only when not
    ``streams``. ``sizes``: batches of every recorded call that is no stream. ``closing``: channels whose end is looked
    at after the first one's. ``after``: what follows.
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
        """Raises `PlanError` where the record does not say what a plan's call does."""
        moved = layout.plan.ranks(worker) != measured.plan.ranks(worker)
        for phase in self.phases:
            first = phase.channels[0]
            if phase.streams or phase.asks == ALL:
                continue
            if moved:
                raise PlanError(
                    f"{self.name}() takes {_some(phase.sizes)} items of channel {first!r} on each of "
                    f"{measured.plan.ranks(worker)} ranks; how many it would "
                    f"take on {layout.plan.ranks(worker)} is not known. Next: a plan with as many ranks of {worker!r}, "
                    "or measure this one."
                )
            micro_batch = measured.plan.micro_batch(first)
            if micro_batch != layout.plan.micro_batch(first) and any(
                n == micro_batch for sizes in phase.sizes for n in sizes
            ):
                raise PlanError(
                    f"{self.name}() took one batch of {micro_batch} items of channel {first!r}, the micro-batch of the "
                    "measured plan; whether it asked for a "
                    "micro-batch or for "
                    f"{micro_batch} items is not known. Next: the same micro-batch for {first!r}, or measure plan "
                    f"{layout.plan.name!r}."
                )

    def script(
        self, slots: Callable[[str, int], Sequence[int]], tokens: Callable[[Turn, str, int], list[int]]
    ) -> Callable[[Turn], Script]:
        """``slots``: for a channel and a rank the keys that it answers to, in turn. ``tokens``: the keys of the n items
        that a rank has just got from a channel, ``[]`` where they have none; those it answers to instead."""
        turns = itertools.count()

        def consume(turn: Turn) -> Script:
            number = next(turns)
            write = _Writer(turn.rank, slots)
            yield from write.work(self.lead)
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
                yield from write.work(phase.after, total)

        return consume


class _Writer:
    """Puts items as a rank does, and remembers the keys it has answered to."""

    def __init__(self, rank: int, slots: Callable[[str, int], Sequence[int]]) -> None:
        self._rank, self._slots = rank, slots
        self._step = 0
        self.asked: list[int] = []  # keys of the batch that is being answered

    def work(self, work: Work, n: int = 0, before: int = 0) -> Script:
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


O = TypeVar("O", bound=tuple[Any, ...])  # an Operation, or one that knows more
SLIGHT_SHARE = 0.01  # of the mean: a fit that comes out negative by less is zero
Part = tuple[Operation, list[Operation]]
"""a get, and what follows it until the next one"""


def learn(step: Step, records: Records, recorded: Sequence[Recorded], measured: Layout) -> Consumption:
    """Raises `PlanError` naming the call where its gets follow no order that is understood."""
    name = f"{step.worker}.{step.call.method}"
    if any(map(_refills, recorded)):
        return _refilled(name, recorded)
    cuts = [cut(r.operations) for r in recorded]
    shapes = [tuple(tuple(channels) for channels, _ in components(parts)) for _, parts in cuts]
    # a rank that came too late says nothing
    filled = {shape for shape, (_, parts) in zip(shapes, cuts, strict=True) if any(op[2] for op, _ in parts)}
    if len(filled) > 1:
        raise _irregular(name, "in one iteration other than in another")
    shape = next(iter(filled), shapes[0])
    notes: list[str] = []
    phases = []
    for i, channels in enumerate(shape):
        calls = [
            (r, components(parts)[i][1])
            for r, own, (_, parts) in zip(recorded, shapes, cuts, strict=True)
            if own == shape
        ]
        phases.append(_phase(name, step, channels, calls, records, measured, notes))
    lead = Work(_middle([_spent(ops) for ops, _ in cuts]), once=_counts([ops for ops, _ in cuts]))
    return Consumption(name, lead, tuple(phases), tuple(notes))


def _refills(recorded: Recorded) -> bool:
    """See `Moments.refills`."""
    moments = Moments()
    for kind, channel, items, ns in recorded.operations:
        if kind == SpanKind.RUN:
            moments.computed(ns / 1e9)
        elif kind == SpanKind.GET:
            moments.got(channel, items)
        elif kind == SpanKind.PUT:
            moments.gave(channel, items)
    return moments.refills()


def _refilled(name: str, recorded: Sequence[Recorded]) -> Consumption:
    """Everything in one batch. How many items a rank gets depends on when it asks, so shares are not what is learnt."""
    channels = dict.fromkeys(op[1] for r in recorded for op in r.operations if op[0] == SpanKind.GET and op[2])
    if len(channels) > 1:
        raise _irregular(name, f"more of {' and '.join(map(repr, channels))} while other items are in the making")
    samples = [
        (n, [op for op in r.operations if op[0] != SpanKind.GET])
        for r in recorded
        if (n := sum(op[2] for op in r.operations if op[0] == SpanKind.GET))
    ]
    work, total = _work(name, samples, []), sum(n for n, _ in samples)
    work = replace(work, fixed=0.0, each=sum(_spent(ops) for _, ops in samples) / total, alone=0)
    note = f"{name}: takes more while other items are in the making; all of them count as one batch, in proportion"
    return Consumption(name, Work(), (Phase(tuple(channels), (), (work,), False, ALL, (), (), Work()),), (note,))


def cut(operations: Sequence[O]) -> tuple[list[O], list[tuple[O, list[O]]]]:
    """What comes before the first get, and each get with what follows it."""
    lead: list[O] = []
    parts: list[tuple[O, list[O]]] = []
    for op in operations:
        if op[0] == SpanKind.GET:
            parts.append((op, []))
        else:
            (parts[-1][1] if parts else lead).append(op)
    return lead, parts


def components(parts: Sequence[tuple[O, list[O]]]) -> list[tuple[list[str], list[tuple[O, list[O]]]]]:
    """Channels whose gets are interleaved belong together; the groups in order, each with its gets."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for i, (op, _) in enumerate(parts):
        first.setdefault(op[1], i)
        last[op[1]] = i
    found: list[tuple[list[str], int]] = []
    for channel in sorted(first, key=first.__getitem__):
        if found and first[channel] < found[-1][1]:
            found[-1] = ([*found[-1][0], channel], max(found[-1][1], last[channel]))
        else:
            found.append(([channel], last[channel]))
    return [(channels, [p for p in parts if p[0][1] in channels]) for channels, _ in found]


def _irregular(name: str, how: str) -> PlanError:
    return PlanError(
        f"{name}() reads its channels in an order that is not understood ({how}), so what it waits for under another "
        "plan is not known. "
        "Next: read one channel after the other, or for each batch of the first a fixed share of the others; or run "
        "the plan."
    )


def _phase(
    name: str,
    step: Step,
    channels: Sequence[str],
    calls: Sequence[tuple[Recorded, list[Part]]],
    records: Records,
    measured: Layout,
    notes: list[str],
) -> Phase:
    primary = channels[0]
    rounds: list[list[Part]] = []
    ends: list[list[Part]] = []
    for _, parts in calls:
        body = list(parts)
        end: list[Part] = []
        while body and not body[-1][0][2]:
            end.insert(0, body.pop())
        if len(body) % len(channels) or any(p[0][1] != channels[i % len(channels)] for i, p in enumerate(body)):
            raise _irregular(name, f"channels {', '.join(map(repr, channels))} not in turn")
        rounds += [body[i : i + len(channels)] for i in range(0, len(body), len(channels))]
        ends.append(end)
    taken = [sum(r[k][0][2] for r in rounds) for k in range(len(channels))]
    ratios = [t / taken[0] if taken[0] else 0.0 for t in taken[1:]]
    for r in rounds:
        n, further = r[0][0][2], [p[0] for p in r[1:]]
        if any(abs(op[2] - ratio * n) >= 1 for op, ratio in zip(further, ratios, strict=True)):
            raise _irregular(
                name,
                f"{n} items of {primary!r} with {', '.join(f'{op[2]} of {op[1]!r}' for op in further)}, elsewhere in "
                "another relation",
            )
    streams = any(end and end[0][0][1] == primary for end in ends)
    own = [[op[2] for op, _ in parts if op[1] == primary and op[2]] for _, parts in calls]
    asks = _asked(name, step, primary, own, streams, calls, records, measured, notes)
    works = tuple(_work(name, [(r[0][0][2], r[k][1]) for r in rounds], notes) for k in range(len(channels)))
    closing = tuple(dict.fromkeys(op[1] for end in ends for op, _ in end if op[1] != primary)) if streams else ()
    after = [[op for _, ops in end for op in ops] for end in ends]
    totals = [sum(sizes) for sizes in own]
    return Phase(
        tuple(channels), tuple(ratios), works, streams, asks, () if streams else tuple(map(tuple, own)), closing,
        Work(_middle([_spent(ops) for ops in after]), 0.0, *_following(after, totals), *_moments(after)),
    )  # fmt: skip


def _asked(
    name: str, step: Step, channel: str, sizes: Sequence[Sequence[int]], streams: bool,
    calls: Sequence[tuple[Recorded, list[Part]]],
    records: Records, measured: Layout, notes: list[str],
) -> int | None:  # fmt: skip
    """What the gets of a phase ask for. It is the plan's micro-batch (None), everything, or a number of their own."""
    ranks = measured.plan.ranks(step.worker)
    if measured.graph.channel(channel).whole:
        return ALL
    if not streams:
        return (
            ALL
            if all(
                _are_shares(taken, ranks) and sum(taken) == records.passed.get((i, channel))
                for i, taken in _taken(sizes, calls).items()
            )
            else None
        )
    micro_batch, capacity = measured.plan.micro_batch(channel), measured.capacity(channel)
    own = {n for s in sizes for n in s[:-1]}
    largest = max((n for s in sizes for n in s), default=0)
    if largest > micro_batch:
        return largest
    # the usual loop over batches; whoever asks for a number gets it, until the end
    if largest == micro_batch or own - {largest}:
        return None
    # A batch shorter than the micro-batch also comes of a channel that is full; one number again and again, other than
    # what it holds, was asked for.
    if own and largest != capacity:
        return largest
    most = max((records.passed.get((r.iteration, channel), 0) for r, _ in calls), default=0)
    if largest < (-(-most // ranks) if micro_batch == ALL else most):
        notes.append(
            f"{name}: took {largest} items of channel {channel!r} where the plan's micro-batch is "
            f"{'everything' if micro_batch == ALL else micro_batch}; "
            "whether it asks "
            f"for a number of its own cannot be seen, assumed not"
        )
    return None


def _taken(sizes: Sequence[Sequence[int]], calls: Sequence[tuple[Recorded, list[Part]]]) -> dict[int, list[int]]:
    """Items of each batch of all ranks, by iteration."""
    found: dict[int, list[int]] = {}
    for batches, (recorded, _) in zip(sizes, calls, strict=True):
        found.setdefault(recorded.iteration, []).extend(batches)
    return found


def _are_shares(taken: Sequence[int], ranks: int) -> bool:
    """Whether each rank took one batch, and no rank more than its equal share. (A rank without items has no batch.)"""
    return bool(taken) and sorted(taken) == sorted(filter(None, ((i + sum(taken)) // ranks for i in range(ranks))))


# --- fitting -----------------------------------------------------------------------------------------------------
def _work(name: str, samples: Sequence[tuple[int, list[Operation]]], notes: list[str]) -> Work:
    if not samples:
        return Work()
    sizes = np.array([n for n, _ in samples], float)
    spent = np.array([_spent(ops) for _, ops in samples], float)
    fixed, each, note = fit(sizes, spent)
    if note and f"{name}: {note}" not in notes:  # one is enough of channels that are read in step
        notes.append(f"{name}: {note}")
    total = float(sizes.sum())
    channels = dict.fromkeys(op[1] for _, ops in samples for op in ops if op[0] == SpanKind.PUT)
    per_item = tuple((c, sum(_puts(ops, c) for _, ops in samples) / total) for c in channels)
    alone = int(sizes[0]) if (sizes == sizes[0]).all() else 0
    return Work(fixed, each, per_item, (), *_moments([ops for _, ops in samples]), alone)


def fit(sizes: np.ndarray, spent: np.ndarray) -> tuple[float, float, str]:
    """(fixed, each, note): nanoseconds of a batch of n items, least squares. Neither part may be negative; the note
    says where one came out so, or where batches of one size count in proportion (as in `profile_from_run`).
    """
    mean, low, high = float(spent.mean()), int(sizes.min()), int(sizes.max())
    if low == high:
        return 0.0, mean / max(1, low), f"every batch had {low} items; others are assumed to take time in proportion"
    each, fixed = (float(x) for x in np.polyfit(sizes, spent, 1))
    if each < 0:
        slight = -each * (high - low) <= SLIGHT_SHARE * mean
        ends = [float(spent[sizes == n].mean()) / 1e9 for n in (low, high)]
        seen = f"batches of {low} items took {ends[0]:.3g} s, of {high} items {ends[1]:.3g} s"
        return (
            mean,
            0.0,
            ""
            if slight
            else f"larger batches were not slower ({seen}); "
            f"every batch is assumed to take the mean, {mean / 1e9:.3g} s",
        )
    if fixed < 0:
        slight = -fixed <= SLIGHT_SHARE * mean
        through = float((sizes * spent).sum() / (sizes * sizes).sum())
        seen = (
            f"a straight line through the measured batches of {low} to {high} items would give {fixed / 1e9:.3g} s for "
            "none"
        )
        return (
            0.0,
            through,
            "" if slight else f"{seen}; assumed to grow with the items alone, {through / 1e9:.3g} s each",
        )
    return fixed, each, ""


def _moments(parts: Sequence[Sequence[Operation]]) -> tuple[float, float]:
    """Which part of the time passes before the first put, and after the last one."""
    head = tail = total = 0
    for ops in parts:
        at = [i for i, op in enumerate(ops) if op[0] == SpanKind.PUT]
        if at:
            head, tail, total = head + _spent(ops[: at[0]]), tail + _spent(ops[at[-1] :]), total + _spent(ops)
    return (head / total, tail / total) if total else (1.0, 0.0)


def _following(
    parts: Sequence[Sequence[Operation]], totals: Sequence[int]
) -> tuple[tuple[tuple[str, float], ...], tuple[tuple[str, int], ...]]:
    """Puts after a phase. There are some for each item taken where they are as many or a multiple, else so many
    whatever was taken.
    """
    per_item, once = [], []
    for channel, count in _counts(parts):
        ratios = {_puts(ops, channel) / n for ops, n in zip(parts, totals, strict=True) if n}
        ratio = next(iter(ratios)) if len(ratios) == 1 else 0.0
        if ratio >= 1 and ratio == int(ratio) and max(totals) > 1:
            per_item.append((channel, ratio))
        else:
            once.append((channel, count))
    return tuple(per_item), tuple(once)


def _counts(parts: Sequence[Sequence[Operation]]) -> tuple[tuple[str, int], ...]:
    channels = dict.fromkeys(op[1] for ops in parts for op in ops if op[0] == SpanKind.PUT)
    return tuple((c, round(statistics.median(_puts(ops, c) for ops in parts))) for c in channels)


def _puts(ops: Iterable[Operation], channel: str) -> int:
    return sum(op[2] for op in ops if op[0] == SpanKind.PUT and op[1] == channel)


def _spent(ops: Iterable[Operation]) -> int:
    return sum(op[3] for op in ops)


def _middle(values: Sequence[int]) -> float:
    return float(statistics.median(values)) if values else 0.0
