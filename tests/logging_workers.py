"""Small workflows whose workers log, and their runs: what a dashboard shows is made of that. Importable by every room of tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import rlinf_lab as lab
from rlinf_lab.workflow.worker import Worker
from rlinf_lab.workflow.workflow import Workflow


class Counts(Worker):
    def __init__(self) -> None:
        self.seen_at_birth = (self.name, self.rank, self.ranks, self.device)

    def setup(self) -> None:
        self.log(parameters=12.0 + self.rank)

    def go(self, i: int = 0) -> int:
        self.log(x=float(i + self.rank))
        return i

    def birth(self) -> tuple[str, int, int, str]:
        return self.seen_at_birth

    def say(self, metrics: dict[str, Any]) -> None:
        self.log(**metrics)

    def label(self, label: Any) -> None:
        with self.span(label):
            pass

    def raises(self) -> None:
        raise Unprintable

    def show(self) -> None:
        self.frame(np.zeros((4, 4, 3), np.uint8))


def made(call: Any, ranks: int = 1, **workers: type[Worker]) -> tuple[Workflow, lab.ExecutionPlan]:
    """A workflow whose iteration is ``call(handles, argument)``."""
    flow = Workflow("watched")
    handles = {name: flow.worker(cls, name=name) for name, cls in (workers or {"w": Counts}).items()}

    @flow.iteration
    def iteration(argument: Any = 0) -> Any:
        return call(handles, argument)

    return flow, lab.ExecutionPlan.temporal(flow, [f"cpu:{i}" for i in range(ranks)], dict.fromkeys(handles, ranks))


def counted() -> tuple[Workflow, lab.ExecutionPlan]:
    return made(lambda h, i: h["w"].go(i))


def ended(going: Any) -> Any:
    going.wait(30)
    return going


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")
