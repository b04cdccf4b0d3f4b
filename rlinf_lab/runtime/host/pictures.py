"""Pictures of environments, as workers give them, and how often they may draw one."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlinf_lab.errors import WorkflowError


def picture(image: Any, source: str) -> Any:
    """``image`` as uint8, H×W×3: grey is repeated, alpha is dropped. `WorkflowError` for anything else."""
    array = np.asarray(image.cpu() if hasattr(image, "cpu") else image)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.dtype != np.uint8 or array.size == 0:
        raise WorkflowError(
            f"{source}: frame() got an array of shape {array.shape} and type {array.dtype}. Next: give one picture, "
            f"H×W×3, uint8 from 0 to 255."
        )
    return np.ascontiguousarray(np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[:, :, :3])


class PictureBudget:
    """When a rank may draw the next picture. It may at most twice a second, and in at most one hundredth of its time.

    In software a picture takes 10 to 100 ms. The first is not counted: it includes creating the renderer.
    """

    PERIOD_NS, SHARE = 500_000_000, 100

    def __init__(self) -> None:
        self._asked = self._due = 0
        self._first = True

    def wanted(self, now_ns: int) -> bool:
        if now_ns < self._due:
            return False
        self._asked, self._due = now_ns, now_ns + self.PERIOD_NS
        return True

    def drawn(self, now_ns: int) -> None:
        if not self._first:
            self._due = max(self._due, now_ns + self.SHARE * (now_ns - self._asked))
        self._first = False
