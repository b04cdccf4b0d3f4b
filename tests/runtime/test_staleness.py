"""Iterations that overlap: how many, in which order they end, and what a failure of one of them does to the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from flows import Fails
from sessions import opened, recorded

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import Cancelled, WorkerError, WorkflowError
from rlinf_lab.runtime.run.run import run, session

GATES: list[threading.Event] = []  # the one that `train_late` waits for


class Collector(Worker):
    def collect(self, number: int, out: Outbox) -> int:
        self.compute(0.002)
        out.put(number)
        return number

    def fail_at(self, number: int, bad: int, out: Outbox) -> int:
        if number == bad:
            raise ValueError(f"unlucky {number}")
        out.put(number)
        return number


class Trainer(Worker):
    def train(self, inbox: Inbox) -> list[int]:
        items = inbox.get_all()
        self.compute(0.003)
        self.log(batch=len(items))
        return items

    def train_late(self, inbox: Inbox) -> list[int]:
        items = inbox.get_all()
        assert GATES[0].wait(60)
        return items


def pair(staleness: int, collect: str = "collect", *more: Any, train: str = "train", loop: Callable[[int], Any] = int) -> tuple[Workflow, ExecutionPlan]:
    """A collector and a learner on devices of their own; ``loop``: what the loop does by itself then."""
    flow = Workflow("pair")
    items = flow.channel("items")
    collector, trainer = flow.worker(Collector, name="collector"), flow.worker(Trainer, name="trainer")

    @flow.iteration
    def iteration(number: int = 0) -> Any:
        made, taken = getattr(collector, collect)(number, *more, items), getattr(trainer, train)(items)
        loop(number)
        return {"made": made, "taken": taken}

    return flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"collector": [0], "trainer": [1]}, staleness=staleness)


def result(number: int) -> dict[str, Any]:
    return {"made": number, "taken": [number]}


@pytest.mark.parametrize(("staleness", "milliseconds"), [(0, 20), (1, 14), (2, 14)])
def test_a_collector_goes_ahead_as_far_as_the_plan_allows(staleness: int, milliseconds: int) -> None:
    flow, plan = pair(staleness)
    with opened("mock", flow, plan) as s:
        started = [s.submit(i) for i in range(4)]
        assert s.finish() == [result(i) for i in range(4 - len(s._open) - staleness - 1, 4)]
        assert [one.wait() for one in started] == [result(i) for i in range(4)] and s.iteration == 4
    timeline = recorded(s)
    rows = timeline.iterations()
    assert timeline.elapsed_ns == milliseconds * 1_000_000
    assert rows["seconds"].sum() == pytest.approx(milliseconds / 1000), "iterations that overlap count from the end of those before"
    for i in range(staleness + 1, 4):
        assert rows["start_ns"][i] >= rows["end_ns"][i - staleness - 1]


def test_a_failure_gives_up_its_iteration_and_the_later_ones_only() -> None:
    GATES[:] = [threading.Event()]
    with session(*pair(3, "fail_at", 13, train="train_late")) as s:
        numbers = (11, 12, 13, 14)  # 13 fails, while the trainer is still busy with 11
        started = []
        with pytest.raises(WorkerError, match="unlucky 13") as caught:
            for number in numbers:
                started.append(s.submit(number))
            started[2].wait()
        assert "That was in iteration 2" in caught.value.__notes__[0]
        assert not started[0].done(), "it is older than the one that failed"
        GATES[0].set()
        assert [one.wait() for one in started[:2]] == [result(11), result(12)]
        for one in started[3:]:
            with pytest.raises(Cancelled, match="iteration 2 failed"):
                one.wait()
        assert s.finish() == [], "all were told"
        assert s.step(15) == result(15)


def test_a_failure_that_nobody_waited_for_is_raised_by_the_next_submit() -> None:
    flow, plan = pair(2, "fail_at", 1)
    with session(flow, plan) as s:
        first, second = s.submit(0), None
        with pytest.raises(WorkerError, match="unlucky 1"):
            second = s.submit(1)
            while not second.done():
                pass
            s.submit(2)
        assert first.wait() == result(0)
        with pytest.raises(WorkerError, match="unlucky 1"):
            assert second is not None
            second.wait()
        assert s.finish() == []
        assert s.step(3) == result(3), "it was told once"
        s.submit(4), s.submit(5)
        assert s.finish() == [result(4), result(5)]


def test_a_run_overlaps_iterations_by_itself_and_keeps_the_results_before_a_failure() -> None:
    for bad, count in ((9, 9), (4, 4)):
        flow, plan = pair(3, "fail_at", bad)
        made = run(flow, plan, 9, inputs=iter(range(9)))
        if bad == 4:
            with pytest.raises(WorkerError, match="unlucky 4"):
                made.wait()
        else:
            assert made.wait() and made.metrics["iteration"].tolist() == [*range(9)] and made.metrics["batch"].tolist() == [1] * 9
            assert len(made.timeline.iterations()) == 9
        assert made.results == [result(i) for i in range(count)] and made.state == ("failed" if bad == 4 else "finished")


def test_what_the_loop_raises_leaves_the_iterations_before_alone() -> None:
    GATES[:] = [threading.Event()]
    with session(*pair(1, train="train_late", loop={0: None, 2: None}.__getitem__)) as s:
        first = s.submit(0)
        with pytest.raises(KeyError):
            s.submit(1)
        assert not first.done()
        GATES[0].set()
        assert first.wait() == result(0) and s.step(2) == result(2) and s.iteration == 3


def test_values_of_the_iteration_before_may_be_used_and_older_ones_are_refused() -> None:
    flow = Workflow("kept")
    first, second = flow.worker(Fails, name="first"), flow.worker(Fails, name="second")
    kept: list[Any] = []
    back = [0]

    @flow.iteration
    def iteration() -> Any:
        kept.append(first.work(len(kept)))
        return second.work(kept[max(0, len(kept) - 1 - back[0])])

    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"first": [0], "second": [1]}, staleness=3)
    with session(flow, plan) as s:
        started = [s.submit()]
        back[0] = 1
        started += [s.submit() for _ in range(3)]
        assert [one.wait() for one in started] == [0, 0, 1, 2]
        back[0] = 2
        with pytest.raises(WorkflowError, match="of iteration 2 was forgotten when iteration 3 ended"):
            s.submit()
        back[0] = 0
        assert s.step() == 5


@pytest.mark.parametrize("staleness", [0, 2])
def test_an_iteration_took_what_the_timeline_says_however_late_it_was_waited_for(staleness: int) -> None:
    flow, plan = pair(staleness)
    with session(flow, plan) as s:
        started = [s.submit(i) for i in range(staleness + 1)]
        while not started[-1].done():
            time.sleep(0.001)
        s.finish()
    assert s.metrics["seconds"].tolist() == pytest.approx(s.timeline.iterations()["seconds"].tolist(), rel=1e-6)
