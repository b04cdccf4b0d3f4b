"""Channels whose items wait in host memory. Host memory stands for that of a GPU, as in the tests of lending; torch's "meta" device for the reader's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from sessions import both, opened

from rlinf_lab.errors import WorkerError
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.executors import local
from rlinf_lab.runtime.run.run import session
from rlinf_lab.runtime.transport import cpu_offload as resting
from rlinf_lab.runtime.transport import pickling
from rlinf_lab.runtime.transport.cpu_offload import Resting
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow


class Maker(Worker):
    def make(self, n: int, out: Outbox, go: Outbox) -> None:
        out.put_all({"t": torch.full((4, 2), float(i)), "half": (torch.ones(3, dtype=torch.bfloat16) * i, i)} for i in range(n))
        out.put("no tensor")

    def locks(self, n: int, out: Outbox, go: Outbox) -> None:
        out.put(threading.Lock())


class Taker(Worker):
    def take(self, inbox: Inbox, go: Inbox) -> list[Any]:
        go.get_all()
        found = [item for batch in inbox for item in batch]
        return [item if isinstance(item, str) else (str(item["t"].device), item["t"].tolist() if item["t"].device.type != "meta" else item["t"].shape,
                item["half"][0].dtype == torch.bfloat16, item["half"][1]) for item in found]  # fmt: skip


def flow_of(makes: str = "make", **channel: Any) -> Workflow:
    flow = Workflow("offload")
    items, go = flow.channel("items", cpu_offload=True, **channel), flow.channel("go", may_be_empty=True)
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taker, name="taker")

    @flow.iteration
    def iteration(n: int) -> Any:
        getattr(maker, makes)(n, items, go)
        return taker.take(items, go)

    return flow


PLAN = ExecutionPlan("offload", ("cpu:0", "cpu:1"), {"maker": ((0,),), "taker": ((1,),)}, micro_batches={"items": 2})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickling, "LENT_DEVICES", frozenset({"cpu"}))


def expected(n: int, device: str = "cpu") -> list[Any]:
    shape = torch.Size((4, 2))
    return [*((device, [[float(i)] * 2] * 4 if device == "cpu" else shape, True, i) for i in range(n)), "no tensor"]


@pytest.mark.parametrize("channel", [{"capacity": None}, {"capacity": 2}, {"capacity": None, "order": "lifo"}])
@both
def test_what_waits_waits_in_host_memory_and_comes_as_it_was(gpu: None, kind: str, channel: dict[str, Any]) -> None:
    with opened(kind, flow_of(**channel), PLAN) as s:
        assert s.step(5) == (expected(5)[::-1] if channel.get("order") else expected(5))


def test_items_in_the_queue_hold_no_memory_of_the_gpu(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    woken = resting.wake
    monkeypatch.setattr("rlinf_lab.runtime.host.channels.ports.wake", lambda item, device: seen.append(item) or woken(item, device))
    with session(flow_of(capacity=None), PLAN, emulate=True) as s:
        assert s.step(3) == expected(3)
    assert [type(item) for item in seen] == [Resting, Resting, Resting, str]
    assert all(type(buffer) is memoryview for item in seen[:3] for buffer in item._buffers)


def test_tensors_come_to_the_device_of_their_reader(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "torch_device", lambda names: "meta" if names == ("cpu:1",) else "cpu")
    with session(flow_of(capacity=None), PLAN, emulate=True) as s:
        assert s.step(3) == expected(3, "meta")


def test_without_tensors_on_a_gpu_readers_get_the_very_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    item = [torch.ones(3), {"x": 1}]
    assert resting.wake(resting.rest(item, "items"), "cpu") is item


def test_what_does_not_pickle_is_named(gpu: None) -> None:
    with session(flow_of("locks"), PLAN, emulate=True) as s, pytest.raises(WorkerError, match=r"An item of channel 'items' \(lock\) cannot be sent"):
        s.step(1)


def test_between_processes() -> None:
    with session(flow_of(capacity=2), PLAN, executor="processes", emulate=True) as s:
        assert s.step(5) == expected(5)
