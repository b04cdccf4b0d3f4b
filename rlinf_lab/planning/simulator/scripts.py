"""What a simulated call does, step by step: generators that yield operations.

A script stands for a worker's method. It yields what the method would do and receives how many items each get brought.

>>> def double(turn):
...     while n := (yield get("numbers")):
...         yield run(2_000_000 * n)
...         yield put("doubled", n)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.engine.engine import ALL, NOW

RUN, GET, PUT = 0, 1, 2
CALL, WAIT = 3, 4  # of the loop only
WEIGH = 8
Op = tuple[int, Any, int, int]
Script = Generator[Op, int, None]


def run(duration_ns: int) -> Op:
    """Occupy the devices for so many nanoseconds."""
    if type(duration_ns) is not int or duration_ns < 0:
        raise WorkflowError(
            f"run({duration_ns!r}): a duration is a whole number of nanoseconds, not negative. Next: run(round(seconds "
            "* 1e9))."
        )
    return (RUN, None, duration_ns, -1)


def get(channel: str, n: int | None = None, key: int = -1) -> Op:
    """Take items. ``n`` is how many; ``None`` means a micro-batch of the plan, `engine.ALL` this rank's share of
    everything. Yields how many came.
    """
    if n is not None and n < 1:
        raise WorkflowError(
            f"get({channel!r}, {n!r}) asks for less than one item. Next: leave n out to get a micro-batch of the plan."
        )
    return (GET, channel, n or 0, key)


def get_nowait(channel: str, n: int | None = None, key: int = -1) -> Op:
    """Take what is there, at most ``n`` items. Yields how many came."""
    return (GET, channel, NOW - get(channel, ALL if n is None else n)[2], key)


def put(channel: str, n: int = 1, key: int = -1) -> Op:
    """Hand over ``n`` items one after another."""
    if n < 0:
        raise WorkflowError(f"put({channel!r}, {n!r}): the number of items is negative. Next: put({channel!r}, 1).")
    return (PUT, channel, n, key)


def weigh(weight: int | None, place: float | None = None) -> Op:
    """What each item of this rank's puts weighs from here on. None: 1, and no weight is kept. ``place``: in the order
    of a channel that has one.
    """
    return (WEIGH, place, -1 if weight is None else weight, -1)


def get_weight(channel: str, weight: int, key: int = -1) -> Op:
    """Take items until they weigh that much together. Yields how many came."""
    return get(channel, ALL + weight, key)


def call(number: int) -> Op:
    """In the script of the loop: make the call at that position."""
    return (CALL, None, number, -1)


def wait(number: int, part: bool = False) -> Op:
    """In the script of the loop: wait until that call has ended on every rank. ``part``: on rank 0."""
    return (WAIT, None, number, 0 if part else -1)


@dataclass(frozen=True, slots=True)
class Turn:
    """Who performs a call, and when. ``position`` of ``count``: its place among the ranks that take part in this
    iteration.

    ``now()``: nanoseconds of virtual time. ``first()``: in its queue, the number of the first item that the last get
    brought. ``wanted(channel)``: whether anybody may still read what the call puts there.
    """

    rank: int
    iteration: int
    position: int
    count: int
    now: Callable[[], int] = field(default=lambda: 0, repr=False, compare=False)
    first: Callable[[], int] = field(default=lambda: 0, repr=False, compare=False)
    wanted: Callable[[str], bool] = field(default=lambda _: True, repr=False, compare=False)

    def share(self, items: int) -> int:
        """This rank's part of ``items`` that are divided evenly among those who take part."""
        return items // self.count + (self.position < items % self.count)


@dataclass(frozen=True)
class SimCall:
    """One call of an iteration. ``script(turn)`` makes the generator; ``after``: positions of calls whose value it
    needs.
    """

    worker: str
    method: str
    script: Callable[[Turn], Script]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    starts_on_device: bool = True

    def __repr__(self) -> str:
        ends = "".join(f", reads {c}" for c in self.reads) + "".join(f", writes {c}" for c in self.writes)
        return f"SimCall({self.worker}.{self.method}{ends}{f', after {list(self.after)}' if self.after else ''})"


def all_at_once(calls: int) -> Callable[[Turn], Script]:
    """The script of a loop that does nothing but call."""

    def loop(turn: Turn) -> Script:
        for position in range(calls):
            yield call(position)

    return loop
