"""Room between hosts. A stub may hold its share of the capacity; what consumers take is credit for its origin."""

from __future__ import annotations

from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.queues import Queue

PLENTY = 1 << 50  # credit of a producer whose items are dropped


class Credits:
    """Of one host, both ways. Every method runs under its mutex."""

    def __init__(self, state: HostState, control: parts.RankControl, post: parts.Post) -> None:
        self._state, self._control, self._post = state, control, post
        post.on(messages.Credit, self._come)
        post.on(messages.Stall, self._stalled)

    # --- at a producer's host --------------------------------------------------------------------------------
    def _come(self, message: messages.Credit) -> None:
        state = self._state
        if state.queues.is_retired(message.name.iteration):
            return
        queue = state.queues.queue(message.name)
        queue.received += message.n
        self._control.apply(state.engine.credit(queue.index, message.n))
        if state.engine.is_full(queue.index):
            self.say_stalled(queue)

    def say_stalled(self, queue: Queue) -> None:
        """A producer here is blocked at a stub."""
        self._post.say(queue.name.home, messages.Stall(queue.name, self._state.name, queue.received))

    # --- at the home -----------------------------------------------------------------------------------------
    def _stalled(self, message: messages.Stall) -> None:
        state, origin = self._state, message.origin
        if state.queues.is_retired(message.name.iteration):
            return
        queue = state.queues.queue(message.name)
        if message.received < queue.credited[origin]:  # more is on its way to it
            return
        if queue.saved[origin]:
            self._grant(queue, origin, queue.saved.pop(origin))
            return
        if queue.lets_go:
            self._grant(queue, origin, PLENTY)
            return
        queue.stalled[origin] = None
        self._control.apply(state.engine.remote_stall(queue.index))

    def _grant(self, queue: Queue, origin: str, n: int) -> None:
        queue.credited[origin] += n
        queue.stalled.pop(origin, None)
        self._post.say(origin, messages.Credit(queue.name, n))

    def give(self, queue: Queue, taken: dict[str, int]) -> None:
        """A consumer has taken so many items of each origin. That is so much room again, less what was given ahead.

        Small credits are saved up to half of an origin's share, or until it says that it is stalled.
        """
        if queue.share is None:
            return
        for origin, n in taken.items():
            if owes := queue.debt.get(origin):
                owed = min(n, owes)
                queue.debt[origin] -= owed
                n -= owed
            saved = queue.saved[origin] = queue.saved.get(origin, 0) + n
            if saved and (2 * saved >= queue.share or origin in queue.stalled):
                self._grant(queue, origin, queue.saved.pop(origin))
        if queue.stalled:
            self._control.apply(self._state.engine.remote_stall(queue.index))

    def extend(self, queue: Queue, n: int) -> None:
        """A get wants more than the channel may hold. Its blocked producers may send that much more, once."""
        for origin in list(queue.stalled):
            queue.debt[origin] += n
            self._grant(queue, origin, n)

    def let_go(self, queue: Queue) -> None:
        """Nobody reads it any more, and nobody minds: what is put is dropped."""
        for origin in list(queue.stalled):
            self._grant(queue, origin, PLENTY)
        self._control.apply(self._state.engine.abandon(queue.index))
