"""Habits of workers, told from a run. They tell when a call takes and puts its items, and how often the tokens of a
cell go round.

When within a call its inputs were taken and its outputs were put: whether a worker takes everything before it works, or
gives everything at its end. Read off the order of gets, puts and computing of one rank in one iteration. Where a single
batch held everything, it cannot be told whether the worker would have begun with a part, unless it saw the end of the
stream before it worked: several runs are asked, and one that tells is enough (`agreed`).

Whether a worker refills: it takes more while what it took before is in the making (`Inbox.get_nowait`). Then the time
between two gets is no cost of the batch that it has just taken.

How often the tokens of a cell go round in an iteration, where no keyed channel says so: read off the puts and gets of
its head. The head begins the round: it puts before anything of the cell has come to it. What it has put and not yet got
back is in flight; the most of that at a time are its tokens, and each goes round as often as items come back for one of
them. Where more (or fewer) come back than leave, the head's rounds are counted: it puts some, then gets some.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

READING_SHARE = 0.02  # of what a rank computes: so much before the last get is reading, not work
UNCLEAR_SHARE = 0.1  # of it: up to here a thread that had to wait for its core may have been reading only
AT_END_SHARE = 0.9  # of it: who has computed so much before the first put gives everything at its end


@dataclass
class Moments:
    """Of one rank in one iteration, in order. ``at`` counts gets and puts; ``busy``: seconds computed so far."""

    at: int = 0
    busy: float = 0.0
    # channel: (at, busy) of the last get that brought items
    read: dict[str, tuple[int, float]] = field(default_factory=dict)
    over: dict[str, tuple[int, float]] = field(default_factory=dict)  # channel: of the get that met its end
    put: dict[str, tuple[int, float]] = field(default_factory=dict)  # channel: of the first put
    # channel: (items, busy) of each get that brought items
    taken: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)  # channel: items put so far
    # channel: (items taken, items put by channel) before each get that brought items after some work
    hands: dict[str, list[tuple[int, dict[str, int]]]] = field(default_factory=dict)

    def computed(self, seconds: float) -> None:
        self.busy += seconds

    def got(self, channel: str, items: int) -> None:
        self.at += 1
        if items:
            before = self.taken.setdefault(channel, [])
            if before and self.busy > before[-1][1]:
                self.hands.setdefault(channel, []).append((sum(n for n, _ in before), dict(self.given)))
            self.read[channel] = self.at, self.busy
            before.append((items, self.busy))
        else:
            self.over[channel] = self.at, self.busy

    def gave(self, channel: str, items: int = 1) -> None:
        self.at += 1
        self.put.setdefault(channel, (self.at, self.busy))
        self.given[channel] = self.given.get(channel, 0) + items

    def takes_all(self, channel: str, micro_batch: int) -> bool | None:
        """Whether all of a channel was taken before anything was done. None where nobody can tell. ``micro_batch``:
        items of a batch, as the plan says; 0: all.
        """
        if channel not in self.taken or not self.busy:
            return None
        last, before = self.read[channel]
        slight = READING_SHARE * self.busy
        if before > UNCLEAR_SHARE * self.busy or any(at < last for at, _ in self.put.values()):
            return False
        if before > slight:
            return None  # another iteration tells
        asked_for_all = len(self.taken[channel]) > 1 or 0 < micro_batch < self.taken[channel][0][0]
        met_end = channel in self.over and self.over[channel][1] <= slight
        return True if asked_for_all or met_end else None

    def gives_at_end(self, channel: str, inputs: Collection[str]) -> bool | None:
        """Whether everything was put after all work. None where nobody can tell: it had one batch only. ``inputs``:
        channels that feed it.
        """
        if channel not in self.put or not self.busy:
            return None
        at, before = self.put[channel]
        fed = [c for c in inputs if c in self.read]
        if before < AT_END_SHARE * self.busy or any(self.read[c][0] > at for c in fed):
            return False
        several = any(len(self.taken[c]) > 1 or (c in self.over and self.over[c][0] < at) for c in fed)
        return True if several or not fed else None

    def refills(self) -> bool:
        """Whether it took more with part of its items done and part in the making.

        Told of a worker that puts as many items as it takes: what it has in hand is known then.
        """
        return any(
            sum(n for n, _ in self.taken[channel]) == total and any(0 < given.get(out, 0) < had for had, given in every)
            for channel, every in self.hands.items()
            for out, total in self.given.items()
        )


def agreed(told: Iterable[bool | None]) -> bool:
    """Whether somebody can tell, and all who can say yes."""
    known = [t for t in told if t is not None]
    return bool(known) and all(known)


Moves = Sequence[int]
"""Of one rank in one iteration, in order: items that it put into its cell, or, less than 0, got from it."""


@dataclass(frozen=True)
class Circulation:
    """``tokens`` of each rank of the head go round ``steps`` times in an iteration. ``waits``: for all of them before
    it puts the next.

    ``doubt``: in words, what could not be told; empty where all could. ``rounds``: where it waits and puts the same
    number in each round, how many rounds each rank made in each iteration.
    """

    tokens: int
    steps: float
    waits: bool = True
    doubt: str = ""
    rounds: tuple[int, ...] = field(default=(), compare=False)

    @property
    def together(self) -> bool:
        """Whether the same number of items goes into the cell in each round. Of each rank, all of them the same number
        of rounds."""
        return self.waits and not self.doubt and len(set(self.rounds)) == 1

    @classmethod
    def of(cls, iterations: Sequence[Mapping[int, Moves]]) -> Circulation:
        """From what each rank of the head moved in each iteration."""
        every = [moves for ranks in iterations for moves in ranks.values() if moves]
        put, got = (
            statistics.fmean(
                [sum(sum(n for n in m if sign * n > 0) * sign for m in r.values()) for r in iterations] or [0.0]
            )
            for sign in (1, -1)
        )
        if not put or not got:
            what = "nothing comes back to it" if put else "it puts nothing into it"
            return cls(
                1,
                1.0,
                doubt=f"{what} in an iteration, so how often the others take their turn cannot be told: all that they "
                "do counts as one step",
            )
        if any(map(_grows, every)):
            steps = statistics.median(
                statistics.fmean([_rounds(m) for m in ranks.values() if m] or [0]) for ranks in iterations
            )
            said = (
                f"it puts {put:g} items an iteration into it and gets {got:g} back: a step is from what it puts until "
                "it has got some"
            )
            left_out = "where others have devices of their own they may work at the same time, which plans leave out"
            return cls(1, max(1.0, steps), doubt=f"{said} ({steps:g} steps); {left_out}")
        flying = {_in_flight(m) for m in every}
        tokens = round(statistics.median(map(_in_flight, every)))
        ranks = statistics.median(sum(bool(m) for m in r.values()) for r in iterations)
        doubt = (
            ""
            if len(flying) == 1
            else f"between {min(flying)} and {max(flying)} of its items are on their way at a time: {tokens} are "
            "counted"
        )
        waits = all(map(_waits, every))
        rounds = tuple(map(_rounds, every)) if waits and all(_evenly(m, tokens) for m in every) else ()
        return cls(tokens, max(1.0, max(put, got) / tokens / ranks), waits, doubt, rounds)


def begins(moves: Moves) -> bool:
    """Whether a rank puts into its cell before it gets anything from it."""
    return bool(moves) and moves[0] > 0


def _in_flight(moves: Moves) -> int:
    there = [0, *itertools.accumulate(moves)]
    return max(there) - min(there)  # who is fed from outside first gets what it has not put


def _grows(moves: Moves) -> bool:
    """Whether ever more is in flight, or ever less. Then items that come back are no answers to single ones."""
    there = [0, *itertools.accumulate(moves)]
    early, late = there[: (len(there) + 1) // 2], there[(len(there) + 1) // 2 :]
    return there[-1] != 0 and (max(late, default=0) > max(early) or min(late, default=0) < min(early))


def _rounds(moves: Moves) -> int:
    return sum(a > 0 > b for a, b in itertools.pairwise(moves))


def _waits(moves: Moves) -> bool:
    """Whether all that is in flight has come back before the next is put."""
    there = list(itertools.accumulate(moves))
    return all(not before for before, n, last in zip(there, moves[1:], moves, strict=False) if n > 0 > last)


def _evenly(moves: Moves, tokens: int) -> bool:
    """Whether it puts so many in each round, and gets as many."""
    if moves[0] < 0:
        return False  # fed from outside
    halves = itertools.groupby(moves, key=lambda n: n > 0)
    return all(abs(sum(some)) == tokens for _, some in halves)
