"""Processes that wait to become hosts: the run has them, they have done what they were told before, and none is left."""

from __future__ import annotations

import os
import time
from concurrent.futures import wait
from functools import partial
from pathlib import Path

import psutil
import pytest
from flows import DEVICES, NOTEBOOK_RESULT, notebook_flow

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.processes import ProcessExecutor
from rlinf_lab.runtime.executors.spares import Spares, environment_of_hosts
from rlinf_lab.runtime.run.run import run


def tell(folder: str) -> None:
    """Where it was called."""
    (Path(folder) / str(os.getpid())).write_text(repr(sorted(os.sched_getaffinity(0))))


def fail() -> None:
    raise RuntimeError("as it was asked to")


def waiting(spares: Spares) -> set[int]:
    return {child.pid for child in spares._waiting}


def test_a_run_has_the_processes_that_wait(tmp_path: Path) -> None:
    one_core = sorted(os.sched_getaffinity(0))[-1:]
    spares = Spares(3, partial(tell, str(tmp_path)), one_core)
    pids = waiting(spares)
    wait(spares._waiting.values(), 60)
    flow = notebook_flow()
    plan = ExecutionPlan.spatial(flow, DEVICES[:2], {w: [i % 2] for i, w in enumerate(flow.graph.workers)})
    started = run(flow, plan, 2, "processes", spares=spares)
    assert started.wait() == [NOTEBOOK_RESULT] * 2
    executor = started._executor
    assert isinstance(executor, ProcessExecutor)
    hosts = {child.pid for child in executor._children.values()}
    assert len(hosts) == 2 and hosts <= pids
    assert not any(map(psutil.pid_exists, pids)) and repr(spares) == "Spares(none left)"
    told = {int(file.name): file.read_text() for file in tmp_path.iterdir()}
    assert told == dict.fromkeys(pids, repr(one_core))


def test_one_that_would_be_started_otherwise_now_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    spares = Spares(2, fail, [])  # what was to be done before is not needed
    first, second = spares._waiting
    wait(spares._waiting.values(), 60)
    assert spares.are_ready()
    first.end(at_once=True)
    taken = spares.take(environment_of_hosts())
    assert taken is second
    taken.end()
    assert spares.take(environment_of_hosts()) is None
    spares = Spares(1, list, [])
    wait(spares._waiting.values(), 60)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert spares.take(environment_of_hosts()) is None
    (pid,) = waiting(spares)
    spares.close()
    assert not psutil.pid_exists(pid)


def test_who_never_gets_ready_is_waited_for_so_long_and_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    spares = Spares(2, partial(time.sleep, 1e6), [])
    child, failed = next(iter(spares._waiting.items()))
    child.end(at_once=True)
    wait([failed], 60)
    assert not spares.are_ready(), "the other may be yet"
    monkeypatch.setattr(spares, "_until", 0.0)
    assert spares.are_ready() and spares.take(environment_of_hosts()) is None
    pids = waiting(spares)
    spares.close()
    assert not any(map(psutil.pid_exists, pids))
