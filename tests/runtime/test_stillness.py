"""A run in which nothing moves for long says so, once each time, and goes on."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import pytest

from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.waits import Wait
from rlinf_lab.runtime import stillness
from rlinf_lab.runtime.run import run, session
from rlinf_lab.runtime.stillness import Stillness, who_does_what
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Maker(Worker):
    def make(self, go: Path, out: Outbox) -> None:
        while not go.exists() and not self.cancelled:
            time.sleep(0.01)
        out.put(1)

    def save(self) -> None:
        pass


class Taker(Worker):
    def take(self, inbox: Inbox) -> int:
        return sum(len(batch) for batch in inbox)


def flow_of() -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("still")
    items = flow.channel("items")
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(go: Path) -> int:
        maker.make(go, items)
        maker.save()
        return taker.take(items)

    return flow, ExecutionPlan("still", ("cpu:0", "cpu:1"), {"maker": ((0,),), "taker": ((1,),)})


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "rlinf_lab" and "nothing has moved" in r.getMessage()]


@pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_who_is_in_a_call_and_who_waits_for_it_is_logged(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stillness, "TOLD_SECONDS", 1e9)
    flow, plan = flow_of()
    with caplog.at_level(logging.WARNING, logger="rlinf_lab"):
        going = run(flow, plan, executor=executor, inputs=[tmp_path / "go"])
        while "taker[0]" not in {wait.who for wait in going.waits()}:
            time.sleep(0.01)
        monkeypatch.setattr(stillness, "TOLD_SECONDS", 0.3)
        while not told(caplog):
            time.sleep(0.01)
        assert going.state == "running" and going.iteration == 0
        (tmp_path / "go").touch()
        assert going.wait(60) == [1]
    text = r"Run\('still', .*\): nothing has moved for \d+ s: maker\[0\] is in make\(\); taker\[0\] waits for items of channel 'items'. Next: nothing, if"
    assert re.match(text, told(caplog)[0])


def test_the_loop_itself_may_be_what_lasts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stillness, "TOLD_SECONDS", 0.2)
    flow = Workflow("thinks")
    maker = flow.worker(Maker, name="maker")

    @flow.iteration
    def iteration(first: bool) -> None:
        maker.save()
        while first and not told(caplog):
            time.sleep(0.01)

    with caplog.at_level(logging.WARNING, logger="rlinf_lab"), session(flow, ExecutionPlan("thinks", ("cpu:0",), {"maker": ((0,),)})) as s:
        s.step(True)
    assert "s: the iteration function goes on. Next:" in told(caplog)[0]


def test_nothing_is_said_before_its_time_twice_or_of_what_has_lasted_as_long_before() -> None:
    still = Stillness()
    assert not any(still.is_news(100.0, 100.0 + t) for t in (0, 1, 29.9))
    assert [still.is_news(100.0, 100.0 + t) for t in (30.0, 31.0, 40.0, 1000.0)] == [True, False, False, False]
    still = Stillness()
    assert still.is_news(100.0, 130.0) and not still.is_news(100.0, 145.0)
    assert not still.is_news(145.0, 145.0 + 89.9) and still.is_news(145.0, 145.0 + 90.0)  # it took 45 s before
    assert not still.is_news(300.0, 300.0 + 30.0)  # now 155 s are usual
    assert not still.is_news(900.0, 900.0 + 60.0)  # what was not told (no iteration was open, say) counts for nothing
    assert still.is_news(1900.0, 1900.0 + 310.0)


def test_a_rank_is_in_its_first_call_and_many_are_counted() -> None:
    wait = Wait("taker[0]", "items of channel 'items'", ("maker",))
    assert who_does_what(["maker[0].make", "maker[0].save", "taker[0].take"], [wait]) == "maker[0] is in make(); taker[0] waits for items of channel 'items'"
    many = [f"maker[{i}].make" for i in range(9)]
    loop = Wait("driver[0]", "the calls of iteration 0", ("maker",))
    assert who_does_what(many, [loop]) == "; ".join([f"maker[{i}] is in make()" for i in range(4)] + ["and 5 more"])
    assert who_does_what([], []) == "the iteration function goes on"
