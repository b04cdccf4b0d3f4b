"""Host memory in the place of a GPU's: torch's own sharing of it (file_system) has handles, counts and an opener as CUDA's has. For tests without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlinf_lab.runtime.transport import cuda_ipc, pickling

GPU = "the-gpu"


class HostSharing:
    """See `cuda_ipc.Sharing`. ``open_now``: what was shared here and neither opened nor released; ``refuse``: what sharing or opening raises."""

    def __init__(self) -> None:
        self.shared: list[tuple[Any, ...]] = []
        self.released: list[tuple[Any, ...]] = []
        self.refuse_to_share = self.refuse_to_open = ""

    def identity(self, block: torch.Tensor) -> str:
        return GPU

    def share(self, block: torch.Tensor) -> tuple[Any, ...]:
        if self.refuse_to_share:
            raise RuntimeError(self.refuse_to_share)
        storage = block.untyped_storage()
        made = storage._share_filename_cpu_()
        storage._shared_incref()  # taken over by who opens it, or by `release`
        self.shared.append(made)
        return made

    def open(self, shared: tuple[Any, ...], identity: str) -> torch.Tensor:
        assert identity == GPU
        if self.refuse_to_open:
            raise RuntimeError(self.refuse_to_open)
        storage = torch.UntypedStorage._new_shared_filename_cpu(*shared)
        storage._shared_decref()
        return torch.empty(0, dtype=torch.uint8).set_(storage)

    def release(self, shared: tuple[Any, ...]) -> None:
        self.released.append(shared)
        torch.UntypedStorage._new_shared_filename_cpu(*shared)._shared_decref()

    def hold(self, block: torch.Tensor, owner: Any) -> torch.Tensor:
        owner.__array_interface__ = block.numpy().__array_interface__  # as __cuda_array_interface__ on a GPU
        return torch.from_numpy(np.asarray(owner))


def instead_of_a_gpu() -> HostSharing:
    """From now on plain tensors of this process count as tensors on a GPU."""
    pickling.LENT_DEVICES = frozenset({"cpu"})
    cuda_ipc.SHARING = made = HostSharing()
    return made
