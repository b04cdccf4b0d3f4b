"""Workflows at their ends: a source that streams is predicted as streaming, and the loop itself is no member of a cell."""

from __future__ import annotations

import pytest
from mock_runs import run
from timed_flows import timed

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.replay.estimate import estimate
from rlinf_lab.planning.simulator.scripts import Script
from rlinf_lab.planning.simulator.scripts import run as compute
from rlinf_lab.planning.simulator.simulator import SimCall, Simulator, Turn, get, put
from rlinf_lab.runtime.run.run import session
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

DEVICES = ["cpu:0", "cpu:1"]
MS = 1_000_000


def test_smaller_chunks_are_predicted_to_start_the_consumer_earlier() -> None:
    flow, _ = timed("ab", 8, {"a": (0, 0.010), "b": (0.010, 0.005)})

    def plan(micro_batch: int) -> ExecutionPlan:
        return ExecutionPlan.spatial(flow, DEVICES, {"a": [0], "b": [1]}, micro_batch=micro_batch)

    found = estimate(flow.graph, plan(6), run(flow, plan(6), 4).timeline)
    assert not found.notes  # batches of 6 and of 2: the two parts of the cost are known
    # In closed form: six samples, a batch of six, a batch of two; against eight samples and one last batch of one.
    assert found.simulate(plan(6), 1).elapsed_ns == 60 * MS + 40 * MS + 20 * MS
    assert found.simulate(plan(1), 1).elapsed_ns == 10 * MS + 8 * 15 * MS


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


@pytest.mark.parametrize(("channel", "key", "text"), [("items", 0, "'items' has no keys"), ("answers", -1, "'answers' is keyed")])
def test_a_script_gives_keys_as_a_worker_must(channel: str, key: int, text: str) -> None:
    flow = Workflow("keys")
    items, answers = flow.channel("items"), flow.channel("answers", keyed=True)
    source, sink = flow.worker(Answers, name="source"), flow.worker(Asks, name="sink")

    @flow.iteration
    def iteration() -> None:
        source.make(items, answers)
        sink.use(items, answers)

    def make(turn: Turn) -> Script:
        yield put("items", 1, key if channel == "items" else -1)
        yield put("answers", 1, 0)

    def use(turn: Turn) -> Script:
        yield get("items")
        yield get("answers", 1, key if channel == "answers" else 0)

    calls = [SimCall("source", "make", make, writes=("items", "answers")), SimCall("sink", "use", use, reads=("items", "answers"))]
    with pytest.raises(WorkflowError, match=text):
        Simulator(flow.graph, ExecutionPlan.temporal(flow, DEVICES)).simulate(calls)
    with pytest.raises(WorkflowError, match=r"run\(-1\)"):
        compute(-1)


class Answers(Worker):
    def make(self, items: Outbox, answers: Outbox) -> None: ...


class Asks(Worker):
    def use(self, items: Inbox, answers: Inbox) -> None: ...
