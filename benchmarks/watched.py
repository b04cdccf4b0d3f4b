"""What watching costs a real run: PPO on Meta-World in a kernel, with its dashboard, as users start it."""

from __future__ import annotations

import json
import random
import statistics
import time
from types import SimpleNamespace

import kernel_cell

from rlinf_lab.runtime.host.state.spans import SpanWriter
from rlinf_lab.timeline.record.pending import NUMBERS
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import SpanKind

PAIRED = """
import json, random, time
from types import SimpleNamespace
import psutil
import rlinf_lab as lab
from rlinf_lab.recipes.ppo import PPOConfig, build
flow = build(PPOConfig.preset("metaworld/button-press-v3"))
plan, nothing = lab.ExecutionPlan.fused_cells(flow, ["cpu:0"], {{"simulator": 1}}), lambda *_, **__: []
with lab.session(flow, plan) as s:
    board, no_memory, spans = lab.show(s), SimpleNamespace(total=0, available=0, rss=0), s._executor.driver_host.scheduler.spans

    def ended(rank, at=None):
        rank.since = spans._now() if at is None else at
        return rank.since

    def resumed(rank, *_):
        rank.since = spans._now() if rank.waited else rank.bound_ns or rank.since

    watchers = [
        (spans, "end_run", ended), (spans, "resumed", resumed), (s._executor.driver_host.recorder, "counter", nothing), (s._observer, "collect", nothing),
        (s._observer, "glance", lambda: True), (board, "push_spans", nothing), (s._observer, "_update", nothing),
        (s._observer, "_afterwards", nothing), (psutil, "cpu_percent", nothing),
        (psutil, "virtual_memory", lambda: no_memory), (psutil.Process, "memory_info", lambda self: no_memory),
    ]
    as_it_is = [getattr(owner, name) for owner, name, _ in watchers]

    def seconds(watched):
        for (owner, name, instead), function in zip(watchers, as_it_is):
            setattr(owner, name, function if watched else instead)
        start = time.perf_counter(), time.process_time()
        s.step("train")
        took = time.perf_counter() - start[0], time.process_time() - start[1]
        if not watched and board._feed is not None:
            board._feed._not_before += took[0]  # else device time, looked at every four seconds, would fall into half of them
        return took

    for _ in range(3):
        seconds(True)
    rng, blocks = random.Random(0), []
    for _ in range({blocks}):
        first = rng.random() < 0.5
        four = [(watched, seconds(watched)) for watched in (first, not first, not first, first)]
        blocks.append([[sum(clocks[i] for watched, clocks in four if watched is on) for on in (True, False)] for i in (0, 1)])
    for (owner, name, _), function in zip(watchers, as_it_is):
        setattr(owner, name, function)
    spans = len(s.timeline)
print("PAIRED", json.dumps([blocks, spans]))
"""


def paired_blocks(blocks: int) -> list[list[list[float]]]:
    """Blocks of iterations with everything that watches and without, in one run: [[wall with, without], [CPU with, without]] in seconds.

    Four iterations on, off, off, on (or the other way round, by chance) make a block, so that what drifts is the same in both. Without: nothing
    is written, collected, told, accounted or sampled; the threads that would do it only wake up.
    """
    rows, spans = json.loads(kernel_cell.printed(PAIRED.format(blocks=blocks), timeout=1500).split("PAIRED")[1])
    if spans < 1000 * blocks:
        raise RuntimeError(f"Only {spans} spans were written in {2 * blocks} watched iterations.")
    return rows


def median_percent(pairs: list[list[float]], kept: list[list[float]]) -> float:
    """By how much the first of each pair is over the second; ``kept`` gets the median, the bounds that hold it with 95 %, and the middle half."""
    percents = sorted(100 * (on / off - 1) for on, off in pairs)
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(percents, k=len(percents))) for _ in range(2000))
    kept.append([statistics.median(percents), medians[50], medians[-51], percents[len(percents) // 4], percents[3 * len(percents) // 4]])
    return kept[-1][0]


COUNTED = """
import json, threading, time
import rlinf_lab as lab
from rlinf_lab.recipes.ppo import PPOConfig, build
from rlinf_lab.runtime.run import observer
WARM, COUNTED = 3, {iterations}
observer.LOOK_SECONDS = {period} or observer.LOOK_SECONDS
flow = build(PPOConfig.preset("metaworld/button-press-v3"))
run = lab.run(flow, lab.ExecutionPlan.fused_cells(flow, ["cpu:0"], {{"simulator": 1}}), WARM + COUNTED + 1)
WATCHING = ("pump", "utilisation sampler", "IOPub")

def seen(iteration):
    while run.iteration < iteration and not run.error:
        time.sleep(0.01)
    threads = [t for t in threading.enumerate() if t.name.startswith(WATCHING) and t.ident]
    watching = sum(time.clock_gettime(time.pthread_getcpuclockid(t.ident)) for t in threads)
    return watching, time.process_time(), len(run.timeline), time.monotonic(), len(threads)

before, after = seen(WARM), seen(WARM + COUNTED)
run.stop()
print("COUNTED", json.dumps([b - a for a, b in zip(before, after)] + [before[-1]]))
"""


def counted_percent(iterations: int, kept: list[list[float]], period: float = 0.0) -> float:
    """The same run in a kernel, as users start it, with its dashboard: CPU time of all that watches, in % of the process's.

    That is: the thread that looks, tells the dashboard and packs its messages; ipykernel's thread that sends them; the one that samples
    the processors; and writing the spans, in the workers' threads. ``kept`` gets the parts, in %, and the wall seconds per CPU second (others on
    the cores make a look dearer, and more of them fall into a second of ours). ``period``: seconds from one look to the next, 0: as it is.
    """
    told = json.loads(kernel_cell.printed(COUNTED.format(iterations=iterations, period=period)).split("COUNTED")[1])
    watched, everything, spans, wall, _, threads = told
    if threads != 3:
        raise RuntimeError(f"{threads} threads watch instead of 3: what is counted is not all.")
    written = spans * nanoseconds_per_write(20_000, packed=False) / 1e9  # the threads pack
    kept.append([100 * watched / everything, 100 * written / everything, wall / everything])
    return 100 * (watched + written) / everything


def nanoseconds_per_write(count: int, packed: bool = True) -> float:
    """What a span costs in a worker's thread, with warm caches: the runtime's rule for a wait, two looks at the clock and the row's numbers; ``packed``: and
    in the thread that makes rows of them.
    """
    recorder = Recorder(limit=2 * count + 2)
    writer = SpanWriter(recorder, recorder.clock)
    queue, call = SimpleNamespace(number=recorder.channel("obs")), SimpleNamespace(iteration=3, method="step")
    rank = SimpleNamespace(
        track=recorder.track("worker", 0, ("cpu:0",)), method=recorder.name("step"), call=call, queue=queue, first=0, bound_ns=0, bound_batch=0,
        lock_waited=False, lock_from=0, waited=True, since=0, on_device=True, worker="worker",
    )  # fmt: skip
    start = time.thread_time_ns()
    for _ in range(count // 2):  # as a rank does: what ran has ended, then what it waited for
        writer.end_run(rank)
        writer.resumed(rank, SpanKind.GET, 1)
        if len(recorder.loose) > 256 * NUMBERS:  # as many rows as come between two looks
            if packed:
                recorder.drain()
            else:
                recorder.loose.clear()
    return (time.thread_time_ns() - start) / (2 * (count // 2))
