"""The user's loop in virtual time. It says what the loop calls and waits for in each iteration, and when that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.planning.simulator.early_stop import Unwanted
from rlinf_lab.planning.simulator.scripts import CALL, GET, PUT, WAIT, Script, Turn
from rlinf_lab.planning.simulator.state import AWAITING, DRIVING, IDLE, Apply, Iteration, Rank, State, next_of
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER

# Operations of the driver's own script, beside those that workers have.
_BEGIN, _AWAIT, _END = 5, 6, 7


class UserLoop:
    """``script``: of one iteration. ``close``: a rank has done as producer of a stream. ``apply``: carries out what the
    engine says. It begins and ends what is in `State.open`; ``made``: positions of the calls of its present iteration.
    """

    def __init__(
        self,
        state: State,
        script: Callable[[Turn], Script],
        unwanted: Unwanted,
        close: Callable[[Rank, int], None],
        apply: Apply,
    ) -> None:
        self._state, self._script, self._unwanted, self._close, self._apply = state, script, unwanted, close, apply
        self.made: list[int] = []
        self._sealed: set[str] = set()
        self._is_there: Callable[[], bool] = bool  # whether what it waits for has come

    def drive(self, iterations: int) -> Generator[tuple[int, Any, int, int], Any, None]:
        """Its own script, once for each iteration. When there are too many of them, it waits for the oldest."""
        staleness = self._state.layout.plan.staleness
        for iteration in range(iterations):
            yield from self._until(partial(self._are_over, iteration - staleness - 1))
            yield from self._body(iteration)
        yield from self._until(lambda: not self._state.open)

    def does(self, driver: Rank, kind: int) -> None:
        """One of its own operations."""
        driver.doing = AWAITING if kind == _AWAIT else DRIVING
        if kind == _BEGIN:
            self._state.pending.append((driver.index, Event.START, driver.iteration, 0))
        elif kind == _END:
            self._state.pending.append((driver.index, Event.DONE, -1, 0))

    def look(self, iteration: int) -> None:
        """Write down the end of an iteration when it has come."""
        state, made = self._state, self._state.open[iteration]
        if not made.in_body and not made.unended:
            driver = state.ranks[0]
            state.rows.add(driver.track, SpanKind.MARK, driver.method, made.start, state.now, iteration)
            del state.open[iteration]
            state.retire(iteration)

    def wake(self) -> None:
        """Once, if what it waits for is there."""
        driver = self._state.ranks[0]
        if driver.doing == AWAITING and self._is_there():
            driver.doing = DRIVING
            self._state.wake(driver)

    def _body(self, iteration: int) -> Generator[tuple[int, Any, int, int], Any, None]:
        state, made = self._state, Iteration(self._state.now)
        driver = state.ranks[0]
        driver.iteration, driver.ports = iteration, {}
        state.open[iteration], self.made, self._sealed = made, [], set()
        yield (_BEGIN, None, 0, 0)
        script, got = self._script(Turn(0, iteration, 0, 1, state.clock)), None
        while (op := next_of(script, got)) is not None:
            got = None
            kind, channel, number, rank = op
            if kind == CALL:
                self.made.append(number)
                self._submit(iteration, number)
            elif kind == WAIT:
                self._seal(iteration, self._above(state.calls[number].reads))
                yield from self._until(partial(self._has_ended, iteration, number, rank == 0))
            else:
                if kind == GET:
                    self._seal(iteration, self._above((channel,)))
                elif kind == PUT and channel in self._sealed:
                    fault = "after it has waited for something that may depend on its end. Next: put before."
                    raise WorkflowError(f"The script of the loop puts into {channel!r} {fault}")
                got = yield op
        self._seal(iteration, set(state.layout.graph_channels()))
        made.in_body = False
        self.look(iteration)
        yield (_END, None, 0, 0)

    def _submit(self, iteration: int, number: int) -> None:
        """The loop makes a call: all ranks take part."""
        state, call = self._state, self._state.calls[number]
        members = state.of[call.worker]
        state.open[iteration].unended[number] = len(members)
        for position, p in enumerate(members):
            turn = Turn(p.rank, iteration, position, len(members), state.clock, *self._unwanted.asked_by(p))
            p.calls.append((number, call, turn))
            if p.doing == IDLE and len(p.calls) == 1:  # woken once, however many calls it gets
                state.wake(p)

    def _until(self, is_there: Callable[[], bool]) -> Generator[tuple[int, Any, int, int], Any, None]:
        self._is_there = is_there
        while not is_there():
            yield (_AWAIT, None, 0, 0)

    def _has_ended(self, iteration: int, number: int, part: bool) -> bool:
        """A call of this iteration; ``part``: on rank 0."""
        return number not in self._state.open[iteration].unended or (
            part and self._state.values.get((iteration, number), ()) is None
        )

    def _are_over(self, latest: int) -> bool:
        """This iteration and all before it."""
        return all(iteration > latest for iteration in self._state.open)

    def _above(self, channels: Iterable[str]) -> set[str]:
        """These channels and all from which they are fed. No producer can come any more once the loop waits for them.
        """
        found, open_, calls = set[str](), list(channels), self._state.calls
        while open_:
            channel = open_.pop()
            if channel not in found:
                found.add(channel)
                open_ += [c for i in self.made if channel in calls[i].writes for c in calls[i].reads]
        return found

    def _seal(self, iteration: int, channels: set[str]) -> None:
        state, new = self._state, sorted(channels - self._sealed)
        self._sealed.update(new)
        expected = dict.fromkeys(new, 0)
        for i in self.made:
            for channel in state.calls[i].writes:
                if channel in expected:
                    expected[channel] += state.layout.closes(channel, state.calls[i].worker)
        for channel in new:
            if DRIVER in state.layout.graph.producers(channel):
                expected[channel] += 1
                self._close(state.ranks[0], state.stream(channel, iteration))
        for channel in new:
            for shard in range(state.layout.shards(channel)):
                self._apply(state.engine.seal(state.stream(channel, iteration, shard), expected[channel]))
