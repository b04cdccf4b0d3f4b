"""A profile from finished runs: ours, or those of other tools with a mapping of names to workers."""

from __future__ import annotations

import dataclasses
import fnmatch
import statistics
from collections.abc import Collection, Mapping, Sequence

from rlinf_lab.errors import PlanError, shown
from rlinf_lab.planning.fingerprint import Fingerprint
from rlinf_lab.planning.given import MOST_DEVICES, whole
from rlinf_lab.planning.measured import Observed
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.profile import EdgeProfile, Lengths, Memory, Message, Profile, RankRule, Sample, WorkerProfile
from rlinf_lab.planning.reading import known, listing
from rlinf_lab.timeline.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.workflow import Workflow


def profile_from_run(
    flow: Workflow, plan: ExecutionPlan, timeline: Timeline, items: int | None = None, fingerprint: Fingerprint | None = None
) -> Profile:
    """What the workers of a finished run cost: for asking what another plan would have done.

    ``items`` of an iteration (default: the most that pass a channel; environments cannot be seen, give their number). It knows one
    device count and the batch sizes of that run; ``lab.profile`` measures more.
    """
    if not isinstance(flow, Workflow) or not isinstance(plan, ExecutionPlan) or not isinstance(timeline, Timeline):
        raise PlanError(f"profile_from_run({shown(flow)}, {shown(plan)}, {shown(timeline)}): a Workflow, the plan that it ran under, and the run's timeline.")
    if items is not None:
        whole("profile_from_run: items", items, 1, 10**9)
    return fitted([Observed.of(flow.graph, plan, timeline)], items, f"{flow.name}, run under {plan.name}", fingerprint=fingerprint)


def fitted(
    runs: Sequence[Observed],
    items: int | None = None,
    name: str = "profile",
    *,
    rules: Mapping[str, RankRule] | None = None,
    memory: Mapping[str, Memory] | None = None,
    switches: Mapping[str, tuple[float, float]] | None = None,
    generators: Mapping[str, float] | None = None,
    device_memory_gib: float | None = None,
    fingerprint: Fingerprint | None = None,
    notes: Collection[str] = (),
    messages: Sequence[Message] = (),
) -> Profile:
    """One profile from several runs of one flow. ``generators``: workers that generate, with their longest response in tokens."""
    graph = runs[0].graph
    for field, names in {"ranks": rules, "generators": generators}.items():
        for worker in names or {}:
            known("worker", worker, graph.workers, field)
    items = items or max(run.most_items() for run in runs)
    workers = {}
    for worker in graph.workers:
        samples = _merged([s for run in runs for s in _peaked(run.samples(worker, items), run.peaks.get(worker))])
        on, off = (switches or {}).get(worker, (0.0, 0.0))
        cell = next((c for c in graph.cells if worker in c), ())
        workers[worker] = WorkerProfile(
            samples, _kind(runs[0], worker, generators or {}), max(1.0, runs[0].steps(cell)) if cell else 1.0,
            ranks=(rules or {}).get(worker, RankRule(counts=tuple(sorted({r.plan.ranks(worker) for r in runs})))),
            memory=(memory or {}).get(worker, Memory()), onload_s=on, offload_s=off,
            resource="host" if not runs[0].devices(worker) else "device", lengths=_lengths(worker, samples, items, generators or {}),
        )  # fmt: skip
    return Profile(
        items, workers, runs[0].edges(items), name, device_memory_gib=device_memory_gib,
        weights="tokens" if generators else "equal", fingerprint=fingerprint, notes=tuple(notes), messages=tuple(messages),
    )  # fmt: skip


def profile_from_trace(
    timeline: Timeline,
    workers: Mapping[str, str],
    items: int,
    edges: Sequence[tuple[str, str]],
    *,
    iterations: int = 1,
    devices: Mapping[str, int] | None = None,
    name: str = "imported",
) -> Profile:
    """A profile from the timeline of any tool (`Timeline.open` reads Chrome traces of Ray, RLinf, verl, torch's profiler).

    ``workers``: for each worker a pattern (``"generate*"``) of the names of its spans, or of the lanes that it works on. ``items`` of an iteration; the
    trace holds so many ``iterations``. ``edges``: (producer, consumer). ``devices``: how many each worker has (default: the lanes on which it was seen).

    Raises `PlanError` naming a pattern that nothing matches, with what is there.
    """
    whole(f"profile_from_trace(iterations={shown(iterations)}): it", iterations, 1, 10**9)
    if not isinstance(timeline, Timeline):
        raise PlanError(f"profile_from_trace({shown(timeline)}, ...): a Timeline is needed. Next: Timeline.open(path).")
    if not isinstance(workers, Mapping) or not workers or not all(isinstance(w, str) and isinstance(p, str) for w, p in workers.items()):
        raise PlanError(f"profile_from_trace: workers is {shown(workers)}; a pattern of span names for each worker. Next: workers={{'rollout': 'generate*'}}.")
    if isinstance(edges, str) or not isinstance(edges, Sequence) or not all(isinstance(e, tuple | list) and len(e) == 2 for e in edges):
        raise PlanError(f"profile_from_trace: edges is {shown(edges)}; pairs of producer and consumer. Next: edges=[('rollout', 'learner')].")
    if devices is not None and not isinstance(devices, Mapping):
        raise PlanError(f"profile_from_trace: devices is {shown(devices)}; how many each worker has. Next: devices={{'rollout': 8}}.")
    items = whole("profile_from_trace: items", items, 1, 10**9)
    for worker, count in (devices or {}).items():
        known("worker", worker, workers, "devices")
        whole(f"profile_from_trace: devices[{worker!r}]", count, 0, MOST_DEVICES)
    spans = [s for s in timeline.rows() if s.kind in (SpanKind.RUN, SpanKind.LABEL) and s.end_ns > s.start_ns]
    found = {}
    for worker, pattern in workers.items():
        lanes: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for s in spans:
            if fnmatch.fnmatch(s.name, pattern) or fnmatch.fnmatch(s.track.worker, pattern):
                lanes.setdefault((s.track.worker, s.track.rank), []).append((s.start_ns, s.end_ns))
        if not lanes:
            seen = sorted({s.name for s in spans})[:12]
            raise PlanError(f"Nothing in the timeline matches {pattern!r} (worker {worker!r}). Spans there: {listing(seen)}. Next: one of these.")
        count = (devices or {}).get(worker, len(lanes))
        # The ranks of a worker advance together: the one that was busy longest tells.
        seconds = max(_covered(times) for times in lanes.values()) / 1e9 / iterations
        found[worker] = WorkerProfile((Sample(count, float(items), seconds),), resource="device" if count else "host")
    notes = (f"Fitted to a trace of {iterations} iterations: one device count, so scaling is assumed. Add samples or exponents where you know them.",)
    return Profile(items, found, tuple(EdgeProfile(p, c) for p, c in edges), name, notes=notes)


def _covered(times: list[tuple[int, int]]) -> int:
    """Nanoseconds that at least one of the intervals covers."""
    total, reached = 0, -1
    for start, end in sorted(times):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _kind(run: Observed, worker: str, generators: Mapping[str, float]) -> str:
    """The keeper of a cell's tokens is flat in them like a simulator; who generates is told by the user; all else is batches."""
    cell = next((c for c in run.graph.cells if worker in c), ())
    return "simulator" if cell and run.head(cell) == worker else "generation" if worker in generators else "batch"


def _lengths(worker: str, samples: Sequence[Sample], items: int, generators: Mapping[str, float]) -> Lengths | None:
    if worker not in generators:
        return None
    curve = next((s.outputs for s in samples if s.items == items and s.outputs), ())
    if not curve:
        raise PlanError(f"Generator {worker!r} put its outputs all at once, so their lengths cannot be seen. Next: put each one when it is finished.")
    return Lengths(generators[worker], completion=curve)


def _merged(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Of samples at the same point, the median of the seconds and the largest peak."""
    groups: dict[tuple[int, float, tuple[str, ...]], list[Sample]] = {}
    for s in samples:
        groups.setdefault((s.devices, s.items, s.beside), []).append(s)
    merged = []
    for (devices, items, beside), same in sorted(groups.items()):
        outputs = next((s.outputs for s in same if s.outputs), ())
        peak = max((s.peak_gib for s in same if s.peak_gib is not None), default=None)
        merged.append(Sample(devices, items, statistics.median(s.seconds for s in same), beside, peak, outputs))
    return tuple(merged)


def _peaked(samples: Sequence[Sample], gib: float | None) -> list[Sample]:
    """The peak of a run belongs to its largest calls."""
    largest = max((s.items for s in samples), default=0.0)
    return [s if gib is None or s.items < largest else dataclasses.replace(s, peak_gib=gib) for s in samples]
