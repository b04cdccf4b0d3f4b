"""Ranks that come and go: whatever happens when, every item is done exactly once, and nobody waits for ever. One that comes to a device which does not hold
all is built there in its turn: what is there leaves first, and comes back to it."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import Any, ClassVar

import pytest
from flows import DEVICES, Numbers, apart, cell_flow
from sessions import both, opened, step_within, until

from rlinf_lab.errors import ExecutorError, PlanError, UnknownNameError, WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.run.run import Run, session
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Doubles(Worker):
    """Its ranks share the work."""

    def convert(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            for item in batch:
                out.put((item, self.rank))

    def who(self) -> tuple[int, int]:
        return self.rank, self.ranks


class Sink(Worker):
    def consume(self, inbox: Inbox) -> list[tuple[int, int]]:
        return [item for batch in inbox for item in batch]


def flow_of() -> Workflow:
    flow = Workflow("elastic")
    numbers, doubled = flow.channel("numbers", capacity=4), flow.channel("doubled", capacity=4)
    source, doubles, sink = flow.worker(Numbers, name="source"), flow.worker(Doubles, name="doubles"), flow.worker(Sink, name="sink")

    @flow.iteration
    def iteration(items: int = 1) -> Any:
        source.make(items, numbers)
        doubles.convert(numbers, doubled)
        return {"items": sink.consume(doubled), "who": doubles.who()}

    return flow


@pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])])
def test_who_goes_in_the_middle_of_a_call_hands_over_and_who_comes_takes_part_in_the_next(executor: str) -> None:
    flow = flow_of()
    plan = ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1", "cpu:2"], {"source": [0], "doubles": [0, 1, 2], "sink": [0]}, micro_batch=1)
    with session(flow, plan, executor, emulate=True, absent={"doubles": [1]}) as s:
        assert s.step(20)["who"] == [(0, 2), (2, 2)]
        one = s.submit(300)
        s.join("doubles", 1, timeout=60)
        s.leave("doubles", 2)
        items = one.wait(60)["items"]
        assert Counter(item for item, _ in items) == dict.fromkeys(range(300), 1) and {rank for _, rank in items} <= {0, 2}
        for _ in range(2):
            assert s.step(20)["who"] == [(0, 2), (1, 2)]


@both
def test_who_leaves_in_the_middle_of_a_call_has_gone_before_it_ends(kind: str) -> None:
    flow = Workflow("going")
    numbers, doubled = flow.channels("numbers", "doubled")
    doubles, sink, sessions, items = flow.worker(Doubles, name="doubles"), flow.worker(Sink, name="sink"), list[Any](), itertools.count()

    @flow.iteration
    def iteration() -> Any:
        doubles.convert(numbers, doubled)
        numbers.put(-1)
        for s in sessions:
            s.leave("doubles", 1)
            until(lambda: numbers.put(next(items)) or not s._loop.members._on_its_way)  # noqa: B023  (it takes what it waits for already)
        return sink.consume(doubled)

    with opened(kind, flow, apart(flow, {"doubles": 2}, micro_batches={"numbers": 1})) as s:
        sessions.append(s)
        assert sorted(item for item, _ in step_within(s)) == [*range(-1, next(items))] and s.members["doubles"] == (0,)


class Meets(Worker):
    """``broken``: ranks that cannot be set up; ``seen``: who has been, or was closed."""

    broken: ClassVar[set[int]] = set()
    seen: ClassVar[list[str]] = []

    def setup(self) -> None:
        if self.rank in self.broken:
            raise ValueError(f"no rank {self.rank}")
        self.seen.append(f"{self.rank} comes")

    def close(self) -> None:
        self.seen.append(f"{self.rank} goes")

    def work(self) -> list[int]:
        return self.exchange(self.rank)


def grouped(ranks: int = 2, cls: type[Worker] = Meets) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("grouped")
    workers = flow.worker(cls, name="workers")
    flow.iteration(lambda: workers.work())
    return flow, ExecutionPlan.spatial(flow, [f"cpu:{r}" for r in range(ranks)], {"workers": list(range(ranks))})


@both
def test_those_meet_who_are_there_and_one_that_cannot_be_set_up_spoils_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order of rank, with gaps, in one host and in three."""
    Meets.seen.clear()
    with opened(kind, *grouped(3), 0.0003, absent={"workers": [1, 2]}) as s:
        assert s.step() == [[0]]
        s.join("workers", 2)
        assert s.step() == [[0, 2]] * 2
        monkeypatch.setattr(Meets, "broken", {1})
        for _ in range(2):
            with pytest.raises(WorkerError, match="no rank 1"):
                s.join("workers", 1)
            assert s.step() == [[0, 2]] * 2 and s.members == {"workers": (0, 2)}
        monkeypatch.undo()
        s.join("workers", 1)
        assert s.step() == [[0, 1, 2]] * 3
        s.leave("workers", 2)
        assert s.step() == [[0, 1]] * 2
        until(lambda: Meets.seen == ["0 comes", "2 comes", "1 comes", "2 goes"])
    assert sorted(Meets.seen[4:]) == ["0 goes", "1 goes"]


def test_what_cannot_come_or_go_is_refused_by_name() -> None:
    flow, plan = grouped()
    with opened("local", flow, plan) as s:
        for what, arguments, message in (
            ("join", ("workers", 1), "there already"), ("leave", ("workers", 0), "rank 0 of 'workers' stays"), ("join", ("workers", 2), "places for 2"),
            ("leave", ("worker", 1), "Did you mean 'workers'"), ("leave", ("workers", True), "no rank True"),
        ):  # fmt: skip
            with pytest.raises((PlanError, WorkflowError, UnknownNameError), match=message):
                getattr(s, what)(*arguments)
        assert s.step() == [[0, 1], [0, 1]]
    cell = cell_flow()
    tight = ExecutionPlan("tight", DEVICES, {"source": [[0]], "doubles": [[0], [1]], "sink": [[1]]}, memory={"doubles": 2, "sink": 2}, device_memory=3)
    for of, there, absent, message in (
        (flow, plan, {"workers": [0]}, "rank 0 of 'workers' stays"),
        (cell, ExecutionPlan.temporal(cell, DEVICES, {"sim": 2}), {"sim": [1]}, "reads its own keys of channel 'act'"),
        (cell, ExecutionPlan.fused_cells(cell, DEVICES, {"sim": 2}), {"sim": [1]}, "is fused with others"),
        (flow_of(), tight, {"doubles": [1]}, "workers take turns on cpu:1"),
    ):
        with pytest.raises(PlanError, match=message):
            LocalExecutor(of, there, absent=absent)


def test_a_run_that_is_not_there_yet_says_so() -> None:
    made = Run(LocalExecutor(*grouped(), absent={"workers": [1]}), 1)
    with pytest.raises(ExecutorError, match=r"join\('workers', 1\).*still being set up"):
        made.join("workers", 1)
    made.start()
    assert made.wait(30) == [[[0]]]
    with pytest.raises(ExecutorError, match="has ended"):
        made.join("workers", 1)


class SetUpLater(Worker):
    there: ClassVar[threading.Event] = threading.Event()

    def setup(self) -> None:
        assert not self.rank or SetUpLater.there.wait(30)

    def work(self) -> int:
        return self.rank


def test_a_wait_for_one_that_is_being_set_up_is_a_time_out_of_the_caller_not_of_the_rank() -> None:
    flow, plan = grouped(cls=SetUpLater)
    with opened("local", flow, plan, absent={"workers": [1]}) as s:
        with pytest.raises(TimeoutError, match=r"has not been set up yet, after 0\.1 s\. That goes on\."):
            s.join("workers", 1, timeout=0.1)
        SetUpLater.there.set()
        until(lambda: s.members["workers"] == (0, 1))
        assert s.step() == [0, 1]
