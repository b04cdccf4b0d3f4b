"""A minimal reader of Perfetto's traces, written apart from the writer: protobuf's wire format, then slices, counters and flows."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


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
    """Every packet of the file. `AssertionError` where it is not well-formed, or a slice begins that never ends."""
    packets = only(path.read_bytes(), 1)
    assert all(only(p, 10) == [1] for p in packets)
    assert only(packets[0], 13) == [3] and all(only(p, 13) == [2] for p in packets[1:])
    names = {only(n, 1)[0]: only(n, 2)[0].decode() for n in only(only(packets[0], 12)[0], 2)}
    trace, of_counters = Trace(), {}
    for descriptor in (d for p in packets for d in only(p, 60)):
        (track,) = only(descriptor, 1)
        trace.processes.update(only(process, 6)[0].decode() for process in only(descriptor, 3))
        for thread in only(descriptor, 4):
            trace.threads[track] = only(thread, 5)[0].decode()
        if only(descriptor, 8):
            of_counters[track] = only(descriptor, 2)[0].decode()
    stacks: dict[int, list[tuple[int, str]]] = {}
    events = [(only(p, 8)[0], only(p, 11)[0]) for p in packets if only(p, 11)]
    for time, event in sorted(events, key=lambda e: e[0]):  # stable, as the trace processor sorts
        (track,), (kind,) = only(event, 11), only(event, 9)
        if kind == 1:
            stacks.setdefault(track, []).append((time, names[only(event, 10)[0]]))
            for target, number in ((trace.leave, 47), (trace.arrive, 48)):
                target.update({struct.unpack("<Q", f)[0]: (trace.threads[track], time) for f in only(event, number)})
        elif kind == 2:
            start, name = stacks[track].pop()
            trace.slices.append((trace.threads[track], name, start, time))
        else:
            trace.counters.append((of_counters[track], time, struct.unpack("<d", only(event, 44)[0])[0]))
    assert not any(stacks.values())
    return trace


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 1:
            yield key >> 3, data[at : at + 8]
            at += 8
        else:
            assert key & 7 == 2, f"wire type {key & 7}"
            size = varint()
            yield key >> 3, data[at : at + size]
            at += size
    assert at == len(data)


def only(data: bytes, number: int) -> list:
    """The values of one field of a message."""
    return [value for field, value in fields(data) if field == number]
