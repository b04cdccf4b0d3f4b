"""What is told of failures that are no call's own. A host died, nobody understands a message, or a rank is lost."""

from __future__ import annotations

import errno
import pickle
import traceback

from rlinf_lab.errors import Cancelled, DeadlockError, ExecutorError, WorkerError, WorkflowError
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.workflow.specs import CallSpec


def lost_rank(process: Process, call: CallSpec, error: BaseException) -> ExecutorError:
    """Its thread ends by an error outside of what the user wrote."""
    return ExecutorError(
        f"{process.label} was lost in {call.method}() of iteration {call.iteration} by an error of the runtime: "
        f"{type(error).__name__}: {error}. Next: run again; if it comes again, report it with this:\n"
        f"{''.join(traceback.format_exception(error))}"
    )


def misunderstood(state: HostState, peer: str, error: BaseException) -> ExecutorError:
    """A message of ``peer`` that does not unpickle here, or that a handler failed on."""
    return not_understood(state.who_lives_at(state.name), state.who_lives_at(peer), error)


def not_understood(here: str, peer: str, error: BaseException) -> ExecutorError:
    """The same, both hosts in words. What did not arrive at all, or was changed, says so itself."""
    if isinstance(error, (ExecutorError, WorkflowError)):
        return error if isinstance(error, ExecutorError) else ExecutorError(str(error))
    number = getattr(error, "errno", None)
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return ExecutorError(
            f"Host {here} has no memory for a message of {peer}: {error}. Next: smaller items, channels of less "
            "capacity, a higher limit for its process (ulimit -v), or fewer ranks on its node."
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return ExecutorError(
            f"Host {here} may open no more files, and a message of {peer} lies in shared memory: {error}. Next: close "
            f"what its workers opened, or a higher limit (ulimit -n)."
        )
    start = f"Host {here} could not understand a message of {peer}: {type(error).__name__}: {error}."
    if isinstance(error, (ImportError, AttributeError, pickle.UnpicklingError)):
        advice = "install the module that defines it on every node, or define the class in a notebook cell"
        return ExecutorError(f"{start} Next: {advice} (it then travels by value).")
    advice = "if the last lines below are of a class of yours, mend how it is unpickled (__reduce__, __setstate__)"
    trace = "".join(traceback.format_exception(error))
    return ExecutorError(f"{start} Next: {advice}; otherwise report them.\n{trace}")


def death(state: HostState, name: str) -> ExecutorError:
    """Of a host."""
    return ExecutorError(
        f"Host {name!r} died{state.ended_with(name)} (killed, out of memory, ended by code of its own, or its node is "
        f"cut off); {', '.join(f'{w}[{r}]' for (w, r), h in state.place.items() if h == name)} lived there. Next: look "
        "at the node's memory and log, then run again."
    )


def described(process: Process, call: CallSpec, raised: BaseException) -> BaseException:
    """What a call raised, as it is told. Who wanted the value of a call that failed tells that failure as it is."""
    if raised is process.heard or isinstance(raised, (Cancelled, DeadlockError)):
        return raised.with_traceback(None)
    trace = "".join(traceback.format_exception(raised))
    return WorkerError.of(process.worker, process.rank, call.method, raised, trace)
