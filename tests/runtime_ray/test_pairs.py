"""Memory by torch.distributed: Gloo between nodes, and, with Gloo in NCCL's place, between GPUs that do not see each other.

NCCL itself: `test_lending_on_a_gpu`.
"""

from __future__ import annotations

import logging
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from ends import Ends
from lent_host_memory import HostSharing
from sessions import until

from rlinf_lab.errors import ExecutorError
from rlinf_lab.runtime.transport import collectives, cuda_ipc, links, pickling
from rlinf_lab.runtime.transport.links import Ways

BIG = 1 << 18  # of eight bytes: 2 MiB


def test_gloo_carries_large_arrays_in_order_and_the_stream_the_rest() -> None:
    ends = Ends(Ways("gloo"), ray_node="elsewhere")
    array = np.zeros(BIG)
    for i in range(5):
        array[:] = i
        ends.link.send(("value", {"i": i, "a": array, "t": [torch.full((BIG,), float(i)), "text"], "small": np.arange(3)}))
    array[:] = -1  # the caller is free to
    for i in range(5):
        got = ends.next()
        assert got["i"] == i and (got["a"] == i).all() and (got["t"][0] == i).all() and got["t"][1] == "text" and got["small"].tolist() == [0, 1, 2]
        got["a"][0] = got["t"][0][0] = 7  # its own
    packed, way = ends.put([np.ones(BIG), 5])
    assert way == "gloo" and packed.open()[0].sum() == BIG
    assert ends.put([np.ones(10)])[1] == "tcp"
    ends.close()
    assert not ends.errors and not ends.broken


@pytest.fixture
def by_nccl(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ends]:
    """Host memory in the place of a GPU's."""
    monkeypatch.setattr(pickling, "LENT_DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(cuda_ipc, "SHARING", HostSharing())
    return lambda *gpus: Ends(Ways(between_gpus="nccl"), gpus=gpus, process=0)


@pytest.fixture
def gpus(by_nccl: Callable[..., Ends], monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Gloo in the place of NCCL."""
    monkeypatch.setattr(links, "BETWEEN_GPUS", "gloo")
    return by_nccl("another")


def test_a_tensor_goes_from_gpu_to_gpu(gpus: Ends, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, "rlinf_lab"):
        packets = [gpus.put([{"t": (torch.full((size,), float(size), dtype=torch.bfloat16), "text")}]) for size in (1, 4, 100_000)]
    for size, (packed, way) in zip((1, 4, 100_000), packets, strict=True):
        tensor, text = packed.open()[0]["t"]
        assert way == "nccl" and tensor.shape == (size,) and tensor.dtype == torch.bfloat16 and text == "text"
        assert (tensor == torch.tensor(float(size), dtype=torch.bfloat16)).all()
    assert not caplog.records  # nothing went through host memory
    gpus.put([torch.ones(5)])  # nobody opens it: it holds up nobody
    packed, _ = gpus.put([torch.arange(3.0)])
    gpus.link.send(("got", [(1, packed)]))  # a rank of a third host has asked for it
    assert gpus.next()[0][1].open()[0].tolist() == [0, 1, 2]
    assert gpus.send({"w": torch.ones(2, 3)})["w"].sum() == 6
    gpus.close()
    assert not gpus.errors


def test_a_group_that_cannot_be_made_is_told_and_the_next_tensor_takes_the_other_way(gpus: Ends, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    made = collectives._group

    def refuse(backend: str, store: Any, rank: int, address: str) -> Any:
        if rank == 0:
            time.sleep(0.3)  # the first tensor has been announced by then
            raise RuntimeError("NCCL error: no network\nand more")
        return made(backend, store, rank, address)

    monkeypatch.setattr(collectives, "_group", refuse)
    monkeypatch.setattr(collectives, "TIMEOUT_SECONDS", 1.0)
    with caplog.at_level(logging.WARNING, "rlinf_lab"):
        packed, way = gpus.put([torch.ones(3)])
        with pytest.raises(ExecutorError, match=r"did not arrive by torch\.distributed: .*Next: .*between_gpus='host'"):
            packed.open()
        packed, after = gpus.put([torch.ones(3)])
    assert (way, after) == ("nccl", "cuda_host_copy") and packed.open()[0].sum() == 3
    assert [r.getMessage() for r in caplog.records] == [
        "gloo to host 'there' has failed (RuntimeError: NCCL error: no network); what follows takes the other way.",
        "Tensors on a GPU go to host 'there' through host memory, not by CUDA IPC: its process does not see GPU the-gpu.",
    ]
    gpus.close()


def test_a_receiver_without_a_gpu_gets_a_copy(by_nccl: Callable[..., Ends]) -> None:
    ends = by_nccl()
    packed, way = ends.put([torch.ones(3)])
    assert way == "cuda_host_copy" and packed.open()[0].sum() == 3
    ends.close()


SENDER = """
import dataclasses, pickle, sys, time
sys.path.insert(0, sys.argv[2])
from lent_host_memory import instead_of_a_gpu
import torch
from rlinf_lab.runtime.transport import collectives, links
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.routing import QueueId
instead_of_a_gpu()
links.BETWEEN_GPUS = "gloo"
address = dataclasses.replace(pickle.loads(bytes.fromhex(sys.argv[1])), gpus=("another",))
link = links.Link(address, "sender", links.Ways(between_gpus="nccl"))
send = lambda x: link.send(("put", QueueId("items", 0, 0, "there", -1), 1, Packed.of_items([x], "items")[0], "sender", None))
send(torch.ones(3))
time.sleep(1)
collectives.Sender.place = lambda self, block: collectives.HEAD.pack(len(self._described)) + self._described  # told, and never sent
send(torch.ones(3))
time.sleep(600)
"""


def test_a_sender_that_dies_does_not_leave_its_taker_waiting() -> None:
    ends = Ends()
    child = subprocess.Popen([sys.executable, "-c", SENDER, pickle.dumps(ends.listener.address).hex(), str(Path(__file__).parent)])
    first, second = (ends.heard.get(timeout=60)[3] for _ in range(2))
    assert first.open()[0].sum() == 3
    threading.Timer(0.3, child.kill).start()
    with pytest.raises(ExecutorError, match=r"did not arrive by torch\.distributed"):
        second.open()
    until(lambda: ends.broken == ["sender"])
    child.wait(60)
    ends.close()


class SilentNCCL:
    """What NCCL does when the other side has died: a transfer is never over, unless it is aborted."""

    made: ClassVar[queue.Queue[SilentNCCL]] = queue.Queue()  # by the thread that sends

    def __init__(self, *_: Any) -> None:
        self.asked, self.aborted = threading.Event(), threading.Event()
        self.made.put(self)

    def send(self, *_: Any) -> SilentNCCL:
        self.asked.set()
        return self

    def wait(self) -> None:
        assert self.aborted.wait(30)
        raise RuntimeError("NCCL communicator was aborted")

    def abort(self) -> None:
        self.aborted.set()


def test_what_is_on_its_way_to_a_taker_that_dies_is_aborted(by_nccl: Callable[..., Ends], monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(collectives, "_group", SilentNCCL)
    monkeypatch.setattr(collectives.Receivers, "_work", lambda *_: None)  # it is dead
    ends = by_nccl("another")
    assert ends.put([torch.ones(3)])[1] == "nccl"
    sender = ends.link._senders._by_source["cpu"]
    group = SilentNCCL.made.get(timeout=30)
    assert group.asked.wait(30)
    with caplog.at_level(logging.WARNING, "rlinf_lab"):
        ends.link.peer_died()
        sender._thread.join(10)
    assert group.aborted.is_set() and not sender._thread.is_alive() and not caplog.records
    assert ends.put([torch.ones(3)])[1] == "cuda_host_copy"
    ends.close()
