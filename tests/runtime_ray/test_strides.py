"""A tensor arrives with the strides that it has, whichever way it travels: channels last stays so. What has gaps arrives as its clone would be."""

from __future__ import annotations

import dataclasses
import pickle
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lent_host_memory import HostSharing

import rlinf_lab as lab
from rlinf_lab.runtime.transport import cuda_ipc, pickling
from rlinf_lab.runtime.transport.links import Link
from rlinf_lab.runtime.transport.listener import Listener

torch = pytest.importorskip("torch")


def kinds(scale: int) -> dict[str, Any]:
    """``scale``: 1 for what travels in the stream, more for shared memory."""
    images = torch.arange(2 * 3 * 4 * 5 * scale * scale).reshape(2, 3, 4 * scale, 5 * scale)
    table = torch.arange(6.0 * scale * scale).reshape(2 * scale, 3 * scale)
    last = torch.channels_last
    return {
        "contiguous": images, "channels last": images.contiguous(memory_format=last), "one channel last": images[:, :1].contiguous(memory_format=last),
        "transposed": table.T, "permuted": images.permute(3, 0, 2, 1), "halves": table.T.to(torch.bfloat16), "complex": table.T.to(torch.complex64).conj(),
        "mask": table.T > 3, "columns": table[:, ::2], "rows": table[1:], "some of the permuted": images.permute(0, 2, 3, 1)[:, :, 1:],
        "expanded": table[0].expand(4, -1), "empty": table.T[:, :0], "a number": torch.tensor(3.0), "a half": torch.tensor(3.0, dtype=torch.bfloat16),
        "learnt": table.T.clone().requires_grad_(),
    }  # fmt: skip


def assert_as_sent(got: dict[str, Any], sent: dict[str, Any]) -> None:
    for name, tensor in sent.items():
        clone = tensor.detach().resolve_conj().clone()
        there = got[name]
        assert there.dtype == tensor.dtype and there.requires_grad == tensor.requires_grad and torch.equal(there.detach(), clone), name
        assert there.stride() == clone.stride(), (name, there.stride(), clone.stride())


def through_a_link(way: Callable[[Any], Any], value: Any) -> Any:
    heard: list[tuple] = []
    came = threading.Event()
    listener = Listener("b", lambda message: (heard.append(message), came.set()), lambda host: None, lambda host, error: heard.append((host, error)))
    link = Link(way(listener.address), "a")
    try:
        link.send(("value", value))
        assert came.wait(20), heard
        return heard[0][1]
    finally:
        link.close()
        listener.close()


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_between_processes(way: str, scale: int) -> None:
    """Before, all of them came contiguous."""
    sent = kinds(scale)
    assert_as_sent(through_a_link(lambda address: address if way == "unix" else dataclasses.replace(address, node="another"), sent), sent)


def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of torch's own memory, which stands for a GPU's; by handles, and through host memory."""
    monkeypatch.setattr(pickling, "LENT_DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(cuda_ipc, "SHARING", HostSharing())
    sent = kinds(1)
    data, beside = pickling.pickled(sent)
    assert_as_sent(pickle.loads(data, buffers=beside), sent)
    assert_as_sent(pickle.loads(data, buffers=[bytearray(block.on_host()) for block in beside]), sent)


class Gives(lab.Worker):
    def give(self, out: lab.Outbox) -> Any:
        out.put(kinds(100))
        return kinds(1)


class Takes(lab.Worker):
    def take(self, inbox: lab.Inbox) -> Any:
        return inbox.take()


@pytest.mark.parametrize("executor", ["local", "processes"])
def test_in_a_run(executor: str) -> None:
    """Of one process it is the object itself."""
    flow = lab.Workflow("strides")
    items, gives, takes = flow.channel("items"), flow.worker(Gives, name="gives"), flow.worker(Takes, name="takes")

    @flow.iteration
    def iteration() -> Any:
        return gives.give(items), takes.take(items)

    plan = lab.ExecutionPlan.spatial(flow, ["cpu:0", "cpu:1"], {"gives": [0], "takes": [1]})
    with lab.session(flow, plan, executor=executor, emulate=True) as s:
        small, large = s.step()
    if executor == "processes":
        assert_as_sent(small, kinds(1))
        assert_as_sent(large, kinds(100))
    else:
        assert small["columns"].stride() == kinds(1)["columns"].stride()


def test_arrays_are_as_numpy_pickles_them() -> None:
    array = np.arange(120_000).reshape(20, 60, 100)
    sent = {"fortran": np.asfortranarray(array[0]), "permuted": array.transpose(2, 0, 1), "columns": array[:, ::2], "reversed": array[::-1]}
    got = through_a_link(lambda address: address, sent)
    for name, value in sent.items():
        assert np.array_equal(got[name], value), name
    assert got["fortran"].strides == sent["fortran"].strides


def test_what_is_packed_within_a_message_stays_on_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and weights are. A copy in host memory would be sent otherwise."""
    monkeypatch.setattr(pickling, "LENT_DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(cuda_ipc, "SHARING", HostSharing())
    data, beside = pickling.pickled(("value", pickling.Packed.of(sent := kinds(1))))
    assert beside and all(type(block) is pickling.OnDevice for block in beside)
    assert_as_sent(pickle.loads(data, buffers=beside)[1].open(), sent)
