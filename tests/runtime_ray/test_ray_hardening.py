"""What must fail by name, and never hang, when workers live in other processes; devices as Ray gives them out."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
from programs import output_of

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from sessions import until
from test_process_runs import assert_what_cannot_travel_fails_its_iteration_alone, fragile

from rlinf_lab import ExecutionPlan, Worker, Workflow
from rlinf_lab.errors import ExecutorError
from rlinf_lab.runtime.executors import ray_nodes
from rlinf_lab.runtime.executors.ray_executor import RayExecutor
from rlinf_lab.runtime.executors.ray_start import ensure_ray, shutdown
from rlinf_lab.runtime.machine.ray_library import load_ray
from rlinf_lab.runtime.run.run import Run, run, session
from rlinf_lab.runtime.session.session import Ended, Session

pytestmark = pytest.mark.ray


def test_what_cannot_travel_fails_the_iteration_by_name_and_nothing_of_a_stopped_executor_is_left() -> None:
    executor = RayExecutor(*fragile())
    before = set(threading.enumerate())
    executor.start()
    hosts = [psutil.Process(pid) for pid in executor.driver.pids.values()]
    assert len(hosts) == 2 and [p.cpu_affinity() for p in hosts] == [[c] for c in sorted(os.sched_getaffinity(0))[:2]]
    assert_what_cannot_travel_fails_its_iteration_alone(Session(executor))
    assert executor.stop() == Ended() and executor.stop() == Ended()
    _, alive = psutil.wait_procs(hosts, timeout=20)
    assert not alive
    links = [t for t in threading.enumerate() if t not in before and t.name.startswith(("link", "listen", "write to"))]
    for thread in links:
        thread.join(20)
    assert not [t for t in links if t.is_alive()]


@pytest.fixture(scope="module")
def said_in_main(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a program with a private Ray of its own: workers from its main module, an interrupt, then a control service that is suspended for a while."""
    said = output_of(
        tmp_path_factory.mktemp("main"),
        """
        import os, signal, sys, threading, time
        from dataclasses import dataclass
        import rlinf_lab as lab
        from rlinf_lab.runtime.executors.ray_start import shutdown
        from rlinf_lab.runtime.run.run import session

        @dataclass
        class Settings:
            n: int

        @dataclass
        class Item:
            i: int

        class Source(lab.Worker):
            def make(self, settings: object, out: lab.Outbox, seconds: float):
                self.compute(seconds)
                out.put_all(Item(i) for i in range(settings.n))
                return settings

        class Sink(lab.Worker):
            def take(self, inbox: lab.Inbox):
                return [item for batch in inbox for item in batch]

        flow = lab.Workflow("main")
        items = flow.channel("items")
        source, sink = flow.worker(Source, name="source"), flow.worker(Sink, name="sink")

        @flow.iteration
        def iteration(settings, seconds=0.0):
            made, taken = source.make(settings, items, seconds), sink.take(items)
            return made.wait(), taken.wait()

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it, a kernel does not
        handlers, hook = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}, sys.excepthook
        plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"source": [0], "sink": [1]})
        with session(flow, plan, executor="ray") as s:
            made, taken = s.step(Settings(2))
            print(type(made) is Settings, taken == [Item(0), Item(1)])
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            try:
                s.step(Settings(1), 60.0)
            except KeyboardInterrupt:
                print("interrupted")
            print(s.step(Settings(1))[1] == [Item(0)])
        print(handlers == {s: signal.getsignal(s) for s in handlers} and hook is sys.excepthook)

        import psutil
        from rlinf_lab.errors import ExecutorError
        from rlinf_lab.runtime.executors import ray_nodes
        print(len(ray_nodes.nodes()))
        service = next(p for p in psutil.Process().children(recursive=True) if "gcs_server" in p.name())
        before, ray_nodes.ANSWER_SECONDS = ray_nodes.ANSWER_SECONDS, (0.3, 0.5)
        service.suspend()
        while service.status() != psutil.STATUS_STOPPED:  # its threads go on until the first of them has got the signal
            time.sleep(0.01)
        for question in (ray_nodes.nodes, ray_nodes.free_resources):
            try:
                question()
            except ExecutorError as error:
                print(error)
        service.resume()
        ray_nodes.ANSWER_SECONDS = before
        print(len(ray_nodes.nodes()))
        shutdown()
        """,
    )
    return said.split("\n")


@pytest.mark.long
def test_classes_of_main_travel_both_ways_and_an_interrupt_leaves_the_workers_usable(said_in_main: list[str]) -> None:
    assert said_in_main[:4] == ["True True", "interrupted", "True", "True"]


@pytest.mark.long
def test_a_ray_that_does_not_answer_is_an_error_and_no_hang(said_in_main: list[str]) -> None:
    said = said_in_main[4:]
    assert len(said) == 4 and said[0] == said[3] == "1"
    assert all("did not answer 2 times within 0.3, 0.5 s" in line and "is stopped, or its node is overloaded" in line and "ray status --address=" in line for line in said[1:3])


@pytest.mark.long
def test_gpus_are_called_what_torch_calls_them_in_that_process_and_too_few_are_refused(tmp_path: Path) -> None:
    lines = output_of(
        tmp_path,
        """
        import os
        import ray
        import rlinf_lab as lab
        from rlinf_lab.errors import PlanError
        from rlinf_lab.runtime.run.run import session
        ray.init(address="local", num_cpus=1, num_gpus=2, include_dashboard=False, log_to_driver=False)  # logical: none is needed

        class Where(lab.Worker):
            def where(self):
                return self.device, os.environ.get("CUDA_VISIBLE_DEVICES")

        flow = lab.Workflow("gpus")
        a, b = flow.worker(Where, name="a"), flow.worker(Where, name="b")

        @flow.iteration
        def iteration():
            x, y = a.where(), b.where()
            return x.wait(), y.wait()

        with session(flow, lab.ExecutionPlan.spatial(flow, ["cuda:0", "cuda:1"], {"a": [0], "b": [1]}), executor="ray") as s:
            x, y = s.step()
            print(x[0], y[0], sorted([x[1], y[1]]))
        devices = ["cuda:0", "cuda:1", "cuda:2"]
        try:
            with session(flow, lab.ExecutionPlan.spatial(flow, devices, {"a": [0, 1], "b": [2]}), executor="ray"):
                pass
        except PlanError as error:
            print(error)
        ray.shutdown()
        """,
    ).split("\n")
    assert lines[0] == "cuda:0 cuda:0 ['0', '1']"
    assert "uses 3 GPUs (cuda:0, cuda:1, cuda:2), and this Ray has 2 on that node. Next:" in lines[1]


class Forks(Worker):
    def work(self, dies_after: str) -> int:
        if dies_after:
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))  # longer than a test may last
            child.start()
            Path(dies_after).write_text(str(child.pid))
            os.kill(os.getpid(), signal.SIGKILL)
        return 1


@pytest.mark.long
def test_a_forked_child_does_not_hide_the_death_of_its_host(tmp_path: Path) -> None:
    pid_file = tmp_path / "child"
    flow = Workflow("child")
    worker = flow.worker(Forks, name="w")
    flow.iteration(lambda dies_after="": worker.work(dies_after).wait())
    with session(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), executor="ray") as s:
        assert s.step() == 1
        for dies_after in (str(pid_file), ""):
            with pytest.raises(ExecutorError, match=r"Host 'host0' died"):
                s.step(dies_after)
    psutil.Process(int(pid_file.read_text())).kill()  # it has lived on


class SetUp(Worker):
    """Takes longer than a test may last, or dies."""

    def setup(self) -> None:
        time.sleep(600) if self.name == "slow" else os._exit(3)

    def go(self) -> int:
        return 1


def set_up(name: str) -> Run:
    flow = Workflow("sets up")
    worker = flow.worker(SetUp, name=name)
    flow.iteration(lambda: worker.go())
    return run(flow, ExecutionPlan.temporal(flow, ["cpu:0"]), 1, executor="ray")


def test_stopping_a_run_that_is_being_set_up() -> None:
    starting = set_up("slow")
    until(lambda: starting._executor.driver.links)  # type: ignore[attr-defined]
    with warnings.catch_warnings(action="ignore"):  # that it was left behind, if it had begun
        starting.stop()
    assert starting.state == "stopped" and starting.error is None


def test_a_process_that_dies_in_setup_is_told_by_worker() -> None:
    with pytest.raises(ExecutorError, match=r"Host 'host0' died while its workers were being set up .*; w\[0\] lived there"):
        set_up("w").wait(60)


def test_a_question_without_an_answer_is_asked_again() -> None:
    ensure_ray(None)
    ray = load_ray()
    worker = ray._private.worker.global_worker
    client = worker.gcs_client

    class Deaf:
        """At first."""

        address, asked = client.address, 0

        def get_all_node_info(self, timeout: float) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise ray.exceptions.RpcError("Deadline Exceeded", rpc_code=4)
            return client.get_all_node_info(timeout=timeout)

    worker.gcs_client = deaf = Deaf()
    try:
        assert len(ray_nodes.nodes()) == 1 and deaf.asked == 2
    finally:
        worker.gcs_client = client


def test_shutdown_ends_the_private_ray() -> None:
    """The last test here that uses the Ray of this process, lest another one is started after it."""
    with session(*fragile(), executor="ray") as s:
        assert s.step() == (5, 100)
    session_name = load_ray()._private.worker._global_node.session_name  # others may have a Ray of their own in this process' children
    running = psutil.process_iter(["name", "cmdline"])  # passes over what ends meanwhile
    services = [p for p in running if p.info["name"] in ("raylet", "gcs_server") and session_name in " ".join(p.info["cmdline"] or ())]
    assert {p.info["name"] for p in services} == {"gcs_server", "raylet"}
    shutdown()
    _, alive = psutil.wait_procs(services, timeout=20)
    assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_an_unanswered_question_leaves_nothing_that_ends_the_process(tmp_path: Path) -> None:
    """Ray ends a process in which something still asks a service that is gone, by default after a minute."""
    said = output_of(
        tmp_path,
        """
        import os, time
        import psutil
        os.environ["RAY_gcs_rpc_server_reconnect_timeout_s"] = "8"
        from rlinf_lab.errors import ExecutorError
        from rlinf_lab.runtime.executors import ray_nodes
        from rlinf_lab.runtime.executors.ray_start import ensure_ray, shutdown
        ensure_ray(None)
        service = next(p for p in psutil.Process().children(recursive=True) if "gcs_server" in p.name())
        before, ray_nodes.ANSWER_SECONDS = ray_nodes.ANSWER_SECONDS, (0.5, 0.5)
        service.suspend()
        while service.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        try:
            ray_nodes.nodes()
        except ExecutorError as error:
            print(error)
        service.kill()
        shutdown()
        time.sleep(9)
        ray_nodes.ANSWER_SECONDS = before
        ensure_ray(None)
        print(len(ray_nodes.nodes()))
        shutdown()
        """,
    ).split("\n")
    assert "did not answer 2 times" in said[0] and said[1] == "1"
