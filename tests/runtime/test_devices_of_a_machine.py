"""What counts as a device on machines with cores and GPUs, and what is said of one that is not there. The hardware is made up."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlinf_lab.checkup import doctor
from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors.local import LocalExecutor
from rlinf_lab.runtime.executors.ray_executor import RayExecutor
from rlinf_lab.runtime.executors.ray_nodes import Node, _refuse_missing_cores, devices
from rlinf_lab.runtime.machine.devices import gpus
from rlinf_lab.runtime.run.run import run, session
from rlinf_lab.runtime.threads.clocks import MockClock
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow


class Machine:
    """Makes this process believe in other hardware."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def __call__(self, cores: int, cards: int = 0, visible: str | None = None, cpu_torch: bool = False) -> None:
        import pynvml

        self.patch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
        self.patch.setattr(pynvml, "nvmlInit", lambda: None)
        self.patch.setattr(pynvml, "nvmlDeviceGetCount", lambda: cards)
        self.patch.setattr(torch, "version", SimpleNamespace(cuda=None if cpu_torch else "12.9", hip=None))
        # torch's own reading of CUDA_VISIBLE_DEVICES is what is tested: only what it asks the driver is made up.
        self.patch.setattr(torch.cuda, "_is_compiled", lambda: not cpu_torch)
        self.patch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: cards)
        if visible is not None:
            self.patch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(("visible", "count"), [(None, 4), ("", 0), ("-1", 0), ("2", 1), ("3,1", 2), ("0,9,1", 1)])
def test_only_visible_gpus_are_devices(machine: Machine, visible: str | None, count: int) -> None:
    machine(3, 4, visible)
    assert devices() == ([f"cuda:{i}" for i in range(count)] or ["cpu:0", "cpu:1", "cpu:2"])
    assert devices("cpu") == ["cpu:0", "cpu:1", "cpu:2"]
    if visible is None:
        assert gpus() == (4, "", "")
    else:
        assert gpus() == (count, f"the driver has 4 GPUs, and CUDA_VISIBLE_DEVICES={visible!r} leaves {count} visible", "unset CUDA_VISIBLE_DEVICES")


def test_hidden_and_missing_gpus_say_why_also_to_the_doctor(machine: Machine) -> None:
    for arguments, told in (
        ((2, 2, ""), "CUDA_VISIBLE_DEVICES='' leaves 0 visible"), ((2, 0), "the NVIDIA driver shows no GPU"),
        ((2, 1, None, True), r"the driver has 1 GPU, but torch .* is built for CPUs only\. Next: install .*, or devices\('cpu'\)"),
    ):  # fmt: skip
        machine.patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        machine(*arguments)
        assert devices() == ["cpu:0", "cpu:1"]
        with pytest.raises(PlanError, match=told):
            devices("cuda")
    check = doctor()["GPU"]
    assert check.status == "optional" and "built for CPUs only" in check.found and "CUDA" in check.mend
    machine(2, 0)
    assert doctor()["GPU"].mend == ""
    with pytest.raises(UnknownNameError, match="Did you mean 'cpu'"):
        devices("cpus")


# --- devices that are not there are named before anything starts, by every executor; sharing cores must be asked for ---
class Where(Worker):
    def where(self) -> str:
        return self.device


@pytest.fixture
def flow(machine: Machine) -> Workflow:
    """On a machine with two cores and no GPU."""
    machine(2, 0)
    flow = Workflow("where")
    worker = flow.worker(Where, name="w")
    flow.iteration(lambda: worker.where())
    return flow


def on(device: str) -> ExecutionPlan:
    return ExecutionPlan("there", (device,), {"w": ((0,),)})


@pytest.mark.parametrize("start", [run, LocalExecutor, RayExecutor, lambda f, p: session(f, p).__enter__(), lambda f, p: run(f, p, 1, executor="ray")])
def test_cores_that_do_not_exist_are_refused_by_name(flow: Workflow, start: Any) -> None:
    there = r"Plan 'there' uses cpu:2, which this machine does not have; lab\.devices\(\) is \['cpu:0', 'cpu:1'\]"
    with pytest.raises(PlanError, match=there + r"\. Next: .*emulate=True"):
        start(flow, on("cpu:2"))


def test_cores_can_be_shared_when_that_is_meant_and_gpus_cannot(flow: Workflow) -> None:
    assert run(flow, on("cpu:99"), 2, emulate=True).wait(20) == ["cpu", "cpu"]
    assert RayExecutor(flow, on("cpu:99"), emulate=True).hosts == ["host0"]
    LocalExecutor(flow, on("cuda:5"), MockClock())  # its time is made up
    for emulate in (False, True):
        with pytest.raises(PlanError, match=r"uses cuda:0, which this machine does not have; lab.devices\(\) is .*the NVIDIA driver shows no GPU"):
            run(flow, on("cuda:0"), 1, emulate=emulate)


def test_cores_of_another_node_are_those_that_ray_counts() -> None:
    node = Node("", "", {"CPU": 3.0})
    _refuse_missing_cores(1, node, ["cpu:7", "node1/cpu:2", "node2/cpu:9", "node1/cuda:5"])
    with pytest.raises(PlanError, match=r"The plan uses node1/cpu:3, node1/cpu:4, and Ray counts 3 CPUs on that node\. Next: .*address='auto'"):
        _refuse_missing_cores(1, node, ["node1/cpu:3", "node1/cpu:2", "node1/cpu:4"])
