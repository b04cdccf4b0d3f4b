"""How torch modules and optimisers leave their device and return: each block of memory in one copy, every tensor object stays the same.

    device ──one copy per block──> host memory (page-locked for a GPU, kept for the next time) ──one copy per block──> device

Tensors that share memory (tied weights, views) share it afterwards too. While it is away a tensor lies in host memory and can be read and
written there: weights may be published by a learner that has left. On a core of the CPU host memory is memory as well; the copies are made all
the same, so that an emulated plan pays for its switches what a profile says. A GPU's allocator keeps what is left for the next who asks; a core's blocks
are kept here, for the system would clear every page anew, which takes three times as long as the copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from rlinf_lab.workflow.worker import Worker

Owner = nn.Module | torch.optim.Optimizer


class Residence:
    """What of some modules and optimisers lives on a device, and where it is now.

    ``owners``: their parameters, buffers, gradients and optimiser states are moved. Tensors that are made while it is here come along the next
    time. Adam's step counters, which live in host memory, stay there. Of a module that is sharded over ranks this rank's part is moved.
    """

    def __init__(self, owners: Iterable[Owner], device: str) -> None:
        self.owners, self.device = list(owners), torch.device(device)
        self.away = False
        self._held: list[torch.Tensor] = []  # blocks in host memory, used again at the next leaving
        self._moved: list[tuple[list[torch.Tensor], torch.Tensor, torch.Tensor | None]] = []  # each block's tensors, where they are now, where they were

    def leave(self) -> None:
        """Move everything to host memory; a GPU's memory is free afterwards. Nothing happens when it is away already."""
        if self.away:
            return
        free: dict[int, list[torch.Tensor]] = {}
        for block in self._held:
            free.setdefault(block.numel(), []).append(block)
        self._held, self._moved = [], []
        with torch.no_grad():
            for tensors in self._blocks():
                source = _bytes(tensors[0])
                same = free.get(source.numel())
                host = same.pop() if same else torch.empty(source.numel(), dtype=torch.uint8, pin_memory=self.device.type == "cuda")
                _copy(source, host)
                self._held.append(host)
                self._moved.append((tensors, host, source if self.device.type == "cpu" else None))
            self._wait()  # before anybody reads the copies or their source is freed
            for tensors, host, _ in self._moved:
                _put_onto(tensors, host)
            for module in self._sharded():
                _move_shards(module, "cpu")
        self.away = True

    def come_back(self) -> None:
        """Move everything to the device again. Nothing happens when it is there already."""
        if not self.away:
            return
        with torch.no_grad():
            for tensors, host, there in self._moved:
                if there is None:
                    there = torch.empty(host.numel(), dtype=torch.uint8, device=self.device)
                _copy(host, there)
                _put_onto(tensors, there)
            for module in self._sharded():
                _move_shards(module, self.device)
            self._wait()
        self._moved = []
        self.away = False

    @property
    def nbytes(self) -> int:
        """Bytes that a switch moves."""
        moved = [tensors for tensors, _, _ in self._moved] if self.away else self._blocks()
        shards = [_own(tensor) for module in self._sharded() for tensor in (*_with_gradients(module), *module.buffers())]
        return sum(tensor.untyped_storage().nbytes() for tensor in (*(tensors[0] for tensors in moved), *shards))

    def _sharded(self) -> list[nn.Module]:
        """Modules that keep more references to their memory than their tensors: they move themselves."""
        return [owner for owner in self.owners if isinstance(owner, nn.Module) and hasattr(owner, "reshard")]

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _blocks(self) -> list[list[torch.Tensor]]:
        """The tensors of every block of memory on the device; each tensor once."""
        found: dict[int, list[torch.Tensor]] = {}
        seen: set[int] = set()
        for tensor in map(_own, self._tensors()):
            storage = tensor.untyped_storage()
            if id(tensor) not in seen and storage.nbytes() and tensor.device.type == self.device.type:
                seen.add(id(tensor))
                found.setdefault(storage.data_ptr(), []).append(tensor)
        return list(found.values())

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
        tensor.data = view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


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
