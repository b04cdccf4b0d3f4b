"""A run in which nothing moves for long says so, once each time, and goes on."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flows import Numbers
from sessions import until

from rlinf_lab import ExecutionPlan, Outbox, Worker, Workflow
from rlinf_lab.runtime.run import observer, stall_report
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.run.stall_report import Stillness


class Maker(Worker):
    def make(self, go: Path, out: Outbox) -> None:
        self.log(entered=1)
        while not go.exists() and not self.cancelled:
            time.sleep(0.01)
        out.put(1)

    def save(self) -> None:
        pass


def flow_of() -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("still")
    items = flow.channel("items")
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Numbers, name="taker")
    flow.iteration(lambda go: (maker.make(go, items), maker.save(), taker.count(items)))
    return flow, ExecutionPlan("still", ("cpu:0", "cpu:1"), {"maker": ((0,),), "taker": ((1,),)})


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "rlinf_lab" and "nothing has moved" in r.getMessage()]


@pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])])
def test_who_is_in_a_call_and_who_waits_for_it_is_logged(executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stall_report, "TOLD_SECONDS", 1e9)
    flow, plan = flow_of()
    with caplog.at_level(logging.WARNING, logger="rlinf_lab"):
        going = run(flow, plan, executor=executor, inputs=[tmp_path / "go"])
        until(lambda: "maker[0].entered" in going.counters)  # what its host tells since then, tells no wait for its turn any more
        until(lambda: {"taker[0]"} == {wait.who for wait in going.waits()} - {"driver[0]"})
        monkeypatch.setattr(stall_report, "TOLD_SECONDS", 0.3)
        until(lambda: told(caplog))
        assert going.state == "running" and going.iteration == 0
        assert going.standstill() is None, "so long it has not stood still"
        monkeypatch.setattr(observer, "STILL_SECONDS", 0.3)
        title, *lines = going.standstill().lines()
        assert title.startswith("Nothing has moved for ") and "maker[0].make computes" in lines and "taker[0] waits for items of channel 'items'" in lines
        assert not any("cycle" in line for line in lines) and {w.who: w.on for w in going.waits()}["taker[0]"] == ("maker",)
        assert "nothing has moved for" in going.status() and "maker[0].make computes" in going.status()
        (tmp_path / "go").touch()
        assert going.wait(60) == [(None, None, 1)]
        assert going.standstill() is None and going.waits() == [] and "waits" not in going.status()
    text = r"Run\('still', .*\): nothing has moved for \d+ s: maker\[0\] is in make\(\); taker\[0\] waits for items of channel 'items'. Next: nothing, if"
    assert re.match(text, told(caplog)[0])


def test_the_loop_itself_may_be_what_lasts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(stall_report, "TOLD_SECONDS", 1e9)
    flow = Workflow("thinks")
    maker = flow.worker(Maker, name="maker")
    sessions: list[Any] = []

    @flow.iteration
    def iteration() -> None:
        maker.save().wait()
        if sessions:  # no dry run
            until(lambda: not sessions[0]._loop.under_way.labels())
            monkeypatch.setattr(stall_report, "TOLD_SECONDS", 0.2)
            until(lambda: told(caplog))

    with caplog.at_level(logging.WARNING, logger="rlinf_lab"), session(flow, ExecutionPlan("thinks", ("cpu:0",), {"maker": ((0,),)})) as s:
        sessions.append(s)
        s.step()
    assert "s: the iteration function goes on. Next:" in told(caplog)[0]


def test_who_has_done_everything_is_not_still_while_somebody_waits_for_inputs_or_for_nothing() -> None:
    flow, plan = Workflow("fed"), ExecutionPlan("fed", ("cpu:0",), {"maker": ((0,),)}, staleness=1)
    maker = flow.worker(Maker, name="maker")
    flow.iteration(lambda _=0: maker.save())
    with session(flow, plan) as s:
        one = s.submit()
        until(one.done)
        assert s.still_seconds == 0.0 and s.standstill() is None
        one.wait()
    runs: list[Any] = []
    ready = threading.Event()

    def inputs() -> Iterator[int]:
        ready.wait(60)
        yield 0
        until(lambda: runs[0].still_seconds == 0.0)

    runs.append(run(flow, plan, inputs=inputs()))
    ready.set()
    assert len(runs[0].wait(90)) == 1


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
