"""torch's FSDP2 among the ranks of one worker: each keeps its part of weights, gradients and optimiser state; they are whole only while they are needed.

    shard i ──all-gather──> whole weights: forward, backward ──reduce-scatter──> gradient of shard i ──> optimiser of shard i

A device mesh stands on torch's default process group, of which a process has one. So the ranks live in processes of their own (not in the
threads of the local executor), and in a process one worker shards. Gloo carries the tensors of a CPU, NCCL those of a GPU.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workers.group import Came, Met, RankGroup
from rlinf_lab.workflow.worker import Worker

APART = (
    "torch shards over its default process group, of which a process has one. Next: executor='processes' (or 'ray') and a device of its own for each rank, "
    "or parallel='ddp'."
)
_INTERFACE = "GLOO_SOCKET_IFNAME"


class ShardGroup(RankGroup):
    """A `RankGroup` whose `parallel` shards the module, in place, with `torch.distributed.fsdp.fully_shard`. See the module's docstring.

    A sharded module stays so until `forget`. When an update has failed, nobody knows which shards have made its last step, so the group
    is not formed again: the worker goes on from a checkpoint.
    """

    def __init__(self, worker: Worker, timeout: float = 120.0) -> None:
        super().__init__(worker, timeout)
        self._mesh: Any = None

    # --- joining and leaving ------------------------------------------------------------------------------
    def _refuse_to_form_again(self, came: Sequence[Came]) -> None:
        if any(c.wrapped for c in came):
            raise WorkflowError(
                f"{self._worker!r}: an update of its sharded weights has failed or ranks have changed; the shards may be of different steps. Next: go on from "
                f"a checkpoint, LearnerWorker(state=...)."
            )

    def _refuse(self, met: Sequence[Met]) -> None:
        if len({(m.address, m.process) for m in met}) < len(met):
            raise WorkflowError(f"{self._worker!r}: several of its {len(met)} ranks live in one process. {APART}")
        taken = [rank for rank, m in enumerate(met) if m.taken]
        if taken:
            raise WorkflowError(
                f"{self._worker!r}: in the process of rank {taken[0]} torch has a default process group already, of another worker that shards or of other "
                f"code. Next: give the two workers devices of their own, or parallel='ddp'."
            )

    def _joined(self, store: Any, address: str) -> Any:
        from torch.distributed.device_mesh import init_device_mesh

        device, ranks = torch.device(self._worker.device), self._worker.ranks
        backend = "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)  # the mesh takes the current one
            backend = "cpu:gloo,cuda:nccl"
        with _speaking_at(address):
            dist.init_process_group(backend, store=store, rank=self.position, world_size=ranks, timeout=self._timeout)
        self._mesh = init_device_mesh(device.type, (ranks,))
        return dist.group.WORLD

    def leave(self) -> None:
        if self._group is None:
            return
        for module in self._wrapped:
            _let_go(module)
        self._mesh._pg_registry.clear()
        self._group, self._mesh, self._formed = None, None, 0
        dist.destroy_process_group()
        self._store = None

    def unwrap(self) -> None:
        """Shards stay shards, on whatever device."""

    def forget(self) -> bool:
        known, self._wrapped = bool(self._wrapped), []
        return known

    # --- working together -----------------------------------------------------------------------------------
    def parallel(self, module: nn.Module, optimizer: torch.optim.Optimizer | None = None, units: Sequence[nn.Module] = ()) -> nn.Module:
        """``module``, sharded over the ranks in place at the first call; itself on a single rank.

        ``optimizer``: of its parameters; it goes on with its part of what it knows. ``units``: submodules that are gathered one at a time, such as
        the layers of a transformer, rather than with the rest. All ranks begin with the weights of rank 0.
        """
        if self._worker.ranks == 1 or any(known is module for known in self._wrapped):
            return module
        from torch.distributed.fsdp import fully_shard

        with torch.no_grad():
            for tensor in module.state_dict().values():
                dist.broadcast(tensor, 0)
        before = dict(module.named_parameters())
        for part in (*units, module):
            sharded = fully_shard(part, mesh=self._mesh)
            if self._mesh.device_type == "cpu":
                sharded.set_force_sum_reduction_for_comms(True)  # Gloo has no means
        if optimizer is not None:
            _hand_over(optimizer, {old: module.get_parameter(name) for name, old in before.items()})
        self._wrapped.append(module)
        return module

    @contextlib.contextmanager
    def gathered(self, module: nn.Module) -> Iterator[None]:
        """``with group.gathered(module):`` its parameters are whole, for reading. All ranks must come."""
        from torch.distributed.fsdp import FSDPModule

        parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
        for part in parts:
            part.unshard()
        try:
            yield
        finally:
            for part in parts:
                part.reshard()

    def whole(self, module: nn.Module) -> dict[str, torch.Tensor]:
        return {name: _whole(tensor) for name, tensor in module.state_dict().items()}

    def whole_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        state = optimizer.state_dict()
        return {**state, "state": {i: {name: _whole(value) for name, value in each.items()} for i, each in state["state"].items()}}


def _whole(value: Any) -> Any:
    from torch.distributed.tensor import DTensor

    with torch.no_grad():
        return value.full_tensor() if isinstance(value, DTensor) else value


def _hand_over(optimizer: torch.optim.Optimizer, after: Mapping[torch.Tensor, Any]) -> None:
    """Let an optimiser go on with other parameters; of what it knows of each element, it keeps what belongs to this rank's part."""
    from torch.distributed.tensor import distribute_tensor

    for group in optimizer.param_groups:
        group["params"] = [after.get(parameter, parameter) for parameter in group["params"]]
    for old, new in after.items():
        if old in optimizer.state:
            optimizer.state[new] = {
                name: distribute_tensor(value, new.device_mesh, new.placements, src_data_rank=None)
                if isinstance(value, torch.Tensor) and value.shape == old.shape and value.dim()
                else value
                for name, value in optimizer.state.pop(old).items()
            }


def _let_go(module: nn.Module) -> None:
    """Gloo closes its connections when the last reference to the group goes; frames of an error keep the module alive."""
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            for group in part._get_fsdp_state()._fsdp_param_groups:
                vars(group.mesh_info).pop("shard_process_group", None)


@contextlib.contextmanager
def _speaking_at(address: str) -> Iterator[None]:
    """Gloo is told the network by the name of an interface; what the user has set stays."""
    import psutil

    names = [name for name, found in psutil.net_if_addrs().items() if any(a.address == address for a in found)]
    if _INTERFACE in os.environ or not names:
        yield
        return
    os.environ[_INTERFACE] = names[0]
    try:
        yield
    finally:
        del os.environ[_INTERFACE]
