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

from rlinf_lab.errors import ExecutorError, WorkflowError
from rlinf_lab.planning.plan.layout import refuse_fixed_place
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.workflow.specs import CallSpec

JOIN_SECONDS = 120.0


class Members:
    """At the driver's host. What others than the caller's thread do here they do under its mutex. ``lost()``: why the
    run is over.
    """

    def __init__(self, state: HostState, post: parts.Post, lost: Callable[[], ExecutorError | None]) -> None:
        self._state, self._post, self._lost = state, post, lost
        self._absent = set(state.layout.absent)
        self._on_its_way: dict[tuple[str, int], str] = {}  # "joining" or "leaving"
        self._failures: dict[tuple[str, int], BaseException] = {}
        self._changed = threading.Condition(state.mutex)
        post.on(messages.Left, lambda m: self._left(m.worker, m.rank))
        post.on(messages.Joined, lambda m: self._joined(m.worker, m.rank, m.failure))

    # --- asking --------------------------------------------------------------------------------------------
    def present(self, worker: str) -> tuple[int, ...]:
        """The ranks that take part in what is called from now on."""
        return tuple(r for r in range(self._state.layout.ranks(worker)) if (worker, r) not in self._absent)

    def fixed(self, call: CallSpec) -> CallSpec:
        """The call with its ranks; empty while everybody is there."""
        ranks = self.present(call.worker) if self._absent else ()
        everybody = (0, self._state.layout.ranks(call.worker))
        return call if len(ranks) in everybody else dataclasses.replace(call, ranks=ranks)

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
            if (lost := self._lost()) is not None:
                raise ExecutorError(*lost.args)
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError(
                    f"{who} {what}, after {seconds:g} s. That goes on. Next: wait; session.members tells when it is "
                    "over."
                )
            self._changed.wait(min(left, 0.5))

    def give_up(self) -> None:
        """Under the mutex: the run is over. Whoever waits for a rank to come is told."""
        self._changed.notify_all()

    # --- what hosts answer (under the mutex) -------------------------------------------------------------------
    def _left(self, worker: str, rank: int) -> None:
        self._on_its_way.pop((worker, rank), None)
        self._changed.notify_all()

    def _joined(self, worker: str, rank: int, failure: BaseException | None) -> None:
        """It is set up, or cannot be. It takes part in what is called from now on."""
        member = (worker, rank)
        del self._on_its_way[member]
        if failure is None:
            self._absent.discard(member)
        else:
            self._failures[member] = failure
        self._changed.notify_all()
