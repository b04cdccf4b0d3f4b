"""The worker that runs tools, many calls at once.

It says at each turn what is there.

A generator cannot wait for one call while others run. So it sends a turn before each decode step while calls are out,
with what is new, and gets what is there: at once, or after as long as it may wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from rlinf_lab.errors import ConfigError, WorkflowError, shown
from rlinf_lab.tasks.tools import FAILED, Tool, ToolResult, answered, tools_of
from rlinf_lab.workflow.worker import Collected, Inbox, Outbox, Scripted, Worker


@dataclass(frozen=True)
class ToolTurn:
    """From a generator before a step."""

    calls: tuple[tuple[str, str], ...]
    """new ones: id of the response, and what is called"""
    patience_s: float
    """how long to wait for those that are out, seconds; inf: for all of them"""
    idle: bool
    """nothing else runs: wait for one at least"""


@dataclass(frozen=True)
class ToolAnswers:
    """To a generator: of each response what its tool said."""

    results: tuple[tuple[str, ToolResult], ...]


class ToolWorker(Worker):
    """Runs up to ``concurrency`` calls at once. One that takes longer than ``timeout_s`` is answered by a failure."""

    def __init__(self, tools: Sequence[Tool | str], *, concurrency: int = 8, timeout_s: float = 10.0) -> None:
        self.tools = tools_of(tools)
        if not self.tools or concurrency < 1 or not timeout_s > 0:
            raise ConfigError(
                f"ToolWorker({shown(tools)}, concurrency={concurrency}, timeout_s={timeout_s}). "
                "Next: at least one tool, one call at once, and more than 0 s."
            )
        self.concurrency, self.timeout_s = concurrency, timeout_s
        self._pool: ThreadPoolExecutor | None = None

    def preflight(self) -> None:
        if self.ranks > 1:
            raise WorkflowError(
                f"{self!r} has {self.ranks} ranks; it has one. Next: concurrency={self.ranks * self.concurrency} on "
                "one."
            )

    def answer(self, turns: Inbox[ToolTurn], answers: Outbox[ToolAnswers]) -> dict[str, float]:
        """Until the turns end: how many calls there were, and how many failed."""
        out: dict[Future[ToolResult], tuple[str, float]] = {}
        calls = failed = 0
        for batch in turns:
            for turn in batch:
                for key, call in turn.calls:
                    out[self._started().submit(answered, self.tools, call)] = (key, time.monotonic() + self.timeout_s)
                there = self._there(out, turn)
                calls, failed = calls + len(there), failed + sum(bool(result.error) for _, result in there)
                answers.put(ToolAnswers(tuple(there)))
        self.log(tool_calls=calls, tool_failures=failed)
        return {"calls": float(calls), "failed": float(failed)}

    def _there(self, out: dict[Future[ToolResult], tuple[str, float]], turn: ToolTurn) -> list[tuple[str, ToolResult]]:
        """What is there, taken out of ``out``, in the order of the calls."""
        wait(out, timeout=self._seconds(out, 0.0 if math.isnan(turn.patience_s) else turn.patience_s))
        if turn.idle and not any(f.done() for f in out):
            wait(out, timeout=self._seconds(out, math.inf, first=True), return_when=FIRST_COMPLETED)
        found, now = [], time.monotonic()
        for future, (key, limit) in list(out.items()):
            if future.done():
                found.append((key, future.result()))
                del out[future]
            elif now >= limit:
                future.cancel()
                found.append((key, ToolResult(FAILED, f"TimeoutError: nothing after {self.timeout_s:g} s")))
                del out[future]
        return found

    def _seconds(
        self, out: dict[Future[ToolResult], tuple[str, float]], patience_s: float, first: bool = False
    ) -> float:
        """As long as it may be waited. Not beyond the limit of the last call (``first``: of the first)."""
        limits = [limit for _, limit in out.values()]
        end = (min if first else max)(limits, default=0.0)
        return max(0.0, min(patience_s, end - time.monotonic()))

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="tool")
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


class ToolDesk:
    """Tools without a run, for a generator alone: both ends of `generate_with_tools`. A turn waits for its calls."""

    def __init__(self, tools: Sequence[Tool | str], *, concurrency: int = 8) -> None:
        self._worker = ToolWorker(tools, concurrency=concurrency)
        self._said: Collected[ToolAnswers] = Collected()

    def put(self, turn: ToolTurn) -> None:
        """Calls are answered at once."""
        self._worker.answer(Scripted([ToolTurn(turn.calls, math.inf, turn.idle)]), self._said)

    def take(self) -> ToolAnswers:
        """To the turn before."""
        return self._said.pop(0)

    def close(self) -> None:
        """End its threads."""
        self._worker.close()
