"""Context switching: a torch model out of its device and in again, against copying the same bytes out and in."""

from __future__ import annotations

import time

import torch
from harness import Case
from torch import nn

from rlinf_lab.workers import Residence

MIB = 2**20


def model(mib: int) -> nn.Module:
    """Layers of 4 MiB."""
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(max(1, mib // 4))))


class Pair:
    """A model that switches, and its bytes, which are copied; ``copies``: into memory that is there, ``clones``: into memory asked for."""

    def __init__(self, mib: int) -> None:
        self.residence = Residence([model(mib)], "cpu")
        self.there = [torch.rand(MIB) for _ in range(max(1, mib // 4))]
        self.here = [torch.rand(MIB) for _ in self.there]
        self.switch()

    def switch(self) -> float:
        start = time.perf_counter()
        self.residence.leave()
        self.residence.come_back()
        return (time.perf_counter() - start) * 1e3

    def copies(self) -> float:
        start = time.perf_counter()
        for source, target in ((self.there, self.here), (self.here, self.there)):
            for a, b in zip(source, target, strict=True):
                b.copy_(a)
        return (time.perf_counter() - start) * 1e3

    def clones(self) -> float:
        start = time.perf_counter()
        out = [a.clone() for a in self.there]
        for a in out:
            a.clone()
        return (time.perf_counter() - start) * 1e3


def cases(smoke: bool) -> list[Case]:
    torch.set_num_threads(1)
    pair = Pair(8 if smoke else 100)
    sizes = (4, 8) if smoke else (10, 30, 100, 300)

    def curve() -> list[list[float]]:
        pairs = [(mib, Pair(mib)) for mib in sizes]
        return [[mib, min(p.switch() for _ in range(5)), min(p.copies() for _ in range(5))] for mib, p in pairs]

    return [
        Case(
            "switch_100mb", "ms", pair.switch, {"two copies into memory that is there": pair.copies},
            target="<= 1.5", runs=25, curve=curve, note="100 MiB out and in, on a core; curve: MiB, ms of a switch, ms of two copies (best of five)",
        ),
        Case(
            "switch_100mb, new memory", "ms", pair.switch, {"two copies into new memory": pair.clones}, target="<= 1.5", runs=15,
            note="the peer gives its memory back to the system each time, so both pay for new pages",
        ),
    ]  # fmt: skip
