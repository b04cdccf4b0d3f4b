"""A sharded module is put together when its ranks change.

The parts of all ranks, in host memory, become a plain module in place.

    rank 0: rows 0 to 3 ──┐
    rank 1: rows 4 to 6 ──┴── joined ──> parameter of 7 rows, and so each tensor that the optimiser keeps for it

torch has no inverse of `fully_shard`, so its hooks and its class are taken off by hand here (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

_MANAGED = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")


class Part(NamedTuple):
    """What one rank has of one parameter, in host memory. ``state``: tensors that the optimiser keeps for it, of the
    same rows.
    """

    rows: torch.Tensor
    state: dict[str, torch.Tensor]


def parts_of(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[Part]:
    """What this rank has of a sharded module, parameter by parameter. In the same order on all ranks."""
    found = []
    for one in _parameters(module):
        known = {} if optimizer is None else optimizer.state.get(one.sharded_param, {})
        found.append(
            Part(
                _on_host(one.sharded_param),
                {name: _on_host(value) for name, value in known.items() if _is_shared(value)},
            )
        )
    return found


def made_whole(
    module: nn.Module, optimizer: torch.optim.Optimizer | None, parts: Sequence[Sequence[Part]] | None
) -> None:
    """Make a sharded module a plain one, in place, with an optimiser of its parameters.

    ``parts``: of all ranks, in their order in the group; None: the parameters have no values, and the optimiser knows
    nothing of them, until another rank hands them over.
    """
    after: dict[torch.Tensor, nn.Parameter] = {}
    with torch.no_grad():
        for i, one in enumerate(_parameters(module)):
            old, dim = one.sharded_param, one.fsdp_placement.dim
            mine = None if parts is None else [rank[i] for rank in parts]
            value = (
                torch.empty(old.shape, dtype=old.dtype)
                if mine is None
                else torch.cat([part.rows for part in mine], dim)
            )
            after[old] = nn.Parameter(value.to(one.device), requires_grad=old.requires_grad)
            if optimizer is not None and (known := optimizer.state.pop(old, None)) is not None and mine is not None:
                optimizer.state[after[old]] = {
                    name: torch.cat([part.state[name] for part in mine], dim).to(one.device)
                    if _is_shared(kept)
                    else kept
                    for name, kept in known.items()
                }
            info = one._module_info
            for owner, name in (
                (info.module, info.param_name),
                *zip(info.shared_modules, info.shared_param_names, strict=True),
            ):
                owner._parameters[name] = after[old]
    for group in [] if optimizer is None else optimizer.param_groups:
        group["params"] = [after.get(parameter, parameter) for parameter in group["params"]]
    for part in _sharded_modules(module):
        _undo(part)
    for part in module.modules():
        for name in _MANAGED:
            part.__dict__.pop(name, None)


def _undo(part: Any) -> None:
    """Its hooks, its class and what torch notes of it."""
    from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
    from torch.distributed._composable_state import _module_state_mapping

    state = part._get_fsdp_state()
    handles = [state._pre_forward_hook_handle, state._post_forward_hook_handle]
    for group in state._fsdp_param_groups:
        handles += [
            *group._module_to_pre_save_state_dict_hook_handle.values(),
            *group._module_to_pre_load_state_dict_hook_handle.values(),
        ]
        handles += [one._post_load_hook_handle for one in group.fsdp_params]
    for handle in handles:
        handle.remove()
    part.__class__ = type(part).__mro__[type(part)._orig_cls_mro_index]
    noted = vars(part)[STATE_KEY]
    for function in [function for function, its_state in noted.items() if its_state is state]:
        del noted[function]
        del vars(part)[REGISTRY_KEY][function.__name__]
    _module_state_mapping.pop(part, None)


def _sharded_modules(module: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def _parameters(module: nn.Module) -> Iterator[Any]:
    """torch's own notes of each parameter, which is sharded now."""
    for part in _sharded_modules(module):
        part.reshard()
        for group in part._get_fsdp_state()._fsdp_param_groups:
            yield from group.fsdp_params


def _is_shared(value: Any) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)


def _on_host(value: Any) -> torch.Tensor:
    with torch.no_grad():
        part: torch.Tensor = value.detach().to_local()
        return part.to("cpu", copy=True)
