"""A worker that takes all of one input before the next: seen in a run, simulated so, and said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_runs import profiled, run, seconds
from timed_flows import Timed

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, Sample, WorkerProfile

DEVICES = ["cpu:0", "cpu:1", "cpu:2"]


class Join(lab.Worker):
    def __init__(self, first: float, second: float) -> None:
        self.first, self.second = first, second

    def in_turn(self, x: lab.Inbox, y: lab.Inbox) -> None:
        for batch in x:
            self.compute(self.first * len(batch))
        for batch in y:
            self.compute(self.second * len(batch))

    def together(self, x: lab.Inbox, y: lab.Inbox) -> None:
        for batch, other in zip(x, y, strict=True):
            self.compute(self.first * len(batch) + self.second * len(other))


def join(first: float = 0.02, second: float = 0.01, counts: tuple[int, int] = (8, 24), items: tuple[float, float] = (0.01, 0.01), how: str = "in_turn"):
    flow = lab.Workflow("join")
    x, y = flow.channel("x", capacity=None), flow.channel("y", capacity=None)
    a, b = (flow.worker(Timed, n, 0.0, item, 1, name=name) for n, item, name in zip(counts, items, ("a", "b"), strict=True))
    j = flow.worker(Join, first, second, name="j")

    @flow.iteration
    def iteration():
        a.make(x)
        b.make(y)
        return getattr(j, how)(x, y)

    return flow


def test_the_order_of_inputs_is_seen_simulated_and_said() -> None:
    flow = join()
    profile = profiled(flow)
    assert [(p, pytest.approx(part)) for p, part in profile.workers["j"].in_turn] == [("a", 0.4), ("b", 0.6)]
    assert Profile.from_json(profile.to_json()) == profile
    plans = lab.plan(flow, DEVICES, profile)
    for shape, close in {"a | b | j": 0.02, "(a | b) > j": 1e-6, "a > b > j": 1e-6}.items():
        assert seconds(run(flow, plans[shape])) == pytest.approx(plans[shape].seconds, rel=close)
    for plan in plans:
        assert seconds(run(flow, plan)) <= plan.seconds * 1.02 and "j takes all of a and then b" in plan.notes[0]
    assert plans.bound.seconds <= plans.best.seconds


def test_a_batch_of_each_at_a_time_is_no_turn() -> None:
    profile = profiled(join(counts=(8, 8), how="together"))
    assert profile.workers["j"].in_turn == () and not lab.plan(profile, 3).best.notes


@settings(max_examples=8, deadline=None)
@given(st.tuples(*[st.floats(0.001, 0.05)] * 4))
def test_streams_in_turn_take_what_a_run_takes(times: tuple[float, float, float, float]) -> None:
    flow = join(times[0], times[1], (16, 16), (times[2], times[3]))
    plans = lab.plan(flow, DEVICES, profiled(flow))
    assert plans.bound.seconds <= plans.best.seconds * (1 + 1e-6)
    streams = plans["a | b | j"]
    assert streams.candidate.seconds == pytest.approx(streams.seconds, rel=0.02)
    assert seconds(run(flow, streams)) == pytest.approx(streams.seconds, rel=0.02)


@pytest.mark.parametrize(
    ("in_turn", "says"), [((("a", 1.0),), "fed by a, b"), ((("a", 0.5), ("b", 0.6)), "sum is 1"), ((("a", 1.5), ("b", -0.5)), "sum is 1")]
)
def test_errors_name_the_field(in_turn: tuple[tuple[str, float], ...], says: str) -> None:
    workers = {w: WorkerProfile((Sample(1, 8.0, 1.0),)) for w in "abj"}
    with pytest.raises(ConfigError, match=r"profile.workers.j.in_turn .*" + says):
        Profile(8, {**workers, "j": replace(workers["j"], in_turn=in_turn)}, (EdgeProfile("a", "j"), EdgeProfile("b", "j")))


def test_a_producer_that_is_none_is_named_where_it_stands() -> None:
    """Not in what follows from it."""
    one = WorkerProfile((Sample(1, 8.0, 1.0),))
    join = replace(one, in_turn=(("a", 0.5), ("b", 0.5)))
    with pytest.raises(UnknownNameError, match=r"profile\.edges\[1\]\.producer"):
        Profile(8, {"a": one, "b": one, "j": join}, (EdgeProfile("a", "j"), EdgeProfile("bb", "j")))
