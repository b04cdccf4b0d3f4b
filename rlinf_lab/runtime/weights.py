"""Published weights: kept where they were published, announced by the driver, fetched once by each host that wants them.

An announcement goes to the driver in front of the end of the call that published, and from there to all hosts in front of any call of a
later iteration (links keep their order). So a rank that begins a call knows of every version of the iterations that had ended
when its own began: no question is needed for the bound on staleness to hold. The state itself travels from host to host.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from rlinf_lab.errors import WorkflowError
from rlinf_lab.runtime.cargo import BUCKET, Arrived, Bucket, Cargo, Outgoing, assembled
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.weights import Published, Weights, check_shipping

if TYPE_CHECKING:
    from rlinf_lab.runtime.host import Host
    from rlinf_lab.runtime.process import Process
    from rlinf_lab.workflow.calls import CallSpec


NEVER = Published(0, None)


@dataclass(eq=False)
class Store:
    """One store as one host knows it: what is here, and what is said to be elsewhere."""

    here: Published = NEVER
    known: int = 0  # the newest version that is published
    home: str = ""  # the host where it lies
    owner: str = ""  # the worker that publishes
    asked: bool = False
    waiters: list[Process] = field(default_factory=list)
    shipped: Shipping | None = None  # where it was published: how it travels
    buckets: list[Arrived] = field(default_factory=list)  # of the version that is arriving
    parcel: list[Arrived] | None = None  # all of them, to be put together by the first who pulls
    base: Cargo | None = None  # the version before, as it travelled
    opening: threading.Lock = field(default_factory=threading.Lock)


class Shipping(NamedTuple):
    """``delta``: only what has changed. ``bucket``: bytes of a message at most."""

    delta: bool
    bucket: int


class WeightTable:
    """All stores of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._stores: dict[str, Store] = {}
        self._unseen: dict[Process, dict[str, list[tuple[Any, Shipping | None]]]] = {}  # published in the call that is going on
        self._outgoing: dict[tuple[str, str], Outgoing] = {}  # by store and host: what is on its way, or came there last

    def _store(self, name: str) -> Store:
        return self._stores.setdefault(name, Store())

    # --- called by the ranks' own threads ----------------------------------------------------------------
    def publish(self, process: Process, name: str, state: Any, shipping: Shipping | None = None) -> int:
        with self._host._mutex:
            store, unseen = self._store(name), self._unseen.setdefault(process, {}).setdefault(name, [])
            if process.rank:
                raise WorkflowError(
                    f"{process.label}: weights {name!r} are published by rank 0; ranks of a worker are equal. Next: `if self.rank == 0: weights.publish(...)`."
                )
            if store.owner not in ("", process.worker):
                raise WorkflowError(f"{process.label}: weights {name!r} are published by {store.owner!r}. Next: a store of its own, flow.weights(...).")
            unseen.append((state, shipping))
            return store.known + len(unseen)

    def pull(self, process: Process, name: str, at_least: int) -> Published:
        host, store = self._host, self._store(name)
        wanted = max(store.known, at_least)
        if store.here.version >= wanted:
            return self._opened(store)
        with host._spans.wait(process):
            while store.here.version < wanted:
                self._wait(process, store, name, wanted)
        return self._opened(store)

    def _opened(self, store: Store) -> Published:
        """The version that is here, put together if it came in buckets."""
        with store.opening:
            while (parcel := store.parcel) is not None:
                cargo = assembled(parcel, store.base)
                state = cargo.open()
                with self._host._mutex:
                    store.base = cargo
                    if store.parcel is parcel:  # no newer one has come meanwhile
                        store.here, store.parcel = Published(cargo.version, state), None
            return store.here

    def _wait(self, process: Process, store: Store, name: str, wanted: int) -> None:
        host = self._host
        with host._mutex:
            host._raise_if_interrupted(process)
            waits = store.here.version < wanted
            if waits:
                store.waiters.append(process)
                self._ask(name, store)
                process.awaited = f"{store.owner}[0]" if store.owner else ""
                there = f"({store.known} is the newest)" if store.known else "(nobody has yet)"
                process.advice = f"publish version {wanted} of the weights {name!r} {there} in a call that ends before this one, or pull(at_least=) of less"
                host._block(process, "value", f"version {wanted} of the weights {name!r}")
        host.flush()
        if waits:
            try:
                host._park(process)
                host._raise_if_interrupted(process)
            finally:
                with host._mutex:
                    if process in store.waiters:  # interrupted: the answer may never come, and whoever waits next asks again
                        store.waiters.remove(process)
                        store.asked = False

    # --- under the mutex -----------------------------------------------------------------------------------
    def ended(self, process: Process, well: bool) -> None:
        """A rank's call has ended: what it has published is there now, unless the call failed."""
        for name, states in self._unseen.pop(process, {}).items():
            if well:
                version = self._store(name).known + len(states)
                state, self._store(name).shipped = states[-1]
                self.arrived(name, version, state)
                self.announced(name, version, process.worker, self._host.name)
                if self._host.loop is None:
                    self._host.say(self._host.place[DRIVER, 0], ("published", name, version, process.worker, self._host.name))

    def announced(self, name: str, version: int, owner: str, home: str) -> None:
        """There is a new version; the driver passes it on."""
        store = self._store(name)
        store.known, store.owner, store.home = version, owner, home
        if store.waiters:
            self._ask(name, store)
        if self._host.loop is not None:
            for other in self._host.loop.others:
                if other != home:
                    self._host.say(other, ("published", name, version, owner, home))

    def _ask(self, name: str, store: Store) -> None:
        if store.known > store.here.version and not store.asked:
            store.asked = True
            self._next_bucket(name, store, 0)

    def _next_bucket(self, name: str, store: Store, number: int) -> None:
        have = store.base.version if store.base is not None and store.parcel is None else 0
        self._host.say(store.home, ("pull", name, self._host.name, have, number))

    def owner(self, name: str) -> str:
        """The worker that publishes."""
        return self._store(name).owner

    def answer(self, name: str, host: str, have: int, number: int) -> None:
        """Another host, which holds version ``have``, wants the newest one, or its next bucket."""
        store = self._store(name)
        if not number:
            if store.shipped is None:
                self._host.say(host, ("weights", name, *store.here))
                return
            last = self._outgoing.get((name, host))
            base = last.cargo if store.shipped.delta and last is not None and last.cargo is not None and last.version == have else None
            self._outgoing[name, host] = Outgoing(*store.here, base, store.shipped.bucket)
        outgoing = self._outgoing[name, host]
        self._host.say(host, ("weights", name, outgoing.version, Bucket(outgoing, number)))

    def arrived(self, name: str, version: int, state: Any) -> None:
        store = self._store(name)
        if isinstance(state, Arrived):
            store.buckets.append(state)
            if state.number + 1 < state.total:
                self._next_bucket(name, store, state.number + 1)
                return
            store.parcel, store.buckets = store.buckets, []
            state = None  # put together by who pulls it
        store.asked = False
        if version > store.here.version:
            store.here = Published(version, state)
        waiters, store.waiters = store.waiters, []
        for process in waiters:
            self._host._wake(process)


class WeightsPort(Weights):
    """A store as a call of a worker under a host sees it."""

    def __init__(self, host: Host, process: Process, name: str, call: CallSpec) -> None:
        self.name = name
        self._host, self._process, self._call = host, process, call

    def publish(self, state: Any, *, delta: bool = False, bucket_mib: float | None = None) -> int:
        self._refuse_out_of_turn()
        check_shipping(self, bucket_mib)
        shipping = Shipping(delta, BUCKET if bucket_mib is None else int(bucket_mib * 2**20)) if delta or bucket_mib is not None else None
        return self._host.weights.publish(self._process, self.name, state, shipping)

    def pull(self, at_least: int = 0) -> Published:
        self._refuse_out_of_turn()
        return self._host.weights.pull(self._process, self.name, at_least)

    def _refuse_out_of_turn(self) -> None:
        if self._process.call is not self._call:
            raise WorkflowError(
                f"{self._process.label}: the weights {self.name!r} were given to a call of iteration {self._call.iteration}, which is over. Next: use the "
                f"store that the present call was given."
            )

    def __repr__(self) -> str:
        return f"Weights({self.name!r} of {self._process.label}, iteration {self._call.iteration})"
