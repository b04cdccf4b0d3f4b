"""When to say that nothing moves. No item, no span and no iteration has ended for long, and it is no deadlock, for
somebody is in a call.

A call may last (a model is loaded, a step is long), so it is no error. It is said once each time; where it has been
said and the call ended after all, only of what lasts twice as long: the next of such calls is nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlinf_lab.planning.plan.wait_graph import Wait, worker_of
from rlinf_lab.workflow.graph import DRIVER

TOLD_SECONDS = 30.0
MOST_NAMES = 4


class Stillness:
    """Of one run. Times in seconds, of any one clock."""

    def __init__(self) -> None:
        self._moved_at = 0.0
        self.told = False  # of what lasts now
        self._usual = 0.0  # the longest that was told and has ended

    def is_news(self, moved_at: float, now: float, goes_on: bool = True) -> bool:
        """Whether to say so now. ``moved_at``: when something has moved last; ``goes_on``: an iteration is under way
        (to be asked while none is, too: what was told has ended then, and the time until the next one begins is the
        user's).
        """
        if moved_at != self._moved_at or not goes_on:
            if self.told:
                self._usual = max(self._usual, (now if moved_at == self._moved_at else moved_at) - self._moved_at)
            self._moved_at, self.told = moved_at, False
        if self.told or not goes_on or now - moved_at < max(TOLD_SECONDS, 2 * self._usual):
            return False
        self.told = True
        return True


def who_does_what(calls: Iterable[str], waits: Sequence[Wait]) -> str:
    """In one line. ``calls``: worker[rank].method of those that have not ended, of each rank in the order of their
    beginning.
    """
    waiting = {wait.who for wait in waits}
    inside: dict[str, str] = {}
    for rank, _, method in (call.partition(".") for call in calls):
        if rank not in waiting:
            inside.setdefault(rank, f"{rank} is in {method}()")
    others = [str(wait) for wait in waits if worker_of(wait.who) != DRIVER]
    if not inside and not any(worker_of(who) == DRIVER for who in waiting):
        inside[DRIVER] = "the iteration function goes on"
    return "; ".join([*_few(list(inside.values())), *_few(others)])


def _few(lines: list[str]) -> list[str]:
    return lines if len(lines) <= MOST_NAMES else [*lines[:MOST_NAMES], f"and {len(lines) - MOST_NAMES} more"]
