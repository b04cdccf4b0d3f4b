"""What counts as a device on machines with cores and GPUs. The hardware is made up."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from rlinf_lab.checkup import doctor
from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.runtime.executors.ray_nodes import devices
from rlinf_lab.runtime.machine.devices import gpus


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


def test_a_torch_for_cpus_has_no_gpu_and_says_why(machine: Machine) -> None:
    machine(2, 1, cpu_torch=True)
    assert devices() == ["cpu:0", "cpu:1"]
    with pytest.raises(PlanError, match=r"the driver has 1 GPU, but torch .* is built for CPUs only\. Next: install .*, or devices\('cpu'\)"):
        devices("cuda")


def test_hidden_and_missing_gpus_say_why(machine: Machine) -> None:
    machine(2, 2, "")
    with pytest.raises(PlanError, match="CUDA_VISIBLE_DEVICES='' leaves 0 visible"):
        devices("cuda")
    machine(2, 0)
    with pytest.raises(PlanError, match="the NVIDIA driver shows no GPU"):
        devices("cuda")
    with pytest.raises(UnknownNameError, match="Did you mean 'cpu'"):
        devices("cpus")


def test_the_doctor_says_why_a_gpu_is_not_used(machine: Machine) -> None:
    machine(2, 1, cpu_torch=True)
    check = doctor()["GPU"]
    assert check.status == "optional" and "built for CPUs only" in check.found and "CUDA" in check.mend
    machine(2, 0)
    assert doctor()["GPU"].mend == ""
