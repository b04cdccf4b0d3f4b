"""CUDA's handles between two processes on one GPU. Needs a GPU: what does not is in `test_lending`, with host memory in its place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from ends import once_collected
from taker import Taker

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.runtime.run.run import run
from rlinf_lab.runtime.transport.cuda_ipc import visible_gpus
from rlinf_lab.timeline.record.span import SpanKind

pytestmark = pytest.mark.gpu

def test_the_ids_of_the_gpus_are_those_that_torch_tells() -> None:
    import torch

    from rlinf_lab.runtime.transport.cuda_ipc import CudaSharing

    assert [CudaSharing().identity(torch.zeros(1, device=f"cuda:{i}")) for i in range(torch.cuda.device_count())] == list(visible_gpus())


def test_two_processes_use_one_memory_and_free_it() -> None:
    import torch

    taker = Taker(on_a_gpu=True)
    size = 16 << 20  # floats: 64 MiB
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    sent = torch.full((size,), 1.0, device="cuda")
    half = torch.ones(10, 4, device="cuda", dtype=torch.bfloat16)[::2, 1:]
    assert taker.put(sent, half) == "took cuda_ipc cuda:0 2.0 torch.bfloat16 15.0 text True"
    largest = max((block for block, _ in taker.lent.values()), key=lambda b: b.numel())
    assert largest.view(torch.float32).mean() == 2 and sent.mean() == 1  # it has written into what was lent, not into the sender's own
    del largest, sent, half
    taker.drop()
    assert once_collected(lambda: not taker.lent)
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() <= start + (1 << 20)
    taker.close()


def test_the_memory_of_a_taker_that_dies_is_free() -> None:
    import torch

    taker = Taker(on_a_gpu=True)
    start = torch.cuda.memory_allocated()
    assert taker.put(torch.ones(1 << 24, device="cuda"), torch.ones(1, device="cuda")).startswith("took cuda_ipc")
    taker.die()
    torch.cuda.ipc_collect()
    assert not taker.lent and torch.cuda.memory_allocated() <= start + (1 << 20)
    taker.close()


class Maker(Worker):
    def make(self, out: Outbox) -> Any:
        import torch

        for i in range(4):
            out.put({"i": i, "x": torch.full((1 << 20,), float(i), device=self.device)})
        return torch.arange(3.0, device=self.device)


class Taking(Worker):
    def take(self, inbox: Inbox) -> list[tuple[int, float, str]]:
        return [(item["i"], float(item["x"].mean()), str(item["x"].device)) for chunk in inbox for item in chunk]


@pytest.mark.parametrize(
    ("way", "devices", "name"),
    [("ipc", ["cuda:0", "cpu:0"], "cuda_ipc"), ("host", ["cuda:0", "cpu:0"], "cuda_host_copy"), ("nccl", ["cuda:0", "cuda:1"], "nccl")],
)
def test_the_timeline_names_the_way(way: str, devices: list[str], name: str) -> None:
    """A taker on a core sees the GPU as well; of two GPUs each process has its own as the first. What the driver gets is there when they have ended."""
    import torch

    if way == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    flow = Workflow("lent")
    items = flow.channel("items")
    maker, taker = flow.worker(Maker, name="maker"), flow.worker(Taking, name="taker")

    @flow.iteration
    def iteration() -> Any:
        made = maker.make(items)
        return made, taker.take(items)

    going = run(flow, ExecutionPlan.spatial(flow, devices, {"maker": [0], "taker": [1]}), 2, "processes", between_gpus=way)
    for made, taken in going.wait(120):
        assert made.tolist() == [0, 1, 2] and sorted(taken) == [(i, float(i), "cuda:0") for i in range(4)]
    rows = going.transports()
    assert set(rows[rows["channel"] == "items"]["transport"]) == {name}
    assert {s.name for s in going.timeline.rows() if s.kind == SpanKind.TRANSFER and s.channel == "items"} == {name}
