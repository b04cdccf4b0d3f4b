"""What a faster worker would bring: told from a timeline, and compared with the run in which it is faster. And which gets a put cuts short."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from built import timeline_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rlinf_lab as lab
from rlinf_lab.errors import TimelineError, UnknownNameError
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline import SpanKind, Timeline
from rlinf_lab.timeline.critical import gains
from rlinf_lab.timeline.critical.causal_order import in_causal_order
from rlinf_lab.timeline.critical.short_gets import cut_short


class Link(lab.Worker):
    """One of a chain of workers: takes a micro-batch of items, works on each, hands it on. The last of the seconds is for when there are no more."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds

    def first(self, out: lab.Outbox) -> None:
        for item in range(self.rank, len(self.seconds) - 1, self.ranks):
            self.compute(self.seconds[item])
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
TAILED: Chain = ([[*(8 + (7 * i) % 9 for i in range(15)), 60, 0], [4] * 16 + [6]], [4])
"""A sampler of responses of which one is long, and a learner."""


def ran(of: Chain, faster: int = -1, times: float = 2.0, ranks: int = 1, iterations: int = 2, room: int | None = None, shared: bool = False) -> Timeline:
    """Workers w0 → w1 → …, each on a device of its own, w0 on ``ranks``. ``of``: ms of each worker and item, then the micro-batch of each channel.
    ``room``: for so many more items than that (None: for any number). ``shared``: all on one device."""
    steps, micro_batches = of
    flow, count = lab.Workflow("chain"), len(steps)
    channels = [flow.channel(f"c{i}", capacity=None if room is None else micro_batches[i] + room) for i in range(count - 1)]
    links = [flow.worker(Link, [0.001 * n / (times if i == faster else 1) for n in row], name=f"w{i}") for i, row in enumerate(steps)]

    @flow.iteration
    def iteration():
        links[0].first(channels[0])
        for i, one in enumerate(links[1:-1]):
            one.between(channels[i], channels[i + 1])
        links[-1].last(channels[-1])

    places = {f"w{i}": ((ranks - 1 + i,),) for i in range(1, count)} | {"w0": tuple((r,) for r in range(ranks))}
    places = dict.fromkeys(places, ((0,),)) if shared else places
    devices = tuple(f"cpu:{i}" for i in range(1 if shared else count - 1 + ranks))
    plan = lab.ExecutionPlan("apart", devices, places, {f"c{i}": n for i, n in enumerate(micro_batches)})
    done = lab.run(flow, plan, iterations, dashboard=False, clock=MockClock())
    done.wait(60)
    return done.timeline


def chains() -> st.SearchStrategy[Chain]:
    def of(size: tuple[int, int]) -> st.SearchStrategy[Chain]:
        workers, items = size
        rows = st.lists(st.lists(st.integers(0, 30), min_size=items, max_size=items), min_size=workers, max_size=workers)
        return st.tuples(rows, st.lists(st.integers(1, 4), min_size=workers - 1, max_size=workers - 1))

    return st.tuples(st.integers(2, 4), st.integers(3, 9)).flatmap(of)


# The same examples each time: where workers take no time, what ties is told wrongly now and then.
@given(chains(), st.sampled_from([1.5, 2.0, 8.0]), st.integers(1, 2), st.sampled_from([None, 0, 1, 3, "shared"]))
@example(([[3, 1, 4, 1, 5, 30], [9, 2, 6, 5, 3, 20], [1, 1, 1, 1, 1, 9]], [2, 3]), 2.0, 1, "shared")
@example(TAILED, 8.0, 2, None)
@settings(max_examples=25, deadline=None, derandomize=True)
def test_what_a_faster_worker_gains(chain: Chain, times: float, ranks: int, room: Any) -> None:
    """Of the first one where it is alone: two that are faster hand on their items in another order."""
    ranks, options = (1, {"shared": True}) if room == "shared" else (ranks, {"room": room})
    before = ran(chain, ranks=ranks, **options)
    told = before.gains(times).set_index("worker")["seconds"]
    for worker in range(ranks > 1, len(chain[0])):
        gained = (before.elapsed_ns - ran(chain, worker, times, ranks, **options).elapsed_ns) / 1e9
        assert told.get(f"w{worker}", 0.0) == pytest.approx(gained, abs=1e-7)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_nothing_is_gained_by_nothing_and_never_more_than_the_work(data: st.DataObject) -> None:
    """What is brought to a device is no faster; wherever the clock begins, and however many groups are looked at side by side."""
    rows = list[tuple[Any, ...]]()
    for i in range(3):
        at = data.draw(st.integers(0, 50))
        for _ in range(data.draw(st.integers(0, 6))):
            kind = data.draw(st.sampled_from([k for k in SpanKind if k is not SpanKind.MARK]))
            end = at + data.draw(st.integers(0, 40))
            moved = (data.draw(st.integers(0, 2)), "c", data.draw(st.integers(-1, 4)), data.draw(st.integers(0, 2)))
            rows.append((f"w{i}", 0, (f"cpu:{i % 2}",), kind, at, end, *moved))
            at = max(0, end + data.draw(st.integers(-10, 10)))
    timeline, before_zero = (timeline_of(*((*row[:4], row[4] - by, row[5] - by, *row[6:]) for row in rows)) for by in (0, 1000))
    assert (timeline.gains(1)["seconds"] == 0).all()
    replayed = in_causal_order(timeline.spans[timeline.spans["kind"] != SpanKind.LABEL])
    assert gains._Replay(timeline.snapshot(), replayed).finish([], 2.0) == (gains._extent(replayed), [])
    twice = timeline.gains(2)
    assert (twice["seconds"] <= twice["run_seconds"] / 2 + 1e-9 * len(timeline)).all()
    assert before_zero.gains(2).equals(twice)
    for groups in (1, 2, 3):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(gains, "_MAX_NUMBERS", groups * max(1, len(timeline)))
            assert timeline.gains(2).equals(twice)


def test_by_name_of_the_call_and_of_nothing() -> None:
    table = ran(TAILED).gains(by=["worker", "name"])
    assert set(zip(table["worker"], table["name"], strict=True)) == {("w0", "first"), ("w1", "last")}
    assert list(Timeline().gains().columns) == ["worker", "run_seconds", "seconds", "share"] and not len(Timeline().gains())
    assert "Gained if twice as fast" in str(ran(TAILED).summary())


@pytest.mark.parametrize("times", [0, -1, "2", None, True, float("nan")])
def test_how_many_times_is_checked(times: Any) -> None:
    with pytest.raises(TimelineError, match=r"gains\(times=.*Next"):
        Timeline().gains(times)
    with pytest.raises(UnknownNameError, match="wroker"):
        Timeline().gains(by="wroker")


def test_of_a_long_timeline_the_last_iterations_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ran(TAILED, ranks=2, iterations=3)
    everything = whole.gains()
    monkeypatch.setattr(gains, "MAX_REPLAYED_SPANS", 3 * everything.attrs["replayed_spans"] // 4)
    part = whole.gains()
    assert part.attrs["replayed_spans"] <= gains.MAX_REPLAYED_SPANS
    assert np.allclose(part["share"], everything["share"], atol=0.02) and list(part["worker"]) == list(everything["worker"])
    assert everything.attrs["note"] == "" and "EXTRAPOLATED" in part.attrs["note"]
    told = f"replayed are the last {part.attrs['replayed_spans']} of {part.attrs['spans']} spans"
    summary = whole.summary()
    assert told in part.attrs["note"] and told in str(summary) and told in json.loads(summary.to_json())["notes"]["gains"]


def between_processes(run_ns: int, count: int = 6) -> Timeline:
    """As a run in two processes records it: items are worked on, put, travel, and are taken; the taker needs but 2 ns."""
    maker, taker, rows, taken = ("maker", 0, ("cpu:0",)), ("taker", 0, ("cpu:1",)), [], 0
    for item in range(count):
        put = run_ns * (item + 1)
        rows += [(*maker, SpanKind.RUN, put - run_ns, put, 0), (*maker, SpanKind.PUT, put, put, 0, "c", item, 1)]
        rows += [("host0 → host1", 0, (), SpanKind.TRANSFER, put + 1, put + 3, 0, "c", -1, 1), (*taker, SpanKind.GET, taken, put + 4, 0, "c", item, 1)]
        rows.append((*taker, SpanKind.RUN, put + 4, taken := put + 6, 0))
    return timeline_of(*rows)


def test_what_travels_leaves_when_it_is_put() -> None:
    before, after = between_processes(20), between_processes(10)
    assert before.gains(2).set_index("worker")["seconds"]["maker"] == pytest.approx((before.elapsed_ns - after.elapsed_ns) / 1e9)


Rows = Callable[[int], tuple]
CPU = [("torch", r, (f"cpu:{r}",)) for r in (0, 1)]
MOVES = (SpanKind.RUN, SpanKind.PUT, SpanKind.GET)
WRITTEN: dict[str, Rows] = {
    "one after another": lambda i: (*CPU[0], SpanKind.RUN, i * 10, i * 10 + 9),
    "in threads": lambda i: (*CPU[i % 2], SpanKind.RUN, i * 10, i * 10 + 19),
    "at one instant": lambda i: ("w", i % 3 + 3 * (i // 6), (), MOVES[i % 3], 90, 100, 0, "c", i // 3, 1),
}


def steps_of(row: Rows, count: int) -> int:
    """Lines that `gains` runs in its room of the house for a timeline of so many spans."""
    timeline, steps = timeline_of(*map(row, range(count))), 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace if "timeline" in frame.f_code.co_filename else None

    outer = sys.gettrace()
    sys.settrace(trace)
    try:
        timeline.gains()
    finally:
        sys.settrace(outer)
    return steps


@pytest.mark.parametrize("name", WRITTEN)
def test_four_times_as_many_spans_take_about_four_times_as_many_steps(name: str) -> None:
    assert steps_of(WRITTEN[name], 1600) < 5 * steps_of(WRITTEN[name], 400)


def handed(puts: list[tuple[int, int]], gets: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Pairs (get, put) by their place among the ``gets`` (start, end, items) and ``puts`` (start, end) of one channel, in order."""
    rows, flow = [("w", 0, (), SpanKind.PUT, *put, 0, "c", i, 1) for i, put in enumerate(puts)], 0
    for start, end, items in gets:
        rows.append(("v", 0, (), SpanKind.GET, start, end, 0, "c", flow, items))
        flow += items
    timeline = timeline_of(*rows)
    return [(get - len(puts), put) for get, put in zip(*(rows.tolist() for rows in cut_short(timeline.spans)), strict=True)]


def test_gets_that_the_next_put_cut_short() -> None:
    puts = [(10, 10), (20, 20), (30, 31), (40, 40), (50, 50)]
    assert handed(puts, [(0, 31, 2), (60, 60, 2)]) == [(0, 2), (1, 4)]  # also the second, though it did not wait
    assert handed(puts, [(0, 31, 2), (45, 45, 2)]) == []  # the second was over before another put: a micro-batch of two
    assert handed(puts, [(0, 20, 2), (45, 45, 2)]) == []  # a micro-batch of two
    assert handed(puts, [(0, 29, 2), (60, 60, 2)]) == []
    assert handed(puts, [(60, 60, 2), (60, 60, 2)]) == []  # nothing to be seen


@given(st.integers(1, 4).flatmap(lambda n: st.permutations([pair for i in range(n) for pair in ((i, SpanKind.PUT), (i + 1, SpanKind.GET))])))
def test_what_is_handed_on_in_one_instant_is_told_from_its_maker_on(written: list[tuple[int, SpanKind]]) -> None:
    """Whatever was written down first: w0 hands an item to w1, and so on, all at 4 ns; at 9 ns another one."""
    timeline = timeline_of(*((f"w{i}", 0, (), kind, at - 2 * (kind == SpanKind.GET), at, 0, f"c{i + (kind == SpanKind.PUT)}", at, 1) for at in (9, 4) for i, kind in written))
    spans = in_causal_order(timeline.spans)
    told = [(end, timeline.tracks[track].worker, kind) for end, track, kind in zip(spans["end"].tolist(), spans["track"].tolist(), spans["kind"].tolist(), strict=True)]
    assert told == [(at, f"w{i}", kind) for at in (4, 9) for i, kind in sorted(written)]
