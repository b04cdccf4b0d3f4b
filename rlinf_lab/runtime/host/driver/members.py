"""Ranks that come and go while a run goes on: the driver's side. The hosts' side is `elastic.turnover`.

The plan names every place there can be; a session says who is there. Rank 0 of a group stays: what the loop uses of a
call's values is its, and weights are published by it. Who takes part in a call is fixed when the loop makes it, and on
its way with it; later calls have others.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rlinf_lab.errors import ExecutorError, WorkflowError
from rlinf_lab.planning.plan.layout import refuse_fixed_place
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.workflow.specs import READ, WRITE, CallSpec

JOIN_SECONDS = 120.0


@dataclass
class Admission:
    """A rank that has come asks to take part in a call under way. ``homes``: of its channels, which answer
    one by one.
    """

    call: CallSpec
    rank: int
    homes: list[tuple[str, str, bool]] = field(default_factory=list)  # host, channel, whether it is read
    admitted: list[tuple[str, str, bool]] = field(default_factory=list)
    answers: int = 0


class CallsOfLoop(Protocol):
    """What is asked of the loop, under the mutex; see `driver.loop`."""

    lost: ExecutorError | None

    def calls_of(self, worker: str) -> list[CallSpec]: ...
    def expects(self, call: CallSpec, rank: int) -> bool: ...
    def expect(self, call: CallSpec, rank: int) -> None: ...
    def gives_up_part(self, call: CallSpec, rank: int) -> None: ...


class Members:
    """At the driver's host. What others than the caller's thread do here they do under its mutex."""

    def __init__(self, state: HostState, post: parts.Post, loop: CallsOfLoop) -> None:
        self._state, self._post, self._loop = state, post, loop
        self._absent = set(state.layout.absent)
        self._on_its_way: dict[tuple[str, int], str] = {}  # "joining" or "leaving"
        self._failures: dict[tuple[str, int], BaseException] = {}
        self._changed = threading.Condition(state.mutex)
        self._admissions: dict[int, Admission] = {}
        self._asked = 0
        self._came: dict[int, list[int]] = {}  # ranks that take part in a call since its middle
        post.on(messages.Left, lambda m: self._left(m.worker, m.rank))
        post.on(messages.Joined, lambda m: self._joined(m.worker, m.rank, m.failure))
        post.on(messages.Admitted, self._admitted)

    # --- asking --------------------------------------------------------------------------------------------
    def present(self, worker: str) -> tuple[int, ...]:
        """The ranks that take part in what is called from now on."""
        return tuple(r for r in range(self._state.layout.ranks(worker)) if (worker, r) not in self._absent)

    def fixed(self, call: CallSpec) -> CallSpec:
        """The call with its ranks; empty while everybody is there."""
        ranks = self.present(call.worker) if self._absent else ()
        everybody = len(ranks) in (0, self._state.layout.ranks(call.worker))
        return call if everybody else dataclasses.replace(call, ranks=ranks)

    def of(self, call: CallSpec) -> list[int]:
        """Who takes part in a call, also since its middle."""
        with self._state.mutex:
            began = call.taken_by(self._state.layout.ranks(call.worker))
            return sorted([*began, *self._came.get(call.call_id, ())])

    # --- coming and going ------------------------------------------------------------------------------------
    def join(self, worker: str, rank: int, timeout: float | None) -> None:
        """See `Session.join`."""
        member = self._checked("join", worker, rank)
        with self._state.mutex:
            if member not in self._absent or self._on_its_way.get(member) == "joining":
                raise WorkflowError(
                    f"join({worker!r}, {rank}): it is there already, or on its way. Next: session.members tells who is "
                    f"there."
                )
            self._wait_until(member, lambda: member not in self._on_its_way, timeout, "has not left yet")
            self._on_its_way[member] = "joining"
            self._post.tell(self._state.place[member], messages.Join(worker, rank))
        self._post.flush()
        with self._state.mutex:
            self._wait_until(member, lambda: member not in self._on_its_way, timeout, "has not been set up yet")
            failure = self._failures.pop(member, None)
        if failure is not None:
            raise failure
        self._post.flush()

    def leave(self, worker: str, rank: int) -> None:
        """See `Session.leave`."""
        member = self._checked("leave", worker, rank)
        with self._state.mutex:
            if member in self._absent:
                raise WorkflowError(f"leave({worker!r}, {rank}): it is not there. Next: session.members tells who is.")
            self._absent.add(member)
            self._on_its_way[member] = "leaving"
            self._post.tell(self._state.place[member], messages.Leave(worker, rank))
        self._post.flush()

    def _checked(self, what: str, worker: str, rank: int) -> tuple[str, int]:
        refuse_fixed_place(self._state.layout, f"{what}({worker!r}, {rank!r})", worker, rank)
        if self._state.stopping:
            raise ExecutorError(
                "The session has ended: its workers are gone. Next: open a new one with lab.session(flow, plan)."
            )
        return worker, rank

    def _wait_until(
        self, member: tuple[str, int], has_come: Callable[[], bool], timeout: float | None, what: str
    ) -> None:
        seconds, who = JOIN_SECONDS if timeout is None else timeout, f"{member[0]}[{member[1]}]"
        deadline = time.monotonic() + seconds
        while not has_come():
            if self._state.stopping or self._state.place[member] in self._state.dead:
                raise ExecutorError(
                    f"{who} {what}, and the run has ended or its host has died. Next: open a new session."
                )
            if self._loop.lost is not None:
                raise ExecutorError(*self._loop.lost.args)
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(
                    f"{who} {what}, after {seconds:g} s. That goes on. Next: wait; session.members tells when it is "
                    "over."
                )
            self._changed.wait(min(left, 0.5))

    def give_up(self) -> None:
        """Under the mutex: who waits for a rank to come is told that the run is over."""
        self._changed.notify_all()

    # --- what hosts answer (under the mutex) -------------------------------------------------------------------
    def _left(self, worker: str, rank: int) -> None:
        self._on_its_way.pop((worker, rank), None)
        self._changed.notify_all()

    def _joined(self, worker: str, rank: int, failure: BaseException | None) -> None:
        """It is set up, or cannot be. It takes part in what is called from now on, and in what can take it in."""
        member = (worker, rank)
        del self._on_its_way[member]
        if failure is None:
            self._absent.discard(member)
            for call in self._loop.calls_of(worker):
                takes_part = rank in self.of(call) or self._loop.expects(call, rank)
                if not takes_part and self._state.is_streamed(call):
                    self._ask_for(call, rank)
        else:
            self._failures[member] = failure
        self._changed.notify_all()

    def _ask_for(self, call: CallSpec, rank: int) -> None:
        """Whether the rank can take part in a call under way: none of its channels may have ended."""
        self._asked += 1
        router, number = self._state.router, self._asked
        homes = [(home, c, False) for c in dict.fromkeys(call.channels(WRITE)) for home in router.homes(c)]
        homes += [(router.home(c, 0), c, True) for c in call.channels(READ)]
        self._admissions[number] = Admission(call, rank, homes)
        self._loop.expect(call, rank)
        for home, channel, reads in homes:
            self._post.tell(home, messages.Admit(number, call.iteration, channel, reads))

    def _admitted(self, message: messages.Admitted) -> None:
        one, place = self._admissions[message.number], (message.home, message.channel, message.reads)
        one.answers += 1
        if message.ok:
            one.admitted.append(place)
        if one.answers < len(one.homes):
            return
        del self._admissions[message.number]
        call, rank = one.call, one.rank
        if len(one.admitted) == len(one.homes) and (call.worker, rank) not in self._absent:
            self._came.setdefault(call.call_id, []).append(rank)
            began = call.taken_by(self._state.layout.ranks(call.worker))
            call = dataclasses.replace(call, ranks=(*began, *self._came[call.call_id]), began=len(began))
            self._post.tell(self._state.place[call.worker, rank], messages.TakePart(call, rank))
            return
        for home, channel, reads in one.admitted:
            self._post.tell(home, messages.GiveUpPlace(call.iteration, channel, reads))
        self._loop.gives_up_part(call, rank)

    def forget(self, calls: list[CallSpec]) -> None:
        """Their iteration is over."""
        for call in calls:
            self._came.pop(call.call_id, None)
