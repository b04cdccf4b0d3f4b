"""A host that does not hear another one any more: the driver says why, and the calls that cannot go on are not taken for calls that are done."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from typing import Any

import pytest
from mesh import MeshExecutor
from sessions import session_of, step_within, until

from rlinf_lab.errors import ExecutorError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.plan.layout import checked_layout
from rlinf_lab.planning.plan.process_groups import place_hosts
from rlinf_lab.runtime.executors.device_host import DeviceHost, pack
from rlinf_lab.runtime.host.liveness import cut_off
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.transport.links import Link
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Source(Worker):
    def make(self, count: int, out: Outbox) -> int:
        for i in range(count):
            out.put(i)
            self.compute(0.002)
        return count


class Sink(Worker):
    def take(self, cuts: bool, inbox: Inbox) -> int:
        found = 0
        for batch in inbox:
            found += len(batch)
            if cuts and found > 20:
                cuts = False
                for link in gc.get_objects():
                    if isinstance(link, Link) and link.peer == "host0":
                        link._socket.shutdown(socket.SHUT_RDWR)
        return found


def two_hosts() -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("cut")
    items = flow.channel("items")
    source, sink = flow.worker(Source, name="source"), flow.worker(Sink, name="sink")

    @flow.iteration
    def iteration(count: int, cuts: bool) -> tuple:
        return source.make(count, items), sink.take(cuts, items)

    return flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"source": [0], "sink": [1]})


@pytest.mark.long
def test_a_connection_that_ends_while_both_live_is_an_error() -> None:
    """Before, the sink waited for ever."""
    flow, plan = two_hosts()
    with session(flow, plan, executor="processes", emulate=True) as s:
        assert s.step(10, False) == (10, 10)
        with pytest.raises(ExecutorError, match=r"Host 'host0' \(source\[0\]\) has lost its connection to host 'host1' \(sink\[0\]\).*Next:"):
            s.step(1_000_000, True)
        with pytest.raises(ExecutorError, match="has lost its connection"):
            s.step(10, False)


@pytest.mark.parametrize("first", ["driver", "host1"])
def test_a_host_that_dies_ends_the_iteration_and_every_later_one_by_name(first: str) -> None:
    """Whoever hears of it first. Before, the driver took the sink for one that had stopped early, and said so."""
    executor = MeshExecutor(*two_hosts())

    def die() -> None:
        if first == "host1":
            executor.hosts["host1"].lost("host0")
            time.sleep(0.3)
        executor.driver_host.lost("host0")

    dying = threading.Timer(0.2, die)
    with session_of(executor, clean=False) as s:
        dying.start()
        for count in (5000, 10):
            with pytest.raises(ExecutorError, match=r"Host 'host0' died .*source\[0\] lived there"):
                step_within(s, count, False)
        dying.join()


def test_results_on_a_host_that_died_after_its_iteration_are_not_waited_for() -> None:
    flow = Workflow("died")
    sink, handles, items = flow.worker(Sink, name="sink"), list[Any](), flow.channel("items")

    @flow.iteration
    def iteration() -> Any:
        items.put_all(range(3))
        handles.append(sink.take(False, items))
        return handles[-1]

    executor = MeshExecutor(flow, ExecutionPlan.spatial(flow, ["cpu:0"], {"sink": [0]}, staleness=1))
    with session_of(executor, clean=False) as s:
        started = s.submit()
        until(started.done)
        executor.driver_host.lost("host0")
        for late in (started, handles[-1]):
            with pytest.raises(ExecutorError, match=r"Host 'host0' died .*sink\[0\]"):
                late.wait(10)


def broken_between(executor: MeshExecutor) -> list[threading.Thread]:
    """Both ends have told the driver; what it has begun for that."""
    for one, other in (("host1", "host0"), ("host0", "host1")):
        executor.hosts[one].lost(other)
    until(waiting)
    time.sleep(0.1)  # the second message
    return waiting()


def waiting() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("cut off")]


def test_nothing_is_left_behind_by_a_session_that_is_stopped_meanwhile() -> None:
    """Before, a timer held the host for five seconds after the stop, one for each end."""
    executor = MeshExecutor(*two_hosts())
    with session_of(executor, clean=False) as s:
        assert s.step(10, False) == (10, 10)
        assert len(broken_between(executor)) == len(waiting()) == 1
    assert not waiting()


def test_a_connection_that_ends_between_two_iterations_is_told_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_off, "SECONDS", 0.5)
    executor = MeshExecutor(*two_hosts())
    with session_of(executor, clean=False) as s:
        assert s.step(10, False) == (10, 10)
        broken_between(executor)
        with pytest.raises(ExecutorError, match="has lost its connection to host"):
            s.step(10, False)
    assert not waiting()


def test_who_hears_of_a_death_before_it_is_connected_does_not_die_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it could not tell the driver and ended its own process: the driver might name it instead of the one that had died."""
    flow, plan = two_hosts()
    layout = checked_layout(flow.graph, plan)
    monkeypatch.setattr(DeviceHost, "_pin", lambda self: None)
    interval = sys.getswitchinterval()
    host = DeviceHost("host0", pack(layout, place_hosts(layout), True))
    try:
        monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("it has ended its process"))
        host._broken("host1")
        assert isinstance(host.host.state.failure, ExecutorError) and host.host.state.dead == {"host1"}
    finally:
        sys.setswitchinterval(interval)
        host.stop()
