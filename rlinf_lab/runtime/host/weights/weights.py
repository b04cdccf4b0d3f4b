"""Published weights. They are kept where they were published, announced by the driver, fetched once by each host that
wants them.

An announcement goes to the driver in front of the end of the call that published, and from there to all hosts in front
of any call of a later iteration (links keep their order). So a rank that begins a call knows of every version of the
iterations that had ended when its own began: no question is needed for the bound on staleness to hold. The state itself
travels from host to host.

    host that pulls ── Pull ──> where it lies: in one message ── Pull (is_seal) ──> was it changed? ──> `Sealed`

A version that is superseded is kept as long as a call of several ranks has it (`versions`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import Any

from rlinf_lab.errors import ExecutorError, WorkerError, WorkflowError
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Question
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.weights.stores import Held, Store, Wanted
from rlinf_lab.runtime.host.weights.unpublished import Unpublished
from rlinf_lab.runtime.host.weights.versions import Versions
from rlinf_lab.runtime.transport.cargo import Seal, Sealed, Whole
from rlinf_lab.runtime.transport.unchanged import Unchanged, refusal
from rlinf_lab.workflow.specs import CallSpec
from rlinf_lab.workflow.weights import Published, Weights

NEVER = Published(0, None)


class WeightTable:
    """All stores of one host."""

    def __init__(self, state: HostState, control: parts.RankControl, post: parts.Post) -> None:
        self._state, self._control, self._post = state, control, post
        self._stores: dict[str, Store] = {}
        # published in the call that is going on
        self._unseen: dict[Process, dict[str, list[tuple[Any, Unchanged]]]] = {}
        # by store and host: what is on its way, or came there last
        self._outgoing: dict[tuple[str, str], Whole] = {}
        self.unpublished = Unpublished(state, control, post, self.store)
        self.versions = Versions(state, control, post, self.store, self.unpublished)
        post.on(messages.Announced, self._announced)
        post.on(messages.Pull, self._asked)
        post.on(messages.WeightsState, self._arrived)

    def store(self, name: str) -> Store:
        """Made when it is first asked for."""
        return self._stores.setdefault(name, Store(name))

    # --- called by the ranks' own threads ----------------------------------------------------------------
    def publish(self, process: Process, name: str, state: Any) -> int:
        unchanged = Unchanged(state)
        with self._state.mutex:
            store, unseen = self.store(name), self._unseen.setdefault(process, {}).setdefault(name, [])
            if process.rank:
                raise WorkflowError(
                    f"{process.label}: weights {name!r} are published by rank 0; ranks of a worker are equal. Next: "
                    f"`if self.rank == 0: weights.publish(...)`."
                )
            if store.owner not in ("", process.worker):
                raise WorkflowError(
                    f"{process.label}: weights {name!r} are published by {store.owner!r}. Next: a store of its own, "
                    f"flow.weights(...)."
                )
            unseen.append((state, unchanged))
            return store.known + len(unseen)

    def pull(
        self, process: Process, call: CallSpec, name: str, at_least: int, pulled: Iterable[Published]
    ) -> Published:
        """``pulled``: what this rank has in this call."""
        store = self.store(name)
        alone = len(call.taken_by(self._state.layout.ranks(call.worker))) == 1
        if alone and (enough := [before for before in pulled if before.version >= at_least]):
            return min(enough, key=lambda before: before.version)  # as `versions` decides it for several
        if alone:
            wanted = Wanted(max(store.known, at_least), exactly=False)
        else:
            wanted = Wanted(
                self.versions.of_the_call(process, call, Question(call.call_id, name, at_least)), exactly=True
            )
        if not wanted.version:
            return NEVER
        with self._state.mutex:
            held = store.found(wanted)
        if held is None:
            with self._control.spans.wait(process):
                while (held := self._awaited(process, store, wanted)) is None:
                    pass
        return self._opened(store, held)

    def newest(self, name: str, seconds: float) -> Published:
        """From wherever it lies, within so many seconds. By any thread, also after the end for what was fetched."""
        state, store, arrived = self._state, self.store(name), threading.Event()
        with state.mutex:
            wanted = Wanted(store.known, exactly=False)
            if not wanted.version:
                return NEVER
            fetches = store.found(wanted) is None and store.home not in state.dead and not state.stopping
            if fetches:
                store.waiters[arrived] = wanted
                self._ask(store)
        if fetches:
            self._post.flush()
            arrived.wait(seconds)
        with state.mutex:
            if store.waiters.pop(arrived, None) is not None:
                store.asked = 0
            held = store.found(wanted)
        if held is None:
            why = "ended before it was fetched" if store.home in state.dead or state.stopping else "does not send it"
            home = state.who_lives_at(store.home)
            raise ExecutorError(
                f"Version {wanted.version} of the weights {name!r} is not here: {home} {why}. "
                "Next: ask while the run goes on, or have the worker return what it publishes."
            )
        return self._opened(store, held)

    def fetch_all(self, seconds: float) -> None:
        """Before the hosts end: what is newest comes here, as far as it can."""
        for name in [name for name, store in list(self._stores.items()) if store.known]:
            with contextlib.suppress(Exception):  # it is told to who asks for it
                self.newest(name, seconds)

    @staticmethod
    def _opened(store: Store, held: Held) -> Published:
        """Put together, if it came from elsewhere. Raises whatever its classes raise when they are rebuilt, and
        `WorkflowError` where it was changed since it was published.
        """
        if held.unchanged is not None and (refused := held.unchanged.refusal(held.version, store.name, store.owner)):
            raise refused
        with held.opening:
            if held.whole is not None:
                held.state, held.whole = held.whole.open(), None
            return Published(held.version, held.state)

    def _awaited(self, process: Process, store: Store, wanted: Wanted) -> Held | None:
        name = store.name
        with self._state.mutex:
            process.raise_if_interrupted()
            if (held := store.found(wanted)) is not None:
                return held
            store.waiters[process] = wanted
            self._ask(store)
            store.say_what_is_there(process, wanted.version)
            self._control.block(process, "value", f"version {wanted.version} of the weights {name!r}")
            if store.known < wanted.version:
                self.unpublished.lacks(process, name, wanted.version)
        self._post.flush()
        try:
            self._control.park(process)
            process.raise_if_interrupted()
        finally:
            with self._state.mutex:
                if store.waiters.pop(process, None) is not None:
                    store.asked = 0  # interrupted: the answer may never come, and whoever waits next asks again
        return None

    # --- under the mutex -----------------------------------------------------------------------------------
    def ended(self, process: Process, call: CallSpec, well: bool) -> None:
        """A rank's call has ended. What it has published is there now, unless the call failed."""
        here = self._state.name
        for name, states in self._unseen.pop(process, {}).items():
            if well:
                store = self.store(name)
                version = store.known + len(states)
                self._take(store, Held(version, *states[-1]))
                announced = messages.Announced(name, version, process.worker, here, call.iteration)
                self._announced(announced)
                if not self._state.is_driver:
                    self._post.tell_driver(announced)

    def _announced(self, message: messages.Announced) -> None:
        """There is a new version; the driver passes it on."""
        store = self.store(message.name)
        store.announced.append((message.version, message.iteration))
        store.owner, store.home = message.owner, message.home
        self.versions.published(message.name)
        self._serve(store)
        if self._state.is_driver:
            for other in sorted(set(self._state.place.values()) - {message.home, self._state.name}):
                self._post.say(other, message)

    def _serve(self, store: Store) -> None:
        """Let those go on whose version is here, and ask for another one's."""
        for waiter, wanted in list(store.waiters.items()):
            if store.found(wanted) is not None:
                del store.waiters[waiter]
                if isinstance(waiter, Process):
                    self._control.wake(waiter)
                else:
                    waiter.set()
            elif isinstance(waiter, Process):
                store.say_what_is_there(waiter, wanted.version)
        self._ask(store)

    def _ask(self, store: Store) -> None:
        wanted = [version for w in store.waiters.values() if (version := store.first(w.version))]
        if wanted and not store.asked:
            store.asked, store.unsealed = min(wanted), None
            self._post.say(store.home, messages.Pull(store.name, store.asked, self._state.name))

    def _asked(self, message: messages.Pull) -> None:
        """Another host wants a version. Or it has one, and asks whether that is whole."""
        name, version, host = message.name, message.version, message.asker
        if message.is_seal:
            going = self._outgoing.get((name, host))
            if going is not None and going.version == version:  # else of a transfer that was broken off
                del self._outgoing[name, host]  # it keeps the state
                self._post.say(host, messages.WeightsState(name, version, Seal(going)))
            return
        store = self.store(name)
        held = store.held.get(version) or store.held[max(store.held)]
        assert held.unchanged is not None, "it was published here"
        going = Whole(held.version, held.state, held.unchanged)
        if held.unchanged.knows_any:
            self._outgoing[name, host] = going
        self._post.say(host, messages.WeightsState(name, going.version, going))

    def _arrived(self, message: messages.WeightsState) -> None:
        name, version, state = message.name, message.version, message.state
        store = self.store(name)
        if isinstance(state, Sealed):
            if (held := store.unsealed) is None or held.version != version:  # of a transfer that was broken off
                return
            if state.changed:
                what = f"version {version} of the weights {name!r}, on its way to {self._state.name!r}"
                error = refusal(state.changed, version, name, store.owner)
                self._post.report(WorkerError.of(store.owner, 0, "publish", error, what))
                return
        else:
            held = Held(version, whole=state)
            if not state.is_sealed:
                store.unsealed = held
                self._post.say(store.home, messages.Pull(name, version, self._state.name, is_seal=True))
                return
        store.asked, store.unsealed = 0, None
        self._take(store, held)
        self._serve(store)

    def _take(self, store: Store, held: Held) -> None:
        store.held.setdefault(held.version, held)
        self._let_go(store)

    def _let_go(self, store: Store) -> None:
        """Of versions that are superseded and that no call has."""
        keep = {max(store.held, default=0), *map(store.first, self.versions.wanted(store.name))}
        for version in [v for v in store.held if v not in keep]:
            del store.held[version]

    def over(self, iteration: int) -> None:
        """This iteration and all before it are: what only their calls have goes."""
        self.versions.over(iteration)
        for store in list(self._stores.values()):  # whose pulls add to it without the mutex
            while len(store.announced) > 1 and store.announced[1][1] + self._state.layout.plan.staleness <= iteration:
                del store.announced[0]
            self._let_go(store)


class WeightsPort(Weights):
    """A store as a call of a worker under a host sees it."""

    def __init__(self, table: WeightTable, process: Process, name: str, call: CallSpec) -> None:
        self.name = name
        self._table, self._process, self._call = table, process, call
        self._pulled: dict[int, Published] = {}  # by what was asked for

    def publish(self, state: Any) -> int:
        self._refuse_out_of_turn()
        return self._table.publish(self._process, self.name, state)

    def pull(self, at_least: int = 0) -> Published:
        self._refuse_out_of_turn()
        if at_least not in self._pulled:
            self._pulled[at_least] = self._table.pull(
                self._process, self._call, self.name, at_least, self._pulled.values()
            )
        return self._pulled[at_least]

    def newest(self) -> int:
        self._refuse_out_of_turn()
        return self._table.store(self.name).known

    def _refuse_out_of_turn(self) -> None:
        if self._process.call is not self._call:
            raise WorkflowError(
                f"{self._process.label}: the weights {self.name!r} were given to a call of iteration "
                f"{self._call.iteration}, which is over. Next: use the "
                f"store that the present call was given."
            )

    def __repr__(self) -> str:
        return f"Weights({self.name!r} of {self._process.label}, iteration {self._call.iteration})"
