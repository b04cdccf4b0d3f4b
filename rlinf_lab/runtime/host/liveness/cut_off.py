"""A connection between two hosts has ended, as one of them says. Mostly the other has died; the driver hears that, too.

Where both go on answering the driver, the network between them is cut, or what carried their stream has been killed.
The session has ended by that: what was on its way is lost. Until the driver has spoken the host that lost the other
interrupts nobody: calls that end by it would be taken for calls that are done.
"""

from __future__ import annotations

import threading

from rlinf_lab.errors import ExecutorError
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState

# in which the driver hears of a death by itself: of a node that falls silent one link may hear five later than another
SECONDS = 7.0


class Connections:
    """At the driver's host: what others say about each other."""

    def __init__(self, state: HostState, post: parts.Post) -> None:
        self._state, self._post = state, post
        post.on(messages.CutOff, self._heard)

    def _heard(self, message: messages.CutOff) -> None:
        """Under the mutex: ``here`` does not hear ``peer`` any more. Both may say so."""
        state, ends = self._state, (message.here, message.peer)
        name = f"cut off: {' and '.join(sorted(ends))}"
        if not self._is_known(*ends) and all(thread.name != name for thread in state.threads):
            thread = threading.Thread(target=self._wait_and_decide, args=ends, name=name, daemon=True)
            state.threads.append(thread)  # which ends, at the latest, when the host is stopped
            thread.start()

    def _is_known(self, here: str, peer: str) -> bool:
        return self._state.stopping or bool({here, peer} & self._state.dead)

    def _wait_and_decide(self, here: str, peer: str) -> None:
        state = self._state
        with state.ready:
            if state.ready.wait_for(lambda: self._is_known(here, peer), SECONDS):
                return
        with state.mutex:
            if self._is_known(here, peer):
                return
            self._post.tell_driver(
                messages.Broken(
                    ExecutorError(
                        f"Host {state.who_lives_at(here)} has lost its connection to host {state.who_lives_at(peer)}, "
                        "and the driver has not heard that either died: the network between their nodes is cut, one "
                        "of "
                        f"these is going down, or the process that carried their messages was killed. The session has "
                        f"ended by that. Next: lab.check(flow, plan, ...) says which nodes reach each other; then run "
                        f"again."
                    )
                )
            )
        self._post.flush()
