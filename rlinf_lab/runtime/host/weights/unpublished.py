"""Versions of weights that a rank waits for and no call can publish any more. Its pull raises, whoever computes.

    rank ── Lacks ──> driver: may it still come? ── NeverComes ──> DeadlockError in the pull

It is certain where the loop waits for the end of that very iteration, so that it calls nobody, and where no call that
is under way could publish. Elsewhere `liveness.deadlock_watch` tells, when nothing moves at all.
"""

from __future__ import annotations

from collections.abc import Callable

from rlinf_lab.errors import DeadlockError
from rlinf_lab.planning.plan.wait_graph import Wait
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.weights.stores import Store


class Unpublished:
    """Of one host; under its mutex. ``store``: by the name of the weights.

    At the driver's host what the loop knows: ``users(weights)``, calls under way that are given these, (call, worker,
    rank); ``waits_for_end_of(iteration)``, nothing is called before this one is over.
    """

    def __init__(
        self, state: HostState, control: parts.RankControl, post: parts.Post, store: Callable[[str], Store]
    ) -> None:
        self._state, self._control, self._post, self._store = state, control, post, store
        self._lacking: dict[tuple[int, str, int], messages.Lacks] = {}
        self.users: Callable[[str], set[tuple[int, str, int]]] = lambda weights: set()
        self.waits_for_end_of: Callable[[int], bool] = lambda iteration: False
        post.on(messages.Lacks, self._asked)
        post.on(messages.NeverComes, self._interrupt)

    def lacks(self, process: Process, name: str, version: int) -> None:
        """A rank waits from now on for what nobody has published yet."""
        if (call := process.call) is not None:
            who = call.call_id, process.worker, process.rank
            self._post.tell_driver(messages.Lacks(who, name, version, call.iteration, self._state.name))

    # --- at the driver's host --------------------------------------------------------------------------------
    def _asked(self, message: messages.Lacks) -> None:
        self._lacking[message.who] = message
        self.look()

    def look(self) -> None:
        """Something has ended, or the loop begins to wait."""
        for who, lack in list(self._lacking.items()):
            users, store = self.users(lack.name), self._store(lack.name)
            if who not in users or store.known >= lack.version:
                del self._lacking[who]
                continue
            publishers = [u for u in users if not u[2] and u[1] == (store.owner or u[1])]
            others = [u for u in publishers if not self._waits(u, lack.name)]
            if not others and self.waits_for_end_of(lack.iteration):
                del self._lacking[who]
                self._post.tell(lack.host, messages.NeverComes(who, lack.name, lack.version))

    def _waits(self, user: tuple[int, str, int], name: str) -> bool:
        """Whether this publisher itself waits for a version that is not there. It may also be behind such a call of its
        own rank.
        """
        waiting = [w for w, lack in self._lacking.items() if lack.name == name and w[1:] == user[1:]]
        return any(w[0] <= user[0] for w in waiting)

    # --- at the rank's host ----------------------------------------------------------------------------------
    def _interrupt(self, message: messages.NeverComes) -> None:
        call_id, worker, rank = message.who
        process, store = self._state.members[worker, rank], self._store(message.name)
        waits_for = process.waits_outside if process.ordering else process.waits_for
        if process.call is None or process.call.call_id != call_id or waits_for != "value":
            return
        if store.known >= message.version:
            return
        store.say_what_is_there(process, message.version)
        what, on = f"version {message.version} of the weights {message.name!r}", process.awaited
        wait = Wait(process.label, what, (on,) if on else (), advice=process.advice)
        error = DeadlockError(f"{wait}, and no call that goes on can publish it.\nNext: {process.advice}.")
        error.waits = (wait,)
        self._control.interrupt(process, error)
