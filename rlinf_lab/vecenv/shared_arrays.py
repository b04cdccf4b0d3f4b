"""Arrays that several processes see, in memory without a name.

It is gone with the last process that has it, however that process ended.

Legend: N environments, K processes.
"""

from __future__ import annotations

import mmap
import os
import tempfile

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rlinf_lab.trees import Tree
from rlinf_lab.vecenv.base import EnvSpec

ALIGNED = 64  # bytes: a line of the processor's cache
ORDER, SEED, HAS_SEED, ANSWER, HAS_FINAL, HAS_SUCCESS, HAS_RESET_ONLY, AT = range(8)
"""columns of ``notes_K8``: what a process shall do and with which seed, what it answers, which of the optional fields it wrote, and the environment in it
that is being stepped (-1: not known)"""


def create_memory(bytes: int) -> int:
    """A file descriptor of memory without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("rlinf_lab environments")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, bytes)
    return descriptor


class SharedArrays:
    """What a vector of environments hands over and takes. N rows each, laid out one after another."""

    def __init__(self, spec: EnvSpec, num_envs: int, processes: int, descriptor: int | None = None) -> None:
        """``descriptor``: of memory that another process has created with the same arguments (None: create it)."""
        self._end = 0
        self._memory: mmap.mmap | None = None
        self._lay_out(spec, num_envs, processes)  # once to learn how many bytes it takes
        self.descriptor = create_memory(self._end) if descriptor is None else descriptor
        self._memory, self._end = mmap.mmap(self.descriptor, self._end), 0
        self._lay_out(spec, num_envs, processes)

    def _lay_out(self, spec: EnvSpec, num_envs: int, processes: int) -> None:
        self.notes_K8 = self._array((processes, 8), np.int64)
        self.action_N = self._tree(spec.action_space, num_envs)
        self.obs_N = self._tree(spec.observation_space, num_envs)
        self.final_N = self._tree(spec.observation_space, num_envs)
        self.reward_N = self._array((num_envs,), np.float32)
        self.terminated_N, self.truncated_N, self.success_N, self.reset_only_N = (self._array((num_envs,), np.bool_) for _ in range(4))

    def _tree(self, space: spaces.Space, num_envs: int) -> Tree:
        if isinstance(space, spaces.Dict):
            return {key: self._tree(part, num_envs) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._tree(part, num_envs) for part in space.spaces)
        return self._array((num_envs, *(space.shape or ())), space.dtype)

    def _array(self, shape: tuple[int, ...], dtype: object) -> NDArray:
        start, kind = self._end, np.dtype(dtype)  # type: ignore[call-overload]
        self._end += -(-int(np.prod(shape)) * kind.itemsize // ALIGNED) * ALIGNED
        return np.empty(0, kind) if self._memory is None else np.ndarray(shape, kind, self._memory, start)

    def close(self) -> None:
        """Arrays that somebody still has keep the memory until they are gone."""
        os.close(self.descriptor)
