"""Groups put together at the reader: whoever judged them, in whatever order they come. Legend: G responses of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import WorkflowError
from rlinf_lab.workers.reasoning.records import Response


@dataclass(frozen=True, eq=False)
class Group:
    """All responses to one prompt."""

    prompt: int
    responses: tuple[Response, ...]
    """in the order of their sample numbers"""

    @property
    def reward_G(self) -> NDArray[np.float64]:
        return np.array([r.value for r in self.responses])

    @property
    def length_G(self) -> NDArray[np.int64]:
        """Tokens of each response."""
        return np.array([len(r) for r in self.responses])

    def __len__(self) -> int:
        return len(self.responses)


class Gatherer:
    """Collects responses until groups of ``size`` are whole.

    ``in_order``: groups come in the order of their prompts, from prompt 0; else as soon as they are whole.
    """

    def __init__(self, size: int, *, in_order: bool) -> None:
        self.size, self.in_order = size, in_order
        self._open: dict[int, dict[int, Response]] = {}
        self._whole: dict[int, Group] = {}
        self._next = 0

    def add(self, response: Response) -> Iterator[Group]:
        """Take one response; the groups that may be used now. Raises `WorkflowError` for one that came twice."""
        asked, number = response.asked, response.group
        members = self._open.setdefault(number, {})
        if asked.sample in members or number in self._whole or (self.in_order and number < self._next):
            raise WorkflowError(f"response {asked.id} came twice. Next: does one worker alone read each response?")
        members[asked.sample] = response
        if len(members) == self.size:
            ordered = tuple(members[k] for k in sorted(members))
            self._whole[number] = Group(number, ordered)
            del self._open[number]
        while self._whole:
            first = self._next if self.in_order else next(iter(self._whole))
            if first not in self._whole:
                return
            yield self._whole.pop(first)
            self._next = first + 1

    def left(self) -> list[Response]:
        """What came and was in no group that was used."""
        whole = [r for group in self._whole.values() for r in group.responses]
        return whole + [r for members in self._open.values() for r in members.values()]

    @property
    def incomplete(self) -> int:
        """Groups that have begun and are not whole."""
        return len(self._open)
