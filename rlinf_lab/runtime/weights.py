"""Published weights: kept where they were published, announced by the driver, fetched once by each host that wants them.

An announcement goes to the driver in front of the end of the call that published, and from there to all hosts in front of any call of a
later iteration (links keep their order). So a rank that begins a call knows of every version of the iterations that had ended
when its own began: no question is needed for the bound on staleness to hold. The state itself travels from host to host.

    ranks of one call: "fix" ──> the host of rank 0: the newest that it or who asks knows ── "fixed" ──> the same version for all of them

A learner may publish between the pulls of two ranks, so where a call has several, who pulls first fixes the version for all. One that is superseded is
kept until no call can want it any more: until all iterations that may have begun before the driver heard of the next one are over.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf_lab.errors import WorkerError, WorkflowError
from rlinf_lab.runtime.cargo import BUCKET, Arrived, Bucket, Cargo, Outgoing, assembled
from rlinf_lab.runtime.unchanged import Unchanged
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.weights import Published, Weights, check_shipping

if TYPE_CHECKING:
    from rlinf_lab.runtime.host import Host
    from rlinf_lab.runtime.process import Process
    from rlinf_lab.workflow.calls import CallSpec


NEVER = Published(0, None)


class Shipping(NamedTuple):
    """``delta``: only what has changed. ``bucket``: bytes of a message at most."""

    delta: bool
    bucket: int


@dataclass(eq=False)
class Held:
    """A version that is here. ``shipping``: where it was published, how it travels; ``buckets``: how it came, until the first who pulls it has put it
    together upon ``base``."""

    version: int
    state: Any = None
    shipping: Shipping | None = None
    unchanged: Unchanged | None = None  # where it was published
    buckets: list[Arrived] | None = None
    base: Cargo | None = None
    opening: threading.Lock = field(default_factory=threading.Lock)


class Question(NamedTuple):
    """What has one answer for all ranks of a call."""

    call_id: int
    name: str
    at_least: int


@dataclass(eq=False)
class Answer:
    """``version``: -1 until it is known."""

    iteration: int
    version: int = -1
    waiters: list[Process] = field(default_factory=list)


@dataclass(eq=False)
class Store:
    """One store as one host knows it: what is here, and what is said to be elsewhere."""

    held: dict[int, Held] = field(default_factory=dict)  # by version: the newest, and those that calls under way may want
    announced: list[tuple[int, int]] = field(default_factory=list)  # as many versions, each with the iteration in which it was published
    home: str = ""  # the host where it lies
    owner: str = ""  # the worker that publishes
    asked: int = 0  # the version that is on its way, one at a time
    waiters: dict[Process, int] = field(default_factory=dict)  # and the version that each wants
    buckets: list[Arrived] = field(default_factory=list)  # of the version that is arriving
    under: Cargo | None = None  # what it is put upon
    base: Cargo | None = None  # the version before, as it travelled

    @property
    def known(self) -> int:
        """The newest version that is published."""
        return self.announced[-1][0] if self.announced else 0

    def first(self, wanted: int) -> int:
        """The first published version from this one on; 0: none yet. (A call that publishes twice hands out the latter only.)"""
        return next((version for version, _ in self.announced if version >= wanted), 0)


class WeightTable:
    """All stores of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._stores: dict[str, Store] = {}
        self._unseen: dict[Process, dict[str, list[tuple[Any, Shipping | None, Unchanged]]]] = {}  # published in the call that is going on
        self._outgoing: dict[tuple[str, str], Outgoing] = {}  # by store and host: what is on its way, or came there last
        self._answers: dict[Question, Answer] = {}
        self._keeps = any(host.layout.ranks(worker) > 1 for worker in host.layout.graph.workers)  # else nobody wants any but the newest

    def _store(self, name: str) -> Store:
        return self._stores.setdefault(name, Store())

    # --- called by the ranks' own threads ----------------------------------------------------------------
    def publish(self, process: Process, name: str, state: Any, shipping: Shipping | None = None) -> int:
        unchanged = Unchanged(state)
        with self._host._mutex:
            store, unseen = self._store(name), self._unseen.setdefault(process, {}).setdefault(name, [])
            if process.rank:
                raise WorkflowError(
                    f"{process.label}: weights {name!r} are published by rank 0; ranks of a worker are equal. Next: `if self.rank == 0: weights.publish(...)`."
                )
            if store.owner not in ("", process.worker):
                raise WorkflowError(f"{process.label}: weights {name!r} are published by {store.owner!r}. Next: a store of its own, flow.weights(...).")
            unseen.append((state, shipping, unchanged))
            return store.known + len(unseen)

    def pull(self, process: Process, call: CallSpec, name: str, at_least: int) -> Published:
        host, store = self._host, self._store(name)
        alone = host.layout.ranks(call.worker) == 1  # not how many take part now: others may join
        wanted = max(store.known, at_least) if alone else self._of_the_call(process, call, Question(call.call_id, name, at_least))
        if not wanted:
            return NEVER
        with host._mutex:
            held = self._found(store, wanted)
        if held is None:
            with host._spans.wait(process):
                while (held := self._awaited(process, store, name, wanted)) is None:
                    pass
        if (refusal := self._refusal(store, name, held)) is not None:
            raise refusal
        return self._opened(store, held)

    @staticmethod
    def _refusal(store: Store, name: str, held: Held) -> WorkflowError | None:
        return None if held.unchanged is None else held.unchanged.refusal(held.version, name, store.owner)

    def _found(self, store: Store, wanted: int) -> Held | None:
        """Under the mutex: this version, or the first one after it; where none is kept, any after it."""
        version = store.first(wanted)
        if version in store.held or self._keeps:
            return store.held.get(version)
        return next((held for held in store.held.values() if held.version >= wanted), None)

    def _opened(self, store: Store, held: Held) -> Published:
        """Put together, if it came in buckets."""
        with held.opening:
            if held.buckets is not None:
                cargo = assembled(held.buckets, held.base)
                held.state, held.buckets, held.base = cargo.open(), None, None
                with self._host._mutex:
                    if store.base is None or store.base.version < cargo.version:
                        store.base = cargo
            return Published(held.version, held.state)

    def _awaited(self, process: Process, store: Store, name: str, wanted: int) -> Held | None:
        host = self._host
        with host._mutex:
            host._raise_if_interrupted(process)
            if (held := self._found(store, wanted)) is not None:
                return held
            store.waiters[process] = wanted
            self._ask(name, store)
            self._say_what_is_there(process, name, store, wanted)
            host._block(process, "value", f"version {wanted} of the weights {name!r}")
        host.flush()
        try:
            host._park(process)
            host._raise_if_interrupted(process)
        finally:
            with host._mutex:
                if store.waiters.pop(process, None) is not None:  # interrupted: the answer may never come, and whoever waits next asks again
                    store.asked = 0
        return None

    def _say_what_is_there(self, process: Process, name: str, store: Store, wanted: int) -> None:
        """For whoever looks at its wait."""
        process.awaited = f"{store.owner}[0]" if store.owner else ""
        there = f"({store.known} is the newest)" if store.known else "(nobody has yet)"
        process.advice = f"publish version {wanted} of the weights {name!r} {there} in a call that ends before this one, or pull(at_least=) of less"

    # --- the version of a call ---------------------------------------------------------------------------------
    def _of_the_call(self, process: Process, call: CallSpec, question: Question) -> int:
        """The version that all its ranks get."""
        host, home = self._host, self._host.place[call.worker, 0]  # rank 0 takes part in every call
        with host._mutex:
            known = self._store(question.name).known
            if home == host.name:
                return self.decide(question, call.iteration, known)
            answer = self._answers.get(question)
            if answer is None:
                answer = self._answers[question] = Answer(call.iteration)
                host.say(home, ("fix", question, call.iteration, known, host.name))
            if answer.version >= 0:
                return answer.version
            host._raise_if_interrupted(process)
            answer.waiters.append(process)
            process.awaited, process.advice = f"{call.worker}[0]", ""
            host._block(process, "value", f"the version of the weights {question.name!r} that its call has")
        host.flush()
        with host._spans.wait(process):
            try:
                host._park(process)
                host._raise_if_interrupted(process)
            finally:
                with host._mutex:
                    if process in answer.waiters:
                        answer.waiters.remove(process)
        return answer.version

    def decide(self, question: Question, iteration: int, known: int) -> int:
        """Under the mutex, at the host of rank 0; ``known``: the newest version that who asks knows."""
        if question not in self._answers:
            before = [a.version for q, a in self._answers.items() if q[:2] == question[:2] and a.version >= question.at_least]
            version = min(before, default=max(known, self._store(question.name).known, question.at_least))
            self._answers[question] = Answer(iteration, version)
        return self._answers[question].version

    def fixed(self, question: Question, version: int) -> None:
        """Under the mutex: so the host of rank 0 has decided."""
        if (answer := self._answers.get(question)) is None:  # its iteration is over
            return
        answer.version = version
        waiters, answer.waiters = answer.waiters, []
        for process in waiters:
            self._host._wake(process)

    # --- under the mutex -----------------------------------------------------------------------------------
    def ended(self, process: Process, call: CallSpec, well: bool) -> None:
        """A rank's call has ended: what it has published is there now, unless the call failed."""
        for name, states in self._unseen.pop(process, {}).items():
            if well:
                version = self._store(name).known + len(states)
                self._take(self._store(name), Held(version, *states[-1]))
                self.announced(name, version, process.worker, self._host.name, call.iteration)
                if self._host.loop is None:
                    self._host.say(self._host.place[DRIVER, 0], ("published", name, version, process.worker, self._host.name, call.iteration))

    def announced(self, name: str, version: int, owner: str, home: str, iteration: int) -> None:
        """There is a new version; the driver passes it on."""
        store = self._store(name)
        store.announced.append((version, iteration))
        store.owner, store.home = owner, home
        if not self._keeps:
            del store.announced[:-1]
        self._serve(name, store)
        if self._host.loop is not None:
            for other in self._host.loop.others:
                if other != home:
                    self._host.say(other, ("published", name, version, owner, home, iteration))

    def _serve(self, name: str, store: Store) -> None:
        """Let those go on whose version is here, and ask for another one's."""
        for process, wanted in list(store.waiters.items()):
            if self._found(store, wanted) is not None:
                del store.waiters[process]
                self._host._wake(process)
            else:
                self._say_what_is_there(process, name, store, wanted)
        self._ask(name, store)

    def _ask(self, name: str, store: Store) -> None:
        wanted = [version for w in store.waiters.values() if (version := store.first(w))]
        if wanted and not store.asked:
            store.asked = min(wanted)
            self._next_bucket(name, store, 0)

    def _next_bucket(self, name: str, store: Store, number: int) -> None:
        if not number:
            store.buckets, store.under = [], store.base
        version = store.buckets[0].version if number else store.asked
        self._host.say(store.home, ("pull", name, version, self._host.name, store.under.version if store.under is not None else 0, number))

    def owner(self, name: str) -> str:
        """The worker that publishes."""
        return self._store(name).owner

    def answer(self, name: str, version: int, host: str, have: int, number: int) -> None:
        """Another host, which holds version ``have``, wants this one, or its next bucket."""
        store = self._store(name)
        if not number:
            held = store.held.get(version) or store.held[store.known]
            if (refusal := self._refusal(store, name, held)) is not None:
                self._report(store, refusal, f"version {held.version} of the weights {name!r}, asked for by {host!r}")
                return
            if held.shipping is None:
                self._host.say(host, ("weights", name, held.version, held.state))
                return
            last = self._outgoing.get((name, host))
            delta = held.shipping.delta
            base = last.cargo if delta and last is not None and last.copies and last.version == have else None
            assert held.unchanged is not None, "it was published here"
            self._outgoing[name, host] = Outgoing(held.version, held.state, base, held.shipping.bucket, held.unchanged, copies=delta)
        outgoing = self._outgoing[name, host]
        if number and outgoing.version != version:  # of a transfer that was broken off
            return
        if number and (refusal := outgoing.unchanged.refusal(version, name, store.owner)) is not None:
            self._report(store, refusal, f"version {version} of the weights {name!r}, on its way to {host!r}")
            return
        self._host.say(host, ("weights", name, outgoing.version, Bucket(outgoing, number)))

    def _report(self, store: Store, refusal: WorkflowError, trace: str) -> None:
        self._host.report(WorkerError.of(store.owner, 0, "publish", refusal, trace))

    def arrived(self, name: str, version: int, state: Any) -> None:
        store = self._store(name)
        if isinstance(state, Arrived):
            if not state.number:
                store.buckets = []
            elif state.number != len(store.buckets) or state.version != store.buckets[0].version:  # of a transfer that was broken off
                return
            store.buckets.append(state)
            if state.number + 1 < state.total:
                self._next_bucket(name, store, state.number + 1)
                return
            buckets, store.buckets = store.buckets, []
            base = next((b for b in (store.under, store.base) if b is not None and b.version == buckets[0].base), None)
            if buckets[0].base and base is None:  # the same; another one is on its way
                return
            held = Held(version, buckets=buckets, base=base)
        else:
            held = Held(version, state)
        store.asked = 0
        self._take(store, held)
        self._serve(name, store)

    def _take(self, store: Store, held: Held) -> None:
        if self._keeps:
            store.held.setdefault(held.version, held)
        elif all(version < held.version for version in store.held):
            store.held = {held.version: held}

    def over(self, iteration: int) -> None:
        """This iteration and all before it are: what only their calls may want goes."""
        self._answers = {q: a for q, a in self._answers.items() if a.iteration > iteration}
        for store in list(self._stores.values()):  # whose pulls add to it without the mutex
            while len(store.announced) > 1 and store.announced[1][1] + self._host.layout.plan.staleness <= iteration:
                store.held.pop(store.announced.pop(0)[0], None)


class WeightsPort(Weights):
    """A store as a call of a worker under a host sees it."""

    def __init__(self, host: Host, process: Process, name: str, call: CallSpec) -> None:
        self.name = name
        self._host, self._process, self._call = host, process, call
        self._pulled: dict[int, Published] = {}  # by what was asked for

    def publish(self, state: Any, *, delta: bool = False, bucket_mib: float | None = None) -> int:
        self._refuse_out_of_turn()
        check_shipping(self, bucket_mib)
        shipping = Shipping(delta, BUCKET if bucket_mib is None else int(bucket_mib * 2**20)) if delta or bucket_mib is not None else None
        return self._host.weights.publish(self._process, self.name, state, shipping)

    def pull(self, at_least: int = 0) -> Published:
        self._refuse_out_of_turn()
        if at_least not in self._pulled:
            self._pulled[at_least] = self._host.weights.pull(self._process, self._call, self.name, at_least)
        return self._pulled[at_least]

    def _refuse_out_of_turn(self) -> None:
        if self._process.call is not self._call:
            raise WorkflowError(
                f"{self._process.label}: the weights {self.name!r} were given to a call of iteration {self._call.iteration}, which is over. Next: use the "
                f"store that the present call was given."
            )

    def __repr__(self) -> str:
        return f"Weights({self.name!r} of {self._process.label}, iteration {self._call.iteration})"
