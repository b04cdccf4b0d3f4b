"""Values between the ranks of one worker, in the middle of a call: the meeting that collectives of other libraries are set up with.

Each rank leaves its value where the results of calls lie, and fetches those of the others: nobody central is asked, and a rank that fails
wakes the others like any failed call does. What a rank that leaves has for the others (its part of weights that are shared out) lies there, too, until one
of them collects it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import WorkflowError

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host
    from rlinf_lab.runtime.host.rank import Process

_IN_A_CALL = 1 << 20  # exchanges that one call may have
_KEPT = 1 << 62  # in the place of an iteration: it is not over with any


def exchange(host: Host, process: Process, value: Any, keeps_device: bool = False) -> list[Any]:
    """The values of the ranks of this call, in their order. Blocks until each has given its own, as its exchange of the same number.

    The device is kept meanwhile, for no plan lets two ranks of a worker share one; but where other workers that may meet sit on it: see `meetings`.
    ``keeps_device``: also there, for the ranks work together already and hold their devices, as in a collective.
    """
    if process.call is None:
        raise WorkflowError(f"{process.label}: exchange() outside a call: the ranks are not all there yet. Next: call it in a method that the loop calls.")
    if process.call.began:
        raise WorkflowError(
            f"{process.label}: exchange() in a call of {process.worker}.{process.call.method}() that ranks {list(process.call.ranks[: process.call.began])} "
            f"began before this one had joined: they do not wait for it. Next: call session.join({process.worker!r}, {process.rank}) between two steps."
        )
    host.unwanted.end_call(process)  # other ranks may have ended by it
    call, key = process.call, _key(host, process)
    ranks = call.taken_by(host.layout.ranks(process.worker))
    within = f" in exchange() {process.exchanges} of {call.method}()"
    advice = f"have every rank of {process.worker!r} call exchange() equally often in {call.method}()"
    with host._mutex:
        entry, _ = host._values.entry(key, process.rank, call.iteration)
        entry.source = (process.worker, process.rank, call.method)  # to be named where it cannot travel
        for waiter in host._values.set(key, process.rank, call.iteration, value, None, host.say):
            host._wake(waiter)
    host.flush()
    if not keeps_device and host.meetings.steps_aside(process.worker):
        host.meetings.meet(process, key, ranks, f"the other ranks of {process.worker!r}{within}", advice)
    with host._spans.wait(process):
        return [
            value if r == process.rank else host.fetch(process, key, process.worker, r, call.iteration, within=within, advice=advice) for r in ranks
        ]


def _key(host: Host, process: Process) -> int:
    """In the place of a call's number, of which none is negative: one for each worker, call and exchange within it."""
    assert process.call is not None
    process.exchanges += 1
    if process.exchanges >= _IN_A_CALL:
        raise WorkflowError(f"{process.label}: {process.exchanges} exchanges in one call. Next: exchange lists, not single values.")
    return -(process.call.call_id * 2 * _IN_A_CALL + process.exchanges)


def place_of(process: Process) -> int:
    """For what is left behind: one for each worker, call and exchange within it, the latest one here."""
    assert process.call is not None
    return -((process.call.call_id * 2 + 1) * _IN_A_CALL + process.exchanges)


def leave_behind(host: Host, process: Process, place: int, value: Any, error: BaseException | None = None) -> None:
    """See `Context.leave_behind`. ``error``: why there is no value."""
    with host._mutex:
        entry, _ = host._values.entry(place, process.rank, _KEPT)
        if entry.ready and error is not None:  # it failed after it had left what others go on with
            return
        if entry.ready:  # whoever asked has the one before
            host._values.forget(place, process.rank)
            entry, _ = host._values.entry(place, process.rank, _KEPT)
        entry.source = (process.worker, process.rank, "leave")
        for waiter in host._values.set(place, process.rank, _KEPT, value, error, host.say):
            host._wake(waiter)
    host.flush()


def collect(host: Host, process: Process, place: int, rank: int) -> Any:
    """See `Context.collect`."""
    advice = f"let {process.worker}[{rank}] form the RankGroup with the others, and leave by session.leave()"
    try:
        with host._spans.wait(process):  # the failure of a rank that has gone is this call's own: no other call tells it
            return host.fetch(process, place, process.worker, rank, _KEPT, within=" that it leaves behind", advice=advice)
    finally:
        process.heard = None
        if process.error is None:  # else it was given up, and what comes later would stay
            discard(host, process, place, rank)


def discard(host: Host, process: Process, place: int, rank: int) -> None:
    """See `Context.discard`."""
    home = host.place[process.worker, rank]
    with host._mutex:
        host._values.forget(place, rank)
        if home != host.name:
            host.say(home, ("collected", place, rank))
    host.flush()
