"""The names of devices. ``cpu:0`` is a core, ``cuda:0`` a GPU, of the node on which the user's loop runs;
``node1/cpu:0`` is of another. ``cuda:0.1`` and ``cuda:0.2`` are shares of one that work at the same time: on a GPU each
is a CUDA stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlinf_lab.errors import PlanError

_NAME = re.compile(r"(?:node([1-9]\d*)/)?(cpu|cuda):(0|[1-9]\d*)(?:\.([1-9]\d*))?")


@dataclass(frozen=True, order=True)
class Device:
    """A device's name, taken apart. ``node`` 0 is the driver's, the others are numbered as they joined the cluster.
    ``share`` 0 is all of it.
    """

    node: int
    kind: str
    index: int
    share: int = 0

    @classmethod
    def parse(cls, name: str) -> Device:
        """Raises `PlanError` for anything else."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise PlanError(
                f"{name!r} is no device. Next: a name such as 'cpu:0', 'cuda:1' or 'node2/cuda:0' (lab.devices() lists "
                "them)."
            )
        node, kind, index, share = match.groups()
        return cls(int(node or 0), kind, int(index), int(share or 0))

    @classmethod
    def is_name(cls, name: object) -> bool:
        return isinstance(name, str) and _NAME.fullmatch(name) is not None

    @classmethod
    def node_of(cls, names: Sequence[str]) -> int:
        """The node of a rank (all its devices are on one). 0 for one without devices."""
        return cls.parse(names[0]).node if names else 0

    @property
    def local(self) -> str:
        """Its name on its own node, as torch has it: without the share."""
        return f"{self.kind}:{self.index}"

    def __str__(self) -> str:
        return f"node{self.node}/" * bool(self.node) + self.local + f".{self.share}" * bool(self.share)


def whole(name: str) -> str:
    """What a device is a share of; any other is itself."""
    return name.partition(".")[0]


def extended(names: Sequence[str], count: int) -> tuple[str, ...]:
    """The first ``count`` of these names. Or all of them, and as many more of the last one's kind."""
    found = list(names[:count])
    while len(found) < count:
        last = Device.parse(found[-1])
        found.append(str(replace(last, index=last.index + 1, share=0)))
    return tuple(found)
