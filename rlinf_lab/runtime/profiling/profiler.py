"""Measures the workers of a workflow. It runs under a few small plans, and each worker by itself to see it come and go.
"""

from __future__ import annotations

import bisect
import contextlib
import gc
import itertools
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from rlinf_lab.errors import PlanError, RlinfLabError, WorkerError, counted
from rlinf_lab.planning.fit.fit import fitted
from rlinf_lab.planning.fit.samples import Observed, inputs
from rlinf_lab.planning.placement.to_execution_plan import batch_of_tokens
from rlinf_lab.planning.plan.device import Device
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.profile.fingerprint import Fingerprint
from rlinf_lab.planning.profile.profile import Memory, Message, Profile, RankRule
from rlinf_lab.planning.schema.json_schema import listing
from rlinf_lab.runtime.machine.devices import torch_device
from rlinf_lab.runtime.profiling.messages import message_costs
from rlinf_lab.runtime.profiling.request import Request
from rlinf_lab.runtime.profiling.subject import subject
from rlinf_lab.runtime.run.run import run
from rlinf_lab.timeline.record.span import SpanKind
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER
from rlinf_lab.workflow.worker import Context, Residence, Worker, may_share
from rlinf_lab.workflow.workflow import Workflow

SMALLER = 4  # the second plan cuts an iteration into so many batches
MEMORY_SECONDS = 0.01
NOTHING_GIB = 1 / 256  # what an empty object seems to take: noise of the allocator
NOISE = 0.05  # of memory
SAME = 1 - 1e-6  # of weights: what two count of a block is the same but for rounding
SWITCHES = 2  # how often each worker leaves and comes
ROOM = 0.8  # of a GPU's memory: what workers keep there together may take so much, the rest is for their work


def profile(
    flow: Workflow,
    devices: Sequence[str] | None = None,
    *,
    ranks: Mapping[str, Sequence[int]] | None = None,
    items: int | None = None,
    inputs: Sequence[Any] | None = None,
    iterations: int = 3,
    executor: str = "local",
    generators: Mapping[str, float] | None = None,
    path: str | Path | None = None,
    progress: bool = True,
) -> Profile:
    """Measure what the workers cost. That is seconds at a few sizes and numbers of ranks, memory, switching, and when
    outputs appear.

    ``devices``: where (default: those of this machine); cores or GPUs. Workers that a GPU does not hold together are
    measured time-shared. ``ranks``: for each worker that may have several, which numbers to measure, such as
    ``{"simulator": [1, 2]}``; the others have one, and plans give them one. ``items`` of an iteration: what the profile
    counts in (default: the most that pass a channel; for environments give their number). ``inputs``: arguments of the
    iterations (the first one is repeated).
    ``iterations``: measured ones; another one warms up. ``executor``: ``"ray"`` or ``"processes"`` where ranks shall
    not share this process (peaks of memory are not measured then, `Profile.notes` says so). ``generators``: workers
    that generate with continuous batching, and the longest response in tokens. ``path``: read this file if it is there,
    fresh, of this workflow (its inputs, arguments and code too) and for what is asked, else say why not, measure and
    write it. A file without a fingerprint was written by hand and is never written over.

    Training state is not kept: every plan starts with new workers. Raises `PlanError` or a worker's own exception.
    """
    asked = Request.of(flow, devices, ranks, items, inputs, iterations, executor, generators, path)
    if asked.path is not None and asked.path.is_file():
        read = Profile.load(asked.path)
        why = (*read.stale(), *asked.misses(read, _device_names(asked.devices)))
        if not why:
            return read
        if read.fingerprint is None:
            raise PlanError(
                f"{path} was written by hand and is not what is asked for: {'; '.join(why)}. Next: another path, or "
                "edit that file."
            )
        tqdm.write(f"{path} is not what is asked for ({'; '.join(why)}): measuring again.")
    measuring = _Measuring(asked.flow, asked.devices, asked.ranks, asked.inputs, asked.iterations, asked.executor)
    found = measuring.profile(asked.items, asked.generators, progress)
    if asked.path is not None:
        found.save(asked.path)
    return found


@dataclass
class _Measuring:
    flow: Workflow
    devices: tuple[str, ...]
    ranks: Mapping[str, Sequence[int]]
    inputs: tuple[Any] | None
    iterations: int
    executor: str
    notes: list[str] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)  # names of plans under which a worker did
    one_by_one: bool = False  # whether what circulates in cells cannot come in batches
    # fields of plans under which workers that do not fit together time-share on a GPU
    turns: dict[str, Any] = field(default_factory=dict)

    def _fingerprint(self) -> Fingerprint:
        return replace(Fingerprint.here(_device_names(self.devices)), measured=subject(self.flow, self.inputs))

    def profile(self, items: int | None, generators: Mapping[str, float] | None, progress: bool) -> Profile:
        graph = self.flow.graph
        self.notes.extend(_not_seen_from_here(self.devices, self.executor))
        counts = sorted({1, *(c for some in self.ranks.values() for c in some)})
        probes = list(graph.workers)
        gib = _device_memory(self.devices)
        with tqdm(
            total=2 + len(counts) - 1 + bool(graph.cells) + len(probes), desc="profile", disable=not progress
        ) as bar:
            # of a GPU first: do all fit there together?
            probed = {} if gib is None else {worker: self._probed(worker, bar) for worker in probes}
            self.turns = _turns(probed, gib or 0.0)
            first = self._observe(self._plan("one rank", 1), bar, memory=True)
            runs = [first, *self._in_batches(first, bar)]
            plans = [
                *(self._shared(first, count) for count in counts if count > 1),
                *([self._double(first)] if graph.cells else []),
            ]
            runs += [self._try(plan, bar) for plan in plans]
            probed = probed or {worker: self._probed(worker, bar) for worker in probes}
        messages = self._messages()
        self.notes += [
            f"{worker}: plans never let it be offloaded, for {p.stays}." for worker, p in probed.items() if p.stays
        ]
        memory = {worker: Memory(p.resident_gib) for worker, p in probed.items()} | self._held_together(probed)
        kept = {worker: m.resident_gib + m.shared_gib for worker, m in memory.items()}
        seen = [
            replace(r, peaks={w: gib + kept.get(w, 0.0) for w, gib in r.peaks.items()}) for r in runs if r is not None
        ]
        switches = {worker: (p.onload_s, p.offload_s) for worker, p in probed.items()}
        found = fitted(
            seen, items, self.flow.name, rules=self._rules(), memory=memory, switches=switches, generators=generators,
            device_memory_gib=gib, fingerprint=self._fingerprint(), notes=self.notes, messages=messages,
        )  # fmt: skip
        if self.one_by_one:
            found = found.replace(cells=tuple(replace(cell, tokens=1) for cell in found.cells))
        for worker in (w for w, p in probed.items() if p.stays):
            found = found.with_worker(worker, offloadable=False)
        return found

    # --- plans --------------------------------------------------------------------------------------------
    def _plan(self, name: str, count: int) -> ExecutionPlan:
        """Everything on the same devices, one after another: nobody computes beside somebody else."""
        ranks = {w: max((c for c in counts if c <= count), default=1) for w, counts in self.ranks.items()}
        return ExecutionPlan.temporal(
            self.flow, self.devices[: max(1, *ranks.values(), 1) if ranks else 1], ranks, name=name, **self.turns
        )

    def _in_batches(self, first: Observed, bar: tqdm) -> list[Observed | None]:
        """Smaller batches between workers, and all of a cell in one. There the first run had single items."""
        smaller, at_once = self._smaller(first), self._together(first, self._plan("all that circulates at once", 1))
        if at_once is None:
            return [self._try(smaller, bar, memory=True)]
        bar.total += 1
        found = self._try(at_once, bar, memory=True)
        self.one_by_one = found is None
        return [
            self._try(smaller if self.one_by_one else self._together(first, smaller) or smaller, bar, memory=True),
            found,
        ]

    def _smaller(self, first: Observed) -> ExecutionPlan:
        return self._cut(self._plan("smaller batches", 1), first, lambda consumer: SMALLER)

    def _shared(self, first: Observed, count: int) -> ExecutionPlan:
        """Each rank of a worker gets its part: the first one would take everything otherwise."""
        plan = self._plan(f"{count} ranks", count)
        plan = self._cut(plan, first, plan.ranks)
        return plan if self.one_by_one else self._together(first, plan) or plan

    def _together(self, first: Observed, plan: ExecutionPlan) -> ExecutionPlan | None:
        """The plan with batches of all that circulates in a cell. None where it circulates by itself. Ranks of the head
        may have a share each, or as much as one alone: a batch is no larger than a share, and all are filled."""
        graph, micro_batches, in_flight = self.flow.graph, dict(plan.micro_batches), dict(plan.in_flight)
        for cell in graph.cells:
            tokens, head = first.cell(cell).in_one_batch, first.cell(cell).head
            parts = self._parts(first, plan, head) * plan.ranks(head)
            if tokens > 1 and tokens % parts == 0:
                share = tokens // parts
                in_flight[head] = tokens
                for edge in (e for e in graph.edges if e.producer in cell and e.consumer in cell):
                    micro_batches[edge.channel] = (
                        share
                        if edge.consumer == head
                        else batch_of_tokens(share, plan.ranks(edge.consumer), is_head=False)
                    )
        return replace(plan, micro_batches=micro_batches, in_flight=in_flight) if in_flight else None

    def _cut(self, plan: ExecutionPlan, first: Observed, parts: Callable[[str], int]) -> ExecutionPlan:
        cells = self.flow.graph.cells
        micro_batches = {
            e.channel: max(1, math.ceil(first.items(e.channel) / e.group / parts(e.consumer)))
            for e in self.flow.graph.edges
            if not (e.whole or e.keyed or DRIVER in (e.producer, e.consumer))
            and not any(e.producer in c and e.consumer in c for c in cells)
        }
        return replace(plan, micro_batches={**plan.micro_batches, **micro_batches})

    def _parts(self, first: Observed, plan: ExecutionPlan, head: str) -> int:
        """In how many parts a cell's head gets the inputs of an iteration. They go to all its ranks, as single items
        where they do not divide evenly.
        """
        most = 1
        for channel in inputs(self.flow.graph, head):
            items, micro_batch = (
                round(first.items(channel)),
                plan.micro_batches.get(channel, 0) * plan.ranks(head) * self.flow.graph.channel(channel).group,
            )
            most = max(
                most, items if micro_batch and items % micro_batch else items // micro_batch if micro_batch else 1
            )
        return most

    def _double(self, first: Observed) -> ExecutionPlan:
        """The tokens of a cell one by one: half a batch for whoever answers."""
        cells = self.flow.graph.cells
        heads = {first.cell(cell).head: 2 for cell in cells}
        single = {
            e.channel: 1
            for e in self.flow.graph.edges
            if not e.keyed and any(e.producer in c and e.consumer in c for c in cells)
        }
        return ExecutionPlan.temporal(
            self.flow, self.devices[:1], name="two sub-batches", sub_batches=heads, micro_batches=single, **self.turns
        )

    def _rules(self) -> dict[str, RankRule]:
        """Who was not said to have several ranks has one. Where somebody failed with as many as asked, at most those
        that worked.
        """
        found = {}
        for worker in self.flow.graph.workers:
            asked = self.ranks.get(worker, (1,))
            most = max(n for n in (1, *asked) if f"{n} ranks" not in self.failed)
            found[worker] = RankRule(most=most) if most == 1 or most < max(asked) else RankRule()
            if most < max(asked):
                self.notes.append(
                    f"{worker}: plans give it at most {counted(most, 'rank')}, for the run with {max(asked)} failed."
                )
        return found

    # --- running ------------------------------------------------------------------------------------------
    def _try(self, plan: ExecutionPlan, bar: tqdm, memory: bool = False) -> Observed | None:
        """A variation that a worker does not stand is left out, and said so."""
        try:
            return self._observe(plan, bar, memory)
        except RlinfLabError as error:
            self.notes.append(f"{plan.name}: not measured, {str(error).splitlines()[0]}")
            if isinstance(error, WorkerError):
                self.failed.add(plan.name)
            bar.update()
            return None

    def _observe(self, plan: ExecutionPlan, bar: tqdm, memory: bool = False) -> Observed:
        """Watch one run. ``memory``: everything is on one device of this process; each worker's peak is told above what
        was there when its work began.
        """
        bar.set_postfix_str(plan.name)
        inputs = None if self.inputs is None else [self.inputs[0]] * (self.iterations + 1)
        watch = _MemoryWatch(self.devices[0]) if memory and self.executor == "local" else None
        with watch or contextlib.nullcontext():
            finished = run(self.flow, plan, None if inputs is not None else self.iterations + 1, self.executor, inputs)
            finished.wait()
        bar.update()
        observed = Observed.of(self.flow.graph, plan, finished.timeline)
        if watch is not None and watch.failed:
            self.notes.append(f"{plan.name}: {watch.failed}")
        return observed if watch is None else replace(observed, peaks=watch.peaks(finished.timeline))

    def _messages(self) -> tuple[Message, ...]:
        """Between processes of one node, and of two where the devices are on several. None where everything lives in
        this process.
        """
        nodes = [Device.parse(d).node for d in self.devices]
        others = [d for i, d in enumerate(self.devices) if i and nodes[i] not in nodes[1:i]]
        if self.executor == "local" or not others:
            return ()
        try:
            return message_costs(self.executor, [self.devices[0], *others])
        except RlinfLabError as error:
            self.notes.append(f"messages: not measured, {str(error).splitlines()[0]}")
            return ()

    # --- coming and going -----------------------------------------------------------------------------------
    def _probed(self, worker: str, bar: tqdm) -> Probed:
        """Measure a worker by itself: what it occupies, how long leaving and coming take."""
        bar.set_postfix_str(f"{worker} by itself")
        probed = _come_and_go(self.flow, worker, self.devices[0])
        bar.update()
        return probed

    def _held_together(self, probed: Mapping[str, Probed]) -> dict[str, Memory]:
        """The memory of each worker, of those that hold the same weights in one process. Those who know theirs are set
        up beside each other.
        """
        builds = [worker for worker in probed if may_share(self.flow.declaration(worker).cls)]
        if len(builds) < 2:
            return {}
        made = dict[str, Worker]()
        try:
            for worker in builds:
                made[worker] = _set_up(self.flow, worker, self.devices[0])
                if self.turns and not probed[worker].stays:
                    others = [other for name, other in made.items() if name != worker]
                    Residence(made[worker]).switch("offload", [], others)
            knows = {worker: Residence(instance) for worker, instance in made.items()}
            groups = _groups(
                {
                    (a, b): knows[a].shared(made[b]) * knows[a].nbytes() / 2**30
                    for a, b in itertools.permutations(made, 2)
                }
            )
            whole = {
                worker: _whole(probed[worker].resident_gib, residence.nbytes() / 2**30)
                for worker, residence in knows.items()
            }
        finally:
            for worker, instance in made.items():
                with _named(worker, "close"):
                    instance.close()
        return {
            w: Memory(whole[w] - gib, shared_gib=gib, shared_as=f"weights of {group[0]}")
            for group, gib in groups
            for w in group
        }


def _turns(probed: Mapping[str, Probed], gib: float) -> dict[str, Any]:
    """What plans are told of a GPU: each worker's MiB, and what there is altogether. Nothing where all fit, and where
    it is not known (no ``probed``).
    """
    memory = {worker: math.ceil(1024 * p.resident_gib) for worker, p in probed.items()}
    room = max([int(1024 * ROOM * gib), *memory.values()])
    return {} if sum(memory.values()) <= room else {"memory": memory, "device_memory": room}


class Probed(NamedTuple):
    """A worker by itself. ``stays``: why it cannot free its device; "" when it can."""

    resident_gib: float
    onload_s: float
    offload_s: float
    stays: str


def _come_and_go(flow: Workflow, worker: str, device: str) -> Probed:
    """Sets the worker up and lets it leave and come a few times. The shortest seconds count. Raises `WorkerError`
    naming the method that failed.
    """
    gc.collect()  # what is given back meanwhile would be counted against it
    before = _gib_used(device)
    instance = _set_up(flow, worker, device)
    resident = max(0.0, _gib_used(device) - before)
    residence, off, on = Residence(instance), list[float](), list[float]()
    try:
        nothing = resident < NOTHING_GIB
        with _named(worker, "can_leave"):
            stays = residence.why_it_stays()
        if not (stays or nothing or residence.does_switch()):
            stays = f"{type(instance).__name__} holds {resident:.2g} GiB, and has neither offload() nor onload()"
        for _ in range(0 if stays else SWITCHES):
            with _named(worker, "offload"):
                off.append(_timed(instance.offload, device))
            with _named(worker, "onload"):
                on.append(_timed(instance.onload, device))
    finally:
        with _named(worker, "close"):
            instance.close()
    return Probed(
        0.0 if nothing and not residence.does_switch() else resident, min(on, default=0.0), min(off, default=0.0), stays
    )


def _set_up(flow: Workflow, worker: str, device: str) -> Worker:
    context = Context()
    context.name, context.device = worker, torch_device([device])
    with _named(worker, "setup"):
        instance = flow.declaration(worker).build(context)
        instance.setup()
    return instance


def _whole(measured: float, known: float) -> float:
    """GiB of a worker that knows what lies on its device. It is what it knows, unless clearly more was measured. (Less
    is, where somebody else made the weights.)
    """
    return measured if measured > known + max(NOTHING_GIB, NOISE * known) else known


def _groups(shared: Mapping[tuple[str, str], float]) -> list[tuple[tuple[str, ...], float]]:
    """Workers that all hold the same weights, and GiB of these. Those that share most come first, each worker once.
    ``shared``: GiB by pairs.
    """
    found: list[tuple[tuple[str, ...], float]] = []
    for (a, b), gib in sorted(shared.items(), key=lambda item: -item[1]):
        placed = {w for group, _ in found for w in group}
        if gib > 0 and not placed & {a, b}:
            group = [a, b]
            for other in dict.fromkeys(w for pair in shared for w in pair):
                if other not in placed and other not in group and all(shared[other, w] >= gib * SAME for w in group):
                    group.append(other)
            found.append((tuple(group), min(shared[pair] for pair in itertools.permutations(group, 2))))
    return found


@contextlib.contextmanager
def _named(worker: str, method: str) -> Iterator[None]:
    """Have what a worker raises by itself say where it comes from. It says so as well as in a run."""
    try:
        yield
    except Exception as error:
        raise WorkerError.of(worker, 0, method, error, traceback.format_exc()) from error


def _timed(call: Callable[[], None], device: str) -> float:
    start = time.perf_counter()
    call()
    _synchronise(device)
    return time.perf_counter() - start


def _synchronise(device: str) -> None:
    if torch_device([device]).startswith("cuda"):
        import torch

        torch.cuda.synchronize(torch_device([device]))


def _gib_used(device: str, synchronised: bool = True) -> float:
    """GiB that this process holds. On a GPU it is what torch has allocated, else resident memory. ``synchronised``:
    after its work has ended.
    """
    name = torch_device([device])
    if name.startswith("cuda"):
        import torch

        if synchronised:
            torch.cuda.synchronize(name)
        return float(torch.cuda.memory_allocated(name)) / 2**30
    import psutil

    return float(psutil.Process().memory_info().rss) / 2**30


def _gpus_of_this_node(devices: Sequence[str]) -> list[str]:
    """By torch's names. What others are cannot be asked from here: torch would tell of the one here that is called the
    same.
    """
    return [torch_device([d]) for d in devices if not Device.parse(d).node and Device.parse(d).kind == "cuda"]


def _device_memory(devices: Sequence[str]) -> float | None:
    """GiB of the smallest GPU of this node. None for cores, which share the host's memory."""
    names = _gpus_of_this_node(devices)
    if not names:
        return None
    import torch

    return float(min(torch.cuda.get_device_properties(n).total_memory for n in names)) / 2**30


def _device_names(devices: Sequence[str]) -> list[str]:
    names = _gpus_of_this_node(devices)
    if not names:
        return []
    import torch

    return [torch.cuda.get_device_name(n) for n in names]


def _not_seen_from_here(devices: Sequence[str], executor: str) -> list[str]:
    """Notes on memory that is in other processes or nodes."""
    notes, parsed = [], [Device.parse(d) for d in devices]
    if executor != "local":
        notes.append(
            f"Peaks of memory: not measured, for with executor={executor!r} the workers work in other processes. Plans "
            "count what each keeps "
            "(resident_gib), and for its work what per_item_gib says. Next: give that, or lab.profile(flow) with "
            "executor='local'."
        )
    far = [str(d) for d in parsed if d.node and d.kind == "cuda"]
    if far:
        here = [str(d) for d in parsed if not d.node and d.kind == "cuda"]
        taken = f"taken to be no smaller than {listing(here)}" if here else "no limit to plans"
        notes.append(
            f"Memory of {listing(far)}: not known, for it is on other nodes, and {taken}. Next: "
            "device_memory_gib, where that is not so."
        )
    if parsed[0].node:
        notes.append(
            f"{devices[0]} is on another node: what each worker occupies, and how fast it leaves and comes, "
            "was measured in this process instead."
        )
    return notes


class _MemoryWatch:
    """Looks at the memory of this process a hundred times a second. Of a GPU torch tells the most since the last look.
    ``failed``: why it stopped looking.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self.failed = ""
        self._seen: list[tuple[int, float, float]] = []  # time, GiB, the most since the last look
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory watch", daemon=True)

    def __enter__(self) -> _MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        try:
            while not self._end.wait(MEMORY_SECONDS):
                most = _most_gib_used(self._device)
                now = _gib_used(self._device, synchronised=False)
                self._seen.append((time.monotonic_ns(), now, max(now, most)))
        except Exception as error:  # in a thread of its own it would end there, and the peaks would be those until then
            self._seen.clear()
            said = str(error).splitlines()[0] if str(error) else "it said nothing"
            self.failed = f"peaks of memory not measured, {type(error).__name__}: {said}"

    def peaks(self, timeline: Timeline) -> dict[str, float]:
        """The most that each worker's work took above what was there before, GiB. Before is when that stretch of work
        began. What is shorter than a look is left out.
        """
        found: dict[str, float] = {}
        moved = sorted(span.end_ns for span in timeline.rows() if span.kind in (SpanKind.ONLOAD, SpanKind.OFFLOAD))
        for worker, start, end in _work(timeline):
            came = bisect.bisect(moved, start)
            since = moved[came - 1] if came else 0  # before it came there was less
            before = [now for at, now, _ in self._seen if since <= at <= start][-1:]
            inside = [most for at, _, most in self._seen if start <= at <= end]
            if inside:
                found[worker] = max(found.get(worker, 0.0), *(most - (before or inside)[0] for most in inside))
        return found


def _most_gib_used(device: str) -> float:
    """GiB of a GPU that torch had allocated at most since the last call. 0 elsewhere, and before anybody uses CUDA:
    torch would raise an error then.
    """
    name = torch_device([device])
    if not name.startswith("cuda"):
        return 0.0
    import torch

    if not torch.cuda.is_initialized():
        return 0.0
    most = float(torch.cuda.max_memory_allocated(name)) / 2**30
    torch.cuda.reset_peak_memory_stats(name)
    return most


def _work(timeline: Timeline) -> Iterator[tuple[str, int, int]]:
    for span in timeline.rows():
        if span.kind == SpanKind.RUN and span.track.worker != DRIVER:
            yield span.track.worker, span.start_ns, span.end_ns
