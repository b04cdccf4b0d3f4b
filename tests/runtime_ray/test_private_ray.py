"""A private Ray has one node, and is no cluster that somebody has named."""

from __future__ import annotations

import contextlib
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from one_worker import one_worker

from rlinf_lab import ExecutionPlan, Worker, Workflow
from rlinf_lab.errors import ExecutorError, PlanError
from rlinf_lab.runtime.executors import ray_executor, ray_start
from rlinf_lab.runtime.executors.ray_executor import RayExecutor
from rlinf_lab.runtime.machine.ray_library import load_ray
from rlinf_lab.runtime.run.run import session


def test_devices_of_nodes_that_cannot_come_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "ensure_ray", lambda _: None)
    monkeypatch.setattr(ray_executor, "is_private", lambda: True)
    monkeypatch.setattr(ray_executor, "wait_for_nodes", lambda *_, **__: pytest.fail("nobody can join"))
    executor = RayExecutor(one_worker(), ExecutionPlan("far", ("node1/cpu:0",), {"w": ((0,),)}))
    with pytest.raises(PlanError, match=r"The plan uses node1/cpu:0, and the Ray of this run is a private one.*Next: the address= of a cluster"):
        executor._prepare()


@pytest.mark.parametrize(
    ("private", "address", "told"),
    [
        (True, "10.0.0.1:6379", r"'here:1', a private Ray of earlier runs, not '10.0.0.1:6379'. Next: rlinf_lab.shutdown\(\) first"),
        (True, "auto", r"a private Ray of earlier runs, not 'auto'. Next: rlinf_lab.shutdown\(\) first"),
        (False, "10.0.0.1:6379", r"'here:1', not '10.0.0.1:6379'. Next: ray.shutdown\(\) first"),
        (False, "auto", ""), (True, "here:1", ""), (True, None, ""), (False, None, ""),
    ],
)  # fmt: skip
def test_another_cluster_than_the_ray_that_is_up_is_refused(private: bool, address: str | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(gcs_address="here:1")
    ray: Any = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setattr(ray_start, "load_ray", lambda: ray)
    monkeypatch.setattr(ray_start, "is_private", lambda: private)
    monkeypatch.setattr(ray_start, "why_private_is_gone", str)
    if told:
        with pytest.raises(ExecutorError, match=told):
            ray_start.ensure_ray(address)
    else:
        ray_start.ensure_ray(address)


def test_what_a_private_ray_has_begun_is_ended_and_what_has_ended_is_no_error() -> None:
    gone, works = (subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({s})"]) for s in (0, 600))
    found = [psutil.Process(one.pid) for one in (gone, works)]
    gone.wait()
    ray_start._end(found)
    assert works.wait() < 0


@pytest.mark.parametrize(("lost", "told"), [("a1", "Host 'one' died"), ("b2", "Host 'two' died"), (None, "set up the device")])
def test_a_lost_actor_is_named_by_its_host(lost: str | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "is_private", lambda: False)
    executor = RayExecutor(one_worker(), ExecutionPlan("two", ("cpu:0",), {"w": ((0,),)}))
    monkeypatch.setattr(executor, "_device_names", lambda _: ("cpu:0",))
    monkeypatch.setattr(executor, "_members", str)
    ids = {"one": "a1", "two": "b2"}
    executor._actors = {h: SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda i=i: i)) for h, i in ids.items()}
    error = load_ray().exceptions.RayError("gone")
    error.actor_id = lost
    assert told in str(executor._explained(error)) and executor._explained(OSError()) is None


@pytest.mark.parametrize(("private", "threads", "one"), [(True, "1", True), (True, None, True), (True, "4", False), (False, "1", False)])
def test_a_private_ray_with_one_thread_each_needs_no_environment(private: bool, threads: str | None, one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_start, "_PRIVATE", SimpleNamespace(threads=threads, is_current=lambda: private))
    assert ray_start.has_one_thread_each() is one


class Threads(Worker):
    def work(self) -> tuple[str | None, int]:
        return os.environ.get("OMP_NUM_THREADS"), os.getpid()


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.parametrize("own_environment", [False, True])
def test_a_host_computes_in_one_thread_and_is_in_no_process_of_an_earlier_run(own_environment: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if own_environment:
        monkeypatch.setattr(ray_executor, "has_one_thread_each", lambda: False)
    flow = Workflow("threads")
    worker = flow.worker(Threads, name="w")
    flow.iteration(lambda: worker.work())
    found = []
    for _ in range(2):
        with session(flow, ExecutionPlan.spatial(flow, ["cpu:0"], {"w": [0]}), executor="ray") as s:
            found += [s.step()]
    assert [threads for threads, _ in found] == ["1", "1"] and found[0][1] != found[1][1]


ASKS = "import sys; from ray._raylet import GcsClient; print(GcsClient(address=sys.argv[1]).internal_kv_keys(b'', None, 20))"


def listening() -> Iterator[tuple[str, int]]:
    """Where the processes of this one's private Ray are reached."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            if "ray" in " ".join(process.cmdline()):
                yield from (tuple(each.laddr) for each in process.net_connections(kind="tcp") if each.status == psutil.CONN_LISTEN)


@pytest.mark.ray
def test_without_its_token_a_private_ray_tells_counters_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens on every interface, whatever it is told (Ray 2.60)."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray_start.ensure_ray(None)
    address = load_ray().get_runtime_context().gcs_address
    for mode in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 32}):
        done = subprocess.run([sys.executable, "-c", ASKS, address], env={**os.environ, **mode}, capture_output=True, text=True, timeout=120)
        assert done.returncode and "AuthenticationError" in done.stderr, done.stdout + done.stderr[-2000:]
    told = set()
    for ip, port in listening():
        for path in ("/", "/api/version", "/api/job_agent/jobs/", "/logs"):
            connection = http.client.HTTPConnection({"::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}.get(ip, ip), port, timeout=30)
            with contextlib.suppress(OSError, http.client.HTTPException):  # it speaks something else, or hangs up
                connection.request("GET", path)
                answer = connection.getresponse()
                told.add((answer.status, answer.read(6)))
    assert told <= {(401, b"Unauth"), (200, b"# HELP")}, told
