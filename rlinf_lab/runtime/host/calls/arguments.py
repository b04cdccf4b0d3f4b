"""The arguments of a call as the worker gets them. They are ports of channels and weights, values of other calls."""

from __future__ import annotations

from typing import Any

from rlinf_lab.runtime.host.calls.values import Values
from rlinf_lab.runtime.host.channels.ports import Ports
from rlinf_lab.runtime.host.state.host_state import HostState
from rlinf_lab.runtime.host.state.rank import Process
from rlinf_lab.runtime.host.weights.weights import WeightsPort, WeightTable
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.specs import WRITE, CallSpec, ChannelArg, Nested, RefArg, WeightsArg
from rlinf_lab.workflow.structure import follow


class Arguments:
    """Makes them, for the calls of one host."""

    def __init__(self, state: HostState, ports: Ports, weights: WeightTable, values: Values) -> None:
        self._state, self._ports, self._weights, self._values = state, ports, weights, values

    def of(self, process: Process, call: CallSpec) -> tuple[list[Any], dict[str, Any]]:
        """Positional and named ones; waits for the values among them, which is written down."""
        clock, recorder = self._state.clock, self._state.recorder
        start = clock.now_ns()
        args = [self._one(process, call, value) for value in call.args]
        kwargs = {key: self._one(process, call, value) for key, value in call.kwargs.items()}
        end = clock.now_ns()
        if call.refs() and end > start:
            recorder.add(process.track, SpanKind.WAIT, recorder.name(call.method), start, end, call.iteration)
        return args, kwargs

    def _one(self, process: Process, call: CallSpec, value: Any) -> Any:
        if isinstance(value, ChannelArg):
            made = self._ports.outbox if value.direction == WRITE else self._ports.inbox
            process.ports.append(made(process, value.channel, call.iteration))
            return process.ports[-1]
        if isinstance(value, WeightsArg):
            return WeightsPort(self._weights, process, value.name, call)
        if isinstance(value, Packed):
            return value.open()
        if isinstance(value, Nested):
            template, *values = (self._one(process, call, part) for part in (value.template, *value.refs))
            return Nested.filled(template, values)
        if isinstance(value, RefArg):
            found = self._values.fetch(process, value.call_id, value.producer, 0, value.iteration)
            return follow(found, value.path)
        return value
