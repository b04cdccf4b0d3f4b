"""Which devices and plans the demo uses on machines with one core, two, a GPU; what counts as a GPU. The hardware is made up."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from rlinf_lab.checkup import doctor
from rlinf_lab.demo import moved
from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.plan.layout import checked_layout
from rlinf_lab.recipes.plans import candidates, slots
from rlinf_lab.recipes.ppo import PRESETS, PPOConfig, build
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


@pytest.mark.parametrize(("hardware", "expected"), [
    ({"cores": 1}, ["cpu:0"]),
    ({"cores": 2}, ["cpu:0", "cpu:1"]),
    ({"cores": 8}, ["cpu:0", "cpu:1"]),
    ({"cores": 16, "cards": 1}, ["cpu:0", "cpu:1", "cuda:0"]),
    ({"cores": 1, "cards": 1}, ["cpu:0", "cuda:0"]),
    ({"cores": 4, "cards": 2}, ["cpu:0", "cpu:1", "cuda:0"]),
    ({"cores": 4, "cards": 2, "visible": ""}, ["cpu:0", "cpu:1"]),
    ({"cores": 4, "cards": 1, "cpu_torch": True}, ["cpu:0", "cpu:1"]),
])  # fmt: skip
def test_slots_of_a_machine(machine: Machine, hardware: dict, expected: list[str]) -> None:
    machine(**hardware)
    assert slots() == expected


def test_one_device_has_one_plan_two_have_three() -> None:
    flow = build(PPOConfig.preset("numpy/ReachArm-v0"))
    assert [p.name for p in candidates(flow, ["cpu:0"])] == ["temporal"]
    assert [p.name for p in candidates(flow, ["cpu:0", "cpu:1"])] == ["temporal", "fused", "spatial"]


@pytest.mark.parametrize("names", [["cpu:0", "cuda:0"], ["cpu:0", "cpu:1", "cuda:0"]])
def test_with_a_gpu_the_simulator_has_the_cores_and_the_learner_the_gpu(names: list[str]) -> None:
    flow = build(PPOConfig.preset("metaworld/button-press-v3"))
    plans = candidates(flow, names)
    assert [p.name for p in plans] == ["temporal", "spatial", "fused"]
    for plan in plans:
        layout = checked_layout(flow.graph, plan)
        where = {w: sorted({d for r in range(plan.ranks(w)) for d in layout.device_names(w, r)}) for w in plan.placements}
        assert where["simulator"] == names[:-1] and where["learner"] == ["cuda:0"]
        assert where["policy"] == (names[:-1] if plan.name == "fused" else ["cuda:0"])
    cores = len(names) - 1
    assert (plans[0].micro_batch("obs"), plans[1].micro_batch("obs")) == (2 * cores, 1), "phases that alternate; streaming"
    assert [moved(plans[0], p) for p in plans] == [[], [], ["fused: policy was measured on cuda and is assumed to take as long on cpu"]]


@pytest.mark.parametrize("env_id", PRESETS)
@pytest.mark.parametrize("names", [["cpu:0"], ["cpu:0", "cpu:1"], ["cpu:0", "cuda:0"], ["cpu:0", "cpu:1", "cuda:0"]])
def test_presets_fill_the_tokens_of_every_plan_alike(env_id: str, names: list[str]) -> None:
    config = PPOConfig.preset(env_id)
    tokens = {p.ranks("simulator") * p.tokens("simulator") for p in candidates(build(config), names)}
    assert len(tokens) == 1 and config.num_envs % tokens.pop() == 0


def test_the_doctor_says_why_a_gpu_is_not_used(machine: Machine) -> None:
    machine(2, 1, cpu_torch=True)
    check = doctor()["GPU"]
    assert check.status == "optional" and "built for CPUs only" in check.found and "CUDA" in check.mend
    machine(2, 0)
    assert doctor()["GPU"].mend == ""
