"""A rank that comes to a device which does not hold all is built there in its turn: what is there leaves first, and comes back to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from flows import Numbers
from sessions import both, opened, until
from torch import nn

from rlinf_lab.errors import Cancelled, ExecutorError, WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.session.session import Session
from rlinf_lab.workers import TorchWorker
from rlinf_lab.workflow.worker import Inbox, Outbox
from rlinf_lab.workflow.workflow import Workflow


class Guest(TorchWorker):
    """``there``: who is on the tight device. ``beside``: who else was, when somebody was built there or at work."""

    there: ClassVar[set[str]] = set()
    beside: ClassVar[list[set[str]]] = []
    fails: ClassVar[bool] = False
    released: ClassVar[threading.Event] = threading.Event()

    def __init__(self, module: nn.Module | None = None) -> None:
        self.module = module or nn.Linear(4, 1)

    def _leaves_at_once(self) -> bool:
        return True  # as on a GPU

    def is_here(self, yes: bool = True) -> None:
        if (self.name, self.rank) != ("works", 0):  # it has a device of its own
            (Guest.there.add if yes else Guest.there.discard)(self.name)

    def look(self, seconds: float) -> None:
        for _ in range(2):
            if (self.name, self.rank) != ("works", 0):
                Guest.beside.append(Guest.there - {self.name})
            self.compute(seconds / 2)

    def setup(self) -> None:
        if (self.name, self.rank) == ("works", 0):
            self.module = nn.Linear(4, 1)
        self.is_here()
        self.look(0.02)
        if Guest.fails and self.rank:
            raise ValueError("no model")

    def onload(self) -> None:
        super().onload()
        self.is_here()

    def offload(self) -> None:
        super().offload()
        self.is_here(False)

    def close(self) -> None:
        self.is_here(False)


    def convert(self, inbox: Inbox, out: Outbox) -> None:
        for batch in inbox:
            self.look(0.002)
            out.put_all((item, self.rank) for item in batch)

    def consume(self, inbox: Inbox) -> list[tuple[int, int]]:
        found = []
        for batch in inbox:
            self.look(0.002)
            found += batch
        return found

    def hold(self) -> None:
        """Its device, until it is told to let go, or the run ends."""
        self.look(0.002)
        while not Guest.released.is_set():
            self.compute(0.002)


def tight(device_memory: int = 3, module: nn.Module | None = None) -> tuple[Workflow, ExecutionPlan]:
    flow = Workflow("tight")
    numbers, done = flow.channel("numbers", capacity=4), flow.channel("done", capacity=4)
    source, works, sink = flow.worker(Numbers, name="source"), flow.worker(Guest, module, name="works"), flow.worker(Guest, module, name="sink")

    @flow.iteration
    def iteration(items: int, holds: bool = False) -> Any:
        if holds:
            return sink.hold()
        source.make(items, numbers)
        works.convert(numbers, done)
        return sink.consume(done)

    places, memory = {"source": ((2,),), "works": ((1,), (0,)), "sink": ((0,),)}, {"works": 2, "sink": 2}
    return flow, ExecutionPlan("tight", ("cpu:0", "cpu:1", "cpu:2"), places, memory=memory, device_memory=device_memory)


@contextmanager
def one_is_absent(flow: Workflow, plan: ExecutionPlan, kind: str = "local", fails: bool = False) -> Iterator[Session]:
    Guest.there.clear(), Guest.beside.clear()
    Guest.fails = fails
    Guest.released.clear()
    with opened(kind, flow, plan, 0.0005, absent={"works": [1]}) as s:
        yield s
    assert not Guest.there


@contextmanager
def meanwhile(do: Callable[[], Any]) -> Iterator[None]:
    thread = threading.Thread(target=lambda: (time.sleep(0.05), do()))
    thread.start()
    yield
    thread.join()


@both
@pytest.mark.parametrize(("device_memory", "most"), [(3, 0), (4, 1)])
def test_nobody_is_built_beside_whom_the_device_does_not_hold(kind: str, device_memory: int, most: int) -> None:
    with one_is_absent(*tight(device_memory), kind) as s:
        for _ in range(2):
            with meanwhile(lambda: s.join("works", 1)):
                assert sorted(item for item, _ in s.step(60)) == list(range(60))
            ranks = {rank for _, rank in s.step(100)}
            assert ranks == {0, 1}
            s.leave("works", 1)
        s.join("works", 1)  # while nobody works
        assert len(s.step(20)) == 20
    assert max(map(len, Guest.beside)) == most


def test_what_it_shares_with_who_has_left_for_it_is_there_again() -> None:
    """Its setup finds it in host memory. It is on its device already, so nothing else would bring it."""
    module = nn.Linear(4, 1)
    with one_is_absent(*tight(3, module)) as s:
        s.step(5)
        s.join("works", 1)
        there = {p.label: p.instance for p in s._executor.driver_host.state.ranks if isinstance(p.instance, Guest)}
        assert there["works[1]"].module is there["sink[0]"].module is module
        assert not any(m.host.data_ptr() == module.weight.data_ptr() for worker in there.values() for m in worker._own_residence()._moved)
        assert len(s.step(20)) == 20


def test_one_that_cannot_be_built_gives_its_place_back() -> None:
    with one_is_absent(*tight(), fails=True) as s:
        s.step(5)
        for _ in range(3):
            with pytest.raises(WorkerError, match=r"failed in setup\(\): ValueError: no model"):
                s.join("works", 1)
            Guest.there.discard("works")
            assert len(s.step(5)) == 5
        Guest.fails = False
        s.join("works", 1)
        assert len(s.step(20)) == 20
    assert not any(Guest.beside)


def test_who_waits_for_its_place_goes_when_the_run_ends() -> None:
    """And a wait that ends before is a time-out of the caller, not of the rank."""
    with one_is_absent(*tight()) as s:
        held = s.submit(0, True)
        until(lambda: Guest.beside[1:])
        with pytest.raises(TimeoutError, match=r"has not been set up yet, after 0\.1 s\. That goes on\."):
            s.join("works", 1, timeout=0.1)
        Guest.released.set()
        held.wait()
        assert len(s.step(20)) == 20 and s.members["works"] == (0, 1)
        s.leave("works", 1)
        seen = len(Guest.beside)
        Guest.released.clear()
        s.submit(0, True)
        until(lambda: len(Guest.beside) > seen)
        with meanwhile(s._executor.stop), pytest.raises((Cancelled, ExecutorError), match="the run was stopped|has not been set up yet, and the run has ended"):
            s.join("works", 1)
