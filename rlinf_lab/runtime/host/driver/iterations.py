"""Iterations that have begun and are not over, and what is known of their streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.plan.wait_graph import Wait
from rlinf_lab.runtime.host.driver.ends import Ends, is_read_by_the_loop, wait_for_room
from rlinf_lab.runtime.host.driver.unread import Unread
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Message, Moved, NoReaders
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.specs import CallSpec


@dataclass(eq=False)
class OpenIteration:
    """One that has begun and is not over. ``calls``: how many ranks' calls have not ended."""

    began_ns: int
    calls: int = 0
    in_body: bool = True  # the iteration function has not returned
    ended_ns: int = 0
    failure: BaseException | None = None  # why it was given up
    unread: Unread = field(default_factory=Unread)
    ends: Ends = field(default_factory=Ends)

    def is_over(self) -> bool:
        return not self.in_body and not self.calls


class Iterations:
    """By number; written under the mutex of the driver's host."""

    def __init__(self, mutex: threading.RLock) -> None:
        self._mutex = mutex
        self.open: dict[int, OpenIteration] = {}

    def goes_on(self) -> bool:
        """Whether any has not ended; for a look without the mutex."""
        return any(not one.is_over() for one in list(self.open.values()))

    def is_over(self, iteration: int) -> bool:
        """Whether this one and all before it have ended, or this one was given up."""
        with self._mutex:
            own = self.open.get(iteration)
            if own is not None and own.failure is not None:
                return True
            return all(one.is_over() for number, one in self.open.items() if number <= iteration)

    def failure_of(self, iteration: int) -> BaseException | None:
        """Why it was given up."""
        one = self.open.get(iteration)
        return None if one is None else one.failure

    def first_failed(self) -> int | None:
        """The first one that was given up and is not closed yet. So were all after it."""
        return min((number for number, one in list(self.open.items()) if one.failure is not None), default=None)

    def first_going_on(self) -> int:
        """The oldest one that has not ended, or the next."""
        going_on = [number for number, one in self.open.items() if not one.is_over()]
        return min(going_on, default=max(self.open, default=-1) + 1)

    def given_up(self) -> list[int]:
        """Those that are not closed yet."""
        return [number for number, one in list(self.open.items()) if one.failure is not None]


class Streams:
    """What the driver knows of the streams of each iteration. Under its mutex, which `counted` and `reads` take.

    ``tell_all(message)``: every host; ``failed(error, iteration)``: that one cannot go on.
    """

    def __init__(
        self,
        state: HostState,
        iterations: Iterations,
        tell_all: Callable[[Message], None],
        failed: Callable[[WorkflowError, int], None],
    ) -> None:
        self._open, self._mutex, self._graph = iterations.open, state.mutex, state.layout.graph
        self._driver = state.members[DRIVER, 0]
        self._tell_all, self._failed = tell_all, failed
        self._names = [spec.name for spec in self._graph.channels]

    def begin(self, call: CallSpec, ranks: int) -> None:
        """So many ranks do it."""
        self._open[call.iteration].ends.begin(call, ranks)

    def end(self, call_id: int, iteration: int, label: str, moved: Sequence[Moved]) -> None:
        """One of them has done it, and has put and taken so much."""
        if iteration in self._open:
            self._open[iteration].unread.count(f"{label}()", moved)
            self._open[iteration].ends.end(call_id)

    def counted(self, iteration: int, moved: Sequence[Moved]) -> None:
        """So much the iteration function has put and taken, which has returned."""
        with self._mutex:
            self._open[iteration].unread.count("the loop", moved)

    def reads(self, iteration: int, channel: str) -> None:
        """The loop itself reads it. `WorkflowError` when it was taken for read to the end."""
        with self._mutex:
            self.refuse_told(channel, iteration, "the loop")
            self._open[iteration].ends.read.add(channel)

    def refuse_told(self, channel: str, iteration: int, who: str) -> None:
        """`WorkflowError` when its readers had ended, and that was told."""
        if channel in self._open[iteration].ends.told:
            raise WorkflowError(
                f"{who} reads channel {channel!r}, of which the rest was discarded: all that read it had ended, and "
                f"its producers could not go on while the loop waited. Next: call every reader before the wait()."
            )

    def judge(self, iteration: int, loop_ended: bool) -> None:
        """Fail the iteration for a stream that ended with unread items, or empty. Tell all hosts of those that
        nobody reads any more. ``loop_ended``: no call will be added.
        """
        one = self._open[iteration]
        one.ends.all_known |= loop_ended
        if one.failure is not None:
            return
        if (fault := one.unread.fault(self._graph, iteration, one.ends.complete(self._names))) is not None:
            self._failed(fault, iteration)
            return
        for channel in one.ends.unread(self._names):
            self._nobody_reads(channel, iteration)

    def _nobody_reads(self, channel: str, iteration: int) -> None:
        one = self._open[iteration]
        one.ends.told.add(channel)
        self._tell_all(NoReaders(iteration, channel, one.unread.discards(self._graph.channel(channel))))

    def left(self, channel: str, iteration: int, left: int) -> None:
        """So many items of a channel that nobody reads any more lie at its home."""
        one = self._open.get(iteration)
        if one is not None and one.failure is None:
            self._failed(one.unread.early(self._graph, iteration, channel, left), iteration)

    def stranded(self) -> list[tuple[str, int]]:
        """Streams whose readers have all ended while the loop waits for something else; see `ends`."""
        driver = self._driver
        if driver.call is None:
            return []
        iteration = driver.call.iteration
        if (one := self._open.get(iteration)) is None or one.failure is not None:
            return []
        return [(c, iteration) for c in one.ends.stranded() if not is_read_by_the_loop(driver, c)]

    def end_stranded(self, waits: Sequence[Wait]) -> bool:
        """Nothing can move, for these reasons. Whether producers of such streams are among them, which go on then, or
        their iteration fails."""
        blocked = [(c, i) for c, i in self.stranded() if wait_for_room(c, waits)]
        for channel, iteration in blocked:
            self._nobody_reads(channel, iteration)
        return bool(blocked)
