"""A tensor arrives with the strides that it has, whichever way it travels: channels last stays so. What has gaps arrives as its clone would be."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "runtime"))
from ends import Ends, once_collected
from lent_host_memory import GPU, HostSharing

from rlinf_lab.runtime.transport import cuda_ipc, pickling

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
        "learnt": table.T.clone().requires_grad_(), "computed": table.clone().requires_grad_() * 2, "parameter": torch.nn.Parameter(table.clone()),
        "sparse": torch.eye(3 * scale).to_sparse(), "csr": torch.eye(3 * scale).to_sparse_csr(), "learnt sparse": torch.eye(3 * scale).to_sparse().requires_grad_(),
        "twice": torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2)), "negative": table.to(torch.complex64).conj().imag,
        "quantized": torch.quantize_per_tensor(table, 0.5, 1, torch.quint8), "two of one": torch.zeros(2, 6)[:, :1],
    }  # fmt: skip


def assert_as_sent(got: dict[str, Any], sent: dict[str, Any]) -> None:
    for name, tensor in sent.items():
        there, clone = got[name], tensor.detach().resolve_conj().resolve_neg().clone()
        assert type(there) is type(tensor) and there.dtype == tensor.dtype and there.requires_grad == tensor.requires_grad, name
        assert there.layout == tensor.layout and there.is_quantized == tensor.is_quantized, name
        if tensor.layout != torch.strided:
            assert torch.equal(there.detach().to_dense(), clone.to_dense())
            assert not tensor.is_sparse or there.is_coalesced() == tensor.is_coalesced(), name
        else:
            assert torch.equal(there.detach(), clone) and there.stride() == clone.stride(), (name, there.stride(), clone.stride())


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own memory stands for it."""
    monkeypatch.setattr(pickling, "LENT_DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(cuda_ipc, "SHARING", HostSharing())


@pytest.mark.parametrize("scale", [1, 100])
@pytest.mark.parametrize("address", [{}, {"node": "another"}], ids=["unix", "tcp"])
def test_between_processes(address: dict[str, str], scale: int) -> None:
    """Before, all of them came contiguous."""
    ends, sent = Ends(**address), kinds(scale)
    assert_as_sent(ends.send(sent), sent)
    ends.close()


@pytest.mark.usefixtures("a_gpu")
def test_on_a_gpu() -> None:
    """By handles, which are given back, and through host memory."""
    sent = kinds(1)
    data, beside = pickling.pickled(sent)
    assert_as_sent(pickle.loads(data, buffers=beside), sent)
    assert_as_sent(pickle.loads(data, buffers=[bytearray(block.on_host()) for block in beside]), sent)
    ends = Ends(gpus=(GPU,), process=0)
    packed, way = ends.put([sent])
    assert way == "cuda_ipc" and ends.lent
    assert_as_sent(packed.open()[0], sent)
    del packed
    assert once_collected(lambda: not ends.lent)
    ends.close()


def test_arrays_are_as_numpy_pickles_them() -> None:
    array = np.arange(120_000).reshape(20, 60, 100)
    sent = {"fortran": np.asfortranarray(array[0]), "permuted": array.transpose(2, 0, 1), "columns": array[:, ::2], "reversed": array[::-1]}
    ends = Ends()
    got = ends.send(sent)
    ends.close()
    for name, value in sent.items():
        assert np.array_equal(got[name], value), name
    assert got["fortran"].strides == sent["fortran"].strides


@pytest.mark.usefixtures("a_gpu")
def test_what_is_packed_within_a_message_stays_on_its_gpu() -> None:
    """Values and weights are. A copy in host memory would be sent otherwise."""
    data, beside = pickling.pickled(("value", pickling.Packed.of(sent := kinds(1))))
    assert beside and all(type(block) is pickling.OnDevice for block in beside)
    assert_as_sent(pickle.loads(data, buffers=beside)[1].open(), sent)
