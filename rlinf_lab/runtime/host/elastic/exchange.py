"""Values between the ranks of one worker, within a call. Collectives of other libraries start from this meeting.

Each rank leaves its value where the results of calls lie, and fetches those of the others: nobody central is asked, and
a rank that fails wakes the others like any failed call does. What a rank that leaves has for the others (its part of
weights that are shared out) lies there, too, until one of them collects it.
"""

from __future__ import annotations

from typing import Any

from rlinf_lab.errors import WorkflowError
from rlinf_lab.runtime.host.calls.values import Values
from rlinf_lab.runtime.host.elastic.meetings import Meetings
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.state.spans import SpanWriter

_IN_A_CALL = 1 << 20  # exchanges that one call may have
_KEPT = 1 << 62  # in the place of an iteration: it is not over with any


class Exchange:
    """Of one host; by the ranks' own threads."""

    def __init__(
        self, state: HostState, spans: SpanWriter, post: parts.Post, values: Values, meetings: Meetings
    ) -> None:
        self._state, self._spans, self._post, self._values, self._meetings = state, spans, post, values, meetings

    def exchange(self, process: Process, value: Any, keeps_device: bool = False) -> list[Any]:
        """The values of the ranks of this call, in their order. Blocks until each has given its own, as its exchange
        of the same number.

        The device is kept meanwhile, for no plan lets two ranks of a worker share one; but where other workers that may
        meet sit on it: see `meetings`. ``keeps_device``: also there, for the ranks work together already and hold their
        devices, as in a collective.
        """
        if process.call is None:
            raise WorkflowError(
                f"{process.label}: exchange() outside a call: the ranks are not all there yet. Next: call it in a "
                f"method that the loop calls."
            )
        state, call, key = self._state, process.call, key_of(process)
        ranks = call.taken_by(state.layout.ranks(process.worker))
        within = f" in exchange() {process.exchanges} of {call.method}()"
        advice = f"have every rank of {process.worker!r} call exchange() equally often in {call.method}()"
        with state.mutex:
            entry, _ = state.values.entry(key, process.rank, call.iteration)
            entry.source = (process.worker, process.rank, call.method)  # to be named where it cannot travel
            self._values.set(key, process.rank, call.iteration, value, None)
        self._post.flush()
        if not keeps_device and self._meetings.steps_aside(process.worker):
            what = f"the other ranks of {process.worker!r}{within}"
            self._meetings.meet(process, key, ranks, what, advice)
        with self._spans.wait(process):
            return [
                value
                if r == process.rank
                else self._values.fetch(process, key, process.worker, r, call.iteration, within=within, advice=advice)
                for r in ranks
            ]

    def leave_behind(self, process: Process, place: int, value: Any, error: BaseException | None = None) -> None:
        """See `Context.leave_behind`. ``error``: why there is no value."""
        values = self._state.values
        with self._state.mutex:
            entry, _ = values.entry(place, process.rank, _KEPT)
            if entry.ready and error is not None:  # it failed after it had left what others go on with
                return
            if entry.ready:  # whoever asked has the one before
                values.forget(place, process.rank)
                entry, _ = values.entry(place, process.rank, _KEPT)
            entry.source = (process.worker, process.rank, "leave")
            self._values.set(place, process.rank, _KEPT, value, error)
        self._post.flush()

    def collect(self, process: Process, place: int, rank: int) -> Any:
        """See `Context.collect`."""
        worker, within = process.worker, " that it leaves behind"
        advice = f"let {worker}[{rank}] form the RankGroup with the others, and leave by session.leave()"
        try:
            with self._spans.wait(process):  # the failure of a rank that has gone is this call's own
                return self._values.fetch(process, place, worker, rank, _KEPT, within=within, advice=advice)
        finally:
            process.heard = None
            if process.error is None:  # else it was given up, and what comes later would stay
                self.discard(process, place, rank)

    def discard(self, process: Process, place: int, rank: int) -> None:
        """See `Context.discard`."""
        home = self._state.place[process.worker, rank]
        with self._state.mutex:
            self._state.values.forget(place, rank)
            if home != self._state.name:
                self._post.say(home, messages.Collected(place, rank))
        self._post.flush()


def key_of(process: Process) -> int:
    """A number for each worker, call and exchange within it. It stands in the place of a call's number, none of which
    is negative.
    """
    assert process.call is not None
    process.exchanges += 1
    if process.exchanges >= _IN_A_CALL:
        raise WorkflowError(
            f"{process.label}: {process.exchanges} exchanges in one call. Next: exchange lists, not single values."
        )
    return -(process.call.call_id * 2 * _IN_A_CALL + process.exchanges)


def place_of(process: Process) -> int:
    """A number for what is left behind. It is of one worker, call and exchange within it, the latest one here."""
    assert process.call is not None
    return -((process.call.call_id * 2 + 1) * _IN_A_CALL + process.exchanges)
