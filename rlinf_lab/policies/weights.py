"""Weights on their way: from the learner to the policy, or to a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rlinf_lab.timeline.record.files import whole


@dataclass(frozen=True, eq=False)
class PolicyWeights:
    """Named arrays in host memory with the number of updates that made them.

    Plain numpy, so that any transport can carry them without knowing torch. The arrays are copies: the learner
    may go on training while they travel.
    """

    arrays: Mapping[str, NDArray]
    version: int = 0
    """how many updates went into them; 0: as initialised"""

    @classmethod
    def fixed(cls, arrays: Mapping[str, NDArray], version: int) -> PolicyWeights:
        """Copies that nobody can write into or replace. A transport needs not look whether somebody has."""
        return cls(MappingProxyType({key: np.ndarray(a.shape, a.dtype, a.tobytes()) for key, a in arrays.items()}), version)

    def __reduce__(self) -> tuple[Any, ...]:
        return PolicyWeights, (dict(self.arrays), self.version)  # a view of a dict cannot be pickled

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file, which is there whole or as it was before. The version goes into its metadata. Returns the path. `OSError`."""
        with whole(Path(path)) as target:
            try:
                save_file({k: np.ascontiguousarray(v) for k, v in self.arrays.items()}, target, {"version": str(self.version)})
            except SafetensorError as error:  # a full disk, in words of its own
                raise OSError(f"{str(path)!r}: {error}") from error
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> PolicyWeights:
        """Read what `save` wrote (or any safetensors file; then the version is 0)."""
        with safe_open(str(path), framework="numpy") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a mapping)
            return cls(arrays, int((file.metadata() or {}).get("version", 0)))

    def __repr__(self) -> str:
        return f"PolicyWeights(version={self.version}, {len(self.arrays)} arrays, {self.nbytes / 1024:.1f} KiB)"
