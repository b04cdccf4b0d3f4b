"""What travels between processes as bytes. These are pickles with their large buffers beside them, and classes of a
notebook by value.
"""

from __future__ import annotations

import io
import pickle
import sys
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from rlinf_lab.errors import WorkflowError, said, shown

LARGE = 1 << 16  # bytes: such buffers may travel in shared memory (`shared_memory`)
_MOST_PARTS = 1000  # each of which may be pickled to find the one that is at fault
LENT_DEVICES = frozenset({"cuda"})  # kinds of torch device whose tensors stay there on their way


class OnDevice:
    """What is beside a pickle of a tensor on a GPU. It is a copy of its bytes there, which is the transport's own. A
    link lends it, or sends its bytes.
    """

    __slots__ = ("block",)

    def __init__(self, block: Any) -> None:
        self.block = block

    @property
    def nbytes(self) -> int:
        return int(self.block.numel())

    def on_host(self) -> memoryview:
        """Its bytes in host memory: waits until the GPU has copied them."""
        return memoryview(self.block.cpu().numpy())

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return bytearray, (bytes(self.on_host()),)


class Packed:
    """Something in transit. It is rebuilt by the rank that needs it, so that what is missing there is that rank's
    error.

    ``buffers``: of its arrays; they are the sender's own memory until the packet has been handed to a link.
    """

    __slots__ = ("buffers", "data")  # one is made for each message: a frozen dataclass takes four times as long to make

    def __init__(self, data: bytes, buffers: tuple[Any, ...] = ()) -> None:
        self.data, self.buffers = data, buffers

    @classmethod
    def of(cls, value: Any) -> Packed:
        """Raises `WorkflowError` when the value does not pickle."""
        data, buffers = pickled(value)
        return cls(data, tuple(b if type(b) is OnDevice else pickle.PickleBuffer(b) for b in buffers))

    @classmethod
    def of_items(cls, items: list[Any], channel: str) -> tuple[Packed, bool]:
        """Items of a put, and whether they still use the sender's memory. Small buffers are copied at once, large ones
        when they are sent.
        """
        data, buffers = pickled(items, channel)
        if not buffers:
            return cls(data), False
        large = any(type(b) is not OnDevice and b.nbytes >= LARGE for b in buffers)
        return cls(
            data,
            tuple(
                b if type(b) is OnDevice else pickle.PickleBuffer(b if b.nbytes >= LARGE else bytearray(b))
                for b in buffers
            ),
        ), large

    @property
    def nbytes(self) -> int:
        return len(self.data) + sum(b.nbytes if type(b) is OnDevice else memoryview(b).nbytes for b in self.buffers)

    def open(self) -> Any:
        return pickle.loads(self.data, buffers=self.buffers)

    def __repr__(self) -> str:
        return f"Packed({self.nbytes} bytes{f', {len(self.buffers)} buffers beside' if self.buffers else ''})"


def pickled(value: Any, channel: str = "") -> tuple[bytes, list[Any]]:
    """A pickle and its buffers: memoryviews, and an `OnDevice` for a tensor on a GPU. ``channel``: the value is a list
    of items of it.

    Raises `WorkflowError`.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = _dumped(value, buffers, _Pickler)
        # a class of a notebook cell or a script, by name: the other process has another __main__
        if b"__main__" in data:
            raise pickle.PicklingError("__main__")
    except (Exception, SystemExit):  # or a lambda: the slower pickler sends them by value
        buffers.clear()
        try:
            data = _dumped(value, buffers, _ByValue)
        except (
            Exception,
            SystemExit,
        ) as error:  # an object's own __reduce__ may leave; it must not take a thread of the run with it
            raise unsendable(
                _named(value, channel), value[0] if channel and len(value) == 1 else value, error
            ) from error
    return data, [_beside(b.raw()) for b in buffers]


def unsendable(what: str, value: Any, error: BaseException) -> WorkflowError:
    """What to tell of a value that does not pickle. ``what``: its name."""
    where = _where(value)
    at = f" (at {where})" if where else ""
    return WorkflowError(
        f"{what} cannot be sent to another process: {type(error).__name__}: {said(error)}{at}. "
        "Next: put plain values, arrays or dataclasses into channels, calls and results; keep open files, locks and "
        "generators out."
    )


def _where(value: Any, deep: int = 8) -> str:
    """The part of a value that does not pickle, as written behind its name. It is "" where that is no part of it but
    the whole, or it has very many.
    """
    for step, part in _parts(value):
        try:
            _dumped(part, [], _ByValue)
        except (Exception, SystemExit):
            return step + (_where(part, deep - 1) if deep else "")
    return ""


def _parts(value: Any) -> list[tuple[str, Any]]:
    """What is pickled of it one by one. Of an object that says itself what that is (``__getstate__``, ``__reduce__``),
    and of what another thread changes at this moment, nothing is known."""
    try:
        if type(value) is dict and len(value) <= _MOST_PARTS:
            return [(f"[{shown(key)}]", part) for key, part in value.items()]
        if type(value) in (list, tuple) and len(value) <= _MOST_PARTS:
            return [(f"[{i}]", part) for i, part in enumerate(value)]
        if (
            type(value) in (dict, list, tuple)
            or isinstance(value, (type, FunctionType, ModuleType))
            or any(
                getattr(type(value), how) is not getattr(object, how)
                for how in ("__reduce__", "__reduce_ex__", "__getstate__")
            )
        ):
            return []
        return [(f".{name}", part) for name, part in vars(value).items()]
    except Exception:
        return []


def _beside(raw: memoryview) -> Any:
    return OnDevice(raw.obj.block) if type(raw.obj) is _Place else raw


def _dumped(value: Any, buffers: list[pickle.PickleBuffer], pickler: type) -> bytes:
    if pickler is _Pickler and "torch" not in sys.modules:  # nothing to reduce in a way of our own
        return pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    file = io.BytesIO()
    pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return file.getvalue()


def _reduced(value: Any) -> Any:
    """A plain CPU tensor as a numpy array, one on a GPU beside the pickle. torch's own way copies both into it.
    NotImplemented for everything else.
    """
    if type(value) is OnDevice:  # of something that is packed within a message
        return _itself, (pickle.PickleBuffer(_Place(value.block)),)
    torch: Any = sys.modules.get("torch")
    # While another thread imports it there is a module without contents, and no tensor yet.
    if type(value) is not getattr(torch, "Tensor", None) or value.is_quantized:
        return NotImplemented
    kind = value.device.type
    if kind not in LENT_DEVICES and kind != "cpu":
        return NotImplemented
    if value.layout != torch.strided:
        return _sparse_reduced(value, torch)
    plain = value.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    memory, strides = _dense(plain)
    like = str(plain.dtype).removeprefix("torch."), tuple(plain.shape), value.requires_grad, strides
    if kind in LENT_DEVICES:
        return _on_device, (pickle.PickleBuffer(_Place(_block(memory, plain, torch))), *like)
    try:
        array = memory.numpy()
    except TypeError:  # a type that numpy does not have, such as bfloat16
        array = memory.reshape(-1).view(torch.uint8).numpy()
    return _tensor, (array, *like)


def _itself(block: Any) -> Any:
    return block


def _dense(plain: Any) -> tuple[Any, tuple[int, ...]]:
    """A tensor's elements as they follow each other in memory, and its strides. They are as those of
    `torch.Tensor.clone`, which keeps the order of dimensions (channels last, transposed) and closes gaps.
    """
    if plain.is_contiguous():
        return plain, plain.stride()
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(plain.stride(), plain.shape, strict=True) if size != 1
    ):
        if stride != expected:
            plain = plain.clone()  # a part of a larger one, or expanded
            break
        expected *= size
    return plain.as_strided((plain.numel(),), (1,)), plain.stride()


def _shaped(tensor: Any, shape: tuple[int, ...], requires_grad: bool, strides: tuple[int, ...]) -> Any:
    if tensor.shape != shape or tensor.stride() != strides:
        tensor = tensor.as_strided(shape, strides)
    return tensor.requires_grad_(requires_grad)


def _tensor(array: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, strides: tuple[int, ...]) -> Any:
    import torch

    # A tensor cannot be read-only: one over such memory (weights that others read too, or that the next difference is
    # made upon) has its own copy.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    kind = getattr(torch, dtype)
    return _shaped(tensor if tensor.dtype == kind else tensor.view(kind), shape, requires_grad, strides)


def _sparse_reduced(value: Any, torch: Any) -> Any:
    """By its parts. What torch's own way rebuilds is kept in a list of torch's until a file is loaded, or for ever."""
    if value.layout != torch.sparse_coo:
        return NotImplemented
    return _coo, (
        value._indices(), value.detach()._values(), tuple(value.shape), value.is_coalesced(), value.requires_grad,
    )  # fmt: skip


def _coo(indices: Any, values: Any, shape: tuple[int, ...], coalesced: bool, requires_grad: bool) -> Any:
    import torch

    return torch.sparse_coo_tensor(
        indices, values, shape, is_coalesced=coalesced, check_invariants=False
    ).requires_grad_(requires_grad)


def _block(memory: Any, plain: Any, torch: Any) -> Any:
    """The bytes of a tensor as a tensor of its own on the same device. ``memory``: its elements in their order, its own
    or a copy.
    """
    whole = memory.clone() if memory.data_ptr() == plain.data_ptr() else memory
    if plain.device.type == "cuda":  # it may be sent by another thread, which waits for the default stream only
        stream = torch.cuda.current_stream(plain.device)
        if stream != torch.cuda.default_stream(plain.device):
            stream.synchronize()
    return whole.reshape(-1).view(torch.uint8)


def _on_device(block: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, strides: tuple[int, ...]) -> Any:
    """The tensor on its device. ``block``: an `OnDevice`, something lent by another process (`cuda_ipc.Lent`), or
    bytes: these go to a GPU if this process uses one.
    """
    import torch

    if isinstance(block, OnDevice):
        block = block.block
    elif hasattr(block, "open"):
        block = block.open()
    elif not isinstance(block, torch.Tensor):
        raw = memoryview(block)
        block = (
            torch.frombuffer(bytearray(raw) if raw.readonly else raw, dtype=torch.uint8)
            if raw.nbytes
            else torch.empty(0, dtype=torch.uint8)
        )
        if torch.cuda.is_available():
            block = block.cuda()
    return _shaped(block.view(getattr(torch, dtype)), shape, requires_grad, strides)


class _Place(bytearray):
    """Marks in a pickle where an `OnDevice` belongs: only buffers may lie beside one. What is given back in their place
    may be anything.
    """

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block


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
