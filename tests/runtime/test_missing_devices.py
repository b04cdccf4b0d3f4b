"""Devices that are not there are named before anything starts, by every executor; sharing cores must be asked for."""

from __future__ import annotations

import os
from typing import Any

import pytest

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.executors.ray_executor import RayExecutor
from rlinf_lab.runtime.executors.ray_nodes import Node, _refuse_missing_cores
from rlinf_lab.runtime.machine import devices as module
from rlinf_lab.runtime.machine.devices import Gpus
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow


class Where(Worker):
    def where(self) -> str:
        return self.device


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> Workflow:
    """On a machine with two cores and no GPU."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(module, "gpus", lambda: Gpus(0, "the NVIDIA driver shows no GPU"))
    flow = Workflow("where")
    worker = flow.worker(Where, name="w")

    @flow.iteration
    def iteration() -> Any:
        return worker.where()

    return flow


def on(device: str) -> ExecutionPlan:
    return ExecutionPlan("there", (device,), {"w": ((0,),)})


@pytest.mark.parametrize("start", [run, LocalExecutor, RayExecutor, lambda f, p: session(f, p).__enter__(), lambda f, p: run(f, p, 1, executor="ray")])
def test_cores_that_do_not_exist_are_refused_by_name(flow: Workflow, start: Any) -> None:
    there = r"Plan 'there' uses cpu:99, which this machine does not have; lab\.devices\(\) is \['cpu:0', 'cpu:1'\]"
    with pytest.raises(PlanError, match=there + r"\. Next: .*emulate=True"):
        start(flow, on("cpu:99"))


def test_cores_can_be_shared_when_that_is_meant(flow: Workflow) -> None:
    assert run(flow, on("cpu:99"), 2, emulate=True).wait(20) == ["cpu", "cpu"]
    with session(flow, on("cpu:2"), emulate=True) as s:
        assert s.step() == "cpu"
    assert RayExecutor(flow, on("cpu:99"), emulate=True).hosts == ["host0"]
    LocalExecutor(flow, on("cuda:5"), MockClock())  # its time is made up


def test_gpus_that_do_not_exist_are_refused_whatever_is_meant(flow: Workflow) -> None:
    for emulate in (False, True):
        with pytest.raises(PlanError, match=r"uses cuda:0, which this machine does not have; lab.devices\(\) is .*the NVIDIA driver shows no GPU"):
            run(flow, on("cuda:0"), 1, emulate=emulate)


def test_cores_of_another_node_are_those_that_ray_counts() -> None:
    node = Node("", "", {"CPU": 3.0})
    _refuse_missing_cores(1, node, ["cpu:7", "node1/cpu:2", "node2/cpu:9", "node1/cuda:5"])
    with pytest.raises(PlanError, match=r"The plan uses node1/cpu:3, node1/cpu:4, and Ray counts 3 CPUs on that node\. Next: .*address='auto'"):
        _refuse_missing_cores(1, node, ["node1/cpu:3", "node1/cpu:2", "node1/cpu:4"])
