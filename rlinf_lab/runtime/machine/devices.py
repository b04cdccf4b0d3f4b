"""Which devices there are, and what they are called. ``"cpu:0"`` is one core, ``"cuda:0"`` one GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from rlinf_lab.errors import PlanError, UnknownNameError
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan


def devices_here(kind: str | None = None) -> list[str]:
    """`rlinf_lab.devices` of this machine."""
    if kind not in (None, "cpu", "cuda"):
        raise UnknownNameError.of("kind of device", kind, ["cpu", "cuda"])
    found = Gpus(0) if kind == "cpu" else gpus()
    if kind == "cuda" and not found.usable:
        raise PlanError(
            f"devices(kind='cuda'): {found.problem}. Next: {f'{found.mend}, or ' * bool(found.mend)}devices('cpu')."
        )
    return [f"cuda:{i}" for i in range(found.usable)] or [f"cpu:{i}" for i in range(len(cores()))]


def cores() -> list[int]:
    """The cores this process may use, in order; ``cpu:i`` is the i-th of them."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def refuse_missing(plan: ExecutionPlan, emulate: bool, kinds: Sequence[str] = ("cpu", "cuda")) -> None:
    """Raises `PlanError` for a device of this node that is not there. ``emulate``: CPU slots beyond the cores are
    meant, they share the cores.
    """
    here = [d for d in map(Device.parse, plan.devices) if not d.node and d.kind in kinds]
    wanted = [d for d in here if d.kind == "cpu" and not emulate and d.index >= len(cores())]
    missing, advice = (
        [str(d) for d in wanted],
        ", or emulate=True: then several CPU slots share a core, and what is measured is not that of so many cores",
    )
    if not missing and any(d.kind == "cuda" for d in here):
        found = gpus()
        missing = [str(d) for d in here if d.kind == "cuda" and d.index >= found.usable]
        advice = f" ({found.problem})" if found.problem else ""
    if missing:
        raise PlanError(
            f"Plan {plan.name!r} uses {', '.join(missing)}, which this machine does not have; lab.devices() is "
            f"{_listed(devices_here())}. "
            f"Next: a plan on these{advice}."
        )


def refuse_other_nodes(plan: ExecutionPlan, what: str) -> None:
    """Raises `PlanError` for a device of another node. ``what``: the executor, and what it has."""
    if elsewhere := [d for d in plan.devices if Device.parse(d).node]:
        raise PlanError(f"Plan {plan.name!r} uses {', '.join(elsewhere)}; the {what} only. Next: executor='ray'.")


def _listed(names: Sequence[str]) -> str:
    return str(names) if len(names) <= 8 else f"{names[0]!r} to {names[-1]!r}"


class Gpus(NamedTuple):
    """What `gpus` found."""

    usable: int
    """GPUs that torch can use here"""
    problem: str = ""
    """why these are not all that the machine has, or why there is none; "" when nothing is wrong"""
    mend: str = ""
    """what to do about it"""


def gpus() -> Gpus:
    """The GPUs that torch can use in this process. Makes no CUDA context."""
    import pynvml

    try:
        pynvml.nvmlInit()
        present = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return Gpus(0, f"the NVIDIA driver shows no GPU ({error})")
    if not present:
        return Gpus(0, "the NVIDIA driver shows no GPU")
    import torch  # only where there is a GPU: it takes a second

    found = f"the driver has {present} GPU{'s' * (present > 1)}"
    if torch.version.cuda is None:
        return Gpus(
            0,
            f"{found}, but torch {torch.__version__} is built for CPUs only",
            "install a torch built for CUDA (pytorch.org says how)",
        )
    count = torch.cuda.device_count()  # asks the driver's library too, and reads CUDA_VISIBLE_DEVICES as CUDA does
    if count == present:
        return Gpus(count)
    return Gpus(
        count,
        f"{found}, and CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r} leaves {count} visible",
        "unset CUDA_VISIBLE_DEVICES",
    )


def torch_device(names: Sequence[str]) -> str:
    """torch's name of a rank's first device."""
    first = Device.parse(names[0]) if names else None
    return first.local if first and first.kind == "cuda" else "cpu"


def use_device(device: str, own_stream: bool = False) -> None:
    """Make a rank's own thread use its GPU, of several, where none is named. None is named by ``.cuda()``, by NCCL, or
    by a tensor that comes in a message. ``own_stream``: what it gives to the GPU does not queue behind what other
    threads have given to it.
    """
    if own_stream:
        import torch

        torch.cuda.set_stream(torch.cuda.Stream(device))  # makes the device the current one, too
        return
    number = device.removeprefix("cuda:")
    if number == device or number == "0":  # which is the current one of every thread
        return
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(device)


def finish_work(device: str, own_stream: bool = False) -> None:
    """Wait until a GPU has done what a call has given to it. Only then the call is over, and its devices may be
    somebody else's. ``own_stream``: what others have given to other streams may go on.
    """
    torch = sys.modules.get("torch")
    if torch is not None and device.startswith("cuda"):
        if own_stream:
            torch.cuda.current_stream(device).synchronize()
        else:
            torch.cuda.synchronize(device)
