"""The values of calls: fetched from wherever they are, once by each host that asks."""

from __future__ import annotations

from typing import Any

from rlinf_lab.runtime.host.liveness.failures import death
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process


class Values:
    """Of one host."""

    def __init__(self, state: HostState, control: parts.RankControl, post: parts.Post) -> None:
        self._state, self._control, self._post = state, control, post
        post.on(messages.Want, lambda m: state.values.ask(m.call_id, m.rank, m.iteration, m.asker, post.say))
        post.on(messages.ValueOf, lambda m: self.set(m.call_id, m.rank, m.iteration, m.value, m.error))
        post.on(messages.Collected, lambda m: state.values.forget(m.place, m.rank))

    def set(self, call_id: int, rank: int, iteration: int, value: Any, error: BaseException | None) -> None:
        """Under the mutex: it is known now; whoever waits for it goes on."""
        for waiter in self._state.values.set(call_id, rank, iteration, value, error, self._post.say):
            self._control.wake(waiter)

    def fetch(
        self,
        process: Process,
        call_id: int,
        producer: str,
        rank: int,
        iteration: int,
        timeout: float | None = None,
        within: str = "",
        advice: str = "",
    ) -> Any:
        """The value that a rank returned; blocks; raises what the call raised. By the thread of ``process``.

        ``within``: what else it may be, in words; ``advice``: what would end the wait.
        """
        state, home = self._state, self._state.place[producer, rank]
        with state.mutex:
            process.raise_if_interrupted()
            value, new = state.values.entry(call_id, rank, iteration)
            blocked = not value.ready
            if blocked and home in state.dead:
                raise death(state, home)
            if new and home != state.name:
                self._post.say(home, messages.Want(call_id, rank, iteration, state.name))
            if blocked:
                value.waiters.append(process)
                process.awaited, process.advice = f"{producer}[{rank}]", advice
                self._control.block(process, "value", f"the value of {producer}[{rank}]{within}")
        self._post.flush()
        if blocked:
            try:
                self._control.park(process, timeout)
                process.raise_if_interrupted()
            finally:
                with state.mutex:
                    value.leave(process)
        process.heard = value.error
        return value.get()
