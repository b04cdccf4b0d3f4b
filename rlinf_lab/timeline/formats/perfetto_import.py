"""Our own ``.pftrace`` as a timeline: the inverse of `rlinf_lab.timeline.formats.perfetto`, exact."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rlinf_lab.errors import TimelineError
from rlinf_lab.timeline.formats.perfetto import ANNOTATIONS, OURS, PACKET_TAIL
from rlinf_lab.timeline.record.batch import COUNTER_DTYPE, SPAN_DTYPE
from rlinf_lab.timeline.record.span import Track

MAX_KEPT_NOTES = 1 << 16
_TIME, _EVENT = bytes([8 << 3]), bytes([11 << 3 | 2])  # keys of fields: a packet's time and event
_NOTE = 4 << 3 | 2  # of an event
LANE = re.compile(r"(.*)\[(\d+)\](?: \(\d+\))?", re.DOTALL)


def track_of(lane: str, process: str) -> Track:
    """Of a lane's name ("worker[0] (2)") and its process's ("host: cpu:0, cpu:1"). Raises ``ValueError`` for others."""
    found, (host, colon, devices) = LANE.fullmatch(lane), process.partition(": ")
    if found is None or not colon:
        raise ValueError(f"lane {lane!r} of {process!r} is none of ours")
    return Track(found[1], int(found[2]), () if devices == "no device" else tuple(devices.split(", ")), host)


def _number(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A varint that begins there, and where the next field does."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field of a message in protobuf's wire format."""
    at, size = 0, len(data)
    while at < size:
        key, at = _number(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _number(data, at)
            yield key >> 3, value
            continue
        length, at = _number(data, at) if wire == 2 else (8 if wire == 1 else 4 if wire == 5 else -1, at)
        if length < 0 or at + length > size:
            raise ValueError("a message of the trace is not whole")
        yield key >> 3, data[at : at + length]
        at += length


class _Reader:
    """``_known``: events that belong to no flow, and ``_notes`` of events, by their bytes: few of them differ in a
    trace, and reading one takes long.
    """

    def __init__(self) -> None:
        self.devices: list[str] = []
        self._told: dict[str, Any] = {}
        self._origin: int | None = None  # not said by older files
        self._said: list[Track] = []  # of each lane, in order; older files have but the labels
        self._processes: dict[int, str] = {}
        self._lanes: dict[int, int] = {}
        self._tracks: dict[Track, int] = {}
        self._texts: dict[str, int] = {}
        self._counters: dict[int, str] = {}
        self._open: dict[int, list[list[Any]]] = {}
        self._rows: list[list[Any]] = []
        self._samples: list[tuple[int, int, float]] = []
        self._known: dict[bytes, tuple[Any, ...]] = {}
        self._notes: dict[bytes, tuple[Any, ...]] = {}

    def packet(self, data: bytes) -> None:
        if data.startswith(_TIME):  # as we write events
            time, at = _number(data, 1)
            if data.startswith(_EVENT, at):
                size, body = _number(data, at + 1)
                if data[body + size :] == PACKET_TAIL:
                    self._event(self._time(time), data[body : body + size])
                    return
        found = dict(fields(memoryview(data)))  # none of these comes twice
        if 12 in found:
            self._about(
                [str(dict(fields(entry))[2], "utf-8") for number, entry in fields(found[12]) if number == 2][-1]
            )
        if 60 in found:
            self._describe(dict(fields(found[60])))
        if 11 in found:
            self._event(self._time(found.get(8, 0)), bytes(found[11]))

    def _about(self, text: str) -> None:
        about = json.loads(text.removeprefix(OURS))
        self.devices, self._origin = about["devices"], about.get("origin_ns")
        self._told = {
            key: about[key] for key in ("dropped", "dropped_samples", "clock_errors", "clock_jumps") if key in about
        }
        self._said = [Track.from_json(said) for *said, lanes in about.get("tracks", ()) for _ in range(lanes)]

    def _time(self, stamp: int) -> int:
        """Older files hold negative times as two's complement."""
        return _signed(stamp) if self._origin is None else stamp + self._origin

    def _describe(self, found: dict[int, Any]) -> None:
        if 3 in found:
            process = dict(fields(found[3]))
            self._processes[process[1]] = str(process[6], "utf-8")
        elif 4 in found:
            thread = dict(fields(found[4]))
            track = (
                self._said[len(self._lanes)]
                if self._said
                else track_of(str(thread[5], "utf-8"), self._processes[thread[1]])
            )
            self._lanes[found[1]] = self._tracks.setdefault(track, len(self._tracks))
        elif 8 in found:
            self._counters[found[1]] = str(found[2], "utf-8")

    def _event(self, time: int, data: bytes) -> None:
        kind, lane, *rest = self._known.get(data) or self._read_event(data)
        if kind == 4:
            self._samples.append((self._text(self._counters[lane]), time, *struct.unpack("<d", rest[0])))
        elif kind == 1:
            row = [time, time, *rest]
            self._rows.append(row)
            self._open.setdefault(lane, []).append(row)
        elif kind == 2:
            self._open[lane].pop()[1] = time

    def _read_event(self, data: bytes) -> tuple[Any, ...]:
        """(kind, lane, the rest of its row, or the bytes of a sample)."""
        found, notes, at = dict[int, Any](), dict[int, Any](), 0
        while at < len(data):
            key, at = (data[at], at + 1) if data[at] < 128 else _number(data, at)
            if not key & 7:
                found[key >> 3], at = _number(data, at)
                continue
            size, at = (8, at) if key & 7 == 1 else (data[at], at + 1) if data[at] < 128 else _number(data, at)
            value = data[at : at + size]
            at += size
            if key == _NOTE:
                number, said = self._notes.get(value) or self._read_note(value)
                notes[number] = said
            else:
                found[key >> 3] = value
        if at > len(data):
            raise ValueError("an event of the trace is not whole")
        kind, lane = found[9], found[11]
        if kind == 4:
            return kind, lane, found[44]
        if kind != 1:
            return _kept(self._known, data, (kind, lane))
        call, iteration, items, nbytes, channel, flow = (notes.get(i) for i in range(1, len(ANNOTATIONS) + 1))
        rest = (self._lanes[lane], self._text(call), self._text(channel), iteration, items or 0, found[3] - 1)
        if flow is None and not found.keys() & {47, 48}:
            return _kept(self._known, data, (kind, lane, nbytes or 0, -1, *rest))
        return kind, lane, nbytes or 0, -1 if flow is None else flow, *rest

    def _read_note(self, data: bytes) -> tuple[Any, ...]:
        note = dict(fields(memoryview(data)))
        return _kept(self._notes, data, (note[1], str(note[6], "utf-8") if 6 in note else _signed(note[4])))

    def _text(self, text: str | None) -> int:
        return -1 if text is None else self._texts.setdefault(text, len(self._texts))

    def content(self) -> dict[str, Any]:
        if any(self._open.values()):
            raise ValueError("spans begin that do not end")
        return {
            "spans": np.array([tuple(row) for row in self._rows], SPAN_DTYPE), "tracks": list(self._tracks),
            "names": list(self._texts),
            "counters": np.array(self._samples, COUNTER_DTYPE), **self._told,
        }  # fmt: skip


def _kept(kept: dict[bytes, tuple[Any, ...]], data: bytes, value: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(kept) < MAX_KEPT_NOTES:
        kept[data] = value
    return value


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def read_perfetto(path: Path) -> tuple[list[str], dict[str, Any]]:
    """(devices, arguments of ``SpanStore._restore``). Raises `TimelineError` for a trace of another tool,
    ``ValueError`` for a damaged one.
    """
    reader, data, first = _Reader(), memoryview(path.read_bytes()), True
    for number, packet in fields(data):
        if first and (number != 1 or OURS.encode() not in bytes(packet)):
            raise TimelineError(
                f"{str(path)!r} is no Perfetto trace of ours. Next: open it at ui.perfetto.dev, or give its Chrome "
                "JSON."
            )
        first = False
        reader.packet(bytes(packet))
    content = reader.content()
    return reader.devices, content
