"""Hosts that die while others are being started, workers that leave instead of closing, runs that stand still: who and what next is said."""

from __future__ import annotations

import logging
import re
import sys
import threading
from typing import Any

import psutil
import pytest
from flows import Numbers

from rlinf_lab.errors import ExecutorError, WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.device_host import DeviceHost
from rlinf_lab.runtime.executors.processes import ProcessExecutor
from rlinf_lab.runtime.host.elastic import setups
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.transport.listener import Listener
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow

DEVICES = ["cpu:0", "cpu:1"]


class Takes(Numbers):
    """``leaves``: ranks other than the first end by `sys.exit` when they are closed."""

    def __init__(self, leaves: bool = False) -> None:
        self.leaves = leaves

    def close(self) -> None:
        if self.leaves and self.rank:
            sys.exit(3)


def two_workers(leaves: bool = False) -> Workflow:
    flow = Workflow("two")
    numbers = flow.channel("numbers")
    makes, takes = flow.worker(Numbers, name="makes"), flow.worker(Takes, leaves, name="takes")

    @flow.iteration
    def iteration(count: int) -> Any:
        makes.make(count, numbers)
        return takes.total(numbers).wait()

    return flow


@pytest.mark.fresh
def test_a_host_that_dies_before_the_others_are_connected_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = two_workers()
    before = set(psutil.Process().children())  # a browser that another test started
    launch = ProcessExecutor._launch

    def launch_and_kill(self: ProcessExecutor, host: str, payload: bytes) -> None:
        launch(self, host, payload)
        if host == "host1":
            psutil.Process(self._children[host].pid).kill()

    monkeypatch.setattr(ProcessExecutor, "_launch", launch_and_kill)
    plan = ExecutionPlan.spatial(flow, DEVICES, {"makes": [0], "takes": [1]})
    monkeypatch.setattr(Listener, "wait_for_farewells", lambda *_: pytest.fail("nobody who was not connected says farewell"))
    told = r"Host 'host1' died while its workers were being set up with signal 9.*takes\[0\] lived there.*Next: "
    with pytest.raises(ExecutorError, match=told), session(flow, plan, executor="processes", emulate=True):
        pass
    assert not set(psutil.Process().children()) - before


def test_a_host_that_nobody_is_connected_to_has_nobody_to_tell() -> None:
    host = object.__new__(DeviceHost)
    host.links = {}
    assert not host._tell()


def test_a_rank_that_leaves_by_leaving_python_has_left() -> None:
    flow = two_workers(leaves=True)
    plan = ExecutionPlan.spatial(flow, [*DEVICES, "cpu:2"], {"makes": [0], "takes": [1, 2]})
    with pytest.raises(WorkerError, match=r"Worker 'takes' rank 1 failed in close\(\): SystemExit: 3"), session(flow, plan, emulate=True) as s:
        s.leave("takes", 1)
        s.join("takes", 1, timeout=10.0)
        assert s.members["takes"] == (0, 1)
        assert sum(s.step(10)) == 45


TOLD = threading.Event()


class Meets(Worker):
    """Its first rank is set up when somebody was told that it lasts."""

    def setup(self) -> None:
        if self.rank == 0:
            assert TOLD.wait(60)

    def go(self) -> int:
        return self.rank


class Hears(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        TOLD.set()


def test_a_setup_that_lasts_says_where_it_stands(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It may wait for another one of its process."""
    monkeypatch.setattr(setups, "TOLD_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(logging.getLogger("rlinf_lab"), "handlers", [Hears()])
    TOLD.clear()
    flow = Workflow("meets")
    meets = flow.worker(Meets, name="meets")

    @flow.iteration
    def iteration() -> Any:
        return meets.go()

    plan = ExecutionPlan.spatial(flow, DEVICES, {"meets": [0, 1]})
    started = run(flow, plan, 1, emulate=True)
    assert started.wait() == [[0, 1]]
    told = r"meets\[0\] has been in its setup\(\) for 0.1 s.*the setup of meets\[1\] comes after it in the same process(.|\n)*Next: (.|\n)*TOLD.wait\(60\)"
    for said in (caplog.text, started.status()):
        assert re.search(told, said) and said.count("has been in its setup()") == 1
