"""Results of calls. They are kept where they were produced, fetched once by each host that asks, forgotten with their
iteration.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlinf_lab.errors import Cancelled, ExecutorError, said
from rlinf_lab.runtime.host.state.messages import Message, ValueOf
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.transport.pickling import Packed

_PLAIN = (type(None), bool, int, float, str)


class Returned:
    """A value on its way to another host. It is packed when the message is pickled, and rebuilt by the first who takes
    it, whose error it is where that fails.

    ``what``: for people, such as "What actor[0] returned from act()".
    """

    def __init__(self, what: str, value: Any) -> None:
        self.what, self.value, self.kind = what, value, f"{type(value).__module__}.{type(value).__qualname__}"
        self._packed: Packed | None = None
        self._error: ExecutorError | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.what, self.kind, self._packed or Packed.of(self.value))

    def open(self) -> Any:
        """Raises `ExecutorError`."""
        with self._lock:
            if self._packed is not None:
                try:
                    self.value = self._packed.open()
                except (Exception, SystemExit) as error:
                    self._error = ExecutorError(
                        f"{self.what} ({self.kind}) cannot be rebuilt in another process: {type(error).__name__}: "
                        f"{said(error)}. Next: install the module "
                        "that defines it on every node, mend how it is unpickled (__reduce__, __setstate__), or "
                        "return plain values, arrays or "
                        f"dataclasses.\n{''.join(traceback.format_exception(error))}"
                    )
                    self._error.__cause__ = error
                self._packed = None
            if self._error is not None:
                raise self._error
            return self.value


def _arrived(what: str, kind: str, packed: Packed) -> Returned:
    made = Returned(what, None)
    made.kind, made._packed = kind, packed
    return made


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
        return self.value.open() if isinstance(self.value, Returned) else self.value

    def to_send(self, call_id: int) -> Any:
        """What travels of it. ``call_id``: negative for what was given to `exchange`, or left behind."""
        if type(self.value) in _PLAIN or isinstance(self.value, Returned):
            return self.value
        worker, rank, method = self.source
        done = f"returned from {method}()" if call_id > 0 else f"gave to the other ranks in {method}()"
        return Returned(f"What {worker}[{rank}] {done}", self.value)

    def leave(self, process: Process) -> None:
        """It does not wait here any more. A value that comes later must not wake it from something else."""
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
        self,
        call_id: int,
        rank: int,
        iteration: int,
        value: Any,
        error: BaseException | None,
        say: Callable[[str, Message], None],
    ) -> list[Process]:
        """Fill in a value; sends it to the hosts that asked. Returns the processes that wait for it."""
        entry, _ = self.entry(call_id, rank, iteration)
        if entry.ready:
            return []
        entry.ready, entry.value, entry.error = True, value, error
        for host in entry.asked_by:
            say(host, ValueOf(call_id, rank, iteration, entry.to_send(call_id), error))
        waiters, entry.waiters = entry.waiters, []
        return waiters

    def ask(self, call_id: int, rank: int, iteration: int, host: str, say: Callable[[str, Message], None]) -> None:
        """Another host wants this value. It gets it now if it is there, else as soon as it is."""
        entry, _ = self.entry(call_id, rank, iteration)
        if entry.ready:
            say(host, ValueOf(call_id, rank, iteration, entry.to_send(call_id), entry.error))
        else:
            entry.asked_by.append(host)

    def fail_missing(self, iteration: int, cause: BaseException, wake: Callable[[Process], None]) -> None:
        """Nothing of this iteration will come any more. Whoever waits for a value of it is told why."""
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
