"""Workflows at their ends: a source that streams is predicted as streaming, and the loop itself is no member of a cell."""

from __future__ import annotations

import pytest

from rlinf_lab.planning.estimate import estimate
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.runtime.run import run, session
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

DEVICES = ["cpu:0", "cpu:1"]


class Source(Worker):
    def make(self, n: int, out: Outbox) -> None:
        for i in range(n):
            self.compute(0.010)
            out.put(i)


class Sink(Worker):
    def use(self, inbox: Inbox) -> None:
        for batch in inbox:
            self.compute(0.010 + 0.005 * len(batch))


def test_smaller_chunks_are_predicted_to_start_the_consumer_earlier() -> None:
    flow = Workflow("source")
    items = flow.channel("items")
    source, sink = flow.worker(Source, name="source"), flow.worker(Sink, name="sink")

    @flow.iteration
    def iteration() -> None:
        source.make(8, items)
        sink.use(items)

    def plan(chunk: int) -> ExecutionPlan:
        return ExecutionPlan.spatial(flow, DEVICES, {"source": [0], "sink": [1]}, chunk=chunk)

    measured = run(flow, plan(6), 4)
    measured.wait(60)
    found = estimate(flow.graph, plan(6), measured.timeline)
    assert not found.notes  # batches of 6 and of 2: the two parts of the cost are known
    # In closed form: six samples, a batch of six, a batch of two; against eight samples and one last batch of one.
    assert found.simulate(plan(6), 1).elapsed_ns / 1e9 == pytest.approx(0.060 + 0.040 + 0.020, rel=0.25)
    assert found.simulate(plan(1), 1).elapsed_ns / 1e9 == pytest.approx(0.010 + 8 * 0.015, rel=0.25)


def test_a_loop_that_feeds_a_worker_and_reads_it_is_no_cell() -> None:
    flow = Workflow("double")
    numbers, doubled = flow.channels("numbers", "doubled")
    double = flow.worker(lambda batch: [2 * x for x in batch], name="double")

    @flow.iteration
    def iteration() -> list:
        numbers.put_all(range(4))
        double(numbers, doubled)
        return doubled.get_all()

    assert flow.graph.cells == ()
    with session(flow, ExecutionPlan.temporal(flow, DEVICES)) as s:
        assert s.step() == [0, 2, 4, 6]
