"""Runs of one workflow at the same time, and inside each other: every call goes to the session of the thread that makes it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flows import DEVICES, Fails, cell_flow, cell_plans, failing_flow

from rlinf_lab import ExecutionPlan, Workflow
from rlinf_lab.errors import WorkflowError
from rlinf_lab.runtime.run.run import run, session


class Meeting:
    """A flow whose iteration stops in the middle until as many iterations as announced have come as far."""

    def __init__(self, parties: int) -> None:
        self.flow = Workflow("meeting")
        worker = self.flow.worker(Fails, name="w")
        self.barrier: threading.Barrier | None = None

        @self.flow.iteration
        def iteration(n: int) -> int:
            first = worker.work(n)
            if self.barrier is not None:
                self.barrier.wait(20)
            second = worker.work(n + 1)
            if self.barrier is not None:
                self.barrier.wait(20)
            return first.wait() * 1000 + second.wait()

        self.plan = ExecutionPlan.temporal(self.flow, ["cpu:0"])
        self.barrier = threading.Barrier(parties)


def test_two_runs_of_one_workflow_do_not_hear_each_other() -> None:
    meeting = Meeting(2)
    a = run(meeting.flow, meeting.plan, inputs=[100, 200])
    b = run(meeting.flow, meeting.plan, inputs=[300, 400])
    assert a.wait(30) == [100_101, 200_201]
    assert b.wait(30) == [300_301, 400_401]


def test_a_workflow_is_traced_and_drawn_while_it_runs() -> None:
    meeting = Meeting(2)
    going = run(meeting.flow, meeting.plan, inputs=[1])
    while not meeting.barrier.n_waiting:
        threading.Event().wait(0.002)
    barrier, meeting.barrier = meeting.barrier, None  # the trace must not wait
    meeting.flow.__dict__.pop("graph")
    assert len(meeting.flow.graph.program) == 2
    assert "<svg" in meeting.flow._repr_html_()
    with pytest.raises(WorkflowError, match="outside a run"):  # this thread executes no iteration
        meeting.flow.dispatcher()
    barrier.wait(20)
    assert going.wait(30) == [1002]


def test_an_iteration_may_run_another_workflow_and_itself() -> None:
    flow, inner = Workflow("outer"), failing_flow()
    worker = flow.worker(Fails, name="w")
    opened: list[Any] = []

    @flow.iteration
    def iteration(n: int) -> int:
        before = worker.work(n)
        if opened:
            with session(inner, opened[0]) as s:
                assert s.step(2) == 3
            plan = opened.pop()
            with session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])) as s:
                assert s.step(n + 5) == 2 * (n + 5)
            assert plan.name == "temporal"
        return before.wait() + worker.work(n).wait()

    flow_plan = ExecutionPlan.temporal(flow, ["cpu:0"])
    opened.append(ExecutionPlan.temporal(inner, DEVICES))
    with session(flow, flow_plan) as s:
        assert s.step(2) == 4
        assert s.step(3) == 6


def test_a_session_keeps_the_iteration_it_was_made_for() -> None:
    flow = cell_flow()
    with session(flow, cell_plans(flow)[0]) as s:

        @flow.iteration
        def another() -> int:
            return 7

        assert s.step() == {"total": 12.0}
    with session(flow, ExecutionPlan.temporal(flow, DEVICES)) as s:
        assert s.step() == 7


def test_within_an_iteration_no_other_begins_and_only_its_own_thread_calls_and_waits() -> None:
    flow = Workflow("again")
    worker = flow.worker(Fails, name="w")
    sessions, found = list[Any](), list[str]()

    @flow.iteration
    def iteration() -> int:
        handle = worker.work(4)
        if sessions:
            with ThreadPoolExecutor() as pool:
                found[:] = [str(pool.submit(use).exception()) for use in (handle.wait, lambda: worker.work(1))]
            sessions[0].step()
        return handle.wait()

    with session(flow, ExecutionPlan.temporal(flow, ["cpu:0"])) as s:
        sessions.append(s)
        with pytest.raises(WorkflowError, match="while iteration 0 is going on"):
            s.step()
        sessions.clear()
        assert s.step() == 4
    assert "by the thread that executes the iteration only" in found[0] and "not into threads that it starts" in found[1]
