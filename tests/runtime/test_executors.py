"""What holds under every executor, threads, processes and a real Ray: the same results, failures by name, nothing left behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from flows import DEVICES, NOTEBOOK_RESULT, Fails, cell_flow, cell_plans, failing_flow, notebook_flow
from sessions import session_of

from rlinf_lab.errors import ExecutorError, WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.processes import ProcessExecutor
from rlinf_lab.runtime.executors.ray_executor import RayExecutor
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

executors = pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=pytest.mark.ray)])
APART = {"good": [0], "bad": [1]}


@pytest.mark.parametrize(
    ("executor", "index"),
    [
        *itertools.product(["local", "processes"], range(3)), pytest.param("ray", 0, marks=[pytest.mark.ray, pytest.mark.long]),
        *(pytest.param("ray", index, marks=pytest.mark.ray) for index in (1, 2)),
    ],
)  # fmt: skip
def test_every_plan_gives_the_same_results(executor: str, index: int) -> None:
    flow = cell_flow()
    with session(flow, cell_plans(flow)[index], executor=executor) as s:  # iteration i uses weight i + 1 on two slots of six steps each
        assert [s.step() for _ in range(3)] == [{"total": 12.0 * (i + 1)} for i in range(3)]


@executors
def test_workers_from_a_cell_travel_by_value(executor: str) -> None:
    flow = notebook_flow()
    plan = ExecutionPlan.spatial(flow, DEVICES, {"source": [0], "double": [1], "sink": [0]})
    started = run(flow, plan, 2, executor)
    assert started.wait(60) == [NOTEBOOK_RESULT] * 2
    timeline = started.timeline
    assert timeline.bubble_sum_error_ns() == 0 and len(timeline.iterations()) == 2 and set(timeline.devices) == set(DEVICES)
    tracks = {(t.worker, t.rank): t.host for t in timeline.tracks}
    assert set(tracks.values()) == ({"local"} if executor == "local" else {"driver", "host0", "host1"})
    assert tracks["source", 0] == tracks["sink", 0]


@executors
def test_a_workers_exception_arrives_at_wait_and_the_others_live_on(executor: str) -> None:
    flow = failing_flow()
    with session(flow, ExecutionPlan.spatial(flow, DEVICES, APART), executor=executor) as s:
        assert s.step(2) == 3
        with pytest.raises(WorkerError, match="unlucky 13") as caught:
            s.step(13)
        assert (caught.value.worker, caught.value.rank, caught.value.method, caught.value.cause_type) == ("bad", 0, "work", "ValueError")
        assert "flows.py" in caught.value.remote_traceback and "in work" in caught.value.remote_traceback
        if executor == "local":
            assert isinstance(caught.value.__cause__, ValueError) and caught.value.__cause__.__traceback__ is not None
        assert s.step(4) == 5


@pytest.mark.parametrize("executor", [ProcessExecutor, pytest.param(RayExecutor, marks=pytest.mark.ray)])
def test_a_host_that_is_killed_ends_the_iteration_and_every_later_one_by_name(executor: Any) -> None:
    flow = failing_flow()
    made = executor(flow, ExecutionPlan.spatial(flow, DEVICES, APART))
    with session_of(made, clean=False) as s:
        assert s.step(1) == 2
        os.kill(made.driver.pids["host1"], signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(ExecutorError, match=r"Host 'host1' died.*bad\[0\] lived there"):
                s.step(1)


class Keeps(Fails):
    def __init__(self, lock: object) -> None:
        self.lock = lock


@pytest.mark.parametrize("executor", [ProcessExecutor, RayExecutor])
def test_a_worker_that_cannot_travel_is_named(executor: Any) -> None:
    flow = Workflow("locked")
    flow.worker(Fails, name="fine")
    broken = flow.worker(Keeps, threading.Lock(), name="broken")
    flow.iteration(lambda: broken.work(1))
    with pytest.raises(WorkflowError, match=r"'broken' \(Keeps\) cannot be sent.*at \.args\[0\]"):
        executor(flow, ExecutionPlan.temporal(flow, DEVICES))


@pytest.mark.ray
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


class Makes(Worker):
    def make(self, out: Outbox) -> None:
        for i in range(5):
            out.put((os.getpid(), i))


class Takes(Worker):
    def take(self, inbox: Inbox) -> dict[str, Any]:
        found = [item for batch in inbox for item in batch]
        return {"items": [i for _, i in found], "together": {pid for pid, _ in found} == {os.getpid()}, "device": self.device}


def test_shares_of_a_core_are_in_one_process_and_cores_are_not() -> None:
    flow = Workflow("shares")
    items = flow.channel("items")
    makes, takes = flow.worker(Makes, name="makes"), flow.worker(Takes, name="takes")

    @flow.iteration
    def iteration() -> dict[str, Any]:
        makes.make(items)
        return takes.take(items)

    for devices, together in ((("cpu:0.1", "cpu:0.2"), True), (("cpu:0", "cpu:1"), False)):
        plan = ExecutionPlan.spatial(flow, devices, {"makes": [0], "takes": [1]})
        (found,) = run(flow, plan, 1, executor="processes", emulate=True).wait(60)
        assert found == {"items": [*range(5)], "together": together, "device": "cpu"}
