"""One's own advantages and losses, tried on a few numbers before a run begins.

What is wrong with them is told where they are named, and not by a worker. Legend: T time, N environments, P prompts,
G responses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlinf_lab.algorithms.ppo import PolicyLoss, asks_for_proximal
from rlinf_lab.algorithms.registry import Entry, Registry, advantage, loss
from rlinf_lab.errors import ConfigError, said, shown

FIELDS = ("total", "kl", "clip_fraction", "reference_kl")  # of a `PolicyLoss`


def tried_loss(name: str | Callable[..., Any], **options: Any) -> Entry:
    """The loss of that name. ``options``: those that the recipe calls it with beside clipping.

    With some it is of tokens, and gets a mask. Raises `ConfigError` where it cannot be called so, or gives no `PolicyLoss` whose total has a gradient;
    `UnknownNameError`.
    """
    entry = loss.get(name)
    proximal = asks_for_proximal(entry.function)
    if proximal and options:
        raise ConfigError(
            f"loss {entry.name!r} takes proximal_log_prob, which updates from environments compute and those of tokens do not. "
            "Next: loss='ppo' with correction='decoupled'."
        )
    if entry.is_ours:
        return entry
    log_prob = torch.tensor([[-1.0, -0.5, -2.0], [-0.7, -1.5, -0.9]], requires_grad=True)
    old, weight = log_prob.detach() - 0.1, torch.tensor([[1.0, -1.0, 0.5], [-0.5, 2.0, 1.0]])
    mask = torch.ones_like(old, dtype=torch.bool) if options else None
    options |= {"proximal_log_prob": old} if proximal else {}
    found = _called(loss, entry, log_prob, old, weight, mask, clip=0.2, clip_high=None, dual_clip=None, **options)
    odd = [f for f in FIELDS if not isinstance(getattr(found, f, None), Tensor) or getattr(found, f).numel() != 1]
    if odd:
        told = shown(found) if not isinstance(found, PolicyLoss) else f"{odd[0]}={shown(getattr(found, odd[0]))}"
        raise _refused(loss, entry, f"gives {told}; PolicyLoss({', '.join(FIELDS)}) of tensors of one number is needed")
    if not found.total.requires_grad:
        raise _refused(loss, entry, "gives a total without a gradient, from which nothing is learnt")
    return entry


def tried_advantage_of_steps(name: str | Callable[..., Any]) -> Entry:
    """The advantage of that name. `ConfigError` unless it gives advantages and targets, (T, N) each."""
    entry = advantage.get(name, of="steps")
    if not entry.is_ours:
        value_TN, never_TN = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), np.zeros((3, 2), bool)
        found = _called(advantage, entry, value_TN, value_TN, value_TN, never_TN, never_TN, gamma=0.9, lam=0.9)
        pair = found if isinstance(found, (tuple, list)) else [found]
        if [np.shape(part) for part in pair] != [(3, 2), (3, 2)]:
            given = ", ".join(str(np.shape(part)) for part in pair)
            raise _refused(advantage, entry, f"gives arrays of {given} for rewards (3, 2); (advantage, target) of that shape are needed")
    return entry


def tried_advantage_of_groups(name: str | Callable[..., Any], responses: int) -> Entry:
    """The advantage of that name. `ConfigError` unless it gives a number for each of so many responses a prompt."""
    entry = advantage.get(name, of=("group", "batch"))
    if not entry.is_ours:
        reward_PG = np.linspace(-1, 1, 2 * responses, dtype=np.float32).reshape(2, responses)
        found = _called(advantage, entry, reward_PG)
        if np.shape(found) != reward_PG.shape:
            raise _refused(advantage, entry, f"gives {np.shape(found)} for rewards {reward_PG.shape}; one number for each is needed")
    return entry


def _called(kind: Registry, entry: Entry, *given: Any, **options: Any) -> Any:
    try:
        return entry.function(*given, **options)
    except Exception as error:
        raise _refused(kind, entry, f"raises {type(error).__name__}: {said(error)}") from error


def _refused(kind: Registry, entry: Entry, why: str) -> ConfigError:
    return ConfigError(f"{kind.kind} {entry.name!r}, tried on a few numbers, {why}. Next: {kind.takes[entry.of]}.")
