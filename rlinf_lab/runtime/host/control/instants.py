"""What happens when no thread of a host runs. An instant settles, mock time moves, or nothing can move any more."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.runtime.host.state import parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process

_PUT, _GET, _START, _ASIDE = map(int, (Event.PUT, Event.GET, Event.START, Event.ASIDE))


class Instants:
    """Under the mutex. ``stuck()``: asked where a host alone cannot go on; whether somebody can now."""

    def __init__(self, state: HostState, scheduler: parts.RankControl) -> None:
        self._state, self._scheduler = state, scheduler
        self._timers: list[tuple[int, int, Process]] = []
        self._pending: list[parts.Event] = []  # events of this instant, with a mock clock
        self.stuck: Callable[[], bool] = bool

    def add(self, event: parts.Event) -> None:
        """It settles with the others of its instant."""
        self._pending.append(event)

    def sleep(self, process: Process, duration_ns: int) -> None:
        """Occupy a rank's own thread for a time. Mock time moves, or it really sleeps, and hears an interruption."""
        state, now = self._state, self._state.clock.now_ns
        if state.mock is None:
            deadline = now() + duration_ns
            while (left := deadline - now()) > 0:
                process.raise_if_interrupted()
                time.sleep(min(left / 1e9, 0.05))
            return
        with state.mutex:
            heapq.heappush(self._timers, (now() + duration_ns, process.index, process))
            self._scheduler.block(process, "timer", "a timer")
        self._scheduler.park(process)
        process.raise_if_interrupted()

    def settle(self) -> None:
        state, scheduler = self._state, self._scheduler
        while state.running == 0:
            now = state.clock.now_ns()
            if self._timers and self._timers[0][0] <= now:
                self._fire_timers()
            elif self._pending:
                events, self._pending = self._pending, []
                scheduler.apply(state.engine.settle(events))
            elif self._timers:
                assert state.mock is not None
                state.mock.time_ns = self._timers[0][0]
            elif not self._is_stranded() or not self.stuck():
                return

    def _is_stranded(self) -> bool:
        """Whether somebody waits and nothing will come: a host that is not alone cannot know."""
        state = self._state
        return state.alone and not state.stopping and self._is_waiting()

    def _is_waiting(self) -> bool:
        """Whether anybody waits. It may be at a channel, for a device, or for what another rank gives in its call."""
        aside = (p.waits_for == "value" or p.machine.state == "aside" for p in self._state.processes)
        return self._state.engine.is_waiting() or any(aside)

    def _fire_timers(self) -> None:
        now = self._state.clock.now_ns()
        while self._timers and self._timers[0][0] <= now:
            self._scheduler.wake(heapq.heappop(self._timers)[2], timer=True)

    # --- taking back -------------------------------------------------------------------------------------
    def wakes_no_more(self, process: Process) -> None:
        """Its timer is forgotten."""
        self._timers = [t for t in self._timers if t[2] is not process]
        heapq.heapify(self._timers)

    def takes_back(self, process: Process) -> bool:
        """Whether what it waits for was still of this instant, and is forgotten.

        The end of a call and of a switch are facts, which the engine has still to hear.
        """
        kept = [e for e in self._pending if e[0] != process.index or e[1] not in (_PUT, _GET, _START, _ASIDE)]
        taken, self._pending = len(kept) < len(self._pending), kept
        return taken
