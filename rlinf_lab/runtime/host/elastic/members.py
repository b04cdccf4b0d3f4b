"""Ranks that come and go while a run goes on: the driver's side. The hosts' side is `turnover`.

The plan names every place there can be; a session says who is there. Rank 0 of a group stays: what the loop uses of a call's values is its, and
weights are published by it. Who takes part in a call is fixed when the loop makes it, and on its way with it; later calls have others.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlinf_lab.errors import ExecutorError, WorkflowError
from rlinf_lab.planning.plan.layout import refuse_fixed_place
from rlinf_lab.workflow.specs import READ, WRITE, CallSpec

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.driver import Loop
    from rlinf_lab.runtime.host.host import Host

JOIN_SECONDS = 120.0


@dataclass
class Admission:
    """A rank that has come asks to take part in a call under way. ``homes``: of the channels, which answer one by one."""

    call: CallSpec
    rank: int
    homes: list[tuple[str, str, bool]] = field(default_factory=list)  # host, channel, whether it is read
    admitted: list[tuple[str, str, bool]] = field(default_factory=list)
    answers: int = 0


class Members:
    """At the driver's host. ``loop``: of it. What others than the caller's thread do here they do under its mutex."""

    def __init__(self, host: Host, loop: Loop) -> None:
        self._host, self._loop = host, loop
        self._absent = set(host.layout.absent)
        self._on_its_way: dict[tuple[str, int], str] = {}  # "joining" or "leaving"
        self._failures: dict[tuple[str, int], BaseException] = {}
        self._changed = threading.Condition(host._mutex)
        self._admissions: dict[int, Admission] = {}
        self._asked = 0
        self._came: dict[int, list[int]] = {}  # ranks that take part in a call since its middle

    # --- asking --------------------------------------------------------------------------------------------
    def present(self, worker: str) -> tuple[int, ...]:
        """The ranks that take part in what is called from now on."""
        return tuple(r for r in range(self._host.layout.ranks(worker)) if (worker, r) not in self._absent)

    def fixed(self, call: CallSpec) -> CallSpec:
        """The call with its ranks; empty while everybody is there."""
        ranks = self.present(call.worker) if self._absent else ()
        return dataclasses.replace(call, ranks=ranks) if len(ranks) not in (0, self._host.layout.ranks(call.worker)) else call

    def of(self, call: CallSpec) -> list[int]:
        """Who takes part in a call, also since its middle."""
        with self._host._mutex:
            return sorted([*call.taken_by(self._host.layout.ranks(call.worker)), *self._came.get(call.call_id, ())])

    # --- coming and going ------------------------------------------------------------------------------------
    def join(self, worker: str, rank: int, timeout: float | None) -> None:
        """See `Session.join`."""
        member = self._checked("join", worker, rank)
        host = self._host
        with host._mutex:
            if member not in self._absent or self._on_its_way.get(member) == "joining":
                raise WorkflowError(f"join({worker!r}, {rank}): it is there already, or on its way. Next: session.members tells who is there.")
            self._wait_until(member, lambda: member not in self._on_its_way, timeout, "has not left yet")
            self._on_its_way[member] = "joining"
            self._say(host.place[member], ("join", worker, rank))
        host.flush()
        with host._mutex:
            self._wait_until(member, lambda: member not in self._on_its_way, timeout, "has not been set up yet")
            failure = self._failures.pop(member, None)
        if failure is not None:
            raise failure
        host.flush()

    def leave(self, worker: str, rank: int) -> None:
        """See `Session.leave`."""
        member = self._checked("leave", worker, rank)
        host = self._host
        with host._mutex:
            if member in self._absent:
                raise WorkflowError(f"leave({worker!r}, {rank}): it is not there. Next: session.members tells who is.")
            self._absent.add(member)
            self._on_its_way[member] = "leaving"
            self._say(host.place[member], ("leave", worker, rank))
        host.flush()

    def _checked(self, what: str, worker: str, rank: int) -> tuple[str, int]:
        refuse_fixed_place(self._host.layout, f"{what}({worker!r}, {rank!r})", worker, rank)
        if self._host.stopping:
            raise ExecutorError("The session has ended: its workers are gone. Next: open a new one with lab.session(flow, plan).")
        return worker, rank

    def _wait_until(self, member: tuple[str, int], has_come: Callable[[], bool], timeout: float | None, what: str) -> None:
        seconds = JOIN_SECONDS if timeout is None else timeout
        deadline = time.monotonic() + seconds
        while not has_come():
            if self._host.stopping or self._host.place[member] in self._host.dead:
                raise ExecutorError(f"{member[0]}[{member[1]}] {what}, and the run has ended or its host has died. Next: open a new session.")
            if self._loop.lost is not None:
                raise ExecutorError(*self._loop.lost.args)
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(f"{member[0]}[{member[1]}] {what}, after {seconds:g} s. That goes on. Next: wait; session.members tells when it is over.")
            self._changed.wait(min(left, 0.5))

    def give_up(self) -> None:
        """Under the mutex: who waits for a rank to come is told that the run is over."""
        self._changed.notify_all()

    def _say(self, home: str, message: tuple) -> None:
        if home == self._host.name:
            self._host.handle(message)
        else:
            self._host.say(home, message)

    # --- what hosts answer (under the mutex) -------------------------------------------------------------------
    def left(self, worker: str, rank: int) -> None:
        self._on_its_way.pop((worker, rank), None)
        self._changed.notify_all()

    def joined(self, worker: str, rank: int, failure: BaseException | None) -> None:
        """It is set up, or cannot be; it takes part in what is called from now on, and in what can take it in."""
        member = (worker, rank)
        del self._on_its_way[member]
        if failure is None:
            self._absent.discard(member)
            for call in self._loop.calls_under_way(worker):
                if rank not in self.of(call) and not self._loop.expects(call, rank) and streamed(self._host, call):
                    self._ask_for(call, rank)
        else:
            self._failures[member] = failure
        self._changed.notify_all()

    def _ask_for(self, call: CallSpec, rank: int) -> None:
        """Whether the rank can take part in a call under way: none of its channels may have ended."""
        self._asked += 1
        router, number = self._host._router, self._asked
        homes = [(home, c, False) for c in dict.fromkeys(call.channels(WRITE)) for home in router.homes(c)]
        homes += [(router.home(c, 0), c, True) for c in call.channels(READ)]
        self._admissions[number] = Admission(call, rank, homes)
        self._loop.expect(call, rank)
        for home, channel, reads in homes:
            self._say(home, ("admit", number, call.iteration, channel, reads))

    def admitted(self, number: int, home: str, channel: str, reads: bool, ok: bool) -> None:
        one = self._admissions[number]
        one.answers += 1
        if ok:
            one.admitted.append((home, channel, reads))
        if one.answers < len(one.homes):
            return
        del self._admissions[number]
        call, rank = one.call, one.rank
        if len(one.admitted) == len(one.homes) and (call.worker, rank) not in self._absent:
            self._came.setdefault(call.call_id, []).append(rank)
            began = call.taken_by(self._host.layout.ranks(call.worker))
            call = dataclasses.replace(call, ranks=(*began, *self._came[call.call_id]), began=len(began))
            self._say(self._host.place[call.worker, rank], ("take_part", call, rank))
            return
        for home, channel, reads in one.admitted:
            self._say(home, ("give_up_place", call.iteration, channel, reads))
        self._loop.ended(call.call_id, rank, call.iteration, None)

    def forget(self, calls: list[CallSpec]) -> None:
        """Their iteration is over."""
        for call in calls:
            self._came.pop(call.call_id, None)


def streamed(host: Host, call: CallSpec) -> bool:
    """Whether the ranks of a call take items one by one from one channel that they share: then any of them may do the rest."""
    reads = call.channels(READ)
    if len(reads) != 1 or call.refs():
        return False
    spec = host.layout.graph.channel(reads[0])
    return not spec.keyed and not spec.whole and not any(host.layout.sharded(c) for c in (*reads, *call.channels(WRITE)))
