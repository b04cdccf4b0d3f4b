"""Timelines from rows, as a runtime would have recorded them."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
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


def random_rows(seed: int, count: int) -> list[tuple[Any, ...]]:
    """Of any kinds, on two devices, whatever may have caused what; some begin or end at one instant, or take no time."""
    rng, rows, place = Random(seed), list[tuple[Any, ...]](), {}
    for _ in range(count):
        worker, rank, kind, start = rng.choice("abc"), rng.randrange(2), rng.choice([*SpanKind, *2 * [SpanKind.PUT, SpanKind.GET]]), rng.randrange(100)
        moved = (rng.choice("xxy "), rng.randrange(6), rng.randint(1, 3)) if kind in (SpanKind.GET, SpanKind.PUT) else (rng.choice(" x"), -1, 0)
        on = place.setdefault((worker, rank), rng.choice([("cpu:0",), ("cpu:1",), ("cpu:0", "cpu:1"), ()]))
        end = start + rng.choice([0, 2, 8, 30])
        rows.append((worker, rank, on, kind, start, end, rng.choice([-1, 0, 0, 1]), moved[0].strip(), *moved[1:], rng.choice(["step", "put", "x"])))
    return rows
