"""Memory lent from process to process: decided, named, written by its taker, given back once, released when nobody opens it or its taker dies.

CUDA itself: `test_lending_on_a_gpu`. Here host memory stands in for a GPU's, shared by torch's own handles.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import socket
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from ends import QUEUE, Ends, once_collected
from lent_host_memory import GPU, HostSharing, instead_of_a_gpu
from taker import Taker

from rlinf_lab import ExecutionPlan, Inbox, Outbox, Worker, Workflow
from rlinf_lab.errors import ExecutorError
from rlinf_lab.runtime.run.run import run
from rlinf_lab.runtime.transport import cuda_ipc as lending
from rlinf_lab.runtime.transport import pickling
from rlinf_lab.runtime.transport.collectives import Receivers
from rlinf_lab.runtime.transport.cuda_ipc import ids
from rlinf_lab.runtime.transport.frames import FrameReader, NotYetThere, Stream
from rlinf_lab.runtime.transport.links import Ways
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.runtime.transport.shared_memory import GREETING, LENT, SlotViews
from rlinf_lab.timeline.record.span import SpanKind

SAME_GPU: dict[str, Any] = {"gpus": (GPU,), "process": 0}


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> HostSharing:
    made = HostSharing()
    monkeypatch.setattr(pickling, "LENT_DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(lending, "SHARING", made)
    return made


@pytest.fixture
def ends(sharing: HostSharing) -> Iterator[Ends]:
    """Between two processes that see the same GPU."""
    made = Ends(**SAME_GPU)
    yield made
    made.close()
    assert not made.errors


def test_a_tensor_is_opened_where_it_lies_and_goes_back_when_its_last_view_dies(ends: Ends, sharing: HostSharing) -> None:
    sent = torch.arange(6.0)
    packed, way = ends.put([{"t": (sent, ["text", np.arange(3)])}])
    sent[:] = -1  # the caller is free to
    assert way == "cuda_ipc" and len(ends.lent) == 1
    (item,) = packed.open()
    del packed
    got, (text, array) = item["t"]
    assert got.tolist() == [0, 1, 2, 3, 4, 5] and text == "text" and array.tolist() == [0, 1, 2]
    ((block, _),) = ends.lent.values()
    got[0] = 7  # its own, and the same memory as what the sender keeps
    assert block.view(torch.float32)[0] == 7
    part = got[2:].reshape(2, 2)
    del item, got
    gc.collect()
    time.sleep(0.05)
    assert len(ends.lent) == 1 and part.sum() == 14  # a view holds it
    del part, block
    assert once_collected(lambda: not ends.lent) and not sharing.released and len(sharing.shared) == 1


def test_only_what_a_view_shows_is_kept_and_not_what_it_is_a_view_of(ends: Ends) -> None:
    whole = torch.zeros(1000, 10)
    storage = weakref.ref(whole)
    packed, _ = ends.put([whole[3], whole[3]])
    del whole
    assert storage() is None  # the sender's own memory is free, as after a switch
    assert sorted(block.numel() for block, _ in ends.lent.values()) == [40, 40]
    assert [t.shape for t in packed.open()] == [(10,), (10,)]


def test_what_nobody_opens_is_released(ends: Ends, sharing: HostSharing) -> None:
    packed, _ = ends.put([torch.ones(5)])
    assert len(ends.lent) == 1
    del packed  # its iteration was given up
    assert once_collected(lambda: not ends.lent) and sharing.released == sharing.shared


def test_a_frame_that_comes_in_parts_is_lent_once(ends: Ends, sharing: HostSharing) -> None:
    """A rank that listens reads what has arrived, and again from the beginning when there is more."""
    packed, _ = Packed.of_items([torch.ones(3), torch.full((2,), 2.0)], "items")
    frame = b"".join(ends.link._framed([pickle.dumps((QUEUE, "here", None)), packed.data], list(packed.buffers), [2, 0]))
    there, here = socket.socketpair()
    given: list[int] = []
    stream = Stream(here)
    slots = SlotViews(here, GREETING.pack(0, -1, b""))
    slots.give_back = given.append  # type: ignore[method-assign]
    frames = FrameReader(stream, slots, Receivers("127.0.0.1"), "unix")
    stream.waits = False
    for i in range(0, len(frame), 40):
        there.sendall(frame[i : i + 40])
        stream.fetch()
        mark = stream.mark()
        with contextlib.suppress(NotYetThere):
            assert frames.next() and i + 40 >= len(frame)
            break
        stream.back(mark)
    gc.collect()
    assert not given and not sharing.released
    items = frames.message()[3].open()
    assert [t.tolist() for t in items] == [[1, 1, 1], [2, 2]]
    frames.forget()
    del items
    gc.collect()
    assert sorted(n & ~LENT for n in given) == [0, 1]
    for n in given:
        ends.link._lender.given_back(n)
    there.close()
    here.close()


def test_values_and_items_that_are_passed_on_come_whole(ends: Ends) -> None:
    packed, _ = ends.put([torch.arange(4.0)])
    ends.link.send(("got", [(1, packed)]))  # a rank of a third host has asked for it
    del packed
    (count, again) = ends.next()[0]
    assert count == 1 and again.open()[0].tolist() == [0, 1, 2, 3]
    del again
    assert float(ends.send({"loss": torch.tensor(2.0)})["loss"]) == 2
    assert once_collected(lambda: not ends.lent)


def test_who_outlives_the_sender_has_a_copy(sharing: HostSharing) -> None:
    ends = Ends(outlives=True, **SAME_GPU)
    packed, way = ends.put([torch.arange(3.0)])
    got = packed.open()[0]
    assert way == "cuda_ipc" and once_collected(lambda: not ends.lent)  # at once, though the tensor lives
    assert got.tolist() == [0, 1, 2]
    ends.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"gpus": ("another",)}, f"its process does not see GPU {GPU}"), ({"node": "elsewhere"}, "it is on another node"),
        ({"process": os.getpid()}, "it is in this process"), ({"ways": Ways(between_gpus="host")}, ""),
    ],
    ids=["other_gpu", "other_node", "same_process", "asked"],
)  # fmt: skip
def test_where_nothing_can_be_lent_copies_are_made_and_told_once(sharing: HostSharing, caplog: Any, settings: dict[str, Any], reason: str) -> None:
    ends = Ends(**{**SAME_GPU, **settings})
    with caplog.at_level(logging.WARNING, "rlinf_lab"):
        for size in (3, 100_000, 1_000_000):
            packed, way = ends.put([torch.ones(size), "text"])
            assert way == "cuda_host_copy"
            got, text = packed.open()
            assert got.sum() == size and text == "text"
            got[0] = 5
    told = [f"Tensors on a GPU go to host 'there' through host memory, not by CUDA IPC: {reason}."] if reason else []
    assert [r.getMessage() for r in caplog.records] == told and not sharing.shared
    ends.close()


def test_memory_that_torch_cannot_share_is_copied(ends: Ends, sharing: HostSharing, caplog: Any) -> None:
    sharing.refuse_to_share = "pidfd_getfd: Operation not permitted\nat somewhere"
    with caplog.at_level(logging.WARNING, "rlinf_lab"):
        packed, way = ends.put([torch.ones(4)])
    assert way == "cuda_host_copy" and packed.open()[0].sum() == 4
    assert "torch cannot share the memory (pidfd_getfd: Operation not permitted)" in caplog.text


def test_a_process_that_may_not_open_it_says_so_and_gives_it_back(ends: Ends, sharing: HostSharing) -> None:
    packed, _ = ends.put([torch.ones(4)])
    sharing.refuse_to_open = "invalid device context"
    with pytest.raises(ExecutorError, match=r"GPU the-gpu cannot be opened in this process: invalid device context\. .*Next: .*between_gpus='host'"):
        packed.open()
    del packed
    assert once_collected(lambda: not ends.lent) and sharing.released == sharing.shared


class Lending(Worker):
    """Its process takes host memory for a GPU that all see."""

    def setup(self) -> None:
        self.sharing = instead_of_a_gpu()
        lending.Lender._gpus = property(lambda lender: {GPU}, lambda lender, gpus: None)  # type: ignore[assignment]


class Source(Lending):
    def make(self, out: Outbox) -> int:
        self.state = torch.zeros(1000)
        for i in range(6):
            self.state[:] = i
            out.put({"i": i, "x": self.state, "deep": (["text", self.state[10:20]],)})
        return len(self.sharing.shared)

    def offload(self) -> None:
        self.state = torch.zeros(0)  # gone, as when somebody else needs the GPU


class Sink(Lending):
    def take(self, inbox: Inbox) -> list[tuple[int, float, float, str]]:
        items = [item for chunk in inbox for item in chunk]
        return [(i["i"], float(i["x"].mean()), float(i["deep"][0][1].sum()), i["deep"][0][0]) for i in items]

    def released(self) -> int:
        return len(self.sharing.released)


def test_a_run_lends_tensors_and_its_timeline_says_so() -> None:
    flow = Workflow("lent")
    items = flow.channel("items", capacity=3)
    source, sink = flow.worker(Source, name="source"), flow.worker(Sink, name="sink")

    @flow.iteration
    def iteration() -> Any:
        made = source.make(items)
        return made, sink.take(items), sink.released()

    going = run(flow, ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"source": [0], "sink": [1]}), 3, "processes", emulate=True)
    for number, (shared, taken, released) in enumerate(going.wait(60)):
        assert taken == [(i, float(i), 10.0 * i, "text") for i in range(6)]
        assert 0 < shared <= 12 * (number + 1) and released == 0  # the last ones may be on their way to be sent when make() returns
    rows = going.transports().set_index("channel").loc["items"]
    assert rows["transport"] == "cuda_ipc" and rows["items"] == 18 and rows["bytes"] > 18 * 4000
    assert {s.name for s in going.timeline.rows() if s.kind == SpanKind.TRANSFER and s.channel == "items"} == {"cuda_ipc"}


def test_between_two_processes_the_memory_is_one_and_is_freed_also_when_the_taker_dies(sharing: HostSharing) -> None:
    taker, half = Taker(on_a_gpu=False), torch.ones(10, 4, dtype=torch.bfloat16)[::2, 1:]
    for i in range(3):
        assert taker.put(torch.full((1000,), float(i)), half) == f"took cuda_ipc cpu {i + 1.0} torch.bfloat16 15.0 text True"
    blocks = [block.view(torch.float32) for block, _ in taker.lent.values() if block.numel() == 4000]
    assert [float(b.mean()) for b in blocks] == [1, 2, 3]  # what the taker has written
    del blocks
    taker.drop()
    assert once_collected(lambda: not taker.lent) and not sharing.released
    for i in (1, 2):
        taker.put(torch.zeros(10), half)
        assert len(taker.lent) == 2 * i
    taker.die()
    assert not taker.lent and len(sharing.released) == 4  # in its place: a process that dies does not count down
    taker.close()


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ["aa1", "ab2", "ac3"]), ("2,0", ["ac3", "aa1"]), ("GPU-ab", ["ab2"]), ("GPU-a", []), ("", []), ("1,7,0", ["ab2"]),
        ("-1", []), ("MIG-77", ["77"]),
    ],
)  # fmt: skip
def test_which_gpus_a_process_sees(visible: str | None, found: list[str]) -> None:
    there = ["GPU-aa1", "GPU-ab2", "GPU-ac3"]
    nvml = SimpleNamespace(
        nvmlDeviceGetCount=lambda: 3, nvmlDeviceGetHandleByIndex=there.__getitem__, nvmlDeviceGetHandleByUUID=str, nvmlDeviceGetUUID=str,
    )  # fmt: skip
    assert list(ids(nvml, visible)) == found
