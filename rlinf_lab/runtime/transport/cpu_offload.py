"""Items whose tensors leave the GPU while they wait in a queue: channels with ``cpu_offload=True``."""

from __future__ import annotations

import pickle
import sys
from typing import Any

from rlinf_lab.runtime.transport.pickling import OnDevice, coming_to, pickled


class Resting:
    """An item, pickled, with its tensors' bytes beside it in host memory."""

    __slots__ = ("_buffers", "_data")

    def __init__(self, data: bytes, buffers: tuple[Any, ...]) -> None:
        self._data, self._buffers = data, buffers

    def wake(self, device: str) -> Any:
        """The item: tensors that came from a GPU are on ``device``, torch's name of the reader's; "" (the loop): they
        stay in host memory.
        """
        with coming_to(device or "cpu"):
            return pickle.loads(self._data, buffers=self._buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Resting, (self._data, tuple(map(pickle.PickleBuffer, self._buffers)))

    def __repr__(self) -> str:
        return f"Resting({len(self._data)} bytes, and {len(self._buffers)} tensors or arrays)"


def rest(item: Any, channel: str) -> Any:
    """The item as it shall wait: itself when no tensor of it is on a GPU. Raises `WorkflowError` when it does not
    pickle.
    """
    if "torch" not in sys.modules:
        return item
    data, buffers = pickled([item], channel)
    if not any(type(b) is OnDevice for b in buffers):
        return item
    return Resting(data, tuple(b.on_host() if type(b) is OnDevice else b for b in buffers))


def wake(item: Any, device: str) -> Any:
    """What `rest` was given."""
    return item.wake(device)[0] if type(item) is Resting else item
