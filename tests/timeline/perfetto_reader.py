"""A reader of Perfetto's traces that shares nothing with the writer: Google's protobuf, with the part of Perfetto's schema that traces like ours use.

Names, numbers and types of the fields: perfetto's public ``protos/perfetto/trace``: ``trace_packet.proto``, ``interned_data/interned_data.proto``,
``track_event/track_event.proto``, ``debug_annotation.proto``, ``track_descriptor.proto``, ``process_descriptor.proto``, ``thread_descriptor.proto``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

#: message -> name of a field -> (number, type; * for repeated)
SCHEMA = {
    "Trace": {"packet": (1, "TracePacket*")},
    "TracePacket": {
        "timestamp": (8, "uint64"), "trusted_packet_sequence_id": (10, "uint32"), "track_event": (11, "TrackEvent"), "interned_data": (12, "InternedData"),
        "sequence_flags": (13, "uint32"), "track_descriptor": (60, "TrackDescriptor"), "first_packet_on_sequence": (87, "bool"),
    },
    "InternedData": {"event_categories": (1, "InternedName*"), "event_names": (2, "InternedName*"), "debug_annotation_names": (3, "InternedName*")},
    "InternedName": {"iid": (1, "uint64"), "name": (2, "string")},
    "TrackEvent": {
        "category_iids": (3, "uint64*"), "debug_annotations": (4, "DebugAnnotation*"), "type": (9, "int32"), "name_iid": (10, "uint64"),
        "track_uuid": (11, "uint64"), "double_counter_value": (44, "double"), "flow_ids": (47, "fixed64*"), "terminating_flow_ids": (48, "fixed64*"),
    },
    "DebugAnnotation": {"name_iid": (1, "uint64"), "int_value": (4, "int64"), "string_value": (6, "string")},
    "TrackDescriptor": {
        "uuid": (1, "uint64"), "name": (2, "string"), "process": (3, "ProcessDescriptor"), "thread": (4, "ThreadDescriptor"), "parent_uuid": (5, "uint64"),
        "counter": (8, "CounterDescriptor"),
    },
    "ProcessDescriptor": {"pid": (1, "int32"), "process_name": (6, "string")},
    "ThreadDescriptor": {"pid": (1, "int32"), "tid": (2, "int32"), "thread_name": (5, "string")},
    "CounterDescriptor": {},
}  # fmt: skip
SLICE_BEGIN, SLICE_END, COUNTER = 1, 2, 4
CLEARED, NEEDS_STATE = 1, 2


def _message_class(name: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="perfetto_part.proto", package="perfetto.protos", syntax="proto2")
    for message, fields in SCHEMA.items():
        described = file.message_type.add(name=message)
        for label, (number, kind) in fields.items():
            one = described.field.add(name=label, number=number, label=3 if kind.endswith("*") else 1)
            kind = kind.rstrip("*")
            if kind in SCHEMA:
                one.type, one.type_name = one.TYPE_MESSAGE, f".perfetto.protos.{kind}"
            else:
                one.type = getattr(one, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"perfetto.protos.{name}"))


TRACE = _message_class("Trace")


@dataclass
class Trace:
    """``slices``: (thread, name, start, end) in nanoseconds. ``counters``: (name, time, value). ``leave``, ``arrive``: flow -> (thread, time)."""

    slices: list[tuple[str, str, int, int]] = field(default_factory=list)
    counters: list[tuple[str, int, float]] = field(default_factory=list)
    leave: dict[int, tuple[str, int]] = field(default_factory=dict)
    arrive: dict[int, tuple[str, int]] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    processes: set[str] = field(default_factory=set)


def read(path: Path) -> Trace:
    """Every packet of the file. Raises where it is not well-formed, has a field that the schema does not know, or a slice begins that never ends."""
    parsed = TRACE.FromString(path.read_bytes())
    packets = list(parsed.packet)
    assert not len(UnknownFieldSet(parsed)) and not any(len(UnknownFieldSet(m)) for p in packets for m in _messages(p)), "fields that Perfetto does not have"
    assert {p.trusted_packet_sequence_id for p in packets} == {1}
    assert packets[0].sequence_flags == CLEARED | NEEDS_STATE and packets[0].first_packet_on_sequence
    assert {p.sequence_flags for p in packets[1:]} == {NEEDS_STATE}
    data = packets[0].interned_data
    names, known = {n.iid: n.name for n in data.event_names}, {n.iid for n in data.debug_annotation_names}
    assert all(a.name_iid in known for p in packets for a in p.track_event.debug_annotations)
    trace, of_counters = Trace(), {}
    for track in (p.track_descriptor for p in packets if p.HasField("track_descriptor")):
        if track.HasField("process"):
            trace.processes.add(track.process.process_name)
        if track.HasField("thread"):
            trace.threads[track.uuid] = track.thread.thread_name
        if track.HasField("counter"):
            of_counters[track.uuid] = track.name
    stacks: dict[int, list[tuple[int, str]]] = {}
    for packet in sorted((p for p in packets if p.HasField("track_event")), key=lambda p: p.timestamp):  # stable, as the trace processor sorts
        time, event = packet.timestamp, packet.track_event
        if event.type == SLICE_BEGIN:
            stacks.setdefault(event.track_uuid, []).append((time, names[event.name_iid]))
            place = trace.threads[event.track_uuid], time
            trace.leave.update(dict.fromkeys(event.flow_ids, place))
            trace.arrive.update(dict.fromkeys(event.terminating_flow_ids, place))
        elif event.type == SLICE_END:
            start, name = stacks[event.track_uuid].pop()
            trace.slices.append((trace.threads[event.track_uuid], name, start, time))
        else:
            assert event.type == COUNTER
            trace.counters.append((of_counters[event.track_uuid], time, event.double_counter_value))
    assert not any(stacks.values())
    return trace


def _messages(message: Any) -> list[Any]:
    """The message and all within it."""
    found = [message]
    for described, value in message.ListFields():
        if described.type == described.TYPE_MESSAGE:
            for inner in value if described.is_repeated else [value]:
                found += _messages(inner)
    return found
