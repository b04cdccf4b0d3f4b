"""Fillers under the executors: what they did is told, what fails of them is told, and the iterations are what they would be without."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from flows import DEVICES, cell_flow, cell_plans
from sessions import both, opened, recorded, until

import rlinf_lab as lab
from rlinf_lab.errors import DeadlockError, WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.host.elastic import fillers as at_work
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.filler import Filler
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Counts(Worker):
    """Counts to ``end`` on each device."""

    def __init__(self, end: int = 5, fails_at: int = -1) -> None:
        self.end, self.fails_at = end, fails_at

    def setup(self) -> None:
        self.n = 0

    def step(self) -> Any:
        if self.n == self.fails_at:
            raise ValueError(f"no {self.n}")
        if self.n == self.end:
            return False
        self.compute(0.0005)
        self.n += 1
        self.log(counted=self.n)
        return self.n


class Holds(Worker):
    """Keeps the iteration going until enough was filled beside it."""

    until: Any = None

    def work(self) -> str:
        while not self.cancelled:
            if type(self).until():
                return "done"
            self.compute(0.001)
        return "cancelled"


def held_flow() -> Workflow:
    flow = Workflow("held")
    holds = flow.worker(Holds, name="holds")

    @flow.iteration
    def iteration() -> Any:
        return holds.work()

    return flow


def test_what_a_filler_did_is_told_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = held_flow()
    plan = ExecutionPlan("held", ("cpu:0", "cpu:1"), {"holds": [[0]]})
    with session(flow, plan, fillers=[Filler(Counts, on="cpu:1")]) as s:
        monkeypatch.setattr(Holds, "until", staticmethod(lambda: s.fillers[0].is_done))
        assert s.step() == "done"
        assert "filler counts[0] on cpu:1: 6 steps" in s.status() and ", done" in s.status()
    (told,) = s.fillers
    assert (told.steps, told.result, told.error, told.is_done) == (6, 5, None, True)  # the sixth says that there is no more
    spans = [span for span in s.timeline.rows() if span.track.worker == "counts" and span.kind == SpanKind.RUN]
    assert len(spans) == 6 and {(span.name, span.track.devices) for span in spans} == {("step", ("cpu:1",))}
    assert s.timeline.bubble_sum_error_ns() == 0 and s.timeline.busy()["ns"][1] == sum(span.end_ns - span.start_ns for span in spans)
    assert s.metrics["counted"].tolist() == [5]


def test_a_filler_that_fails_spoils_no_iteration_and_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = held_flow()
    plan = ExecutionPlan("held", ("cpu:0", "cpu:1"), {"holds": [[0]]})
    fillers = [Filler(Counts, 9, 2, on="cpu:1")]
    with pytest.raises(WorkerError, match=r"'counts' rank 0 failed in step\(\): ValueError: no 2"), session(flow, plan, fillers=fillers) as s:
        monkeypatch.setattr(Holds, "until", staticmethod(lambda: s.fillers[0].is_done))
        assert [s.step(), s.step()] == ["done", "done"]
        assert s.fillers[0].steps == 2 and "failed: Worker 'counts' rank 0" in s.status()


def test_a_functions_calls_are_steps_and_results_stay_with_the_run() -> None:
    flow = cell_flow()
    called: list[int] = []

    def note() -> int:
        called.append(threading.get_ident())
        return len(called)

    plan = cell_plans(flow)[2]
    with_it = run(flow, plan, 3, fillers=[lab.Filler(note, on="cpu:0", name="notes")])
    without = run(flow, plan, 3)
    assert with_it.wait(60) == without.wait(60)
    (told,) = with_it.fillers
    assert told.steps == len(called) and (told.result or 0) == len(called) and len(set(called)) <= 1


@pytest.mark.parametrize("index", range(3))
def test_results_are_the_same_with_endless_fillers_between_several_hosts(index: int) -> None:
    flow = cell_flow()
    plan = cell_plans(flow)[index]
    with opened("mesh", flow, plan, 0.0005, seed=index, fillers=[Filler(Counts, -1, on=DEVICES)]) as s:
        assert [s.step() for _ in range(3)] == [{"total": 12.0 * (i + 1)} for i in range(3)]  # as without
    assert recorded(s).bubble_sum_error_ns() == 0
    assert {f.name: f.error for f in s._executor.news.fillers()} == {"counts": None}


class Empty(Worker):
    def pass_on(self, inbox: Inbox, out: Outbox) -> None:
        if self.is_ready():  # whether it reads at all is up to its state: a plan cannot tell
            for batch in inbox:
                out.put_all(batch)

    def is_ready(self) -> bool:
        return True


@both
def test_endless_steps_hide_no_deadlock(kind: str) -> None:
    flow = Workflow("stuck")
    there, back = flow.channels("there", "back")
    a, b = flow.worker(Empty, name="a"), flow.worker(Empty, name="b")

    @flow.iteration
    def iteration() -> None:
        a.pass_on(back, there)
        b.pass_on(there, back)

    plan = ExecutionPlan.spatial(flow, DEVICES, {"a": [0], "b": [1]})
    with opened(kind, flow, plan, fillers=[Filler(Counts, -1, on=DEVICES)]) as s, pytest.raises(DeadlockError, match="waits for items of channel"):
        s.step()


class Lives(Worker):
    def work(self) -> int:
        return 7


def open_flow() -> tuple[Workflow, ExecutionPlan, list[Callable[[], bool]]]:
    """Its iterations stay under way until what is in the list says that they may end."""
    flow = Workflow("open")
    wanted: list[Any] = []
    a, b = flow.worker(Lives, name="a"), flow.worker(Lives, name="b")

    @flow.iteration
    def iteration() -> int:
        value: int = a.work().wait() + b.work().wait()
        until(lambda: all(reached() for reached in wanted))
        return value

    return flow, ExecutionPlan.spatial(flow, DEVICES, {"a": [0], "b": [1]}), wanted


def test_fillers_live_beside_the_workers_of_their_device_in_other_processes() -> None:
    flow, plan, wanted = open_flow()
    often = 1000  # else they rest until the end of the iteration, once one was in the way
    fillers = [Filler(Counts, -1, on=DEVICES, delays=often), Filler(Counts, -1, 1, on="cpu:1", name="fails", delays=often)]
    with pytest.raises(WorkerError, match=r"'fails' rank 0 failed in step\(\)"), session(flow, plan, "processes", fillers=fillers) as s:
        wanted.append(lambda: all(told.steps > 3 or told.error is not None for told in s.fillers))
        assert [s.step(), s.step()] == [14, 14]
        assert "failed: Worker 'fails' rank 0" in s.status()
    told = {(f.name, f.rank): f for f in s.fillers}
    tracks = {(t.worker, t.rank): t for t in s.timeline.tracks}
    assert tracks["counts", 0].host == tracks["a", 0].host != tracks["counts", 1].host == tracks["b", 0].host
    for rank in (0, 1):
        assert told["counts", rank].result == told["counts", rank].steps > 3 and told["counts", rank].error is None
    assert told["fails", 0].error is not None and told["fails", 0].steps == 1
    assert s.timeline.bubble_sum_error_ns() == 0


class GivesALock(Worker):
    def step(self) -> Any:
        return threading.Lock()


def test_a_result_that_cannot_travel_is_the_fillers_error() -> None:
    flow, plan, wanted = open_flow()
    failed = r"'gives' rank 0 failed in step\(\).*cannot be sent to another process"
    with pytest.raises(WorkerError, match=failed), session(flow, plan, "processes", fillers=[Filler(GivesALock, on="cpu:0", name="gives")]) as s:
        wanted.append(lambda: s.fillers[0].error is not None)
        assert s.step() == 14


class Endless(Worker):
    """Its second step ends only when the test says so."""

    is_in_it: Any = None
    may_end: Any = None

    def setup(self) -> None:
        self.steps = 0

    def step(self) -> int:
        self.steps += 1
        if self.steps == 2:
            type(self).is_in_it.set()
            type(self).may_end.wait()
        return self.steps


def test_a_step_without_end_that_an_iteration_waits_for_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(at_work, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(Endless, "is_in_it", threading.Event())
    monkeypatch.setattr(Endless, "may_end", threading.Event())
    monkeypatch.setattr(Holds, "until", staticmethod(Endless.is_in_it.is_set))
    flow = Workflow("held")
    holds, lives = flow.worker(Holds, name="holds"), flow.worker(Lives, name="lives")

    @flow.iteration
    def iteration() -> Any:
        holds.work().wait()
        return lives.work()

    plan = ExecutionPlan("held", ("cpu:0", "cpu:1"), {"holds": [[1]], "lives": [[0]]})
    message = "Filler endless[0] keeps lives[0] from cpu:0 for 0.2 s: call 2 of its step() has not ended, and the iteration waits for it. Next: "

    class Ends(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            Endless.may_end.set()  # it does end after all, when it was told: nothing is lost

    log = logging.getLogger("rlinf_lab")
    log.addHandler(ends := Ends())
    try:
        with session(flow, plan, fillers=[Filler(Endless, on="cpu:0")]) as s:
            assert s.step() == s.step() == 7
    finally:
        log.removeHandler(ends)
    (told,) = caplog.messages
    assert told.startswith(message)
