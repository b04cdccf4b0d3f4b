"""What a span costs in the worker, and what the bubble table costs as the timeline grows."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from harness import Case

from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.runtime.local import LocalExecutor
from rlinf_lab.runtime.session import Session
from rlinf_lab.timeline.batch import SpanBatch
from rlinf_lab.timeline.recorder import Recorder
from rlinf_lab.timeline.sampler import UtilisationSampler
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.widgets.feed import TimelineFeed


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
    """Spans of 64 ranks as they come from another host, ten portions a second."""
    recorder = Recorder("host", limit=4 * each)
    tracks = [recorder.track(f"worker{r % 6}", r, (f"cuda:{r % 8}",)) for r in range(64)]
    name, channel = recorder.name("step"), recorder.channel("obs")
    for i in range(count):
        kind = (SpanKind.RUN, SpanKind.RUN, SpanKind.GET, SpanKind.PUT)[i & 3]
        recorder.add(tracks[i & 63], kind, name, 1000 * i, 1000 * i + 900, i // 10_000, 1, 64, channel, i % 10_000)
        if i % each == each - 1:
            yield recorder.drain().to_bytes()


def ingest(count: int, kept: list[list[float]]) -> float:
    """Spans a second from a host's bytes to a message for the browser; ``kept``: spans so far, their rate, MiB of memory that is not mapped from disk."""
    timeline = Timeline()
    feed, spent, seen = TimelineFeed(timeline), 0.0, 0
    kept.clear()
    for number, data in enumerate(batches(count), 1):
        start = time.perf_counter()
        batch = SpanBatch.from_bytes(data)
        timeline.extend(batch)
        feed.take().content()
        spent += time.perf_counter() - start
        seen += len(batch)
        if number % max(1, count // 50_000) == 0:
            kept.append([float(seen), seen / spent, own_memory_mib()])
    return seen / spent


def own_memory_mib() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


def perfetto_seconds(timeline: Timeline) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        timeline.to_perfetto(Path(folder) / "t.pftrace")
        return time.perf_counter() - start


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


def slowdown_percent(pairs: int) -> float:
    """PPO on a simulator, one core: iterations in turn with everything that watches and without, in CPU time of the whole process."""
    from rlinf_lab.recipes.ppo import PPOConfig, build
    from rlinf_lab.runtime.spans import SpanWriter

    config = PPOConfig.preset("metaworld/button-press-v3")
    flow, timeline = build(config), Timeline(["cpu:0"])
    feed, write = TimelineFeed(timeline), SpanWriter.add
    ratios = []
    executor = LocalExecutor(flow, ExecutionPlan.fused_cells(flow, ["cpu:0"], {"simulator": 1}))
    recorder, sampler = executor.recorder, UtilisationSampler(executor.recorder)
    s = Session(executor)  # bare: nobody collects but `watched`

    def watched() -> float:
        SpanWriter.add = write
        start = time.process_time()
        with sampler:
            s.step("train")
            for batch in recorder.batches():
                timeline.extend(batch)
            feed.take().content()
        return time.process_time() - start

    def alone() -> float:
        SpanWriter.add = lambda *_: None
        start = time.process_time()
        s.step("train")
        return time.process_time() - start

    try:
        executor.start()
        watched()
        for number in range(pairs):
            with_it, without = (watched(), alone()) if number % 2 else (alone(), watched())[::-1]
            ratios.append(with_it / without)
    finally:
        SpanWriter.add = write
        executor.stop()
    return 100 * (statistics.median(ratios) - 1)


def counted_percent(iterations: int) -> float:
    """The same run with its dashboard, as `lab.run` makes it: CPU time of the threads that collect and sample, and of writing the spans, in % of all."""
    from rlinf_lab.notebook import _Feeder
    from rlinf_lab.recipes.ppo import PPOConfig, build
    from rlinf_lab.runtime.run import run
    from rlinf_lab.widgets.dashboard import Dashboard

    def watching() -> float:
        threads = [t for t in threading.enumerate() if t.name.startswith(("pump", "utilisation sampler"))]
        return sum(time.clock_gettime(time.pthread_getcpuclockid(t.ident)) for t in threads if t.ident)

    flow, warm = build(PPOConfig.preset("metaworld/button-press-v3")), 3
    plan = ExecutionPlan.fused_cells(flow, ["cpu:0"], {"simulator": 1})
    going = run(flow, plan, inputs=["train"] * (warm + iterations + 1), keep_results=False)
    going.on_update(_Feeder(going, Dashboard("run", plan.name, plan.devices), None))

    def wait_for(iteration: int) -> tuple[float, float, int]:
        while going.iteration < iteration and not going.error:
            time.sleep(0.01)
        return watching(), time.process_time(), len(going.timeline)

    try:
        watched, everything, spans = (b - a for a, b in zip(wait_for(warm), wait_for(warm + iterations), strict=True))
    finally:
        going.stop()
    return 100 * (watched + spans * nanoseconds_per_write(20_000) / 1e9) / everything


def nanoseconds_per_write(count: int) -> float:
    """What a span costs where a worker's thread writes it: a look-up of its names more than `Recorder.add`."""
    recorder = Recorder(limit=2 * count + 2)
    track = recorder.track("worker", 0, ("cpu:0",))
    start = time.thread_time_ns()
    for i in range(count):
        recorder.add(track, SpanKind.GET, recorder.name("step"), i, i + 1, 0, 1, 0, recorder.channel("obs"), i)
    return (time.thread_time_ns() - start) / count


@cache
def pipeline_timeline(count: int) -> Timeline:
    timeline = Timeline()
    for data in batches(count):
        timeline.extend(SpanBatch.from_bytes(data))
    return timeline


def cases(smoke: bool) -> list[Case]:
    kept: list[list[float]] = []
    count = 1_000 if smoke else 300_000
    sizes = (1_000, 3_000) if smoke else (10_000, 100_000, 1_000_000)
    return [
        Case("span_cost", "ns a span", lambda: nanoseconds_per_span(count), {"an empty call": lambda: nanoseconds_per_loop(count)}, "<= 1000", "value"),
        Case(
            "bubble_table", "s", lambda: bubble_seconds(sizes[-1]), target="<= 1", target_of="value", runs=3,
            curve=lambda: [[n, bubble_seconds(n)] for n in sizes], note="curve: spans, s",
        ),
        Case(
            "recorder_slowdown", "% of CPU time", lambda: slowdown_percent(1 if smoke else 40), target="<= 1", target_of="value", runs=1 if smoke else 3,
            note="PPO on Meta-World, one core; spans, counters, timeline, messages for the browser; median of 40 pairs of iterations, whose noise is "
            "about 2 %",
        ),
        Case(
            "recorder_cost_counted", "% of CPU time", lambda: counted_percent(1 if smoke else 20), target="<= 1", target_of="value", runs=1 if smoke else 3,
            note="the same run as users start it, with its dashboard: CPU time of the threads that collect (ten times a second) and sample, and of "
            "writing the spans",
        ),
        Case(
            "ingest", "spans/s", lambda: ingest(20_000 if smoke else 3_000_000, kept), target=">= 100000", target_of="value", runs=3,
            curve=lambda: kept, note="bytes of another host to a message for the browser; curve: spans so far, spans/s, MiB that is not mapped from disk",
        ),
        Case(
            "export_perfetto", "s", lambda: perfetto_seconds(pipeline_timeline(20_000 if smoke else 1_000_000)), target="<= 10", target_of="value",
            runs=3, note="1,000,000 spans, half of them joined by arrows",
        ),
    ]  # fmt: skip
