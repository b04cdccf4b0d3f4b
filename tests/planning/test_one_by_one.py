"""Where iterations overlap, plans say what their runs take if sources put items one by one and ranks begin with theirs: another turn of the devices."""

from __future__ import annotations

import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.planning.forecast.steady_state import settled, steady
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.timeline.record.span import SpanKind

ITEMS, ITERATIONS = 64, 14
FIXED, EACH = {"source": 0.0, "middle": 0.01, "last": 0.0}, {"source": 0.01, "middle": 0.005, "last": 0.005}


class Stage(lab.Worker):
    def make(self, out: lab.Outbox) -> None:
        for i in range(ITEMS * self.rank // self.ranks, ITEMS * (self.rank + 1) // self.ranks):
            self.compute(EACH["source"])
            out.put(i)

    def pass_on(self, inbox: lab.Inbox, out: lab.Outbox) -> None:
        for batch in inbox:
            self.compute(FIXED["middle"] + EACH["middle"] * len(batch))
            out.put_all(batch)

    def end(self, inbox: lab.Inbox) -> None:
        for batch in inbox:
            self.compute(EACH["last"] * len(batch))


def made() -> tuple[lab.Workflow, Profile]:
    flow = lab.Workflow("three")
    first, second = flow.channel("first", capacity=None), flow.channel("second", capacity=None)
    source, middle, last = (flow.worker(Stage, name=name) for name in EACH)

    @flow.iteration
    def iteration() -> None:
        source.make(first)
        middle.pass_on(first, second)
        last.end(second)

    workers = {
        name: {"samples": [{"devices": 1, "items": n, "seconds": FIXED[name] + EACH[name] * n} for n in (1, ITEMS)], "exponent": 1.0} for name in EACH
    }
    edges = [{"producer": "source", "consumer": "middle"}, {"producer": "middle", "consumer": "last"}]
    return flow, Profile.from_dict({"items": ITEMS, "workers": workers, "edges": edges})


def seconds_of_run(flow: lab.Workflow, plan: lab.ExecutionPlan) -> float:
    run = lab.run(flow, plan, ITERATIONS, dashboard=False, clock=MockClock())
    run.wait()
    spans = run.timeline.spans
    ends = np.sort(spans[spans["kind"] == SpanKind.MARK]["end"]) / 1e9
    return float(ends[-3] - ends[3]) / (ITERATIONS - 6)


def test_a_plan_says_what_items_that_come_one_by_one_would_change() -> None:
    flow, profile = made()
    plans = lab.plan(flow, [f"cpu:{i}" for i in range(4)], profile, micro_batches=1, staleness=1)
    plan = next(p for p in plans if p.shape == "source | (middle > last)")
    ran = seconds_of_run(flow, plan.execution)
    assert ran > 1.1 * plan.seconds
    (note,) = (n for n in plan.notes if "one by one" in n)
    assert note.endswith(f"an iteration takes about {ran:.4g} s")
    _, simulated = settled(steady(plan.candidate.placement, plan.devices, one_by_one=True), 1)
    assert simulated == pytest.approx(ran)


def test_nothing_is_said_where_it_changes_nothing_or_iterations_do_not_overlap() -> None:
    flow, profile = made()
    apart = next(p for p in lab.plan(flow, [f"cpu:{i}" for i in range(4)], profile, micro_batches=1, staleness=1) if p.mode == "spatial")
    assert seconds_of_run(flow, apart.execution) == pytest.approx(apart.seconds, rel=0.02)
    assert not any("put one by one" in n for n in apart.notes)
    for plan in lab.plan(flow, [f"cpu:{i}" for i in range(4)], profile, micro_batches=1):
        assert not any("simulated as handing over" in n for n in plan.notes)
