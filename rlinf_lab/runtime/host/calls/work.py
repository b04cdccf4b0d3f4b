"""The calls of a host's ranks, from the driver's word to their end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from rlinf_lab.errors import Cancelled
from rlinf_lab.planning.engine.engine import Event
from rlinf_lab.runtime.host.calls.arguments import Arguments
from rlinf_lab.runtime.host.calls.values import Values
from rlinf_lab.runtime.host.channels.ends import ChannelEnds
from rlinf_lab.runtime.host.channels.stream_end import NobodyReads, Unwanted
from rlinf_lab.runtime.host.liveness.failures import described
from rlinf_lab.runtime.host.state import messages, parts
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.messages import Failure, Moved, moved
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.weights.weights import WeightTable
from rlinf_lab.runtime.machine.devices import finish_work
from rlinf_lab.workflow.specs import WRITE, CallSpec


class Calls:
    """Of one host."""

    def __init__(
        self,
        state: HostState,
        control: parts.RankControl,
        post: parts.Post,
        ends: ChannelEnds,
        unwanted: Unwanted,
        weights: WeightTable,
        values: Values,
        arguments: Arguments,
    ) -> None:
        self._state, self._control, self._post = state, control, post
        self._ends, self._unwanted = ends, unwanted
        self._weights, self._values, self._arguments = weights, values, arguments
        self._finishing: dict[Process, tuple[CallSpec, Any, BaseException | None]] = {}
        post.on(messages.Perform, self._submit)
        post.on(messages.Cancel, lambda m: self._cancel(m.iteration, m.cause))

    # --- under the mutex ---------------------------------------------------------------------------------------
    def _submit(self, message: messages.Perform) -> None:
        """Queue a call for its ranks that live here. The caller flushes."""
        state, call = self._state, message.call
        ranks = call.taken_by(state.layout.ranks(call.worker))
        for process in state.ranks:
            if process.worker == call.worker and process.rank in ranks:
                value, _ = state.values.entry(call.call_id, process.rank, call.iteration)
                value.source = (process.worker, process.rank, call.method)
                if (cause := state.given_up.get(call.iteration)) is not None:  # an older one may keep the rank busy
                    self._drop(call, process, cause)
                    continue
                process.calls.append(call)
                if process.waits_for == "call":
                    self._control.wake(process)

    def _cancel(self, iteration: int, cause: BaseException) -> None:
        """Its waiting calls end with `Cancelled`, the workers stay alive. The caller flushes."""
        state = self._state
        if iteration in state.given_up:
            return
        state.given_up[iteration] = cause
        for process in state.ranks:
            dropped = [c for c in process.calls if c.iteration == iteration]
            process.calls = deque(c for c in process.calls if c.iteration != iteration)
            for call in dropped:
                self._drop(call, process, cause)
            if process.call is not None and process.call.iteration == iteration:
                error = Cancelled(f"{process.label}.{process.call.method}: given up, because {cause}")
                self._control.interrupt(process, error)
        state.values.fail_missing(iteration, cause, self._control.wake)

    def _drop(self, call: CallSpec, process: Process, cause: BaseException) -> None:
        """A call that has not begun is not done any more."""
        error = Cancelled(f"{process.label}.{call.method}: given up, because {cause}")
        self._complete(call, process, None, error)

    def will_end(
        self, process: Process, call: CallSpec, value: Any = None, error: BaseException | None = None
    ) -> None:
        """The thread of its rank waits for the engine to take note; `finished` follows."""
        self._finishing[process] = (call, value, error)

    def finished(self, process: Process) -> None:
        """The call has ended; close what it wrote, tell who waits for its value."""
        call, value, error = self._finishing.pop(process)
        process.on_device = False
        process.call = None
        for channel in call.channels(WRITE):
            self._ends.close(channel, call.iteration, process.rank)
        self._weights.ended(process, call, error is None)  # before the driver hears that the call has ended
        self._complete(call, process, value, error, moved(process.ports))
        self._control.wake(process)

    def _complete(
        self, call: CallSpec, process: Process, value: Any, error: BaseException | None, passed: Sequence[Moved] = ()
    ) -> None:
        if not self._state.queues.is_retired(call.iteration):
            self._values.set(call.call_id, process.rank, call.iteration, value, error)
        failed = error if isinstance(error, Failure) else None
        self._post.tell_driver(messages.Ended(call.call_id, process.rank, call.iteration, failed, passed))

    # --- by a rank's own thread --------------------------------------------------------------------------------
    def next(self, process: Process) -> CallSpec | None:
        """Wait for its next one; None when it shall end."""
        state = self._state
        while True:
            with state.mutex:
                if process.order:  # it came together with the end of the last call: it goes first
                    pass
                elif process.calls:
                    process.call = process.calls.popleft()
                    process.error = state.given_up.get(process.call.iteration)
                    return process.call
                elif state.stopping:
                    process.leaving = False
                    self._control.ends()
                    return None
                elif process.leaving:
                    process.machine.offloadable = False  # nobody will be there to do it
                    return None
                else:
                    self._control.block(process, "call", "its next call")
            self._control.park(process)

    def perform(self, process: Process, call: CallSpec) -> None:
        """Do it, whatever comes of it."""
        state, control = self._state, self._control
        value, error = None, None
        process.exchanges, process.ports, process.heard = 0, [], None
        try:
            process.method = state.recorder.name(call.method)
            place = call.place(process.rank, state.layout.ranks(call.worker))
            process.machine.part = state.layout.part(call.worker, *place)
            args, kwargs = self._arguments.of(process, call)
            control.post(process, Event.START, call.iteration, int(call.starts_on_device), "its devices")
            control.spans.resumed(process)
            value = getattr(process.instance, call.method)(*args, **kwargs)
            finish_work(process.device, process.own_stream)
            process.held = []
            for port in process.ports:
                port.refuse_incomplete()
        except NobodyReads:
            self._unwanted.leave_off(process)
        except BaseException as raised:
            error = described(process, call, raised)
        control.spans.end_run(process)
        self._post.flush()  # see `ChannelEnds.get`
        with state.mutex:
            self.will_end(process, call, value, error)
            process.bound_ns = 0
            process.error = None
            control.block(process, "engine", "the end of its call", (process.index, Event.DONE, -1, 0))
        self._post.flush()
        control.park(process)
