"""Messages that cannot be sent, for whatever cause: one that can takes their place, and the run ends in words. None is lost in silence.

What a user's object can be the cause of (an item, a result, weights, an argument, an error of a worker's own) fails its iteration by name, and the session goes
on. Anything else is the runtime's own and leaves the hosts in doubt about each other: the session is over, as after the death of a host.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from rlinf_lab.errors import ExecutorError, WorkerError, WorkflowError, said, shown
from rlinf_lab.runtime.host import protocol
from rlinf_lab.runtime.host.values import Returned
from rlinf_lab.runtime.transport.cargo import Bucket
from rlinf_lab.runtime.transport.pickling import unsendable
from rlinf_lab.workflow.graph import DRIVER

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host

LAST = "broken"  # the message that says so; a process that cannot send even this one has to end


def undeliverable(host: Host, to: str, message: tuple, error: Exception) -> None:
    """In whichever thread sends, without the mutex. Raises what nobody can be told."""
    kind = message[0]
    with host._mutex:
        host._sent -= kind not in protocol.UNCOUNTED  # what is sent in its place is counted
    if kind == LAST:
        raise error
    if not _REPLACED.get(kind, _is_lost)(host, to, message, error):
        _break_off(host, to, message, error)


def _value(host: Host, to: str, message: tuple, error: Exception) -> bool:
    """What a method returned, or gave to exchange(): whoever asked gets the error instead."""
    _, call_id, rank, iteration, value, failed = message
    value = value.value if isinstance(value, Returned) else value
    if failed is not None:
        return False
    with host._mutex:
        worker, _, method = host._values.entry(call_id, rank, iteration)[0].source
    what = f"what {method}() returned" if call_id > 0 else f"what {method}() gave to exchange()"
    cause = _told(error, f"{what[0].upper()}{what[1:]}, {shown(value)},", value)  # which runs code of the user's
    failure = WorkerError.of(worker, rank, method, cause, f"{what}, on its way to {to!r}")
    with host._mutex:
        host.say(to, ("value", call_id, rank, iteration, None, failure), urgent=True)
    host.report(failure)
    return True


def _got(host: Host, to: str, message: tuple, error: Exception) -> bool:
    """Items that ranks of this host have put, for a reader elsewhere."""
    channel = message[1].channel
    here = [(p.worker, p.rank) for p in host.ranks if p.worker in host.layout.graph.producers(channel)]
    worker, rank = here[0] if here else ("?", 0)
    error = _told(error, f"An item of channel {channel!r}", None)
    host.report(WorkerError.of(worker, rank, "put", error, f"an item of channel {channel!r}, on its way to {to!r}"))
    return True


def _weights(host: Host, to: str, message: tuple, error: Exception) -> bool:
    _, name, version, state = message
    with host._mutex:
        owner = host.weights.owner(name)
    error = _told(error, f"Version {version} of the weights {name!r}", state.outgoing.state if isinstance(state, Bucket) else getattr(state, "state", state))
    host.report(WorkerError.of(owner, 0, "publish", error, f"version {version} of the weights {name!r}, on its way to {to!r}"))
    return True


def _put(host: Host, to: str, message: tuple, error: Exception) -> bool:
    name = message[1]
    host.report(ExecutorError(f"Items of channel {name.channel!r} in iteration {name.iteration} could not be sent to {to!r}: {_cause(error)}"))
    return True


def _ended(host: Host, to: str, message: tuple, error: Exception) -> bool:
    """The end of a call, with its error: that one, in plain words."""
    _, call_id, rank, iteration, failed, moved = message
    if failed is None or type(failed) is ExecutorError:
        return False
    with host._mutex:
        host.say(to, ("ended", call_id, rank, iteration, _plain(failed), moved), urgent=True)
    return True


def _failed(host: Host, to: str, message: tuple, error: Exception) -> bool:
    if type(message[1]) is ExecutorError:
        return False
    with host._mutex:
        host.say(to, ("failed", _plain(message[1])), urgent=True)
    return True


def _call(host: Host, to: str, message: tuple, error: Exception) -> bool:
    """From the driver: the ranks that do not hear of it have ended it."""
    call, loop = message[1], host.loop
    if loop is None:
        return False
    failure = ExecutorError(f"The call of {call.worker}.{call.method}() in iteration {call.iteration} could not be sent to {to!r}: {_cause(error)}")
    with host._mutex:
        for rank in call.taken_by(host.layout.ranks(call.worker)):
            if host.place[call.worker, rank] == to:
                loop.ended(call.call_id, rank, call.iteration, failure)
    return True


def _told(error: Exception, what: str, value: object) -> Exception:
    """Of the user's own value, where that is what does not pickle, instead of the message around it."""
    if type(error) is not WorkflowError or error.__cause__ is None:
        return error
    cause = error.__cause__
    while type(cause) is WorkflowError and cause.__cause__ is not None:  # packed by itself, within the message
        cause = cause.__cause__
    told = unsendable(what, value, cause)
    told.__cause__ = cause
    return told


def _is_lost(host: Host, to: str, message: tuple, error: Exception) -> bool:
    return False


_REPLACED: dict[str, Callable[[Host, str, tuple, Exception], bool]] = {
    "value": _value, "got": _got, "weights": _weights, "put": _put, "ended": _ended, "failed": _failed, "call": _call,
}  # fmt: skip


def _break_off(host: Host, to: str, message: tuple, error: Exception) -> None:
    """The session cannot go on: the driver says so."""
    told = "".join(f" It was to tell: {said(part)}" for part in message[1:] if isinstance(part, BaseException))
    here = ", ".join(p.label for p in host.ranks)
    failure = ExecutorError(
        f"Host {host.name!r} ({here}) could not send a {message[0]!r} message to {to!r}: {_cause(error, advised=True)}{told} The session has ended by "
        f"that: the hosts do not know any more what the others know. Next: open a new one; if it comes again, report it with this:\n"
        + "".join(traceback.format_exception(error))
    )
    with host._mutex:
        if host.loop is not None:
            host.loop.break_off(failure)
        else:
            host.say(host.place[DRIVER, 0], (LAST, failure), urgent=True)


def _plain(error: BaseException) -> ExecutorError:
    """What it says, without anything that may not travel."""
    return ExecutorError(f"{type(error).__name__}: {said(error)}")


def _cause(error: Exception, advised: bool = False) -> str:
    """In a sentence. ``advised``: what to do about it follows."""
    text = f"{type(error).__name__}: {said(error)}"
    text = text if text.endswith(".") else f"{text}."
    if advised or "Next:" in text:
        return text
    return f"{text} Next: run again; if it comes again, report it with this:\n{''.join(traceback.format_exception(error))}"
