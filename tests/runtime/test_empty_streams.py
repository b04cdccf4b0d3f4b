"""Producers that were called and put nothing fail their iteration by name, unless the channel says that this may be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mesh import MeshExecutor

from rlinf_lab.errors import ConfigError, WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.session.session import Ended, Session
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Maker(Worker):
    def make(self, count: int, out: Outbox) -> None:
        out.put_all(range(count))

    def on_rank_1(self, count: int, out: Outbox) -> None:
        if self.rank == 1:
            out.put_all(range(count))

    def breaks(self, count: int, out: Outbox) -> None:
        raise ValueError("broken")


class Above(Worker):
    """Lets pass what is greater than a number."""

    def above(self, least: int, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            out.put_all(x for x in batch if x > least)


class Taker(Worker):
    def take(self, inbox: Inbox) -> int:
        return sum(len(batch) for batch in inbox)

    def take_and_compute(self, inbox: Inbox) -> int:
        self.compute(1e6)
        return self.take(inbox)

    def take_later(self, inbox: Inbox) -> int:
        return 0


def flow_of(makes: str = "make", takes: str = "take", **channel: Any) -> Workflow:
    flow = Workflow("sifts")
    a, b = flow.channel("a", **channel), flow.channel("b", **channel)
    maker, sieve, taker = flow.worker(Maker, name="maker"), flow.worker(Above, name="sieve"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(count: int = 0, least: int = 100, calls: bool = True) -> Any:
        if calls:
            getattr(maker, makes)(count, a)
            sieve.above(least, a, b)
        return getattr(taker, takes)(b)

    return flow


def plan_of(makers: int = 1, **fields: Any) -> ExecutionPlan:
    ranks = {"maker": tuple((r,) for r in range(makers)), "sieve": ((0,),), "taker": ((2,),)}
    return ExecutionPlan("sifts", ("cpu:0", "cpu:1", "cpu:2"), ranks, **fields)


def told(flow: Workflow, plan: ExecutionPlan, far: bool, *steps: tuple[Any, ...]) -> list[str]:
    """How the iterations of a session that fail do so."""
    executor = MeshExecutor(flow, plan, delay=0.001) if far else LocalExecutor(flow, plan, emulate=True)
    executor.start()
    one = Session(executor)
    found = []
    for step in steps:
        try:
            one.step(*step)
        except WorkflowError as error:
            found.append(str(error))
    assert executor.stop() == Ended()
    return found


both = pytest.mark.parametrize("far", [False, True])


@both
def test_an_empty_stream_fails_its_iteration_with_who_put_nothing_and_who_read_it(far: bool) -> None:
    found = told(flow_of(), plan_of(), far, (200,), (0,), (200, 3), (5,))
    assert found == [
        "Iteration 1 of workflow 'sifts': nothing was put into channel 'a' (maker[0].make() ended without a put), so sieve[0].above() read an empty stream. "
        "Next: put what is to be read; or, where nothing may come, say so: flow.channel('a', may_be_empty=True).",
        "Iteration 3 of workflow 'sifts': nothing was put into channel 'b' (sieve[0].above() ended without a put), so taker[0].take() read an empty stream. "
        "Next: put what is to be read; or, where nothing may come, say so: flow.channel('b', may_be_empty=True).",
    ]


@both
def test_nothing_fails_where_it_is_meant_or_nobody_was_called_or_another_rank_puts(far: bool) -> None:
    assert told(flow_of(may_be_empty=True), plan_of(), far, (0,), (5,)) == []
    assert told(flow_of(), plan_of(), far, (0, 0, False)) == []
    assert told(flow_of("on_rank_1"), plan_of(makers=2), far, (200,)) == []
    (found,) = told(flow_of("on_rank_1"), plan_of(makers=2), far, (0,))
    assert "(maker[0].on_rank_1(), maker[1].on_rank_1() ended without a put)" in found


@both
def test_a_reader_that_does_not_ask_has_read_no_empty_stream(far: bool) -> None:
    assert told(flow_of(takes="take_later"), plan_of(), far, (5,)) == []


def test_a_loop_that_reads_nothing_is_told_too() -> None:
    flow = Workflow("loop")
    items, maker = flow.channel("items"), flow.worker(Maker, name="maker")

    @flow.iteration
    def iteration() -> int:
        maker.make(0, items)
        return sum(len(batch) for batch in items)

    with session(flow, ExecutionPlan("loop", ("cpu:0",), {"maker": ((0,),)})) as s, pytest.raises(WorkflowError, match="so the loop read an empty stream"):
        s.step()


def test_it_is_told_as_soon_as_it_is_certain_and_not_when_all_else_has_ended() -> None:
    flow = flow_of(takes="take_and_compute")
    with session(flow, plan_of(), emulate=True) as s, pytest.raises(WorkflowError, match="nothing was put into channel 'a'"):
        s.step(0)


def test_a_run_fails_by_it() -> None:
    going = run(flow_of(), plan_of(), 3, emulate=True)
    with pytest.raises(WorkflowError, match="nothing was put into channel 'a'"):
        going.wait(30)
    assert going.state == "failed"


def test_a_failure_is_told_and_not_what_it_did_not_put() -> None:
    flow = flow_of("breaks")
    with session(flow, plan_of(), emulate=True) as s, pytest.raises(WorkerError, match="'maker' rank 0 failed in breaks"):
        s.step()


def test_what_is_no_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="may_be_empty is 1; it must be True or False"):
        Workflow("w").channel("items", may_be_empty=1)  # type: ignore[arg-type]
    assert "may be empty" in repr(Workflow("w").channel("items", may_be_empty=True))
