"""Where a profile was measured, so that a stale one can be told."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlinf_lab.planning.schema.json_schema import rule

PACKAGES = ("rlinf-lab", "numpy", "torch", "vllm", "transformers")


@dataclass(frozen=True)
class Fingerprint:
    """Hardware and versions. Two of them are compared by `differences`."""

    versions: Mapping[str, str] = rule(doc="of Python and of the packages that decide speed")
    processor: str = rule("", doc="model name of the CPU")
    cores: int = rule(0, low=0, doc="cores that may be used")
    devices: tuple[str, ...] = rule((), doc="names of the accelerators, such as 'NVIDIA H100'")
    measured: tuple[str, ...] = rule(
        (), doc="arguments and code of the iteration and of each worker, 'name: ...'; none: not compared"
    )

    @classmethod
    def here(cls, devices: Collection[str] | None = None) -> Fingerprint:
        """Of this machine. ``devices``: names of the accelerators that count (default: those that the driver shows)."""
        import os

        versions = {"python": platform.python_version()}
        for package in PACKAGES:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        return cls(
            versions, _processor(), len(os.sched_getaffinity(0)), tuple(_accelerators() if devices is None else devices)
        )

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """One sentence for each thing that changed. ``self`` was measured on its accelerators, if on any; the other
        must have such ones.
        """
        found = []
        if self.processor != other.processor:
            found.append(f"processor was {self.processor!r}, is {other.processor!r}")
        if self.cores != other.cores:
            found.append(f"cores were {self.cores}, are {other.cores}")
        if not {*self.devices} <= {*other.devices}:
            found.append(f"devices were {_counted(self.devices)}, are {_counted(other.devices) or 'none'}")
        for package in sorted({*self.versions, *other.versions}):
            before, now = self.versions.get(package, "absent"), other.versions.get(package, "absent")
            if before != now:
                found.append(f"{package} was {before}, is {now}")
        return tuple(found)

    def __str__(self) -> str:
        return ", ".join(
            [
                *filter(None, [_counted(self.devices)]),
                f"{self.processor or 'unknown processor'} with {self.cores} cores",
            ]
        )


def _accelerators() -> list[str]:
    """Names of all GPUs of this machine, as NVIDIA's driver and torch call them. None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:
        return []


def _counted(names: Collection[str]) -> str:
    """``8 × NVIDIA H100`` for eight of one name."""
    counts = Counter(names)
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in counts.items())


def _processor() -> str:
    """Linux says more than `platform`, which often gives the architecture only."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.processor() or platform.machine(),
    )
