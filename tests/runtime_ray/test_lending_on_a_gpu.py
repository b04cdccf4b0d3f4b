"""CUDA's handles between two processes on one GPU. Needs a GPU: what does not is in `test_lending`, with host memory in its place."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest

from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.runtime.run.run import run
from rlinf_lab.runtime.transport.cuda_ipc import visible_gpus
from rlinf_lab.runtime.transport.links import Link
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.routing import QueueId
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker
from rlinf_lab.workflow.workflow import Workflow

pytestmark = pytest.mark.gpu

TAKER = """
    import gc, pickle, threading, torch
    from rlinf_lab.runtime.transport.listener import Listener
    kept, over = [], threading.Event()

    def hear(message):
        kind, *rest = message
        if kind == "put":
            before = torch.cuda.memory_allocated()
            (item,) = rest[2].open()
            tensor, (half, text) = item["t"], item["rest"]
            grown = torch.cuda.memory_allocated() - before
            tensor += 1  # the lender sees it
            torch.cuda.synchronize()
            kept.append((item, tensor, half))
            print("took", rest[5].transport, tensor.device, float(tensor[0]), str(half.dtype), float(half.sum()), text, grown < 1 << 20, flush=True)
            del item, tensor, half
        elif kind == "drop":
            kept.clear()
            del message, rest
            gc.collect()
            print("dropped", flush=True)

    listener = Listener("taker", hear, lambda h: over.set(), lambda h, e: print("error", e, flush=True))
    print(pickle.dumps(listener.address).hex(), flush=True)
    over.wait(120)
"""


class Taker:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(TAKER)], stdout=subprocess.PIPE, text=True)
        self.link = Link(pickle.loads(bytes.fromhex(self.line())), "lender")

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def put(self, item: Any) -> str:
        self.link.send(("put", QueueId("items", 0, 0, "taker", -1), 1, Packed.of_items([item], "items")[0], "lender", None))
        return self.line()

    @property
    def lent(self) -> dict[int, Any]:
        self.link.reclaim()
        return self.link._lender._lent


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return condition()


def test_the_ids_of_the_gpus_are_those_that_torch_tells() -> None:
    import torch

    from rlinf_lab.runtime.transport.cuda_ipc import CudaSharing

    assert [CudaSharing().identity(torch.zeros(1, device=f"cuda:{i}")) for i in range(torch.cuda.device_count())] == list(visible_gpus())


def test_two_processes_use_one_memory_and_free_it() -> None:
    import torch

    taker = Taker()
    size = 16 << 20  # floats: 64 MiB
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    sent = torch.full((size,), 1.0, device="cuda")
    half = torch.ones(10, 4, device="cuda", dtype=torch.bfloat16)[::2, 1:]
    assert taker.put({"t": sent, "rest": [half, "text"]}) == "took cuda_ipc cuda:0 2.0 torch.bfloat16 15.0 text True"
    largest = max((block for block, _ in taker.lent.values()), key=lambda b: b.numel())
    assert largest.view(torch.float32).mean() == 2 and sent.mean() == 1  # it has written into what was lent, not into the sender's own
    del largest, sent, half
    taker.link.send(("drop",))
    assert taker.line() == "dropped" and soon(lambda: not taker.lent)
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() <= start + (1 << 20)
    taker.link.close()
    taker.process.kill()
    taker.process.wait(20)


def test_the_memory_of_a_taker_that_dies_is_free() -> None:
    import torch

    taker = Taker()
    start = torch.cuda.memory_allocated()
    assert taker.put({"t": torch.ones(1 << 24, device="cuda"), "rest": [torch.ones(1, device="cuda"), "x"]}).startswith("took cuda_ipc")
    taker.process.kill()
    taker.process.wait(20)
    taker.link.peer_died()
    torch.cuda.ipc_collect()
    assert not taker.lent and torch.cuda.memory_allocated() <= start + (1 << 20)
    taker.link.close()


class Maker(Worker):
    def make(self, out: Outbox) -> Any:
        import torch

        for i in range(4):
            out.put({"i": i, "x": torch.full((1 << 20,), float(i), device=self.device)})
        return torch.arange(3.0, device=self.device)


class Taking(Worker):
    def take(self, inbox: Inbox) -> list[tuple[int, float, str]]:
        return [(item["i"], float(item["x"].mean()), item["x"].device.type) for chunk in inbox for item in chunk]


@pytest.mark.parametrize(("way", "name"), [("ipc", "cuda_ipc"), ("host", "cuda_host_copy")])
def test_the_timeline_names_the_way(way: str, name: str) -> None:
    """The taker sits on a core: its process sees the GPU as well. What the driver gets is there when the workers' processes have ended."""
    flow = Workflow("lent")
    items = flow.channel("items")
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taking, name="taker")

    @flow.iteration
    def iteration() -> Any:
        made = maker.make(items)
        return made, taker.take(items)

    going = run(flow, ExecutionPlan.spatial(flow, ["cuda:0", "cpu:0"], {"maker": [0], "taker": [1]}), 2, "processes", between_gpus=way)
    for made, taken in going.wait(120):
        assert made.tolist() == [0, 1, 2] and sorted(taken) == [(i, float(i), "cuda") for i in range(4)]
    rows = going.transports()
    assert set(rows[rows["channel"] == "items"]["transport"]) == {name}
    assert {s.name for s in going.timeline.rows() if s.kind == SpanKind.TRANSFER and s.channel == "items"} == {name}
