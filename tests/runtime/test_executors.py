"""What holds under every executor, threads, processes and a real Ray: the same results, failures by name, nothing left behind; nothing central is asked once
per item: what the driver hears of an iteration does not depend on how many items pass between the hosts."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from flows import DEVICES, NOTEBOOK_RESULT, Fails, Numbers, apart, cell_flow, cell_plans, failing_flow, notebook_flow
from sessions import session_of

import rlinf_lab as lab
from rlinf_lab.errors import ExecutorError, WorkerError, WorkflowError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.driver import Driver
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.executors.processes import ProcessExecutor
from rlinf_lab.runtime.executors.ray_executor import RayExecutor
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.workflow.worker import Collected, Scripted
from rlinf_lab.workflow.workflow import Workflow

executors = pytest.mark.parametrize("executor", ["local", "processes", pytest.param("ray", marks=pytest.mark.ray)])
OF_RAY = [pytest.param("ray", index, marks=[pytest.mark.ray, *[pytest.mark.long] * (index < 2)]) for index in range(3)]
APART = {"good": [0], "bad": [1]}


@pytest.mark.parametrize(("executor", "index"), [*itertools.product(["local", "processes"], range(3)), *OF_RAY])
def test_every_plan_gives_the_same_results(executor: str, index: int) -> None:
    flow = cell_flow()
    with session(flow, cell_plans(flow)[index], executor=executor) as s:  # iteration i uses weight i + 1 on two slots of six steps each
        assert [s.step() for _ in range(3)] == [{"total": 12.0 * (i + 1)} for i in range(3)]


@executors
def test_workers_from_a_cell_travel_by_value(executor: str) -> None:
    plan = ExecutionPlan.spatial(flow := notebook_flow(), DEVICES, {"source": [0], "double": [1], "sink": [0]})
    started = run(flow, plan, 2, executor)
    assert started.wait(60) == [NOTEBOOK_RESULT] * 2
    timeline = started.timeline
    assert timeline.bubble_sum_error_ns() == 0 and len(timeline.iterations()) == 2 and set(timeline.devices) == set(DEVICES)
    tracks = {(t.worker, t.rank): t.host for t in timeline.tracks}
    assert set(tracks.values()) == ({"local"} if executor == "local" else {"driver", "host0", "host1"})
    assert tracks["source", 0] == tracks["sink", 0]


@executors
def test_a_workers_exception_arrives_at_wait_and_the_others_live_on_and_a_host_that_is_killed_ends_every_iteration_by_name(executor: str) -> None:
    plan = ExecutionPlan.spatial(flow := failing_flow(), DEVICES, APART)
    made: Any = {"local": LocalExecutor, "processes": ProcessExecutor, "ray": RayExecutor}[executor](flow, plan)
    with session_of(made, clean=executor == "local") as s:
        assert s.step(2) == 3
        with pytest.raises(WorkerError, match="unlucky 13") as caught:
            s.step(13)
        assert (caught.value.worker, caught.value.rank, caught.value.method, caught.value.cause_type) == ("bad", 0, "work", "ValueError")
        assert "flows.py" in caught.value.remote_traceback and "in work" in caught.value.remote_traceback
        assert s.step(4) == 5
        if executor == "local":
            assert isinstance(caught.value.__cause__, ValueError) and caught.value.__cause__.__traceback__ is not None
            return
        os.kill(made.driver.pids["host1"], signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(ExecutorError, match=rf"Host 'host1' died{' with signal 9' * (executor == 'processes')} \(.*bad\[0\] lived there"):
                s.step(1)


def test_the_status_with_which_a_worker_ended_its_process_is_told() -> None:
    made = ProcessExecutor(flow := failing_flow(), ExecutionPlan.spatial(flow, DEVICES, APART))
    with session_of(made, clean=False) as s, pytest.raises(ExecutorError, match=r"Host 'host1' died with status 3 \(.*bad\[0\] lived there"):
        s.step(-3)


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


# --- nothing central ---
TIMED = {"news", "clock", "pulse", "relieved"}  # what hosts say so many times a second (answers to the watch, too), however many items there are


def flow_of() -> tuple[Workflow, ExecutionPlan]:
    """Each worker has a process of its own."""
    flow = Workflow("many")
    a, b = flow.channels("a", "b")
    maker, passer, taker = (flow.worker(Numbers, name=name) for name in ("maker", "passer", "taker"))

    flow.iteration(lambda count: (maker.make(count, a), passer.pass_on(a, b), taker.total(b))[::2])
    return flow, apart(flow, micro_batches={"a": 1, "b": 1})


@pytest.mark.parametrize("executor", ["processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.long])])
def test_the_driver_hears_and_says_as_much_of_two_thousand_items_as_of_two_hundred(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flow, plan = flow_of()
    heard, receive, found = Counter[str](), Driver.receive, []

    def counted(self: Driver, message: tuple) -> None:
        heard[message[0]] += message[0] not in TIMED
        receive(self, message)

    monkeypatch.setattr(Driver, "receive", counted)
    with session(flow, plan, executor=executor, emulate=True) as s:
        for count in (20, 200, 2000):
            heard.clear()
            said = s._host.post.said
            assert s.step(count) == (count, count * (count - 1) // 2)
            found.append((heard.total(), s._host.post.said - said))
    _, (few, said_few), (many, said_many) = found
    assert 3 <= many <= 20 and abs(many - few) <= 4, found  # at least the end of each call
    assert 3 <= said_many <= 40 and abs(said_many - said_few) <= 4, found


# --- a sample's failure is data: the run goes on, and says which sample of which rank failed and why ---
BAD = 3


class Reward(lab.Worker):
    def score(self, samples: lab.Inbox, scored: lab.Outbox) -> None:
        for batch in samples:
            for one in batch:
                try:
                    if one % 5 == BAD:
                        raise ValueError(f"no parse of {one}")
                    scored.put((one, 1.0))
                except ValueError as error:
                    self.log_failure(error, sample=one)
                    scored.put((one, None))


def scoring(n: int) -> lab.Workflow:
    flow = lab.Workflow("failing")
    samples, scored = flow.channels("samples", "scored")
    reward = flow.worker(Reward)

    flow.iteration(lambda: (samples.put_all(range(n)), reward.score(samples, scored), len(scored.get_all()))[2])
    return flow


def test_a_bad_sample_is_told_and_stops_nothing() -> None:
    flow = scoring(10)
    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"reward": [0, 1]}, micro_batches={"samples": 1})
    run = lab.run(flow, plan, iterations=2, dashboard=False, executor="processes", emulate=True)
    assert run.wait(60) == [10, 10]
    failures = run.failures.sort_values(["iteration", "sample"])
    assert failures["iteration"].tolist() == [0, 0, 1, 1] and failures["sample"].tolist() == ["3", "8"] * 2
    assert failures["error"].tolist() == ["ValueError: no parse of 3", "ValueError: no parse of 8"] * 2
    assert set(failures["worker"]) == {"reward"} and set(failures["rank"]) <= {0, 1} and failures.attrs["total"] == 4


def test_only_the_first_thousand_are_kept_and_all_are_counted_and_without_a_runtime_nothing_happens() -> None:
    flow = scoring(6000)
    run = lab.run(flow, lab.ExecutionPlan.temporal(flow, ["cpu:0"]), iterations=1, dashboard=False)
    run.wait(60)
    assert len(run.failures) == 1000 and run.failures.attrs["total"] == 1200
    scored: Collected[Any] = Collected()
    Reward().score(Scripted([2, 3]), scored)
    assert scored == [(2, 1.0), (3, None)]
