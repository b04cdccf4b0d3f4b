"""The Ray executor on a real Ray: the same results, failures by name, a foreign Ray left alone, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from flows import DEVICES, NOTEBOOK_RESULT, Fails, cell_flow, cell_plans, failing_flow, notebook_flow

from rlinf_lab.errors import ExecutorError, WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.ray_executor import RayExecutor
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.session.session import Session
from rlinf_lab.workflow.filler import Filler
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("index", range(3))
def test_every_plan_gives_the_results_of_the_local_executor(index: int) -> None:
    flow = cell_flow()
    plan = cell_plans(flow)[index]
    with session(flow, plan, executor="ray") as remote, session(flow, plan) as local:
        assert [remote.step() for _ in range(3)] == [local.step() for _ in range(3)]


def test_workers_from_a_cell_travel_by_value_and_spans_come_back() -> None:
    flow = notebook_flow()
    started = run(flow, ExecutionPlan.spatial(flow, DEVICES, {"source": [0], "double": [1], "sink": [0]}), 2, "ray")
    assert started.wait(60) == [NOTEBOOK_RESULT] * 2
    timeline = started.timeline
    assert {t.host for t in timeline.tracks} == {"driver", "host0", "host1"}
    assert timeline.bubble_sum_error_ns() == 0 and len(timeline.iterations()) == 2
    assert timeline.utilisation().min() > 0


def test_a_workers_exception_crosses_the_process_and_the_others_live_on() -> None:
    flow = failing_flow()
    plan = ExecutionPlan.spatial(flow, DEVICES, {"good": [0], "bad": [1]})
    with session(flow, plan, executor="ray") as s:
        assert s.step(2) == 3
        with pytest.raises(WorkerError, match="unlucky 13") as caught:
            s.step(13)
        assert caught.value.worker == "bad" and "in work" in caught.value.remote_traceback
        assert s.step(4) == 5


def test_a_worker_that_cannot_travel_is_named() -> None:
    flow = Workflow("locked")
    flow.worker(Fails, name="fine")
    broken = flow.worker(Keeps, threading.Lock(), name="broken")

    @flow.iteration
    def iteration() -> None:
        broken.work(1)

    with pytest.raises(WorkflowError, match=r"'broken' \(Keeps\) cannot be sent.*argument 0"):
        RayExecutor(flow, ExecutionPlan.temporal(flow, DEVICES))


class Keeps(Fails):
    def __init__(self, lock: object) -> None:
        self.lock = lock


def test_a_killed_host_ends_the_iteration() -> None:
    flow = failing_flow()
    executor = RayExecutor(flow, ExecutionPlan.spatial(flow, DEVICES, {"good": [0], "bad": [1]}))
    executor.start()
    try:
        s = Session(executor)
        assert s.step(1) == 2
        os.kill(executor.driver.pids["host1"], signal.SIGKILL)
        with pytest.raises(ExecutorError, match=r"Host 'host1' died.*bad\[0\] lived there"):
            s.step(1)
    finally:
        executor.stop()


@pytest.mark.long
def test_nothing_is_left_of_a_run_and_a_foreign_ray_is_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "foreign.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import ray
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        mine = ray.put("mine")
        from flows import cell_flow, cell_plans
        from rlinf_lab.runtime.run.run import session
        from rlinf_lab.runtime.executors.ray_start import shutdown
        flow = cell_flow()
        with session(flow, cell_plans(flow)[0], executor="ray") as s:
            print(s.step())
        shutdown()
        assert ray.is_initialized() and ray.get(mine) == "mine"
        ray.shutdown()
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "{'total': 12.0}" in done.stdout


class Counts(Worker):
    def setup(self) -> None:
        self.n = 0

    def step(self) -> int:
        self.n += 1
        return self.n


def test_fillers_live_in_the_hosts_of_their_devices() -> None:
    flow = notebook_flow()
    plan = ExecutionPlan.spatial(flow, DEVICES, {"source": [0], "double": [1], "sink": [0]})
    started = run(flow, plan, 2, "ray", fillers=[Filler(Counts, on=DEVICES)])
    assert started.wait(60) == [NOTEBOOK_RESULT] * 2
    tracks = {(t.worker, t.rank): t.host for t in started.timeline.tracks}
    assert (tracks["counts", 0], tracks["counts", 1]) == (tracks["source", 0], tracks["double", 0])
    assert all((told.result or 0) == told.steps and told.error is None for told in started.fillers)


class Shares(Worker):
    def produce(self, items: int, out: Outbox) -> None:
        for i in range(items):
            out.put(i)

    def convert(self, inbox: Inbox, out: Outbox) -> int:
        for batch in inbox:
            out.put_all(batch)
        return self.ranks


def test_ranks_come_and_go_in_hosts_of_their_own() -> None:
    flow = Workflow("elastic")
    numbers, passed = flow.channels("numbers", "passed")
    source, shares, sink = flow.worker(Shares, name="source"), flow.worker(Shares, name="shares"), flow.worker(Sorts, name="sink")

    @flow.iteration
    def iteration(items: int = 1) -> tuple:
        source.produce(items, numbers)
        return shares.convert(numbers, passed), sink.consume(passed)

    plan = ExecutionPlan.spatial(flow, DEVICES, {"source": [0], "shares": [0, 1], "sink": [0]}, micro_batch=1)
    with session(flow, plan, executor="ray", absent={"shares": [1]}) as s:
        assert s.step(20) == ([1], list(range(20)))
        one = s.submit(300)
        s.join("shares", 1, timeout=60)
        assert one.wait(60)[1] == list(range(300))
        assert s.step(20) == ([2, 2], list(range(20)))
        one = s.submit(300)
        s.leave("shares", 1)
        assert one.wait(60)[1] == list(range(300))
        assert s.step(20) == ([1], list(range(20)))


class Sorts(Worker):
    def consume(self, inbox: Inbox) -> list:
        return sorted(item for batch in inbox for item in batch)
