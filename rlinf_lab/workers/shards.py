"""torch's FSDP2 among the ranks of one worker.

Each keeps its part of weights, gradients and optimiser state; they are whole only while they are needed.

    shard i ──all-gather──> whole weights: forward, backward ──reduce-scatter──> gradient of shard i
        ──> optimiser of shard i

A device mesh usually stands on torch's default process group, of which a process has one. Here it stands on the group
of these ranks (`group.py`), so several workers of one process shard side by side, and ranks may be threads of one
process. Gloo carries the tensors of a CPU, NCCL those of a GPU.

When ranks come or go the shards are put together in the host memory of the first rank that stays, and shared out anew
(`parts.py`):

    rank that leaves ──its parts──> first rank that stays: whole ──broadcast──> all that take part now:
        shards of the new group
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workers.group import Came, RankGroup
from rlinf_lab.workers.parts import Part, made_whole, parts_of
from rlinf_lab.workflow.worker import Worker


class ShardGroup(RankGroup):
    """A `RankGroup` whose `parallel` shards the module, in place, with `torch.distributed.fsdp.fully_shard`. See the
    module's docstring.

    A sharded module stays so until `forget`, or until others take part. When an update has failed, nobody knows which
    shards have made its last step, so the group is not formed again: the worker goes on from a checkpoint.
    """

    def __init__(self, worker: Worker, timeout: float = 120.0) -> None:
        super().__init__(worker, timeout)
        self._mesh: Any = None
        self._optimizers: list[torch.optim.Optimizer | None] = []  # of those wrapped

    # --- joining and leaving ------------------------------------------------------------------------------
    def _refuse_to_form_again(self, came: Sequence[Came]) -> None:
        super()._refuse_to_form_again(came)
        latest = max(c.last for c in came)
        # some have left the group
        if any(c.wrapped for c in came) and any(c.formed != latest for c in came if c.wrapped or c.last == latest):
            raise WorkflowError(
                f"{self._worker!r}: an update of its sharded weights has failed; the shards may be of different steps. "
                "Next: go on from "
                f"a checkpoint, LearnerWorker(state=...)."
            )

    def _joined(self, store: Any, address: str) -> Any:
        from torch.distributed.device_mesh import DeviceMesh

        device, ranks = torch.device(self._worker.device), self._worker.ranks
        if device.type == "cuda":
            torch.cuda.set_device(device)  # fully_shard takes the current one
        group = super()._joined(store, address)
        _register(group, ranks, store)
        # A name of its own, for torch remembers what was done on meshes that are equal; its rank is not that in a
        # default group.
        mesh: Any = DeviceMesh(
            device.type,
            torch.arange(ranks),
            mesh_dim_names=(group.group_name,),
            _init_backend=False,
            _rank=self.position,
        )
        mesh._dim_group_names = [group.group_name]
        mesh._pg_registry[group.group_name] = group
        self._mesh = mesh
        return group

    def leave(self) -> None:
        if self._group is None:
            return
        for module in self._wrapped:
            _let_go(module)
        self._mesh._pg_registry.clear()
        group, self._mesh = self._group, None
        super().leave()
        _unregister(group)

    def _disband(self, stay: Sequence[int]) -> None:
        if self._wrapped:
            mine = self._parts()
            all_parts = None
            if self._worker.rank == stay[0]:
                all_parts = self._collected(mine)
            else:
                self._worker._context.leave_behind(self._place, mine)
            for i, (module, optimizer) in enumerate(zip(self._wrapped, self._optimizers, strict=True)):
                made_whole(module, optimizer, None if all_parts is None else [parts[i] for parts in all_parts])
        self._wrapped, self._optimizers = [], []

    def _collected(self, mine: list[list[Part]]) -> list[list[list[Part]]]:
        """The parts of all ranks of the group. Nothing stays where it was left, also where some cannot be gone on from.
        """
        found: list[list[list[Part]]] = []
        errors: list[Exception] = []
        for rank in self._members:
            try:
                found.append(mine if rank == self._worker.rank else self._left_behind_by(rank))
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return found

    def _left_behind_by(self, rank: int) -> list[list[Part]]:
        parts: list[list[Part]] | None = self._worker._context.collect(self._place, rank)
        if parts is None:
            raise WorkflowError(
                f"{self._worker!r}: rank {rank} has left with its part of the sharded weights after an update of it "
                "had failed. Next: go on from a "
                f"checkpoint, LearnerWorker(state=...)."
            )
        return parts

    def _needs_no_farewell(self) -> None:
        if not self._wrapped:  # else the others have to hear that its shards are lost
            super()._needs_no_farewell()

    def _parts(self) -> list[list[Part]]:
        return [parts_of(module, optimizer) for module, optimizer in zip(self._wrapped, self._optimizers, strict=True)]

    def _say_farewell(self) -> None:
        if self._wrapped:
            self._worker._context.leave_behind(
                self._place, self._parts() if self._formed and not self._leaving else None
            )
        super()._say_farewell()

    def unwrap(self) -> None:
        """Shards stay shards, on whatever device."""

    def forget(self) -> bool:
        known, self._wrapped, self._optimizers, self._broken = bool(self._wrapped), [], [], False
        if not self._formed:
            self._needs_no_farewell()
        return known

    # --- working together -----------------------------------------------------------------------------------
    def parallel(
        self, module: nn.Module, optimizer: torch.optim.Optimizer | None = None, units: Sequence[nn.Module] = ()
    ) -> nn.Module:
        """``module``, sharded over the ranks in place at the first call. Itself on a single rank.

        ``optimizer``: of its parameters; it goes on with its part of what it knows. ``units``: submodules that are
        gathered one at a time, such as the layers of a transformer, rather than with the rest. All ranks begin with the
        weights, and the optimiser's state, of the first rank that has worked before.
        """
        if self._worker.ranks == 1 or any(known is module for known in self._wrapped):
            return module
        from torch.distributed.fsdp import fully_shard

        self._agree(module, optimizer)
        before = dict(module.named_parameters())
        for part in (*units, module):
            sharded = fully_shard(part, mesh=self._mesh)
            if self._mesh.device_type == "cpu":
                sharded.set_force_sum_reduction_for_comms(True)  # Gloo has no means
        if optimizer is not None:
            _hand_over(optimizer, {old: module.get_parameter(name) for name, old in before.items()})
        self._wrapped.append(module)
        self._optimizers.append(optimizer)
        return module

    def _make_alike(self, module: nn.Module) -> None:
        """`fully_shard` takes them as they are."""
        with torch.no_grad():
            self._broadcast([t.data for t in (*module.parameters(), *module.buffers())])

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
        return {
            **state,
            "state": {i: {name: _whole(value) for name, value in each.items()} for i, each in state["state"].items()},
        }


def _whole(value: Any) -> Any:
    from torch.distributed.tensor import DTensor

    with torch.no_grad():
        return value.full_tensor() if isinstance(value, DTensor) else value


def _hand_over(optimizer: torch.optim.Optimizer, after: Mapping[torch.Tensor, Any]) -> None:
    """Let an optimiser go on with other parameters. Of what it knows of each element, it keeps what belongs to this
    rank's part.
    """
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
    """Gloo closes its connections when the last reference to the group goes. Frames of an error keep the module alive.
    """
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            for group in part._get_fsdp_state()._fsdp_param_groups:
                vars(group.mesh_info).pop("shard_process_group", None)


def _register(group: Any, ranks: int, store: Any) -> None:
    """By its name torch's tensors find it; its ranks are numbered by itself."""
    from torch._C._distributed_c10d import _register_process_group

    world: Any = dist.distributed_c10d._world
    _register_process_group(group.group_name, group)
    world.pg_group_ranks[group] = {rank: rank for rank in range(ranks)}
    world.pg_names[group] = group.group_name
    world.pg_map[group] = ("custom", store)


def _unregister(group: Any) -> None:
    from torch._C._distributed_c10d import _unregister_process_group

    world: Any = dist.distributed_c10d._world
    _unregister_process_group(group.group_name)
    for known in (world.pg_group_ranks, world.pg_names, world.pg_map):
        known.pop(group, None)
