"""How torch modules and optimisers leave their device and return: each block of memory in one copy, every tensor object stays the same.

    device ──one copy per block──> host memory (page-locked for a GPU, kept for the next time) ──one copy per block──> device

Tensors that share memory (tied weights, views) share it afterwards too. While it is away a tensor lies in host memory and can be read and
written there: weights may be published by a learner that has left. On a core of the CPU host memory is memory as well; the copies are made all
the same, so that an emulated plan pays for its switches what a profile says. A GPU's allocator keeps what is left for the next who asks; a core's blocks
are kept here, for the system would clear every page anew, which takes three times as long as the copy. Only those that were made here, though: what a
tensor lay on at first may be read-only (a mapped file), or somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rlinf_lab.workflow.worker import Worker

Owner = nn.Module | torch.optim.Optimizer


class _Moved(NamedTuple):
    """A block of memory that has left. ``there``: where it was, if the copy shall go to that place again."""

    tensors: list[torch.Tensor]
    host: torch.Tensor
    there: torch.Tensor | None


class Residence:
    """What of some modules and optimisers lives on a device, and where it is now.

    ``owners``: their parameters, buffers, gradients and optimiser states are moved. Tensors that are made while it is here come along the next
    time. Adam's step counters, which live in host memory, stay there. Of a module that is sharded over ranks this rank's part is moved.
    """

    def __init__(self, owners: Iterable[Owner], device: str) -> None:
        self.owners, self.device = list(owners), torch.device(device)
        self.away = False
        self._held: list[torch.Tensor] = []  # blocks in host memory, used again at the next leaving
        self._made: dict[int, torch.Tensor] = {}  # blocks on a core that were made here, by address
        self._moved: list[_Moved] = []
        self._moved_whole: list[torch.Tensor] = []

    def leave(self) -> None:
        """Move everything to host memory; a GPU's memory is free afterwards. Nothing happens when it is away already."""
        if self.away:
            return
        with torch.no_grad():
            blocks = self._blocks()
            free: dict[int, list[torch.Tensor]] = {}
            for block in self._held:
                if block.data_ptr() not in blocks:  # somebody has put a tensor there
                    free.setdefault(block.numel(), []).append(block)
            self._held, self._moved = [], []
            for address, tensors in blocks.items():
                source = _bytes(tensors[0])
                same = free.get(source.numel())
                host = same.pop() if same else torch.empty(source.numel(), dtype=torch.uint8, pin_memory=self.device.type == "cuda")
                _copy(source, host)
                self._held.append(host)
                self._moved.append(_Moved(tensors, host, self._made.get(address)))
            self._made = {}
            self._wait()  # before anybody reads the copies or their source is freed
            for moved in self._moved:
                _put_onto(moved.tensors, moved.host)
            self._moved_whole = self._whole()
            for tensor in self._moved_whole:
                _move(tensor, "cpu")
            for module in self._sharded():
                _move_shards(module, "cpu")
        self.away = True

    def come_back(self) -> None:
        """Move everything to the device again, as it is now. Nothing happens when it is there already."""
        if not self.away:
            return
        with torch.no_grad():
            for tensors, host, there in self._moved:
                still = [t for t in tensors if t.untyped_storage().data_ptr() == host.data_ptr()]
                self._bring(still, there)
                for others in _by_block(t for t in tensors if t.device.type != self.device.type).values():  # they were given other memory meanwhile
                    self._bring(others, None)
            for tensor in self._moved_whole:
                _move(tensor, self.device)
            for module in self._sharded():
                _move_shards(module, self.device)
            self._wait()
        self._moved, self._moved_whole = [], []
        self.away = False

    def _bring(self, tensors: list[torch.Tensor], there: torch.Tensor | None) -> None:
        """Tensors of one block in host memory onto the device, to that place or a new one."""
        if not tensors:
            return
        source = _bytes(tensors[0])
        if there is None:
            there = torch.empty(source.numel(), dtype=torch.uint8, device=self.device)
        if self.device.type == "cpu":
            self._made[there.data_ptr()] = there
        _copy(source, there)
        _put_onto(tensors, there)

    @property
    def nbytes(self) -> int:
        """Bytes that a switch moves."""
        moved = [each.tensors for each in self._moved] if self.away else list(self._blocks().values())
        whole = self._moved_whole if self.away else self._whole()
        shards = [_own(tensor) for module in self._sharded() for tensor in (*_with_gradients(module), *module.buffers())]
        blocks = sum(tensor.untyped_storage().nbytes() for tensor in (*(tensors[0] for tensors in moved), *shards))
        return blocks + sum(map(_nbytes_of_parts, whole))

    def _sharded(self) -> list[nn.Module]:
        """Modules that keep more references to their memory than their tensors: they move themselves."""
        return [owner for owner in self.owners if isinstance(owner, nn.Module) and hasattr(owner, "reshard")]

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _blocks(self) -> dict[int, list[torch.Tensor]]:
        """The tensors of every block of memory on the device, by its address; each tensor once."""
        return _by_block(t for t in map(_own, self._tensors()) if t.device.type == self.device.type and _lies_on_a_block(t))

    def _whole(self) -> list[torch.Tensor]:
        """Tensors on the device that lie on no block of their own: sparse and quantized ones."""
        return [t for t in self._tensors() if not is_lazy(t) and not _lies_on_a_block(t) and t.device.type == self.device.type]

    def _tensors(self) -> Iterator[torch.Tensor]:
        for owner in self.owners:
            if isinstance(owner, nn.Module):
                if not hasattr(owner, "reshard"):
                    yield from _with_gradients(owner)
                    yield from owner.buffers()
            else:
                for state in owner.state.values():
                    yield from (value for value in state.values() if isinstance(value, torch.Tensor) and value.dim())

    def __repr__(self) -> str:
        where = "host memory" if self.away else str(self.device)
        owners = ", ".join(type(owner).__name__ for owner in self.owners)
        return f"Residence({owners} of {self.device}, {self.nbytes / 2**20:.1f} MiB, now in {where})"


def _with_gradients(module: nn.Module) -> Iterator[torch.Tensor]:
    for parameter in module.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad


def _lies_on_a_block(tensor: torch.Tensor) -> bool:
    """Not what has no memory yet (a lazy module's parameter), or several blocks (a sparse tensor)."""
    return not is_lazy(tensor) and tensor.layout == torch.strided and not tensor.is_quantized


def _by_block(tensors: Iterable[torch.Tensor]) -> dict[int, list[torch.Tensor]]:
    """Those that lie on one block of memory, by its address; each tensor once, none that is empty."""
    found: dict[int, list[torch.Tensor]] = {}
    seen: set[int] = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if id(tensor) not in seen and storage.nbytes():
            seen.add(id(tensor))
            found.setdefault(storage.data_ptr(), []).append(tensor)
    return found


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is sharded over ranks; any other as it is."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
        return part


def _move_shards(module: nn.Module, place: torch.device | str) -> None:
    """What ``module.to(place)`` does, with a copy also where host memory is the device."""
    module._apply(lambda tensor: tensor.to(place, copy=True))


def _move(tensor: torch.Tensor, place: torch.device | str) -> None:
    """One that lies on no block of its own, with a copy also where host memory is the device."""
    tensor.data = tensor.detach().to(place, copy=True)


def _nbytes_of_parts(tensor: torch.Tensor) -> int:
    """What a tensor without a block of its own takes, its indices too."""
    if tensor.layout == torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    else:
        return tensor.numel() * tensor.element_size()
    return sum(part.numel() * part.element_size() for part in parts)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole block of memory under a tensor."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Blocks of bytes, in words where they are whole ones: torch copies single bytes a quarter slower."""
    if source.numel() % 8 == 0:
        source, target = source.view(torch.int64), target.view(torch.int64)
    target.copy_(source, non_blocking=source.device.type != target.device.type)


def _put_onto(tensors: list[torch.Tensor], block: torch.Tensor) -> None:
    """Let tensors that lay on one block lie on another at the same places."""
    storage = block.untyped_storage()
    for tensor in tensors:
        view = torch.empty(0, dtype=tensor.dtype, device=block.device)
        view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        view = view.conj() if tensor.is_conj() else view  # both are marks on the tensor: the memory is as it was
        tensor.data = torch._neg_view(view) if tensor.is_neg() else view


class TorchWorker(Worker):
    """A worker whose torch modules and optimisers leave the device and return by themselves when the plan switches it.

    They are found among the worker's attributes, also in lists, tuples and dicts there. Override `residents` to say which. Whoever keeps
    numpy views of parameters makes them anew when their ``data_ptr()`` has changed.
    """

    _residence: Residence | None = None

    def residents(self) -> list[Owner]:
        """The modules and optimisers that live on the device; by default all that are attributes."""
        return list({id(owner): owner for value in vars(self).values() for owner in _owners(value)}.values())

    def offload(self) -> None:
        if self._residence is None:
            self._residence = Residence([], self.device)
        self._residence.owners = self.residents()
        self._residence.leave()

    def onload(self) -> None:
        if self._residence is not None:
            self._residence.come_back()


def _owners(value: Any) -> Iterator[Owner]:
    if isinstance(value, (nn.Module, torch.optim.Optimizer)):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _owners(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _owners(part)
