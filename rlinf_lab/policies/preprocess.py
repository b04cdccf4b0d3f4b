"""From an environment's observation to what an encoder reads.

float32, normalised, scaled, one-hot.

Legend: B batch, F numbers that are normalised, X features in one row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinf_lab.errors import shown
from rlinf_lab.policies.leaves import Kind, Leaf, choices, first_choice, flatten, in_rows, leaves_of, unflatten
from rlinf_lab.policies.views import HostViews

CLIP = 10.0  # standard deviations: one strange observation must not saturate the net
LEAST_STD = 1e-6  # below, a number has never varied and is only centred


class Preprocess(nn.Module):
    """Numbers normalised, images scaled to [0, 1], categories one-hot.

    Statistics are the buffers ``obs_mean`` and ``obs_std``, one row for all leaves that are normalised.
    As a module it maps a tree of tensors (B, *shape) to a tree of the same form; `numpy` does the same for arrays and
    puts them into one row. With ``normalise=False`` numbers pass as they are; with ``one_hot=False`` categories are
    indices from 0, int64 (B, components), as embeddings want them.
    """

    obs_mean: Tensor
    obs_std: Tensor

    def __init__(self, space: Space, normalise: bool = True, one_hot: bool = True) -> None:
        super().__init__()
        self.space, self.normalise, self.one_hot = space, normalise, one_hot
        self.leaves = leaves_of(space)
        self.is_flat = all(leaf.kind is not Kind.IMAGE for leaf in self.leaves)
        self.rows: dict[int, slice] = {}
        """where in the row of numbers a leaf is, by its index"""
        start = 0
        for i, leaf in enumerate(self.leaves):
            if normalise and leaf.kind is Kind.NUMBERS:
                self.rows[i] = slice(start, start := start + leaf.size)
            if leaf.kind is Kind.CATEGORIES:
                component, value = _components(leaf)
                self.register_buffer(f"component_{i}", torch.from_numpy(component), persistent=False)
                self.register_buffer(f"value_{i}", torch.from_numpy(value), persistent=False)
                self.register_buffer(f"first_{i}", torch.from_numpy(first_choice(leaf.space).copy()), persistent=False)
        self.register_buffer("obs_mean", torch.zeros(start))
        self.register_buffer("obs_std", torch.ones(start))
        self._views = HostViews((self, "obs_mean"), (self, "obs_std"))
        self._constants = [_components(leaf) if leaf.kind is Kind.CATEGORIES else None for leaf in self.leaves]

    # --- torch ----------------------------------------------------------------------------------------------
    def forward(self, tree: Any) -> Any:
        leaves = flatten(self.space, tree)
        return unflatten(
            self.space,
            [self._prepared(i, leaf, x) for i, (leaf, x) in enumerate(zip(self.leaves, leaves, strict=True))],
        )

    def _prepared(self, i: int, leaf: Leaf, x: Tensor) -> Tensor:
        if leaf.kind is Kind.IMAGE:
            return _scaled(leaf, x)
        if leaf.kind is Kind.CATEGORIES:
            rows = in_rows(x)
            if not self.one_hot:
                return rows.long() - self.get_buffer(f"first_{i}")
            component, value = self.get_buffer(f"component_{i}"), self.get_buffer(f"value_{i}")
            return (rows[:, component] == value).float()
        if i not in self.rows:
            return x.float()
        row = self.rows[i]
        mean, std = self.obs_mean[row].reshape(leaf.shape), self.obs_std[row].reshape(leaf.shape)
        return ((x.float() - mean) / std).clamp(-CLIP, CLIP)

    # --- numpy ----------------------------------------------------------------------------------------------
    def numpy(self, tree: Any) -> NDArray[np.float32]:
        """All leaves of a tree without images in one row each (B×X), float32. Raises `ValueError` naming a leaf that
        does not fit.
        """
        mean, std = self._views()
        rows = [self._row(i, x, mean, std) for i, x in enumerate(flatten(self.space, tree, "observation"))]
        return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)

    def _row(self, i: int, x: Any, mean: NDArray, std: NDArray) -> NDArray[np.float32]:
        leaf, constants = self.leaves[i], self._constants[i]
        if constants is not None:
            array = fitting(leaf, x)
            component, value = constants
            one_hot = array.reshape(len(array), -1)[:, component] == value
            if np.count_nonzero(one_hot) != len(array) * (component[-1] + 1):
                raise ValueError(
                    f"observation{leaf.name} is {shown(array)}: not all of it is in {leaf.space}. Next: "
                    "lab.envs.check_env finds the step."
                )
            return one_hot.astype(np.float32)
        array = fitting(leaf, x, np.float32)
        if array.ndim != 2:
            array = array.reshape(len(array), leaf.size)
        if i not in self.rows:
            return array
        row = self.rows[i]
        normal: NDArray[np.float32] = np.minimum(np.maximum((array - mean[row]) / std[row], -CLIP), CLIP)
        return normal

    # --- statistics -----------------------------------------------------------------------------------------
    def numbers(self, tree: Any) -> Any:
        """Those that are normalised, (..., F): what statistics are made of.

        For leaves of shape (..., *shape). Tensors stay where they are.
        """
        arrays = [as_given(x) for x in flatten(self.space, tree, "observation")]
        first = arrays[0]
        batch = first.shape[: first.ndim - len(self.leaves[0].shape)]
        rows = [arrays[i].reshape(*batch, self.leaves[i].size) for i in self.rows]
        if rows and isinstance(rows[0], Tensor):
            return torch.cat(rows, dim=-1)
        return np.concatenate(rows, axis=-1) if rows else np.zeros((*batch, 0), np.float32)

    def set(self, mean: Any, std: Any) -> None:
        """Replace the normalisation: rows as of `numbers` (F), or trees like one observation. A number that never
        varied (std 0) is only centred.
        """
        mean_F, std_F = self._statistics("mean", mean), self._statistics("std", std)
        self.obs_mean.copy_(torch.from_numpy(mean_F))
        self.obs_std.copy_(torch.from_numpy(np.where(std_F > LEAST_STD, std_F, 1.0)))

    def _statistics(self, name: str, given: Any) -> NDArray:
        if isinstance(given, (dict, tuple)):
            arrays = flatten(self.space, given, name)
            given = np.concatenate(
                [np.zeros(0), *(np.asarray(arrays[i], dtype=np.float64).reshape(-1) for i in self.rows)]
            )
        row = np.asarray(given, dtype=np.float64).reshape(-1)
        if row.size != self.obs_mean.numel() or not np.isfinite(row).all():
            fault = "not finite everywhere" if row.size == self.obs_mean.numel() else f"of {row.size} numbers"
            raise ValueError(
                f"set_normaliser({name}={shown(given)}): {fault}; it must have a finite number for each of the "
                f"{self.obs_mean.numel()} that are normalised, "
                f"in the order of `numbers`."
            )
        return row.astype(np.float32)

    def extra_repr(self) -> str:
        return "; ".join(map(str, self.leaves)) + ("" if self.normalise else "; numbers not normalised")


def as_given(x: Any) -> Any:
    """An array, but of a tensor the tensor, wherever it is."""
    return x if isinstance(x, Tensor) else np.asarray(x)


def fitting(leaf: Leaf, x: Any, dtype: Any = None) -> Any:
    """``x`` as an array (B, *shape), or the tensor. Raises `ValueError` that names the leaf where it is not."""
    array = x if isinstance(x, Tensor) and dtype is None else np.asarray(x, dtype=dtype)
    if array.ndim != len(leaf.shape) + 1 or array.shape[1:] != leaf.shape:
        single = "obs[None] for a single one" if array.shape == leaf.shape else "observations of its environment"
        raise ValueError(
            f"observation{leaf.name} has the shape {tuple(array.shape)}; {leaf.space} needs {('B', *leaf.shape)}, B "
            f"observations at once. Next: {single}, or make the policy from this environment's spaces."
        )
    return array


def _components(leaf: Leaf) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which component each place of the one-hot row looks at, and its value."""
    counts, starts = choices(leaf.space), first_choice(leaf.space)
    component = np.repeat(np.arange(len(counts)), counts)
    return component, np.concatenate([start + np.arange(n) for n, start in zip(counts, starts, strict=True)])


def _scaled(leaf: Leaf, x: Tensor) -> Tensor:
    space = leaf.space
    if x.dim() == 3:  # B×H×W
        x = x.unsqueeze(-1)
    if not leaf.channels_first:
        x = x.permute(0, 3, 1, 2)
    if space.dtype == np.uint8:
        return x.float().div_(255.0)  # a copy already: no second one
    low, high = float(space.low.min()), float(space.high.max())
    return (x.float() - low) / (high - low)
