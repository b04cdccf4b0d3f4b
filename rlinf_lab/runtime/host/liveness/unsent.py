"""Messages that cannot be sent, for whatever cause. One that can takes their place, and the run ends in words.

What a user's object can be the cause of (an item, a result, weights, an error of a worker's own) fails its iteration by
name, and the session goes on. (Arguments, and items that are put into a channel of another host, are packed where the
user wrote that.) Anything else is the runtime's own and leaves the hosts in doubt about each other: the session is
over, as after the death of a host. None is lost in silence.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from rlinf_lab.errors import ExecutorError, WorkerError, WorkflowError, said, shown
from rlinf_lab.runtime.host.control.post import Post
from rlinf_lab.runtime.host.state import messages
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Broken, Message
from rlinf_lab.runtime.host.state.values import Returned
from rlinf_lab.runtime.transport.pickling import unsendable

LAST = Broken.kind  # the message that says so; a process that cannot send even this one has to end


class Unsent:
    """In whichever thread sends, without the mutex. ``owner_of(weights)``: the worker that publishes them."""

    def __init__(self, state: HostState, post: Post, owner_of: Callable[[str], str]) -> None:
        self._state, self._post, self._owner_of = state, post, owner_of
        self._replaced: dict[type[Message], Callable[[str, Any, Exception], bool]] = {
            messages.ValueOf: self._value,
            messages.Got: self._got,
            messages.WeightsState: self._weights,
        }

    def replace(self, to: str, message: Message, error: Exception) -> None:
        """This message could not be sent. Raises what nobody can be told."""
        self._post.not_said(message)
        if isinstance(message, Broken):
            raise error
        replaced = self._replaced.get(type(message))
        if replaced is None or not replaced(to, message, error):
            self._break_off(to, message, error)

    def _value(self, to: str, message: messages.ValueOf, error: Exception) -> bool:
        """What a method returned, or gave to exchange(): whoever asked gets the error instead."""
        call_id, rank, iteration = message.call_id, message.rank, message.iteration
        value = message.value.value if isinstance(message.value, Returned) else message.value
        if message.error is not None:
            return False
        with self._state.mutex:
            worker, _, method = self._state.values.entry(call_id, rank, iteration)[0].source
        what = f"what {method}() returned" if call_id > 0 else f"what {method}() gave to exchange()"
        cause = _told(error, f"{what[0].upper()}{what[1:]}, {shown(value)},", value)  # which runs code of the user's
        failure = WorkerError.of(worker, rank, method, cause, f"{what}, on its way to {to!r}")
        with self._state.mutex:
            self._post.say(to, messages.ValueOf(call_id, rank, iteration, None, failure), urgent=True)
        self._post.report(failure)
        return True

    def _got(self, to: str, message: messages.Got, error: Exception) -> bool:
        """Items that ranks of this host have put, for a reader elsewhere."""
        channel, state = message.name.channel, self._state
        here = [(p.worker, p.rank) for p in state.ranks if p.worker in state.layout.graph.producers(channel)]
        worker, rank = here[0] if here else ("?", 0)
        error = _told(error, f"An item of channel {channel!r}", None)
        where = f"an item of channel {channel!r}, on its way to {to!r}"
        self._post.report(WorkerError.of(worker, rank, "put", error, where))
        return True

    def _weights(self, to: str, message: messages.WeightsState, error: Exception) -> bool:
        name, version, state = message.name, message.version, message.state
        with self._state.mutex:
            owner = self._owner_of(name)
        value = getattr(state, "state", state)
        error = _told(error, f"Version {version} of the weights {name!r}", value)
        where = f"version {version} of the weights {name!r}, on its way to {to!r}"
        self._post.report(WorkerError.of(owner, 0, "publish", error, where))
        return True

    def _break_off(self, to: str, message: Message, error: Exception) -> None:
        """The session cannot go on: the driver says so."""
        values = [getattr(message, f.name) for f in fields(message)]  # type: ignore[arg-type]
        told = "".join(f" It was to tell: {said(part)}" for part in values if isinstance(part, BaseException))
        here = ", ".join(p.label for p in self._state.ranks)
        failure = ExecutorError(
            f"Host {self._state.name!r} ({here}) could not send a {message.kind!r} message to {to!r}: "
            f"{_cause(error)}{told} The session has ended by that: the hosts do not know any more what "
            f"the others know. Next: open a new one; if it comes again, report it with this:\n"
            + "".join(traceback.format_exception(error))
        )
        with self._state.mutex:
            self._post.tell_driver(Broken(failure), urgent=True)


def _told(error: Exception, what: str, value: object) -> Exception:
    """The error told of the user's own value, where that does not pickle. The message around it is not named then."""
    if type(error) is not WorkflowError or error.__cause__ is None:
        return error
    cause = error.__cause__
    while type(cause) is WorkflowError and cause.__cause__ is not None:  # packed by itself, within the message
        cause = cause.__cause__
    told = unsendable(what, value, cause)
    told.__cause__ = cause
    return told


def _cause(error: Exception) -> str:
    """In a sentence."""
    text = f"{type(error).__name__}: {said(error)}"
    return text if text.endswith(".") else f"{text}."
