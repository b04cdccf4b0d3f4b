"""Where nothing moves, somebody may exceed a channel's capacity. And any host answers the driver's watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rlinf_lab.runtime.host.control.post import Post
from rlinf_lab.runtime.host.liveness.wait_graph import Waits
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Pulse


class Relief:
    """Of one host; under its mutex. ``queues_of``: which belong to streams."""

    def __init__(
        self, state: HostState, control: parts.RankControl, post: Post,
        queues_of: Callable[[Iterable[tuple[str, int]]], set[int]], waits: Waits,
    ) -> None:  # fmt: skip
        self._state, self._control, self._post = state, control, post
        self._queues_of, self._waits = queues_of, waits
        post.on(messages.AskPulse, lambda m: post.tell_driver(messages.PulseOf(state.name, m.wave, self.pulse())))
        post.on(messages.Relieve, self._asked)

    def relieve(self, stranded: Iterable[tuple[str, int]]) -> bool:
        """Let somebody exceed a capacity, but not at these streams; whether there was anybody."""
        spared = self._queues_of(stranded)
        instructions = self._state.engine.relieve(widen=not self._state.alone, spared=spared)
        self._control.apply(instructions)
        return bool(instructions)

    def _asked(self, message: messages.Relieve) -> None:
        did = self.relieve(message.stranded)
        self._post.tell_driver(messages.Relieved(self._state.name, did, self._waits.all()))

    def pulse(self) -> Pulse:
        """Whether anything moves here, and what was said and heard."""
        return Pulse(self._state.running == 0, self._post.said, self._post.heard)
