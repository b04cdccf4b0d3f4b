"""What a span costs in the worker, and what the bubble table costs as the timeline grows."""

from __future__ import annotations

import time

from harness import Case

from rlinf_lab.timeline.recorder import Recorder
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline


def nanoseconds_per_span(count: int) -> float:
    recorder = Recorder(limit=2 * count + 2)  # nothing goes to disk
    track, name = recorder.track("worker", 0, ("cpu:0",)), recorder.name("run")
    start = time.perf_counter_ns()
    for i in range(count):
        recorder.add(track, SpanKind.RUN, name, i, i + 1, 0)
    recorder.drain()
    return (time.perf_counter_ns() - start) / count


def nanoseconds_per_loop(count: int) -> float:
    """The peer: the same loop calling a function that does nothing."""

    def nothing(*_: int) -> None: ...

    start = time.perf_counter_ns()
    for i in range(count):
        nothing(0, SpanKind.RUN, 0, i, i + 1, 0)
    return (time.perf_counter_ns() - start) / count


def bubble_seconds(count: int) -> float:
    recorder = Recorder(limit=2 * count + 2)  # nothing goes to disk
    tracks = [recorder.track("worker", r, (f"cpu:{r}",)) for r in range(2)]
    name = recorder.name("run")
    for i in range(count):
        recorder.add(tracks[i % 2], SpanKind.RUN if i % 3 else SpanKind.GET, name, 10 * i, 10 * i + 8, i // 1000)
    timeline = Timeline(["cpu:0", "cpu:1"])
    timeline.extend(recorder.drain())
    start = time.perf_counter()
    timeline.bubbles()
    return time.perf_counter() - start


def cases(smoke: bool) -> list[Case]:
    count = 1_000 if smoke else 300_000
    sizes = (1_000, 3_000) if smoke else (10_000, 100_000, 1_000_000)
    return [
        Case("span_cost", "ns a span", lambda: nanoseconds_per_span(count), {"an empty call": lambda: nanoseconds_per_loop(count)}, "<= 1000", "value"),
        Case(
            "bubble_table", "s", lambda: bubble_seconds(sizes[-1]), target="<= 1", target_of="value", runs=3,
            curve=lambda: [[n, bubble_seconds(n)] for n in sizes], note="curve: spans, s",
        ),
    ]  # fmt: skip
