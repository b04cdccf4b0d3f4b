"""Results of calls: kept where they were produced, fetched once by each host that asks, forgotten with their iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlinf_lab.errors import Cancelled, WorkflowError
from rlinf_lab.runtime.process import Process


@dataclass(frozen=True)
class Unmade:
    """Instead of what a call would have returned that ended because nobody read what it put. ``call``: for people; ``channels``: what it put into."""

    call: str
    channels: tuple[str, ...]

    def error(self) -> WorkflowError:
        into = ", ".join(map(repr, self.channels))
        return WorkflowError(
            f"{self.call} has no value: nobody read what it put into {into} any more, and it ended there. Next: take the value in the same iteration "
            f"(return it, or give it to another call), then the call goes on to its end; or leave out discard_unread=True."
        )


@dataclass(eq=False)
class Value:
    """The result of one rank of one call, or the place where it will be."""

    iteration: int
    ready: bool = False
    value: Any = None
    error: BaseException | None = None
    source: tuple[str, int, str] = ("?", 0, "?")  # worker, rank, method; known where it is produced
    waiters: list[Process] = field(default_factory=list)
    asked_by: list[str] = field(default_factory=list)

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        if isinstance(self.value, Unmade):
            raise self.value.error()
        return self.value

    def leave(self, process: Process) -> None:
        """It does not wait here any more: a value that comes later must not wake it from something else."""
        if process in self.waiters:
            self.waiters.remove(process)


class ValueTable:
    """All values known to one host. Every method runs under the host's mutex."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, int], Value] = {}

    def entry(self, call_id: int, rank: int, iteration: int) -> tuple[Value, bool]:
        """The value's place, and whether it was made just now."""
        key = (call_id, rank)
        if key in self._values:
            return self._values[key], False
        self._values[key] = Value(iteration)
        return self._values[key], True

    def set(
        self, call_id: int, rank: int, iteration: int, value: Any, error: BaseException | None, say: Callable[[str, tuple], None]
    ) -> list[Process]:
        """Fill in a value; sends it to the hosts that asked; returns the processes that wait for it."""
        entry, _ = self.entry(call_id, rank, iteration)
        if entry.ready:
            return []
        entry.ready, entry.value, entry.error = True, value, error
        for host in entry.asked_by:
            say(host, ("value", call_id, rank, iteration, value, error))
        waiters, entry.waiters = entry.waiters, []
        return waiters

    def ask(self, call_id: int, rank: int, iteration: int, host: str, say: Callable[[str, tuple], None]) -> None:
        """Another host wants this value: now if it is there, else as soon as it is."""
        entry, _ = self.entry(call_id, rank, iteration)
        if entry.ready:
            say(host, ("value", call_id, rank, iteration, entry.value, entry.error))
        else:
            entry.asked_by.append(host)

    def fail_missing(self, iteration: int, cause: BaseException, wake: Callable[[Process], None]) -> None:
        """Nothing of this iteration will come any more: whoever waits for a value of it is told why."""
        for entry in self._values.values():
            if entry.iteration == iteration and not entry.ready and entry.waiters:
                entry.ready, entry.error = True, Cancelled(f"the value will not come: {cause}")
                for process in entry.waiters:
                    wake(process)
                entry.waiters = []

    def forget(self, call_id: int, rank: int) -> None:
        """Nobody asks for it any more."""
        self._values.pop((call_id, rank), None)

    def retire(self, iteration: int) -> None:
        for key in [k for k, v in self._values.items() if v.iteration <= iteration]:
            del self._values[key]
