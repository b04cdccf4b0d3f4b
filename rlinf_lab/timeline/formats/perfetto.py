"""Perfetto's own format, written directly: TrackEvent packets in protobuf's wire encoding.

Only the dozen fields that are needed, so no protobuf package. Field numbers: perfetto's public ``trace_packet.proto``,
``track_event.proto``, ``track_descriptor.proto`` and ``interned_data.proto``.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_lab.timeline.critical.flows import arrows
from rlinf_lab.timeline.formats.chrome import COUNTERS, process_of
from rlinf_lab.timeline.formats.nesting import lane_name, nested
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.record.store import SpanStore

_SEQUENCE = 1
_CLEARED, _NEEDED = 1, 2  # sequence_flags: the tables of names start here; this packet uses them
_BEGIN, _END, _COUNTER = 1, 2, 4
ANNOTATIONS = ("call", "iteration", "items", "bytes", "channel", "flow")  # interned from 1 on
# in the first packet, what begins so is no span's name: devices, tracks and what was dropped, for
# `Timeline.from_perfetto`
OURS = "rlinf_lab "


def to_perfetto(store: SpanStore, path: str | Path) -> Path:
    """Write a ``.pftrace``: lanes as in `to_chrome`, names interned, arrows as flows, counters. Returns the path.

    Times are the timeline's own ns; where some are negative, which the format has no room for, ns since the earliest of
    them.
    """
    path = Path(path)
    with path.open("wb") as file:
        for packet in _packets(store):
            file.write(_bytes(1, packet))
    return path


# --- the wire ------------------------------------------------------------------------------------------------
def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers as two's complement
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Keys of fields and lengths of messages are small numbers: looked up, not computed.
_SMALL = [_varint(i) for i in range(1 << 10)]


def _int(field: int, value: int) -> bytes:
    return _SMALL[field << 3] + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _SMALL[field << 3 | 2] + (_SMALL[len(data)] if len(data) < len(_SMALL) else _varint(len(data))) + data


def _fixed64(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


# --- packets ---------------------------------------------------------------------------------------------------
def _packet(body: bytes, flags: int = _NEEDED) -> bytes:
    return body + _int(10, _SEQUENCE) + _int(13, flags)


def _packets(store: SpanStore) -> Iterator[bytes]:
    tracks, names, origin = store.tracks, store.names, _origin(store)
    order, lane = nested(store.spans)
    deep = np.ones(len(tracks), np.intp)
    np.maximum.at(deep, store.spans["track"][order], lane + 1)
    about = {
        "devices": store.devices, "dropped": store.dropped, "clock_errors": store.clock_errors, "origin_ns": origin,
        "dropped_samples": store.dropped_samples, "clock_jumps": store.clock_jumps,
        "tracks": [[*track.as_json(), count] for track, count in zip(tracks, deep.tolist(), strict=True)],
    }  # fmt: skip
    yield _packet(_interned(names, about) + _int(87, 1), _CLEARED | _NEEDED)
    labels = list(dict.fromkeys(process_of(t) for t in tracks)) + [COUNTERS]
    for pid, label in enumerate(labels, 1):
        yield _packet(_bytes(60, _int(1, pid) + _bytes(3, _int(1, pid) + _bytes(6, label))))
    first = 1 + len(labels) + np.cumsum(deep) - deep  # the id of each track's first lane
    for track, one, count in zip(tracks, first.tolist(), deep.tolist(), strict=True):
        pid = labels.index(process_of(track)) + 1
        for number in range(count):
            thread = _int(1, pid) + _int(2, one + number) + _bytes(5, lane_name(track.worker, track.rank, number))
            yield _packet(_bytes(60, _int(1, one + number) + _int(5, pid) + _bytes(4, thread)))
    yield from _slices(store, origin, order, first[store.spans["track"][order]] + lane)
    yield from _counters(store, origin, first=1 + len(labels) + int(deep.sum()), parent=len(labels))


def _origin(store: SpanStore) -> int:
    """What is taken from every time, ns: the earliest where that is negative, for a packet's timestamp has no sign;
    else 0.
    """
    samples = store.counter_samples
    return min(0, store.start_ns, int(samples["time"].min()) if len(samples) else 0)


def _interned(names: list[str], about: dict[str, Any]) -> bytes:
    def entry(field: int, iid: int, text: str) -> bytes:
        return _bytes(field, _int(1, iid) + _bytes(2, text))

    kinds = [kind.name.lower() for kind in SpanKind]
    parts = [entry(1, i, kind) for i, kind in enumerate(kinds, 1)]
    parts += [entry(2, i, text) for i, text in enumerate([*kinds, *names, OURS + json.dumps(about)], 1)]
    parts += [entry(3, i, text) for i, text in enumerate(ANNOTATIONS, 1)]
    return _bytes(12, b"".join(parts))


def _slices(store: SpanStore, origin: int, order: np.ndarray, lanes: np.ndarray) -> Iterator[bytes]:
    """Begin and end of every span, lane by lane, nested: what ends at an instant ends before the next one begins."""
    spans, names = store.spans, [*store.names, ""]
    out, into = _flow_fields(spans)
    open_ends: list[int] = []
    lane = -1

    # Few of these differ in a trace, and encoding a number is a loop: remember them.
    @lru_cache(1 << 14)
    def head(kind: int, name: int, lane: int) -> bytes:
        iid = len(SpanKind) + 1 + name if kind in (SpanKind.RUN, SpanKind.LABEL, SpanKind.MARK) else kind + 1
        return _int(3, kind + 1) + _int(9, _BEGIN) + _int(10, iid) + _int(11, lane)

    @lru_cache(1 << 14)
    def notes(name: int, iteration: int, items: int, nbytes: int, channel: int) -> bytes:
        values: list[int | str] = [names[name], iteration, items or "", nbytes or "", names[channel]]
        return b"".join(
            _bytes(4, _int(1, i) + (_bytes(6, value) if isinstance(value, str) else _int(4, value)))
            for i, value in enumerate(values, 1)
            if value != ""
        )

    @lru_cache(1 << 16)
    def moved(flow: int) -> bytes:
        return _bytes(4, _FLOW + _int(4, flow))

    tail = b""
    for row, number, on in zip(spans[order].tolist(), order.tolist(), lanes.tolist(), strict=True):
        start, end, nbytes, flow, _, name, channel, iteration, items, kind = row
        start, end = start - origin, end - origin
        while open_ends and (on != lane or open_ends[-1] <= start):
            yield _event(open_ends.pop(), tail)
        if on != lane:
            lane, tail = on, _int(9, _END) + _int(11, on)
        body = head(kind, name, on) + notes(name, iteration, items, nbytes, channel)
        if flow >= 0:
            body += moved(flow)
        yield _event(start, body + out.get(number, b"") + into.get(number, b""))
        open_ends.append(end)
    while open_ends:
        yield _event(open_ends.pop(), tail)


def _flow_fields(spans: np.ndarray) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """Encoded flow ids by row: those that leave a put, those that end in a get."""
    out: defaultdict[int, bytes] = defaultdict(bytes)
    into: defaultdict[int, bytes] = defaultdict(bytes)
    for flow, (put, get) in enumerate(zip(*(index.tolist() for index in arrows(spans)), strict=True), 1):
        out[put] += _fixed64(47, flow)
        into[get] += _fixed64(48, flow)
    return out, into


_FLOW = _int(1, ANNOTATIONS.index("flow") + 1)
PACKET_TAIL = _int(10, _SEQUENCE) + _int(13, _NEEDED)


def _event(time_ns: int, body: bytes) -> bytes:
    return _int(8, time_ns) + _bytes(11, body) + PACKET_TAIL


def _counters(store: SpanStore, origin: int, first: int, parent: int) -> Iterator[bytes]:
    samples, names = store.counter_samples, store.names
    for number in np.unique(samples["name"]).tolist():
        yield _packet(_bytes(60, _int(1, first + number) + _bytes(2, names[number]) + _int(5, parent) + _bytes(8, b"")))
    for number, time, value in samples.tolist():
        yield _event(time - origin, _int(9, _COUNTER) + _int(11, first + number) + _double(44, value))
