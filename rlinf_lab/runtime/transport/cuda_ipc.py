"""Tensors on a GPU between processes of a node, not copied by the receiver. CUDA's memory handles (IPC) are lent and
given back.

    tensor ──copy on its GPU (`pickling.OnDevice`)──> Lender: kept, torch's handle ──frame──> Lent
                                                         ↑                                     │ the rank that takes it
                                                         └── its number, when the last ── tensor upon the same memory
                                                             tensor upon it has died, or nobody wants it any more

What is lent is a copy that the transport owns: the sender may change, free or offload its tensor as soon as it is put,
the taker may write into what it has. torch counts references across processes beside this and keeps the memory while it
is counted; the table here knows what to release when nobody opens a handle (a packet that is dropped), or when the
receiver has died. A process that outlives the sender (the driver) copies at once, on the GPU: the memory of a process
goes with it.

Where memory cannot be lent (another node, a GPU that the receiver does not see, a container of its own, an allocator
whose memory torch cannot share) the tensor travels through host memory. The timeline says so for each edge, the log
once for each link, with the reason.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import pickle
import struct
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlinf_lab.errors import ExecutorError, said
from rlinf_lab.runtime.transport.pickling import OnDevice
from rlinf_lab.runtime.transport.shared_memory import LENT
from rlinf_lab.timeline.record.sampler import visible_gpus as shown_by_cuda

ASKED = "between_gpus='host'"
HEAD = struct.Struct("<II")  # its number, and the bytes of torch's description that follow
_LOG = logging.getLogger("rlinf_lab")


class Sharing(Protocol):
    """How memory is shared between processes. CUDA's handles do it, or in tests what torch does for host memory. Blocks
    are tensors of bytes.
    """

    def identity(self, block: Any) -> str:
        """The same for a device in every process."""

    def share(self, block: Any) -> Any:
        """What another process opens it with, once. `RuntimeError` when it cannot be shared."""

    def open(self, shared: Any, identity: str) -> Any:
        """The block, on the same memory. `RuntimeError` when it cannot be opened."""

    def release(self, shared: Any) -> None:
        """Nobody will open it."""

    def hold(self, block: Any, owner: object) -> Any:
        """A block on the same memory whose storage keeps ``owner`` alive."""


class CudaSharing:
    """torch's own way (`torch.multiprocessing.reductions`). It shares the allocation under a block, counts references
    and waits for the sender's stream.
    """

    def identity(self, block: Any) -> str:
        import torch

        return bare(str(torch.cuda.get_device_properties(block.device).uuid))

    def share(self, block: Any) -> dict[str, Any]:
        from torch.multiprocessing import reductions

        rebuild, arguments = reductions.reduce_tensor(block)
        return dict(zip(inspect.signature(rebuild).parameters, arguments, strict=True))

    def open(self, shared: dict[str, Any], identity: str) -> Any:
        from torch.multiprocessing import reductions

        return reductions.rebuild_cuda_tensor(**{**shared, "storage_device": _index_of(identity)})

    def release(self, shared: dict[str, Any]) -> None:
        if shared["ref_counter_handle"] is None:  # a tensor without a byte: there is nothing to count
            return
        shared["storage_cls"]._release_ipc_counter(
            shared["ref_counter_handle"], shared["ref_counter_offset"], device=shared["storage_device"]
        )

    def hold(self, block: Any, owner: Any) -> Any:
        import torch

        owner.__cuda_array_interface__ = block.__cuda_array_interface__
        # upon the same memory, and with a reference to the owner in its storage
        return torch.as_tensor(owner, device=block.device)


@functools.cache
def _index_of(identity: str) -> int:
    """torch's number of a GPU in this process: each process may see others."""
    import torch

    seen = [bare(str(torch.cuda.get_device_properties(i).uuid)) for i in range(torch.cuda.device_count())]
    if identity not in seen:
        raise RuntimeError(f"torch sees no GPU {identity} in this process, only {seen}")
    return seen.index(identity)


SHARING: Sharing = CudaSharing()


def bare(uuid: str) -> str:
    """A GPU's id as torch writes it; NVIDIA's tools put what it is in front."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


@functools.cache
def visible_gpus() -> tuple[str, ...]:
    """The ids of the GPUs that this process sees, as it was started. Makes no CUDA context and does not
    import torch.
    """
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        return ()
    import pynvml

    try:
        pynvml.nvmlInit()
        return ids(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except pynvml.NVMLError:
        return ()


def ids(nvml: Any, listed: str | None) -> tuple[str, ...]:
    """Of the GPUs that CUDA shows where ``listed`` is CUDA_VISIBLE_DEVICES. Raises ``NVMLError``."""
    return tuple(bare(str(nvml.nvmlDeviceGetUUID(handle))) for handle in shown_by_cuda(nvml, listed))


class Lender:
    """The sender's end of one link; used by whoever holds its lock. ``gpus``: ids of those that the peer sees;
    ``why_not``: why nothing can be lent to it.
    """

    def __init__(self, peer: str, gpus: Sequence[str]) -> None:
        self._peer, self._gpus = peer, frozenset(gpus)
        self.why_not = self._problem = ""
        self._lent: dict[int, tuple[Any, Any]] = {}  # by number: the block and what it was shared by
        self._made = 0
        self._told = {ASKED}  # nobody needs to be told what was asked for

    @property
    def has_lent(self) -> bool:
        return bool(self._lent)

    def place(self, tensor: OnDevice) -> bytes | None:
        """Lend it. The reference to send, or None when it has to travel by another way."""
        try:
            identity = SHARING.identity(tensor.block)
            problem = self.why_not or ("" if identity in self._gpus else f"its process does not see GPU {identity}")
            shared = None if problem else SHARING.share(tensor.block)
        except RuntimeError as error:
            problem = f"torch cannot share the memory ({said(error).splitlines()[0]})"
        if problem:
            self._problem = problem
            return None
        number, self._made = self._made, (self._made + 1) % LENT
        self._lent[number] = tensor.block, shared
        made = pickle.dumps((identity, shared), protocol=5)
        return HEAD.pack(number, len(made)) + made

    def tell(self) -> None:
        """What could not be lent goes through host memory."""
        if self._problem not in self._told:
            self._told.add(self._problem)
            _LOG.warning(
                "Tensors on a GPU go to host %r through host memory, not by CUDA IPC: %s.", self._peer, self._problem
            )

    def given_back(self, number: int) -> None:
        """Nobody uses it there any more."""
        self._lent.pop(number & ~LENT, None)

    def lost(self) -> None:
        """The peer has died. What it had not given back is released in its place, for a process that dies does not
        count down.
        """
        while self._lent:
            _, (_, shared) = self._lent.popitem()
            _release(shared)

    def close(self) -> None:
        """The peer has hung up. What it still holds torch keeps as long as it counts it."""
        self._lent.clear()


class _Owner:
    """Held by the storage of a tensor that was lent. The memory goes back when it dies."""

    def __init__(self, block: Any) -> None:
        self.block = block


class Lent:
    """The receiver's end of one tensor. It is opened once, by the rank that needs it, or given back unopened.

    ``keeps``: a copy is made, for this process outlives the sender.
    """

    def __init__(self, reference: bytes, number: int, give_back: Callable[[int], None], keeps: bool) -> None:
        self._identity, self._shared = pickle.loads(reference)
        self._give_back, self._keeps = functools.partial(give_back, number | LENT), keeps
        self._unopened = weakref.finalize(self, _drop, self._shared, self._give_back)
        self._unopened.atexit = False
        self._block: Any = None  # while it is on its way to a third host

    def open(self) -> Any:
        """The tensor of its bytes. `ExecutorError` when this process is not allowed to open it."""
        try:
            block = SHARING.open(self._shared, self._identity)
        except RuntimeError as error:
            self._unopened()
            raise ExecutorError(
                f"A tensor on GPU {self._identity} cannot be opened in this process: {said(error).splitlines()[0]}. "
                "Containers need a common --ipc and "
                "--pid, and the same GPUs. Next: start them so, or run with between_gpus='host' (copies through host "
                "memory)."
            ) from error
        if not self._unopened.detach():
            raise ExecutorError(
                "A tensor that was lent is opened twice; its memory may be another one's by now. Next: report this."
            )
        if self._keeps:
            mine = block.clone()
            del block
            self._give_back()
            return mine
        owner = _Owner(block)
        weakref.finalize(owner, self._give_back).atexit = False
        return SHARING.hold(block, owner)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """On to a third host: as a tensor of this one."""
        if self._block is None:
            self._block = self.open()
        return _same, (self._block,)


def _drop(shared: Any, give_back: Callable[[], None]) -> None:
    _release(shared)
    give_back()


def _release(shared: Any) -> None:
    """Release a tensor that was lent. One that cannot be released keeps neither the others nor the news of a death."""
    try:
        SHARING.release(shared)
    except RuntimeError:  # the driver has released it, with the process
        pass
    except Exception as error:
        _LOG.warning(
            "A tensor that was lent could not be released, its memory stays occupied: %s: %s.",
            type(error).__name__,
            said(error),
        )


def _same(block: Any) -> Any:
    return block
