"""Hosts that die, or do not hear each other any more, workers that leave instead of closing, setups that last: who and what next is said."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from typing import Any, ClassVar

import psutil
import pytest
from flows import apart
from mesh import MeshExecutor
from sessions import session_of, step_within, until

from rlinf_lab.errors import ExecutorError, WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import checked_layout
from rlinf_lab.planning.plan.process_groups import place_hosts
from rlinf_lab.runtime.executors.device_host import DeviceHost, pack
from rlinf_lab.runtime.executors.multi_process import ship
from rlinf_lab.runtime.executors.processes import ProcessExecutor
from rlinf_lab.runtime.host.elastic import setups
from rlinf_lab.runtime.host.liveness import cut_off
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.transport.listener import Listener
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Source(Worker):
    def make(self, count: int, out: Outbox) -> int:
        for i in range(count):
            out.put(i)
            self.compute(0.002)
        return count


class Sink(Worker):
    """``leaves``: ranks other than the first end by `sys.exit` when they are closed."""

    busy: ClassVar[threading.Event] = threading.Event()

    def __init__(self, leaves: bool = False) -> None:
        self.leaves = leaves

    def take(self, inbox: Inbox) -> int:
        found = 0
        for batch in inbox:
            found += len(batch)
            if found > 20:
                self.busy.set()
        return found

    def close(self) -> None:
        if self.leaves and self.rank:
            sys.exit(3)


def two_hosts(sinks: int = 1, leaves: bool = False) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("cut")
    items = flow.channel("items")
    source, sink = flow.worker(Source, name="source"), flow.worker(Sink, leaves, name="sink")
    flow.iteration(lambda count: (source.make(count, items), sink.take(items)))
    return flow, apart(flow, {"sink": sinks}, micro_batches={"items": 1})


@pytest.mark.parametrize("first", ["driver", "host1", "both, of each other"])
def test_a_host_that_dies_or_is_not_heard_ends_the_iteration_and_every_later_one_by_name(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever hears of it first. Before, the driver took the sink for one that had stopped early, and said so; where both lived, the sink waited for ever."""
    executor = MeshExecutor(*two_hosts())
    apart = "both" in first
    if apart:
        monkeypatch.setattr(cut_off, "SECONDS", 0.1)
    Sink.busy.clear()

    def die() -> None:
        assert Sink.busy.wait(60)
        if first != "driver":
            executor.hosts["host1"].lost("host0")
            time.sleep(0.3)
        executor.hosts["host0"].lost("host1") if apart else executor.driver_host.lost("host0")

    dying = threading.Thread(target=die)
    lost = r"Host 'host[01]' \(s\w+\[0\]\) has lost its connection to host 'host[01]' \(s\w+\[0\]\).*Next:"
    told = lost if apart else r"Host 'host0' died .*source\[0\] lived there"
    with session_of(executor, clean=False) as s:
        dying.start()
        for count in (5000, 10):
            with pytest.raises(ExecutorError, match=told):
                step_within(s, count)
        dying.join()


@pytest.mark.parametrize("early", [True, False])
def test_results_on_a_host_that_died_after_its_iteration_are_not_waited_for(early: bool) -> None:
    """Nor any longer, where somebody had asked for them."""
    flow = Workflow("died")
    sink, handles, items = flow.worker(Sink, name="sink"), list[Any](), flow.channel("items")

    flow.iteration(lambda: (items.put_all(range(3)), handles.append(sink.take(items)), handles[-1])[2])
    executor = MeshExecutor(flow, ExecutionPlan.spatial(flow, ["cpu:0"], {"sink": [0]}, staleness=1))
    with session_of(executor, clean=False) as s:
        started = s.submit()
        until(started.done)
        kept, driver = threading.Event(), executor.driver_host.driver
        executor.before_sending["host0"] = lambda _, message: kept.wait(60) if message[0] == "value" else None
        dying = threading.Thread(target=lambda: (until(lambda: early or driver.waits_for == "value"), executor.driver_host.lost("host0")))
        dying.start()
        if early:
            dying.join()
        for late in (started, handles[-1]):
            with pytest.raises(ExecutorError, match=r"Host 'host0' died .*sink\[0\]"):
                late.wait(10)
        dying.join()
        kept.set()


def broken_between(executor: MeshExecutor) -> list[threading.Thread]:
    """Both ends have told the driver; what it has begun for that."""
    for one, other in (("host1", "host0"), ("host0", "host1")):
        executor.hosts[one].lost(other)
    until(waiting)
    time.sleep(0.1)  # the second message
    return waiting()


def waiting() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("cut off")]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_connection_that_ends_between_two_iterations_is_told_to_the_next_and_nothing_is_left_behind(goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a timer held the host for five seconds after a stop, one for each end."""
    if goes_on:
        monkeypatch.setattr(cut_off, "SECONDS", 0.5)
    executor = MeshExecutor(*two_hosts())
    with session_of(executor, clean=False) as s:
        assert s.step(10) == (10, 10)
        told = broken_between(executor)
        if not goes_on:
            assert len(told) == len(waiting()) == 1
        else:
            with pytest.raises(ExecutorError, match="has lost its connection to host"):
                s.step(10)
    assert not waiting()


def test_who_hears_of_a_death_before_it_is_connected_does_not_die_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it could not tell the driver and ended its own process: the driver might name it instead of the one that had died."""
    flow, plan = two_hosts()
    layout = checked_layout(flow.graph, plan)
    unconnected = object.__new__(DeviceHost)
    unconnected.links = {}
    assert not unconnected._tell(), "it has nobody to tell"
    monkeypatch.setattr(DeviceHost, "_pin", lambda self: None)
    interval, begin = sys.getswitchinterval(), threading.Thread.start
    host, stopped = (DeviceHost("host0", pack(layout, place_hosts(layout), True)) for _ in range(2))
    try:
        with monkeypatch.context() as late:  # another host fails, and this one is stopped, before its last thread has begun
            late.setattr(threading.Thread, "start", lambda self: (stopped.stop() if self.name == "push" else None, begin(self))[1])
            assert stopped.start(ship(flow.workers)) is None
        monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("it has ended its process"))
        host._broken("host1")
        assert isinstance(host.host.state.failure, ExecutorError) and host.host.state.dead == {"host1"}
    finally:
        sys.setswitchinterval(interval)
        host.stop()


@pytest.mark.fresh
def test_a_host_that_dies_before_the_others_are_connected_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    flow, plan = two_hosts()
    before = set(psutil.Process().children())  # a browser that another test started
    launch = ProcessExecutor._launch

    def launch_and_kill(self: ProcessExecutor, host: str, payload: bytes) -> None:
        launch(self, host, payload)
        if host == "host1":
            psutil.Process(self._children[host].pid).kill()

    monkeypatch.setattr(ProcessExecutor, "_launch", launch_and_kill)
    monkeypatch.setattr(Listener, "wait_for_farewells", lambda *_: pytest.fail("nobody who was not connected says farewell"))
    told = r"Host 'host1' died while its workers were being set up with signal 9.*sink\[0\] lived there.*Next: "
    with pytest.raises(ExecutorError, match=told), session(flow, plan, executor="processes", emulate=True):
        pass
    assert not set(psutil.Process().children()) - before


def test_a_rank_that_leaves_by_leaving_python_has_left() -> None:
    with pytest.raises(WorkerError, match=r"Worker 'sink' rank 1 failed in close\(\): SystemExit: 3"), session(*two_hosts(2, True), emulate=True) as s:
        s.leave("sink", 1)
        s.join("sink", 1, timeout=60)
        assert s.members["sink"] == (0, 1)
        assert sum(s.step(10)[1]) == 10


TOLD = threading.Event()


class Meets(Worker):
    """Its first rank is set up when somebody was told that it lasts."""

    def setup(self) -> None:
        if self.rank == 0:
            assert TOLD.wait(60)

    def go(self) -> int:
        return self.rank


def test_a_setup_that_lasts_says_where_it_stands(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It may wait for another one of its process."""
    monkeypatch.setattr(setups, "TOLD_AFTER_SECONDS", 0.1)
    TOLD.clear()
    flow = Workflow("meets")
    meets = flow.worker(Meets, name="meets")
    flow.iteration(lambda: meets.go())
    started = run(flow, apart(flow, {"meets": 2}), 1, emulate=True)
    until(lambda: "has been in its setup()" in caplog.text)
    TOLD.set()
    assert started.wait() == [[0, 1]]
    told = r"meets\[0\] has been in its setup\(\) for 0.1 s.*the setup of meets\[1\] comes after it in the same process(.|\n)*Next: (.|\n)*TOLD.wait\(60\)"
    for said in (caplog.text, started.status()):
        assert re.search(told, said) and said.count("has been in its setup()") == 1
