"""Groups of responses, which the channel puts together, and their turn to be learnt from.

Legend: G responses of a prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workers.reasoning.records import Response


@dataclass(frozen=True, eq=False)
class Group:
    """All responses to one prompt."""

    number: int
    """among those of its iteration"""
    responses: tuple[Response, ...]
    """in the order of their sample numbers"""

    @classmethod
    def of(cls, responses: Sequence[Response]) -> Group:
        """In whatever order they came. Raises `WorkflowError` for one that came twice."""
        ordered = tuple(sorted(responses, key=lambda r: r.asked.sample))
        for one, other in itertools.pairwise(ordered):
            if one.asked.sample == other.asked.sample:
                raise WorkflowError(
                    f"response {one.asked.id} came twice. Next: does one worker alone read each response?"
                )
        return cls(ordered[0].group, ordered)

    @property
    def reward_G(self) -> NDArray[np.float64]:
        return np.array([r.value for r in self.responses])

    @property
    def length_G(self) -> NDArray[np.int64]:
        """Tokens of each response."""
        return np.array([len(r) for r in self.responses])

    def __len__(self) -> int:
        return len(self.responses)


class InTurn:
    """Hands on groups in the order of their numbers, from 0. Each as soon as all before it have been there."""

    def __init__(self) -> None:
        self._waiting: dict[int, Group] = {}
        self._next = 0

    def add(self, group: Group) -> Iterator[Group]:
        """One more; those whose turn it is now. Raises `WorkflowError` for one that came twice."""
        if group.number < self._next or group.number in self._waiting:
            raise WorkflowError(
                f"the group of {group.responses[0].asked.id} came twice. Next: does every prompt of an iteration have "
                "a "
                "number of its own?"
            )
        self._waiting[group.number] = group
        while (ready := self._waiting.pop(self._next, None)) is not None:
            self._next += 1
            yield ready

    def left(self) -> list[Response]:
        """Of those whose turn did not come."""
        return [r for group in self._waiting.values() for r in group.responses]
