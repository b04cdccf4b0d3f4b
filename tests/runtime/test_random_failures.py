"""Random workflows in which random ranks fail at random moments: the error names one of them, nothing hangs or is delivered twice, the next iteration is whole.

Also consumers that stop early on purpose, several ranks at both ends, small channels, orders, and two failures at once. Drawn without randomness of the day.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flows import apart
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import both, opened, step_within

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import ChannelClosed, WorkerError

SEEN: Counter[tuple[Any, ...]] = Counter()  # (channel, item): how often a rank of this process was given it
LOCK = threading.Lock()
MOMENTS = ("start", "get", "item", "put", "end")


class Planned(Exception):
    """A failure that the test has drawn."""


@dataclass(frozen=True)
class Failure:
    """Of a rank, at its so manieth of these moments."""

    rank: int
    moment: str
    at: int


class Stage(Worker):
    """Takes items in one of the ways there are, and hands them on."""

    def __init__(self, way: str, stops: int) -> None:
        self.way, self.stops = way, stops

    def source(self, count: int, failure: Failure | None, out: Outbox) -> int:
        return self.pass_on(failure, ((self.name, self.rank, i) for i in range(count)), "", out)

    def work(self, failure: Failure | None, channel: str, inbox: Inbox, out: Outbox) -> int:
        return self.pass_on(failure, self.items(inbox), channel, out)

    def sink(self, failure: Failure | None, channel: str, inbox: Inbox) -> int:
        return self.pass_on(failure, self.items(inbox), channel, None)

    def pass_on(self, failure: Failure | None, items: Iterator[Any], channel: str, out: Outbox | None) -> int:
        self.begin(failure)
        found = 0
        for item in items:
            found += 1
            if channel:
                self.seen(channel, item)
            if out is not None:
                self.moment("put")
                out.put(item)
            elif found == self.stops:
                break
        self.moment("end")
        return found

    def begin(self, failure: Failure | None) -> None:
        self.failure = failure if failure is not None and failure.rank == self.rank else None
        self.moments: Counter[str] = Counter()
        self.moment("start")

    def moment(self, name: str) -> None:
        self.moments[name] += 1
        if self.failure is not None and (name, self.moments[name]) == (self.failure.moment, self.failure.at):
            raise Planned(f"{self.name}[{self.rank}] at {name} {self.failure.at}")

    def items(self, inbox: Inbox) -> Iterator[Any]:
        if self.way == "take":
            try:
                while True:
                    self.moment("get")
                    yield inbox.take()
            except ChannelClosed:
                return
        while True:
            self.moment("get")
            batch = inbox.get() if self.way == "micro_batches" else inbox.get(3) if self.way == "three" else inbox.get_all()
            if not batch:
                return
            yield from batch

    def seen(self, channel: str, item: Any) -> None:
        self.moment("item")
        with LOCK:
            SEEN[channel, item] += 1


@dataclass(frozen=True)
class Level:
    """Workers that read one channel and write to the next: ``ranks`` of each."""

    ranks: tuple[int, ...]
    way: str
    capacity: int | None
    micro_batch: int


ways = st.sampled_from(["take", "micro_batches", "three", "all"])
levels = st.builds(Level, st.lists(st.integers(1, 2), min_size=1, max_size=2).map(tuple), ways, st.sampled_from([1, 2, 5, None]), st.integers(1, 4))
failures = st.builds(Failure, st.integers(0, 1), st.sampled_from(MOMENTS), st.integers(1, 6))


def made(chain: list[Level], stops: int) -> tuple[Workflow, ExecutionPlan, list[list[str]]]:
    """``stops``: the last ones take so many items each and want no more; 0: all of them."""
    flow = Workflow("random")
    channels = [
        flow.channel(f"c{n}", capacity=level.capacity, discard_unread=bool(stops) and level is chain[-1], may_be_empty=True)
        for n, level in enumerate(chain[1:], 1)
    ]
    names = [[f"w{n}{'ab'[k]}" for k in range(len(level.ranks))] for n, level in enumerate(chain)]
    workers = {name: flow.worker(Stage, chain[n].way, stops, name=name) for n, some in enumerate(names) for name in some}

    @flow.iteration
    def iteration(count: int = 1, planned: dict[str, Failure] | None = None) -> Any:
        found = []
        for n, some in enumerate(names):
            for name in some:
                failure = (planned or {}).get(name)
                if n == 0:
                    found.append(workers[name].source(count, failure, channels[0]))
                elif n < len(chain) - 1:
                    found.append(workers[name].work(failure, f"c{n}", channels[n - 1], channels[n]))
                else:
                    found.append(workers[name].sink(failure, f"c{n}", channels[n - 1]))
        return found

    ranks = {name: count for level, some in zip(chain, names, strict=True) for name, count in zip(some, level.ranks, strict=True)}
    return flow, apart(flow, ranks, micro_batches={f"c{n}": level.micro_batch for n, level in enumerate(chain) if n}), names


def check(one: Any, chain: list[Level], names: list[list[str]], stops: int, planned: dict[str, Failure], count: int) -> None:
    """An iteration with failures, and one without, on a session."""
    ranks = {name: r for level, some in zip(chain, names, strict=True) for name, r in zip(some, level.ranks, strict=True)}
    SEEN.clear()
    try:
        step_within(one, count, planned)
    except WorkerError as error:
        assert error.worker in planned and error.rank == planned[error.worker].rank and "Planned" in str(error), error
    else:
        sure = ("start",) if stops else ("start", "end")  # where the sinks stop early, calls end at a put
        assert all(f.rank >= ranks[name] or f.moment not in sure or f.at > 1 for name, f in planned.items()), "one has certainly failed"
    assert max(SEEN.values(), default=1) == 1, "an item was given twice"
    assert one._loop.under_way.labels() == []
    SEEN.clear()
    found = step_within(one, count)
    values = [[v for of in found[sum(map(len, names[:n])) :][: len(some)] for v in (of if isinstance(of, list) else [of])] for n, some in enumerate(names)]
    if stops:
        assert None not in values[-1] and sum(values[-1]) <= count * sum(chain[0].ranks)
        return
    totals = [sum(some) for some in values]
    everything = count * sum(chain[0].ranks)
    assert totals == [everything] * len(chain)


@both
@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(data=st.data())
def test_random_failures_are_named_and_leave_nothing_behind(kind: str, data: st.DataObject) -> None:
    chain = data.draw(st.lists(levels, min_size=2, max_size=3))
    stops, count = data.draw(st.sampled_from([0, 0, 2])), data.draw(st.integers(0, 8))
    flow, plan, names = made(chain, stops)
    planned = data.draw(st.dictionaries(st.sampled_from([name for some in names for name in some]), failures, min_size=1, max_size=2))
    with opened(kind, flow, plan, 0.0) as s:
        check(s, chain, names, stops, planned, count)
