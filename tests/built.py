"""Timelines from rows, as a runtime would have recorded them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlinf_lab.timeline import Recorder, SpanKind, Timeline


def recorder_of(rows: Iterable[tuple[Any, ...]], recorder: Recorder | None = None) -> Recorder:
    """Rows are (worker, rank, devices, kind, start, end), then iteration, channel, first item, items, and the name of the call."""
    recorder = Recorder() if recorder is None else recorder  # an empty one is false
    for worker, rank, devices, kind, start, end, *rest in rows:
        iteration, channel, flow, items, name = [*rest, *(-1, "", -1, 0, "call")[len(rest) :]]
        track, number = recorder.track(worker, rank, devices), recorder.channel(channel) if channel else -1
        recorder.add(track, kind, recorder.name("iteration" if kind is SpanKind.MARK else name), start, end, iteration, items, 0, number, flow)
    return recorder


def timeline_of(*rows: tuple[Any, ...], devices: Iterable[str] = ()) -> Timeline:
    timeline = Timeline(devices)
    timeline.extend(recorder_of(rows).drain())
    return timeline
