"""What a channel holds by its spans is what it held, never more than its capacity, in real runs of threads, and at the end nothing; what other processes
recorded of an iteration comes after its mark: until it is there, the iteration is not taken for whole."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections import Counter

import pytest
from flows import Numbers
from sessions import until

import rlinf_lab as lab
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.control.post import Post
from rlinf_lab.timeline import SpanKind, Timeline
from rlinf_lab.timeline.account.tables import Standing, whole_iterations
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

CHANNELS = ("raw", "made", "last")


def busy(ns: int) -> None:
    """Work, the interpreter's lock held: others wake late."""
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass


class Stage(Worker):
    """Takes items and puts them on, at a pace of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed + self.rank)

    def rest(self) -> None:
        how = self.rng.random()
        if how < 0.3:
            time.sleep(self.rng.random() * 1e-4)
        elif how < 0.6:
            busy(self.rng.randrange(60_000))

    def produce(self, n: int, out: Outbox) -> None:
        for i in range(n):
            self.rest()
            out.put(i)

    def work(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            self.rest()
            out.put_all(batch)

    def consume(self, inbox: Inbox) -> int:
        total = 0
        for batch in inbox:
            self.rest()
            total += len(batch)
        return total


def run_of(seed: int) -> tuple[Timeline, dict[str, int], int]:
    """(timeline, capacities, items taken in the end) of a chain with small channels, where one or two ranks are in the middle."""
    rng = random.Random(seed)
    room = {name: rng.choice((1, 1, 2, 3)) for name in CHANNELS}
    flow = Workflow(f"chain{seed}")
    raw, made, last = (flow.channel(name, capacity=size) for name, size in room.items())
    source, double, filter_, sink = (flow.worker(Stage, seed, name=name) for name in ("source", "double", "filter", "sink"))

    flow.iteration(lambda: (source.produce(120, raw), double.work(raw, made), filter_.work(made, last), sink.consume(last))[-1])
    devices = [f"cpu:{k}" for k in range(5)]  # each its own: where two share one, the engine gives a full channel more room rather than stand still
    plan = ExecutionPlan.spatial(flow, devices, {"source": [0], "double": rng.choice(([1], [1, 2])), "filter": [3], "sink": [4]})
    run = lab.run(flow, plan, iterations=2, dashboard=False, emulate=True)
    taken = sum(run.wait())
    assert run.timeline.elapsed_ns < 60e9, "nothing is as old as the clock"
    return run.timeline, room, taken


@pytest.mark.parametrize("seed", range(4))
def test_what_channels_hold_and_ranks_do_by_their_spans_is_what_they_did(seed: int) -> None:
    timeline, room, taken = run_of(seed)
    table = timeline.depths()
    most = table.groupby("channel", observed=True).depth.max().to_dict()
    assert taken == 240 and set(most) == set(room)
    assert all(0 < depth <= room[channel] for channel, depth in most.items()), (most, room)
    assert (table.groupby("channel", observed=True).depth.last() == 0).all()
    rows = timeline.rows()
    for channel in CHANNELS:  # an item is put before it is taken, by the clock of one host, also where threads wake late
        for iteration in range(2):
            moves = [s for s in rows if s.channel == channel and s.items and s.iteration == iteration]
            puts, gets = ([s for s in moves if s.kind is kind] for kind in (SpanKind.PUT, SpanKind.GET))
            when = {s.flow: s.end_ns for s in puts}
            assert gets and len(when) == len(puts) == sum(s.items for s in puts) == 120
            assert all(when[i] <= s.end_ns for s in gets for i in range(s.flow, s.flow + s.items))
    for track in (track for track in timeline.tracks if track.devices):  # a rank ran, waited for input or room, or for its device
        for iteration in range(2):
            own = sorted((s.start_ns, s.end_ns) for s in rows if s.track == track and s.iteration == iteration and s.end_ns > s.start_ns)
            assert all(b == a for (_, a), (b, _) in itertools.pairwise(own)), "a gap, or two at once"


class Turns(Worker):
    def turn(self) -> None:
        time.sleep(0.05)


def test_who_is_let_go_before_it_has_parked_has_waited_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its wait for the device was written as work, so two had one device at once."""
    flush = Post.flush

    def slow(self: Post) -> None:
        flush(self)
        caller = sys._getframe(1)
        if caller.f_code.co_name == "post" and caller.f_locals["process"].parked:  # as where a socket is full, or another thread has the interpreter
            time.sleep(0.08)

    monkeypatch.setattr(Post, "flush", slow)
    flow = Workflow("turns")
    a, b = flow.worker(Turns, name="a"), flow.worker(Turns, name="b")

    flow.iteration(lambda: (a.turn(), b.turn())[:0])
    run = lab.run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), iterations=3, dashboard=False, emulate=True)
    run.wait()
    rows = run.timeline.rows()
    runs = sorted((s.start_ns, s.end_ns) for s in rows if s.kind is SpanKind.RUN)
    assert len(runs) >= 6 and any(s.kind is SpanKind.LOCK for s in rows)
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(runs)), runs


# --- spans that come late ---
ITERATIONS = 4


def test_an_iteration_is_whole_when_every_process_has_told_of_it() -> None:
    flow = lab.Workflow("late")
    items = flow.channel("items")
    source, learner = flow.worker(Numbers, name="source"), flow.worker(Numbers, name="learner")

    flow.iteration(lambda: (source.make(4, items), learner.count(items))[:0])
    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"source": [0], "learner": [1]}, micro_batch=1)
    looks: list[Timeline] = []
    with lab.session(flow, plan, executor="processes", emulate=True) as session:
        for _ in range(ITERATIONS):
            session.step()
            for _ in range(10):
                looks.append(session.timeline.snapshot())
                time.sleep(0.01)
        until(lambda: whole_iterations(session.timeline) == set(range(ITERATIONS)))  # though nothing more happens
    final = Counter(session.timeline.spans["iteration"].tolist())
    for look in looks:
        seen, whole = Counter(look.spans["iteration"].tolist()), whole_iterations(look) or set()
        assert {i: seen[i] for i in whole} == {i: final[i] for i in whole}
        marked = set(look.marks()["iteration"].tolist())
        assert set(Standing.of(look).arriving) == marked - whole
    assert whole_iterations(session.timeline) == set(range(ITERATIONS)) and not session.timeline.arriving
