"""What travels between processes as bytes: pickles with their large buffers beside them, classes of a notebook by value."""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import cloudpickle

from rlinf_lab.errors import WorkflowError, said, shown

LARGE = 1 << 16  # bytes: such buffers may travel in shared memory (`slots`)


@dataclass(frozen=True)
class Packed:
    """Something in transit: it is rebuilt by the rank that needs it, so that what is missing there is that rank's error.

    ``buffers``: of its arrays; they are the sender's own memory until the packet has been handed to a link.
    """

    data: bytes
    buffers: tuple[Any, ...] = ()

    @classmethod
    def of(cls, value: Any) -> Packed:
        """Raises `WorkflowError` when the value does not pickle."""
        data, buffers = pickled(value)
        return cls(data, tuple(pickle.PickleBuffer(b) for b in buffers))

    @classmethod
    def of_items(cls, items: list[Any], channel: str) -> tuple[Packed, bool]:
        """Items of a put, and whether they still use the sender's memory: small buffers are copied at once, large ones when they are sent."""
        data, buffers = pickled(items, channel)
        if not buffers:
            return cls(data), False
        large = any(b.nbytes >= LARGE for b in buffers)
        return cls(data, tuple(pickle.PickleBuffer(b if b.nbytes >= LARGE else bytearray(b)) for b in buffers)), large

    @property
    def nbytes(self) -> int:
        return len(self.data) + sum(memoryview(b).nbytes for b in self.buffers)

    def open(self) -> Any:
        return pickle.loads(self.data, buffers=self.buffers)


def pickled(value: Any, channel: str = "") -> tuple[bytes, list[memoryview]]:
    """A pickle and its buffers. Raises `WorkflowError`. ``channel``: the value is a list of items of it."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = _dumped(value, buffers, _Pickler)
        if b"__main__" in data:  # a class of a notebook cell or a script, by name: the other process has another __main__
            raise pickle.PicklingError("__main__")
    except (Exception, SystemExit):  # or a lambda: the slower pickler sends them by value
        buffers.clear()
        try:
            data = _dumped(value, buffers, _ByValue)
        except (Exception, SystemExit) as error:  # an object's own __reduce__ may leave; it must not take a thread of the run with it
            raise WorkflowError(
                f"{_named(value, channel)} cannot be sent to another process: {type(error).__name__}: {said(error)}. "
                f"Next: put plain values, arrays or dataclasses into channels, calls and results; keep open files, locks and generators out."
            ) from error
    return data, [b.raw() for b in buffers]


def _dumped(value: Any, buffers: list[pickle.PickleBuffer], pickler: type) -> bytes:
    if pickler is _Pickler and "torch" not in sys.modules:  # nothing to reduce in a way of our own
        return pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    file = io.BytesIO()
    pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return file.getvalue()


def _reduced(value: Any) -> Any:
    """A plain CPU tensor as a numpy array: torch's own way copies it into the pickle. NotImplemented for everything else."""
    torch: Any = sys.modules.get("torch")
    # While another thread imports it there is a module without contents, and no tensor yet.
    if type(value) is not getattr(torch, "Tensor", None) or value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
        return NotImplemented
    plain = value.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    try:
        array = plain.contiguous().numpy()
    except TypeError:  # a type that numpy does not have, such as bfloat16
        array = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
    return _tensor, (array, str(plain.dtype).removeprefix("torch."), tuple(plain.shape), value.requires_grad)


def _tensor(array: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    # A tensor cannot be read-only: one over such memory (weights that others read too, or that the next difference is made upon) has its own copy.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    kind = getattr(torch, dtype)
    if tensor.dtype != kind:
        tensor = tensor.view(kind).reshape(shape)
    return tensor.requires_grad_(requires_grad)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        return _reduced(value)


class _ByValue(cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        reduced = _reduced(value)
        return super().reducer_override(value) if reduced is NotImplemented else reduced


def _named(value: Any, channel: str) -> str:
    if channel:
        return f"An item of channel {channel!r} ({', '.join(sorted({type(item).__name__ for item in value}))})"
    if not (isinstance(value, tuple) and value and isinstance(value[0], str)):
        return shown(value)
    return f"A {value[0]!r} message that holds {', '.join(sorted({type(part).__name__ for part in value[1:]}))}"
