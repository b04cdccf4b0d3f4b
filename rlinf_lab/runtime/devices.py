"""Which devices there are, and what they are called: ``"cpu:0"`` is one core, ``"cuda:0"`` one GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rlinf_lab.errors import PlanError


def devices(kind: str | None = None) -> list[str]:
    """The devices of this machine: its GPUs if it has any (``kind="cuda"``), else one device for each core (``"cpu"``)."""
    found = [] if kind == "cpu" else [f"cuda:{i}" for i in range(_gpus())]
    if kind == "cuda" and not found:
        raise PlanError("devices(kind='cuda'): this machine has no CUDA device. Next: devices('cpu'), or lab.doctor() for the reason.")
    return found or [f"cpu:{core}" for core in range(len(cores()))]


def cores() -> list[int]:
    """The cores this process may use, in order; ``cpu:i`` is the i-th of them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def torch_device(names: Sequence[str]) -> str:
    """torch's name of a rank's first device."""
    first = names[0] if names else "cpu"
    return first if first.startswith("cuda") else "cpu"


def _gpus() -> int:
    """Counted by the driver's library, so that no CUDA context is made in this process."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0
