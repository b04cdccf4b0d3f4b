"""Values between the ranks of one worker, in the middle of a call: the meeting that collectives of other libraries are set up with.

Each rank leaves its value where the results of calls lie, and fetches those of the others: nobody central is asked, and a rank that fails
wakes the others like any failed call does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_lab.errors import WorkflowError

if TYPE_CHECKING:
    from rlinf_lab.runtime.host import Host
    from rlinf_lab.runtime.process import Process

_IN_A_CALL = 1 << 20  # exchanges that one call may have


def exchange(host: Host, process: Process, value: Any) -> list[Any]:
    """The values of all ranks, by rank. Blocks until every rank has given its own in the same call, as its exchange of the same number.

    The device is kept meanwhile: no plan lets two ranks of a worker share one.
    """
    if process.call is None:
        raise WorkflowError(f"{process.label}: exchange() outside a call: the ranks are not all there yet. Next: call it in a method that the loop calls.")
    if process.call.ranks:
        raise WorkflowError(
            f"{process.label}: exchange() in a call of {process.worker}.{process.call.method}() in which ranks {list(process.call.ranks)} take part, not all: "
            f"what ranks have set up together does not fit fewer. Next: let all of them join, or no rank of {process.worker!r} leave."
        )
    host.unwanted.end_call(process)  # other ranks may have ended by it
    ranks = host.layout.ranks(process.worker)
    call, key = process.call, _key(host, process)
    within = f" in exchange() {process.exchanges} of {call.method}()"
    advice = f"have every rank of {process.worker!r} call exchange() equally often in {call.method}()"
    with host._spans.wait(process):
        with host._mutex:
            entry, _ = host._values.entry(key, process.rank, call.iteration)
            entry.source = (process.worker, process.rank, call.method)  # to be named where it cannot travel
            for waiter in host._values.set(key, process.rank, call.iteration, value, None, host.say):
                host._wake(waiter)
        host.flush()
        return [
            value if r == process.rank else host.fetch(process, key, process.worker, r, call.iteration, within=within, advice=advice) for r in range(ranks)
        ]


def _key(host: Host, process: Process) -> int:
    """In the place of a call's number, of which none is negative: one for each worker, call and exchange within it."""
    assert process.call is not None
    process.exchanges += 1
    if process.exchanges >= _IN_A_CALL:
        raise WorkflowError(f"{process.label}: {process.exchanges} exchanges in one call. Next: exchange lists, not single values.")
    return -(process.call.call_id * _IN_A_CALL + process.exchanges)
