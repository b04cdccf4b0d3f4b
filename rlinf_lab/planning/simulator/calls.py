"""A rank's calls in virtual time, from the first to the last event of each."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.planning.simulator.early_stop import Unwanted
from rlinf_lab.planning.simulator.state import ENDING, IDLE, STARTING, VALUE, Rank, State
from rlinf_lab.planning.simulator.user_loop import UserLoop
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.graph import DRIVER


class Calls:
    """``close``: a rank has done as producer of a stream. Writes `State.values`, and counts what is left to do of open
    iterations.
    """

    def __init__(
        self,
        state: State,
        unwanted: Unwanted,
        loop: UserLoop,
        close: Callable[[Rank, int], None],
    ) -> None:
        self._state, self._unwanted, self._loop, self._close = state, unwanted, loop, close

    def begin(self, p: Rank) -> None:
        """Take up the next call, if there is one."""
        state = self._state
        if not p.calls:
            p.doing = IDLE
            return
        p.number, p.call, turn = p.calls.popleft()
        p.iteration, p.method, p.ports = turn.iteration, state.rows.name(p.call.method), {}
        p.machine.part = state.layout.part(p.worker, turn.position, turn.count)
        p.send = p.call.script(turn).send
        p.waits_for, p.start = list(p.call.after), state.now
        self.await_values(p)

    def await_values(self, p: Rank) -> None:
        """Its call starts when the values are there that it needs."""
        state = self._state
        while p.waits_for:
            waiting = state.values.setdefault((p.iteration, p.waits_for[0]), [])
            if waiting is not None:
                waiting.append(p)
                p.doing = VALUE
                return
            p.waits_for.pop(0)
        assert p.call is not None
        if p.call.after and state.now > p.start:
            state.add(p, SpanKind.WAIT, p.start, state.now)
        p.bound_ns, p.lock_waited, p.lock_from = 0, True, state.now
        p.doing = STARTING
        state.pending.append((p.index, Event.START, p.iteration, int(p.call.starts_on_device)))

    def end(self, p: Rank) -> None:
        """The script is over."""
        state = self._state
        if p.on_device and state.now > p.since:
            state.add(p, SpanKind.RUN, p.since, state.now)
        if p.worker == DRIVER:
            p.doing = IDLE
            return
        p.bound_ns, p.doing = 0, ENDING
        state.pending.append((p.index, Event.DONE, -1, 0))

    def finished(self, p: Rank) -> None:
        """The engine has heard of the end of its call."""
        state = self._state
        p.on_device = False
        call, p.call = p.call, None
        if call is not None:
            for channel in call.writes:
                self._close(p, state.stream(channel, p.iteration, state.layout.shard(channel, p.rank)))
            if p is state.of[p.worker][0]:
                for waiter in state.values.get((p.iteration, p.number)) or ():
                    state.wake(waiter)
                state.values[p.iteration, p.number] = None
            unended = state.open[p.iteration].unended
            unended[p.number] -= 1
            if not unended[p.number]:
                del unended[p.number]
                self._unwanted.look(p.iteration, state.open[p.iteration])
                self._loop.look(p.iteration)
            self._loop.wake()
        elif (made := state.open.get(p.iteration)) is not None:  # the loop's own
            made.all_known = True
            self._unwanted.look(p.iteration, made)
        state.wake(p)
