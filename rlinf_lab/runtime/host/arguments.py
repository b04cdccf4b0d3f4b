"""The arguments of a call as the worker gets them: ports of channels and weights, values of other calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_lab.runtime.host.channels.ports import InboxPort, outbox
from rlinf_lab.runtime.host.rank import Process
from rlinf_lab.runtime.host.weights.weights import WeightsPort
from rlinf_lab.runtime.transport.pickling import Packed
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.workflow.specs import WRITE, CallSpec, ChannelArg, Nested, RefArg, WeightsArg
from rlinf_lab.workflow.structure import follow

if TYPE_CHECKING:
    from rlinf_lab.runtime.host.host import Host


def arguments(host: Host, process: Process, call: CallSpec) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named ones; waits for the values among them, which is written down."""
    start = host.clock.now_ns()
    args = [_argument(host, process, call, value) for value in call.args]
    kwargs = {key: _argument(host, process, call, value) for key, value in call.kwargs.items()}
    end = host.clock.now_ns()
    if call.refs() and end > start:
        host.recorder.add(process.track, SpanKind.WAIT, host.recorder.name(call.method), start, end, call.iteration)
    return args, kwargs


def _argument(host: Host, process: Process, call: CallSpec, value: Any) -> Any:
    if isinstance(value, ChannelArg):
        made = outbox if value.direction == WRITE else InboxPort
        process.ports.append(made(host, process, value.channel, call.iteration))
        return process.ports[-1]
    if isinstance(value, WeightsArg):
        return WeightsPort(host, process, value.name, call)
    if isinstance(value, Packed):
        return value.open()
    if isinstance(value, Nested):
        template, *values = (_argument(host, process, call, part) for part in (value.template, *value.refs))
        return Nested.filled(template, values)
    if isinstance(value, RefArg):
        return follow(host.fetch(process, value.call_id, value.producer, 0, value.iteration), value.path)
    return value
