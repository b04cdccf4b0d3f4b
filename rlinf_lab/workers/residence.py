"""How torch modules and optimisers leave their device and return.

Each block of memory in one copy, and every tensor object stays the same.

    device ──one copy per block──> host memory (page-locked for a GPU, kept for the next time)
        ──one copy per block──> device

Tensors that share memory (tied weights, views) share it afterwards too. While it is away a tensor lies in host memory
and can be read and written there: weights may be published by a learner that has left. On a core of the CPU host memory
is memory as well; the copies are made all the same, so that an emulated plan pays for its switches what a profile says.
Of a GPU torch's allocator gives back what is left: engines and simulators with allocators of their own, and other
processes, have nothing of memory that it keeps. A core's blocks are kept here, for the system would clear every page
anew, which takes three times as long as the copy. Only those that were made here, though: what a tensor lay on at first
may be read-only (a mapped file), or somebody else's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rlinf_lab.workflow.worker import Worker

Owner = nn.Module | torch.optim.Optimizer
_SHARED = threading.RLock()


class _Moved(NamedTuple):
    """A block of memory that has left. ``there``: where it was, if the copy shall go to that place again."""

    tensors: list[torch.Tensor]
    host: torch.Tensor
    there: torch.Tensor | None


class Residence:
    """What of some modules and optimisers lives on a device, and where it is now.

    ``owners``: their parameters, buffers, gradients and optimiser states are moved. Tensors that are made while it is
    here come along the next time. Adam's step counters, which live in host memory, stay there. Of a module that is
    sharded over ranks this rank's part is moved.
    """

    def __init__(self, owners: Iterable[Owner], device: str) -> None:
        self.owners, self.device = list(owners), torch.device(device)
        self.away = False
        self._held: list[torch.Tensor] = []  # blocks in host memory, used again at the next leaving
        self._made: dict[int, torch.Tensor] = {}  # blocks on a core that were made here, by address
        self._moved: list[_Moved] = []
        self._moved_whole: list[torch.Tensor] = []
        self._moved_shards: list[nn.Module] = []

    def leave(self, present: Sequence[Residence] = (), absent: Sequence[Residence] = ()) -> int:
        """Move everything to host memory, and return how many bytes. A GPU's memory is free afterwards. Nothing happens
        when it is away already.

        ``present``: who is on the device or about to come: what those share with this one stays. ``absent``: others,
        whose tensors go along where they lie on a block that leaves.
        """
        if self.away:
            return 0
        with _lock_if(self._shares_with([*present, *absent])):
            return self._leave(present, absent)

    def _leave(self, present: Sequence[Residence], absent: Sequence[Residence]) -> int:
        with torch.no_grad():
            blocks = self._blocks()
            kept = {address for other in present for address in other._blocks()} | {
                m.host.data_ptr() for other in absent for m in other._moved
            }
            kept_whole = {id(part) for other in present for part in (*other._whole(), *other._sharded())}
            blocks = {address: tensors for address, tensors in blocks.items() if address not in kept}
            for other in absent:
                for address, tensors in other._blocks().items():
                    if address in blocks:
                        known = set(map(id, blocks[address]))
                        blocks[address] += [t for t in tensors if id(t) not in known]
            free: dict[int, list[torch.Tensor]] = {}
            for block in self._held:
                if block.data_ptr() not in blocks:  # somebody has put a tensor there
                    free.setdefault(block.numel(), []).append(block)
            self._held, self._moved = [], []
            for address, tensors in blocks.items():
                source = _bytes(tensors[0])
                same = free.get(source.numel())
                host = (
                    same.pop()
                    if same
                    else torch.empty(source.numel(), dtype=torch.uint8, pin_memory=self.device.type == "cuda")
                )
                _copy(source, host)
                self._held.append(host)
                self._moved.append(_Moved(tensors, host, self._place(address, [*present, *absent])))
            # whoever takes it later wants to know
            self._made = {address: block for address, block in self._made.items() if address in kept}
            self._wait()  # before anybody reads the copies or their source is freed
            for moved in self._moved:
                _put_onto(moved.tensors, moved.host)
            self._moved_whole = [tensor for tensor in self._whole() if id(tensor) not in kept_whole]
            for tensor in self._moved_whole:
                _move(tensor, "cpu")
            self._moved_shards = [module for module in self._sharded() if id(module) not in kept_whole]
            for module in self._moved_shards:
                _move_shards(module, "cpu")
        self.away = True
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return sum(moved.host.numel() for moved in self._moved) + _nbytes_besides(self._moved_whole, self._moved_shards)

    def come_back(self, others: Sequence[Residence] = ()) -> int:
        """Move everything to the device again, and return how many bytes.

        Also what ``others`` have taken with them of blocks that they share with this one, and tensors that others have
        laid on such a block since. Nothing happens to what is there already.
        """
        with _lock_if(self._shares_with(others)):
            return self._come_back(others)

    def _come_back(self, others: Sequence[Residence]) -> int:
        mine = self._addresses() if others else set()
        taken = [m for other in others for m in other._moved if m.host.data_ptr() in mine]
        whole, shards, nbytes = list(self._moved_whole), list(self._moved_shards), 0
        for other in others:
            ids = {id(part) for part in (*self._whole(anywhere=True), *self._sharded())}
            whole += [tensor for tensor in other._moved_whole if id(tensor) in ids]
            shards += [module for module in other._moved_shards if id(module) in ids]
            other._moved_whole = [tensor for tensor in other._moved_whole if id(tensor) not in ids]
            other._moved_shards = [module for module in other._moved_shards if id(module) not in ids]
        theirs = _by_block(t for other in others for t in other._tensors_on_blocks()) if self._moved or taken else {}
        with torch.no_grad():
            for left, host, there in (*self._moved, *taken):
                known = set(map(id, left))
                tensors = [*left, *(t for t in theirs.get(host.data_ptr(), ()) if id(t) not in known)]
                still = [t for t in tensors if t.untyped_storage().data_ptr() == host.data_ptr()]
                self._bring(still, there)
                nbytes += host.numel() if still else 0
                # they were given other memory meanwhile
                for changed in _by_block(t for t in tensors if t.device.type != self.device.type).values():
                    self._bring(changed, None)
            for tensor in whole:
                _move(tensor, self.device)
            for module in shards:
                _move_shards(module, self.device)
            self._wait()
        self._moved, self._moved_whole, self._moved_shards = [], [], []
        self.away = False
        return nbytes + _nbytes_besides(whole, shards)

    def shared(self, other: Residence) -> float:
        """The part of its bytes that lies under tensors of both.

        It is there once, and stays where one of both goes for the other.
        """
        theirs = other._addresses()
        sizes = {
            address: tensors[0].untyped_storage().nbytes()
            for address, tensors in _by_block(self._tensors_on_blocks()).items()
        }
        common, modules = sum(n for address, n in sizes.items() if address in theirs), set(map(id, other._sharded()))
        shards, whole = self._sharded(), self._whole(anywhere=True)
        everything = sum(sizes.values()) + _nbytes_besides(whole, shards)
        common += _nbytes_besides(
            [t for t in whole if id(t) in set(map(id, other._whole(anywhere=True)))],
            [m for m in shards if id(m) in modules],
        )
        return common / everything if everything else 0.0

    def _shares_with(self, others: Iterable[Residence]) -> bool:
        mine = self._addresses() if others else set()
        return any(not mine.isdisjoint(other._addresses()) for other in others)

    def _addresses(self) -> set[int]:
        """Of everything that it has, modules that move themselves and tensors without a block too. An object's own
        where it has no other.
        """
        blocks = {t.untyped_storage().data_ptr() for t in self._tensors_on_blocks() if t.untyped_storage().nbytes()}
        return blocks | {-id(part) for part in (*self._whole(anywhere=True), *self._sharded())}

    def _tensors_on_blocks(self) -> Iterator[torch.Tensor]:
        """Wherever they are now."""
        return (t for t in map(_own, self._tensors()) if _lies_on_a_block(t))

    def _bring(self, tensors: list[torch.Tensor], there: torch.Tensor | None) -> None:
        """Tensors of one block in host memory onto the device. To that place or a new one."""
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
        whole, shards = (self._moved_whole, self._moved_shards) if self.away else (self._whole(), self._sharded())
        return sum(tensors[0].untyped_storage().nbytes() for tensors in moved) + _nbytes_besides(whole, shards)

    def _sharded(self) -> list[nn.Module]:
        """Modules that keep more references to their memory than their tensors: they move themselves."""
        return [owner for owner in self.owners if isinstance(owner, nn.Module) and hasattr(owner, "reshard")]

    def _place(self, address: int, others: Iterable[Residence]) -> torch.Tensor | None:
        """The block at an address, if it was made here. Perhaps by another one who shares it."""
        return next((block for each in (self, *others) if (block := each._made.get(address)) is not None), None)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _blocks(self) -> dict[int, list[torch.Tensor]]:
        """The tensors of every block of memory on the device, by its address. Each tensor once."""
        return _by_block(t for t in self._tensors_on_blocks() if t.device.type == self.device.type)

    def _whole(self, anywhere: bool = False) -> list[torch.Tensor]:
        """Tensors on the device that lie on no block of their own. Sparse and quantized ones."""
        return [
            t
            for t in self._tensors()
            if not is_lazy(t) and not _lies_on_a_block(t) and (anywhere or t.device.type == self.device.type)
        ]

    def _tensors(self) -> Iterator[torch.Tensor]:
        for owner in self.owners:
            if isinstance(owner, nn.Module):
                if not hasattr(owner, "reshard"):
                    yield from _with_gradients(owner)
                    yield from owner.buffers()
            else:
                # of another worker, too, which may be at work on another device
                for state in list(owner.state.values()):
                    yield from (
                        value for value in list(state.values()) if isinstance(value, torch.Tensor) and value.dim()
                    )

    def __repr__(self) -> str:
        where = "host memory" if self.away else str(self.device)
        owners = ", ".join(type(owner).__name__ for owner in self.owners)
        return f"Residence({owners} of {self.device}, {self.nbytes / 2**20:.1f} MiB, now in {where})"


@contextlib.contextmanager
def _lock_if(shared: bool) -> Iterator[None]:
    """Who shares memory with others moves it alone. The rest may go on at the same time."""
    with _SHARED if shared else contextlib.nullcontext():
        yield


def _with_gradients(module: nn.Module) -> Iterator[torch.Tensor]:
    for parameter in module.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad


def _lies_on_a_block(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies on one block of memory.

    Not what has no memory yet (a lazy module's parameter), or several blocks (a sparse tensor).
    """
    return not is_lazy(tensor) and tensor.layout == torch.strided and not tensor.is_quantized


def _by_block(tensors: Iterable[torch.Tensor]) -> dict[int, list[torch.Tensor]]:
    """Those that lie on one block of memory, by its address. Each tensor once, none that is empty."""
    found: dict[int, list[torch.Tensor]] = {}
    seen: set[int] = set()
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if id(tensor) not in seen and storage.nbytes():
            seen.add(id(tensor))
            found.setdefault(storage.data_ptr(), []).append(tensor)
    return found


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor that is sharded over ranks. Any other as it is."""
    if not hasattr(tensor, "to_local"):
        return tensor
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
        return part


def _move_shards(module: nn.Module, place: torch.device | str) -> None:
    """What ``module.to(place)`` does, with a copy also where host memory is the device."""
    module._apply(lambda tensor: tensor.to(place, copy=True))


def _move(tensor: torch.Tensor, place: torch.device | str) -> None:
    """Move one that lies on no block of its own. With a copy also where host memory is the device."""
    tensor.data = tensor.detach().to(place, copy=True)


def _nbytes_besides(whole: Iterable[torch.Tensor], sharded: Iterable[nn.Module]) -> int:
    """Of tensors that lie on no block, and of this rank's parts of modules."""
    shards = [_own(tensor) for module in sharded for tensor in (*_with_gradients(module), *module.buffers())]
    return sum(tensor.untyped_storage().nbytes() for tensor in shards) + sum(map(_nbytes_of_parts, whole))


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
    """Copy blocks of bytes, in words where they are whole ones. torch copies single bytes a quarter slower."""
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
    """A worker whose torch modules and optimisers leave the device and return by themselves. When the plan switches it.

    They are found among the worker's attributes, also in lists, tuples and dicts there. Override `residents` to say
    which. Whoever keeps numpy views of parameters makes them anew when their ``data_ptr()`` has changed.
    """

    _residence: Residence | None = None

    # of this process, while this one leaves or comes: who is present, and who is not
    _mates: tuple[list[TorchWorker], list[TorchWorker]] = ([], [])
    _nbytes_moved: int | None = None

    def residents(self) -> list[Owner]:
        """The modules and optimisers that live on the device; by default all that are attributes."""
        return list({id(owner): owner for value in list(vars(self).values()) for owner in _owners(value)}.values())

    def offload(self) -> None:
        present, absent = ([mate._own_residence() for mate in mates] for mates in self._mates)
        self._nbytes_moved = self._own_residence().leave(present, absent)

    def onload(self) -> None:
        self._nbytes_moved = self._own_residence().come_back(
            [mate._own_residence() for mates in self._mates for mate in mates]
        )

    def _own_residence(self) -> Residence:
        with _SHARED:  # others ask for it, too
            self._residence = self._residence or Residence([], self.device)
        if not self._residence.away:
            self._residence.owners = self.residents()
        return self._residence

    def _switch(self, order: str, present: Sequence[Worker], absent: Sequence[Worker]) -> bool:
        """Move what is shared only when none of the others is there.

        What it shares with others of its process is there for all of them.
        """
        self._mates = (
            [w for w in present if isinstance(w, TorchWorker)],
            [w for w in absent if isinstance(w, TorchWorker)],
        )
        self._nbytes_moved = None
        try:
            super()._switch(order, present, absent)
        finally:
            self._mates = [], []
        return self._nbytes_moved != 0

    def _nbytes(self) -> int:
        return self._own_residence().nbytes

    def _leaves_at_once(self) -> bool:
        """Whether it leaves as soon as it is set up; not on a core.

        Host memory is what it would leave for, and who finds its memory while it is set up finds what it was built
        with.
        """
        return self.device != "cpu"

    def _shares_with_given(self, values: Iterable[Any]) -> bool:
        owners = [owner for value in values for owner in _owners(value)]
        return bool(owners) and self._own_residence()._shares_with([Residence(owners, self.device)])

    def _shared(self, other: Worker) -> float:
        return self._own_residence().shared(other._own_residence()) if isinstance(other, TorchWorker) else 0.0


def _owners(value: Any) -> Iterator[Owner]:
    if isinstance(value, (nn.Module, torch.optim.Optimizer)):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _owners(part)
    elif isinstance(value, dict):
        for part in list(value.values()):
            yield from _owners(part)
