"""Generation that calls tools, in virtual time. It tells how many decode steps it takes to answer everything.

    running ──call──▶ tools (so many at once) ──result──▶ running

A decode step advances all that run by one token and takes as long for one as for many, so what is answered together is
cheap, and what comes back alone costs steps of its own.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlinf_lab.errors import ConfigError, shown


@dataclass(frozen=True)
class ToolCellTimes:
    """What a `ToolCell` took."""

    steps: int
    """decode steps"""
    seconds: float
    """until the last response was there"""
    waited_s: float
    """in which nothing was decoded"""
    ends_s: tuple[float, ...]
    """of each response"""


@dataclass(frozen=True)
class ToolCell:
    """Continuous batching of responses with tool calls. Raises `ConfigError` for numbers that cannot work."""

    step_s: float
    """of a decode step"""
    tool_s: float
    """of a tool call"""
    tools: int = 1
    """calls at once"""
    patience_s: float = 0.0
    """how long the next step may be put off for results that are out; 0: they are taken as they come"""
    by_count: bool = False
    """results are taken one by one and only when nothing runs, as without a look at what is there"""

    def __post_init__(self) -> None:
        if not (0 < self.step_s < math.inf and 0 <= self.tool_s < math.inf and self.patience_s >= 0):
            raise ConfigError(f"{self!r}: step_s must be above 0, tool_s and patience_s not negative. Next: seconds.")
        if isinstance(self.tools, bool) or not isinstance(self.tools, int) or self.tools < 1:
            raise ConfigError(f"ToolCell.tools is {shown(self.tools)}. Next: 1, or as many calls as may run at once.")

    def simulate(self, turns: Sequence[Sequence[int]]) -> ToolCellTimes:
        """``turns``: of each response the tokens before each call, then those of its end."""
        if not turns or any(not t or min(t) < 1 for t in turns):
            raise ConfigError(
                f"simulate({shown(turns)}): each response has turns of at least one token. Next: [(10, 5), (12,)]."
            )
        return _Run(self, turns).go()

    def best(self, turns: Sequence[Sequence[int]]) -> ToolCell:
        """The patience that answers these soonest. Of those as quick the one with the fewest steps."""
        tries = [replace(self, by_count=False, patience_s=p) for p in (0.0, self.tool_s, math.inf)]
        done = [(cell.simulate(turns), cell) for cell in tries]
        quickest = min(times.seconds for times, _ in done)
        level = [
            (times.steps, cell.patience_s, cell) for times, cell in done if times.seconds <= quickest + self.step_s / 2
        ]
        return min(level, key=lambda entry: entry[:2])[2]


class _Run:
    def __init__(self, cell: ToolCell, turns: Sequence[Sequence[int]]) -> None:
        self.cell, self.now, self.steps, self.waited = cell, 0.0, 0, 0.0
        self._turns = [deque(t) for t in turns]
        self._left = {i: t.popleft() for i, t in enumerate(self._turns)}  # tokens of the turn that runs
        self._out: list[tuple[float, int]] = []  # results on their way: when, whose
        self._tools = [0.0] * cell.tools  # when each is free
        self._ends = [0.0] * len(turns)

    def go(self) -> ToolCellTimes:
        while self._left or self._out:
            self._take_results()
            self._step()
        return ToolCellTimes(self.steps, self.now, self.waited, tuple(self._ends))

    def _take_results(self) -> None:
        if self.cell.by_count:
            if not self._left:
                self._wait_until(self._out[0][0])
                self._back(1)
            return
        if self._out and (not self._left or self.cell.patience_s):
            last = max(when for when, _ in self._out)
            first = self._out[0][0]
            patient = last if last - self.now <= self.cell.patience_s else self.now
            self._wait_until(max(patient, first if not self._left else self.now))
        self._back(len(self._out))

    def _wait_until(self, when: float) -> None:
        self.waited += max(0.0, when - self.now)
        self.now = max(self.now, when)

    def _back(self, most: int) -> None:
        while most and self._out and self._out[0][0] <= self.now + 1e-12:
            _, one = heapq.heappop(self._out)
            self._left[one] = self._turns[one].popleft()
            most -= 1

    def _step(self) -> None:
        self.steps += 1
        self.now += self.cell.step_s
        for one in list(self._left):
            self._left[one] -= 1
            if self._left[one]:
                continue
            del self._left[one]
            if self._turns[one]:
                begin = max(self.now, heapq.heappop(self._tools))
                heapq.heappush(self._tools, begin + self.cell.tool_s)
                heapq.heappush(self._out, (begin + self.cell.tool_s, one))
            else:
                self._ends[one] = self.now
