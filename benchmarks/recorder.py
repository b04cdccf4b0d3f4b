"""What a span costs in the worker, and what the bubble table costs as the timeline grows."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pandas as pd
from harness import Case
from watched import counted_percent, median_percent, nanoseconds_per_write, paired_blocks

from rlinf_lab.runtime.run.observer import LOOK_SECONDS
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.widgets.feed import TimelineFeed

PERIODS = (LOOK_SECONDS, 0.25, 0.5, 1.0)  # seconds from one look to the next


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


def batches(count: int, each: int = 10_000) -> Iterator[bytes]:
    """Spans of 64 ranks as they come from another host, ten portions a second; each portion is an iteration."""
    recorder = Recorder("host", limit=4 * each)
    tracks = [recorder.track(f"worker{r % 6}", r, (f"cuda:{r % 8}",)) for r in range(64)]
    name, channel = recorder.name("step"), recorder.channel("obs")
    driver, mark = recorder.track("driver", 0), recorder.name("iteration")
    for i in range(count):
        kind = (SpanKind.RUN, SpanKind.RUN, SpanKind.GET, SpanKind.PUT)[i & 3]
        recorder.add(tracks[i & 63], kind, name, 1000 * i, 1000 * i + 900, i // 10_000, 1, 64, channel, i % 10_000)
        if i % each == each - 1:
            recorder.add(driver, SpanKind.MARK, mark, 1000 * (i + 1 - each), 1000 * (i + 1), i // 10_000)
            yield pickle.dumps(recorder.drain(), protocol=5)


def ingested(count: int) -> tuple[float, list[list[float]]]:
    """Spans a second from a host's bytes to a message for the browser; and spans so far, their rate, MiB of memory that is not mapped from disk.

    Bubbles are told every 100,000 spans, which is oftener than a live view does at 100,000 spans a second.
    """
    timeline, kept = Timeline(), []
    feed, spent, seen = TimelineFeed(timeline), 0.0, 0
    for number, data in enumerate(batches(count), 1):
        start = time.perf_counter()
        batch = pickle.loads(data)
        timeline.extend(batch)
        if number % 10 == 0:
            feed._not_before = 0.0
        feed.take().content()
        spent += time.perf_counter() - start
        seen += len(batch)
        if number % max(1, count // 1_000_000) == 0:
            kept.append([float(seen), seen / spent, own_memory_mib()])
    feed.take(final=True)
    if timeline.bubble_sum_error_ns() or len(feed.everything().bubbles) != len(timeline.marks()):
        raise RuntimeError("The bubbles of what was ingested are not all there.")
    return seen / spent, kept


def ingest(count: int, kept: list[list[float]]) -> float:
    """`ingested` in a process of its own, whose memory nothing else has used."""
    made = subprocess.run([sys.executable, __file__, "ingested", str(count)], capture_output=True, text=True, timeout=600, env=environment())
    if made.returncode:
        raise RuntimeError(made.stderr)
    rate, kept[:] = json.loads(made.stdout)
    return rate


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def growth_mib(kept: list[list[float]]) -> float:
    """MiB of memory for each further million spans, over the second half: from the most that its first part needed to the most of its last.

    Memory goes up and down, now and then by half (arrays are joined), so medians of two parts and slopes are at either end of that by chance: of six runs
    of the same two trees slopes were from -2.9 to 2.6. What is left behind raises the peaks.
    """
    half = kept[len(kept) // 2 :]
    first, last = half[: max(1, len(half) // 2)], half[len(half) // 2 :]
    return (max(mib for _, _, mib in last) - max(mib for _, _, mib in first)) / max(1.0, last[-1][0] - first[-1][0]) * 1e6


def own_memory_mib() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def perfetto_seconds(timeline: Timeline) -> float:
    """Writing it. What was written is read again afterwards, and must be equal."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        path = timeline.to_perfetto(Path(folder) / "t.json.gz")
        seconds = time.perf_counter() - start
        back = Timeline.open(path)
    if not in_order(back).equals(in_order(timeline)) or (back.devices, back.start_ns, back.end_ns) != (timeline.devices, timeline.start_ns, timeline.end_ns):
        raise RuntimeError(f"What comes back from Perfetto is not equal: {timeline.diff(back)}")
    return seconds


def in_order(timeline: Timeline) -> pd.DataFrame:
    """Every column of every span, whatever the order in which they came and the numbers of names."""
    frame = timeline.to_pandas()
    texts = {column: frame[column].astype(str) for column in frame.columns if frame[column].dtype == "category" or frame[column].dtype == object}
    frame = frame.assign(**texts)
    return frame.sort_values(list(frame.columns), ignore_index=True)


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


@cache
def blocks_of_runs(runs: int, blocks: int) -> list[list[list[float]]]:
    """Blocks of several runs, each in a kernel of its own."""
    return [block for _ in range(runs) for block in paired_blocks(blocks)]


def slowdown(clock: int, smoke: bool, kept: list[list[float]]) -> float:
    """% of wall seconds (0) or of CPU seconds (1)."""
    kept.clear()
    return median_percent([block[clock] for block in blocks_of_runs(1 if smoke else 8, 1 if smoke else 60)], kept)


@cache
def pipeline_timeline(count: int) -> Timeline:
    timeline = Timeline()
    for data in batches(count):
        timeline.extend(pickle.loads(data))
    return timeline


def cases(smoke: bool) -> list[Case]:
    kept: list[list[float]] = []
    counted: list[list[float]] = []
    paired: list[list[float]] = []
    paired_cpu: list[list[float]] = []
    count = 1_000 if smoke else 300_000
    sizes = (1_000, 3_000) if smoke else (10_000, 100_000, 1_000_000)
    return [
        Case("span_cost", "ns a span", lambda: nanoseconds_per_span(count), {"an empty call": lambda: nanoseconds_per_loop(count)}, "<= 1000", "value"),
        Case(
            "span_cost_written", "ns a span", lambda: nanoseconds_per_write(count), target="<= 1000", target_of="value",
            note="the runtime's rule for a wait, two looks at the clock, the numbers, and packing them in another thread; warm caches (a run has cold ones)",
        ),
        Case(
            "bubble_table", "s", lambda: bubble_seconds(sizes[-1]), target="<= 1", target_of="value", runs=3,
            curve=lambda: [[n, bubble_seconds(n)] for n in sizes], note="curve: spans, s",
        ),
        *(
            Case(
                name, f"% of {clocked} time", lambda clock=clock, kept=kept: slowdown(clock, smoke, kept), target="<= 1", target_of="value", runs=1,
                curve=lambda kept=kept: kept,
                note="PPO on Meta-World, one core, in a kernel with its dashboard: iterations with all that watches and without, ABBA or BAAB; median of "
                "480 such blocks in eight runs; curve: the median, the bounds that hold it with 95 % (bootstrap), and the middle half of single blocks, in %",
            )
            for clock, (name, clocked, kept) in enumerate((("recorder_slowdown", "wall", paired), ("recorder_slowdown_cpu", "CPU", paired_cpu)))
        ),
        Case(
            "recorder_cost_counted", "% of CPU time", lambda: counted_percent(1 if smoke else 30, counted), target="<= 1", target_of="value",
            runs=1 if smoke else 5, curve=lambda: counted,
            note="the same run in a kernel as users start it, with its dashboard: CPU time of the threads that look (eight times a second), pack, send and "
            "sample, and of writing the spans; curve: % of the threads, % of writing, wall seconds a CPU second",
        ),
        Case(
            "recorder_cost_by_period", "% of CPU time", lambda: counted_percent(1 if smoke else 30, [], PERIODS[1]), runs=1,
            curve=lambda: [] if smoke else [[p, counted_percent(30, [], p)] for p in PERIODS],
            note=f"the same with a look every {PERIODS[1]} s instead of every {LOOK_SECONDS} s, which event_to_screen's 150 ms need; "
            "curve: seconds from one look to the next, % of CPU time",
        ),
        Case(
            "ingest", "spans/s", lambda: ingest(20_000 if smoke else 5_000_000, kept), target=">= 100000", target_of="value", runs=3,
            curve=lambda: kept[9::10] or kept,
            note="bytes of another host to a message for the browser, with iterations and bubbles, in a process of its own; "
            "curve: spans so far, spans/s, MiB that is not mapped from disk",
        ),
        Case(
            "ingest_memory", "MiB a million spans", lambda: growth_mib(kept), target="<= 1", target_of="value", runs=1,
            note="growth of memory that is not mapped from disk over the second half of that: between the peaks of its two parts",
        ),
        Case(
            "export_perfetto", "s", lambda: perfetto_seconds(pipeline_timeline(20_000 if smoke else 1_000_000)), target="<= 10", target_of="value",
            runs=3, note="1,000,000 spans, half of them joined by arrows; read again and compared afterwards: equal",
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["ingested"]:
        print(json.dumps(ingested(int(sys.argv[2]))))
