"""torch.distributed among the ranks of one worker, in threads of one process as well as in processes.

    rank 0 opens a store ── exchange(address) ──> every rank joins ──> one process group: DistributedDataParallel, collectives

The group is no default group of the process: several workers, and several ranks in one process, have groups side by side. A collective does not
hang: a rank that fails leaves the group, which ends the collectives of the others at once, and the next call forms a new one.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from rlinf_lab.errors import MissingDependencyError
from rlinf_lab.workflow.worker import Worker

TIMEOUT_SECONDS = 120.0
LEAVE_SECONDS = 0.5
LOOPBACK = "127.0.0.1"


class Met(NamedTuple):
    """What a rank says of itself when a group is formed. ``taken``: its process has a default process group of torch already."""

    address: str
    port: int
    process: int
    taken: bool


class RankGroup:
    """The ranks of ``worker`` as a process group: Gloo on CPU, and NCCL for tensors of a GPU.

    ``with group:`` around the part of a call in which the ranks work together forms the group if it is not there (all ranks must come), and
    leaves it when the body raises. ``timeout``: seconds that a collective waits for the others.
    """

    def __init__(self, worker: Worker, timeout: float = TIMEOUT_SECONDS) -> None:
        if not dist.is_available():
            raise MissingDependencyError("RankGroup needs torch.distributed, which this build of torch lacks. Next: install another build of torch.")
        self._worker, self._timeout = worker, datetime.timedelta(seconds=timeout)
        self._formed = 0  # how many groups so far; 0: none now
        self._wrapped: list[nn.Module] = []  # those of `parallel`
        self._group: Any = None
        self._leaving: threading.Timer | None = None
        self._store: Any = None

    # --- joining and leaving ------------------------------------------------------------------------------
    def __enter__(self) -> RankGroup:
        """Raises what a rank that does not come has raised."""
        if self._worker.ranks > 1:
            self._left_by_now()
            try:
                self._meet()
            except BaseException:  # a rank may fail before this one has heard that all are here; the others compute already and wait for it
                self._leave_soon()
                raise
        return self

    def _meet(self) -> None:
        formed, wrapped = zip(*self._worker.exchange((self._formed, len(self._wrapped))), strict=True)
        if not formed[0] or len(set(formed)) > 1:
            self._refuse_to_form_again(wrapped)
            self.leave()
            self._form(max(formed) + 1)
        elif len(set(wrapped)) > 1:  # some have left their device: wrapping is a collective too, so all do it again
            self.unwrap()

    def _refuse_to_form_again(self, wrapped: Sequence[int]) -> None:
        """``wrapped``: how many modules each rank works on together with the others."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._leave_soon()

    def _leave_soon(self) -> None:
        """Not at once: what broke off here shall be told before the collectives of the others break off for want of this rank."""
        if self._group is not None:
            self._leaving = threading.Timer(LEAVE_SECONDS, self.leave)
            self._leaving.daemon = True
            self._leaving.start()

    def _left_by_now(self) -> None:
        """A leaving that is still to come is done."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving.join()
            self._leaving = None
            self.leave()

    def _form(self, number: int) -> None:
        rank = self._worker.rank
        if rank == 0:
            self._store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=self._timeout)
        own = Met(self._worker._context.address, self._store.port if rank == 0 else 0, os.getpid(), dist.is_initialized())
        met = [Met(*m) for m in self._worker.exchange(tuple(own))]
        self._refuse(met)
        on_one_machine = len({m.address for m in met}) == 1
        client = dist.TCPStore(LOOPBACK if on_one_machine else met[0].address, met[0].port, is_master=False, timeout=self._timeout)
        self._group = self._joined(client, LOOPBACK if on_one_machine else met[rank].address)
        self._formed = number
        self.barrier()

    def _refuse(self, met: Sequence[Met]) -> None:
        """Raise, on all ranks alike, where these ranks can form no group."""

    def _joined(self, store: Any, address: str) -> Any:
        """The group, of the ranks that speak with each other at ``address`` of this machine."""
        return _process_group(store, self._worker.rank, self._worker.ranks, self._worker.device, address, self._timeout)

    def leave(self) -> None:
        """Close this rank's connections: collectives of the others fail instead of waiting."""
        self.unwrap()
        self._group, self._store, self._formed = None, None, 0

    def unwrap(self) -> None:
        """Forget the modules of `parallel` and their buffers for gradients, as before leaving a device."""
        # Gloo closes its connections when the last reference goes, not in abort(); frames of the error keep the modules alive.
        for wrapped in self._wrapped:
            for name in ("process_group", "reducer", "logger"):
                wrapped.__dict__.pop(name, None)
        self._wrapped = []

    def offload(self) -> None:
        """Before the worker leaves its device."""
        self.unwrap()

    def forget(self) -> bool:
        """Give up what `parallel` has made; whether the modules and optimisers themselves were changed by it, so that new ones are needed."""
        self.unwrap()
        return False

    # --- working together -----------------------------------------------------------------------------------
    def parallel(self, module: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> nn.Module:
        """``module`` with the gradients of all ranks averaged in `backward`, as torch's DistributedDataParallel does; itself on a single rank.

        ``optimizer``: of its parameters.
        """
        if self._worker.ranks == 1:
            return module
        for wrapped in self._wrapped:
            if wrapped.module is module:
                return wrapped
        from torch.nn.parallel import DistributedDataParallel

        self._wrapped.append(DistributedDataParallel(module, process_group=self._group))
        return self._wrapped[-1]

    def gathered(self, module: nn.Module) -> AbstractContextManager[Any]:
        """``with group.gathered(module):`` its parameters are whole, for reading. All ranks must come."""
        return nullcontext()

    def whole(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """The module's state, every tensor of its whole shape. All ranks must come."""
        return module.state_dict()

    def whole_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimiser's state, as an optimiser on a single rank would have it. All ranks must come."""
        return optimizer.state_dict()

    def mean(self, values: dict[str, float]) -> dict[str, float]:
        """Means over the ranks, which all give the same names."""
        if self._worker.ranks == 1:
            return values
        names = sorted(values)
        total = torch.tensor([values[name] for name in names], dtype=torch.float64)
        self._group.allreduce([total]).wait()
        return dict(zip(names, (total / self._worker.ranks).tolist(), strict=True))

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self._worker.ranks > 1:
            self._group.allreduce([torch.zeros(1)]).wait()

    def __repr__(self) -> str:
        now = f"group {self._formed}" if self._formed else "not formed"
        return f"{type(self).__name__}({self._worker!r}, rank {self._worker.rank} of {self._worker.ranks}, {now})"


def _process_group(store: Any, rank: int, ranks: int, device: str, address: str, timeout: datetime.timedelta) -> Any:
    """A group that torch's registry of groups does not know, so that threads of one process can each have their own."""
    group: Any = dist.ProcessGroup(store, rank, ranks)
    kinds = dist.ProcessGroup.BackendType
    backend: Any = dist.ProcessGroupGloo  # torch's stubs lack its options
    options = backend._Options()
    options._devices, options._timeout = [backend.create_device(hostname=address)], timeout
    gloo = backend(store, rank, ranks, options)
    group._set_default_backend(kinds.GLOO)
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    if device.startswith("cuda"):
        wishes = dist.ProcessGroupNCCL.Options()
        wishes._timeout = timeout
        nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), rank, ranks, wishes)
        group._set_default_backend(kinds.NCCL)
        group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    group._set_group_name(f"rlinf_lab {id(group)}")
    return group
