"""A profile from finished runs of ours. `planning.fit.from_trace` makes one from a trace of another tool."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Mapping, Sequence

from rlinf_lab.errors import PlanError, shown
from rlinf_lab.planning.fit.own_batches import are_groups, asked_for
from rlinf_lab.planning.fit.run_record import switch_ns
from rlinf_lab.planning.fit.samples import Observed, giving_at_end, inputs, refilling, taking_all, together, within
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan, execution_in
from rlinf_lab.planning.profile.checks import MAX_SUB_BATCHES
from rlinf_lab.planning.profile.fingerprint import Fingerprint
from rlinf_lab.planning.profile.handovers import Values
from rlinf_lab.planning.profile.profile import (
    Cell,
    Handover,
    Lengths,
    Memory,
    Message,
    Profile,
    RankRule,
    Sample,
    WorkerProfile,
)
from rlinf_lab.planning.profile.reconcile import begins_at_once
from rlinf_lab.planning.schema.arguments import MAX_DEVICES, ranks_by_worker, whole
from rlinf_lab.planning.schema.json_schema import known, listing
from rlinf_lab.timeline.timeline import Timeline
from rlinf_lab.workflow.graph import DRIVER, Edge
from rlinf_lab.workflow.workflow import Workflow


def profile_from_run(
    flow: Workflow, plan: ExecutionPlan, timeline: Timeline, items: int | None = None,
    fingerprint: Fingerprint | None = None,
    ranks: Mapping[str, Sequence[int]] | None = None,
) -> Profile:  # fmt: skip
    """What workers of a finished run cost. It serves to ask what another plan would have done.

    ``items`` of an iteration (default: the most that pass a channel; environments cannot be seen, give their number).
    ``ranks``: for each worker that may have others than it had, the numbers that plans may give it, such as
    ``{"simulator": [1, 2, 4]}``. It knows one device count and the batch sizes of that run; ``lab.profile`` measures
    more. Memory is in the units of the plan, as GiB; who never left is taken to leave as fast as it came
    (`Profile.notes` says so).
    """
    plan = execution_in(plan)
    if not isinstance(flow, Workflow) or not isinstance(plan, ExecutionPlan) or not isinstance(timeline, Timeline):
        raise PlanError(
            f"profile_from_run({shown(flow)}, {shown(plan)}, {shown(timeline)}): a Workflow, the plan that it ran "
            "under, and the run's timeline. "
            f"Next: profile_from_run(flow, plan, run.timeline)."
        )
    if items is not None:
        whole("profile_from_run: items", items, 1, 10**9)
    allowed_ranks = ranks_by_worker("profile_from_run", ranks, flow.graph.workers, MAX_DEVICES)
    rules = {worker: RankRule(counts=tuple(sorted(set(counts)))) for worker, counts in allowed_ranks.items()}
    observed = Observed.of(flow.graph, plan, timeline)
    allowed = ", ".join(
        f"{w} {' or '.join(map(str, rules[w].counts))}" if w in rules else f"{w} {plan.ranks(w)}"
        for w in flow.graph.workers
    )
    other = f", or those that were asked for: {listing(list(rules))}" if rules else ""
    advice = f"ranks={{{flow.graph.workers[0]!r}: [1, 2]}} allows others"
    note = f"Fitted to one run: plans give every worker the ranks that it had{other} ({allowed}). Next: {advice}."
    switches, seen = _switches(observed, timeline)
    memory = {w: Memory(float(units)) for w, units in plan.memory.items()} if plan.device_memory is not None else {}
    if memory:
        held = listing([f"{w} {n}" for w, n in plan.memory.items()])
        seen.append(
            f"Memory is in units of the plan that was run, taken as GiB: a device has {plan.device_memory}; {held}. "
            f"Where those are no GiB, change device_memory_gib and profile.workers.NAME.memory."
        )
    return fitted(
        [observed], items, f"{flow.name}, run under {plan.name}", rules=rules, memory=memory, switches=switches,
        fingerprint=fingerprint,
        device_memory_gib=float(plan.device_memory) if memory and plan.device_memory else None, notes=(note, *seen),
    )  # fmt: skip


def _switches(run: Observed, timeline: Timeline) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """Seconds to (onload, offload) of those that did, and notes about the others that must."""
    found: dict[str, tuple[float, float]] = {}
    notes = []
    for worker, (on, off) in switch_ns(run.graph, timeline).items():
        if on is not None or off is not None:
            found[worker] = (
                1e-9 * ((on if on is not None else off) or 0),
                1e-9 * ((off if off is not None else on) or 0),
            )
        if off is None and run.plan.device_memory is not None and run.plan.memory.get(worker):
            notes.append(
                f"{worker!r} never left its devices in this run: it is taken to leave as fast as it came "
                f"({found.get(worker, (0.0,))[0]:.3g} s)."
            )
    return found, notes


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
    """One profile from several runs of one flow. ``generators``: workers that generate, with their longest response in
    tokens.
    """
    graph = runs[0].graph
    for field, names in {"ranks": rules, "generators": generators}.items():
        for worker in names or {}:
            known("worker", worker, graph.workers, field)
    passing = max(run.most_items() for run in runs)
    if items and items != passing and not graph.cells:  # environments cannot be seen on a channel
        notes = [
            *notes,
            f"An iteration counts {items} items, as asked; what passed was {passing}: one of these counts as "
            f"{items / passing:.3g}.",
        ]
    items = items or passing
    empty = [c.name for c in graph.channels if not any(run.items(c.name) for run in runs)]
    notes = [
        *notes,
        *(
            f"Nothing passed channel {name!r} in the iterations that were measured: what items of it cost is not known."
            for name in empty
        ),
    ]
    notes = [*notes, *_shared_channels(runs)]
    workers, taking, giving, refill = {}, taking_all(runs), giving_at_end(runs), refilling(runs)
    notes = [
        *notes,
        *(
            f"{worker!r} takes more while what it took before is in the making: all that it takes counts as one batch."
            for worker in sorted(refill)
        ),
    ]
    every = sum(run.iterations() for run in runs)
    for worker in graph.workers:
        seen = sum(run.iterations(worker) for run in runs)
        if seen < every:
            notes = [
                *notes,
                f"{worker!r} worked in {seen} of the {every} iterations that were measured: its seconds count in each "
                "with that share.",
            ]
        cell = next((c for c in graph.cells if worker in c), ())
        tokens = together(runs, cell) if cell else 1
        fed = [run for run in runs if run.was_fed(worker)] or runs  # whoever else reads the channel may have taken all
        each = [
            (run.samples(worker, items, takes_all=worker in taking | refill, tokens=tokens), run.peaks.get(worker))
            for run in fed
        ]
        # where a rank of the head takes its items one after another, several make fewer steps, and the profile has one
        # number of them
        if cell and tokens == 1:
            each = [
                ([s.scaled(run.cell(cell).steps / runs[0].cell(cell).steps) for s in some], peak)
                for run, (some, peak) in zip(fed, each, strict=True)
            ]
        samples = _merged([sample for some, peak in each for sample in _peaked(some, peak)])
        on, off = (switches or {}).get(worker, (0.0, 0.0))
        workers[worker] = WorkerProfile(
            samples, _kind(runs[0], worker, generators or {}),
            (max(1.0, runs[0].cell(cell).steps) if cell else 1.0) * seen / every,
            ranks=(rules or {}).get(worker, RankRule(counts=tuple(sorted({r.plan.ranks(worker) for r in runs})))),
            memory=(memory or {}).get(worker, Memory()), onload_s=on, offload_s=off,
            resource="host" if not runs[0].devices(worker) else "device",
            lengths=_lengths(worker, samples, items, generators or {}),
            in_turn=() if cell or worker in taking else runs[0].in_turn(worker),
            starts_on_device=begins_at_once(graph, worker),
        )  # fmt: skip
    notes = (
        [
            *notes,
            *_of_one_size({w: p for w, p in workers.items() if inputs(graph, w) or any(w in c for c in graph.cells)}),
        ]
        if len(runs) == 1
        else notes
    )
    values = Values.of(graph)
    notes = [*notes, *(f"Not counted in plans: {what}." for what in values.left_out)]
    cells, doubts = _cells(runs, items)
    asked, own = _own_batches(runs, items, workers, [w for w in graph.workers if w not in taking | refill])
    return Profile(
        items, workers, runs[0].edges(items, taking, giving, asked), name, handovers=_handovers(runs, values),
        device_memory_gib=device_memory_gib,
        weights="tokens" if generators else "equal", fingerprint=fingerprint, notes=(*notes, *doubts, *own),
        messages=tuple(messages), cells=cells,
    )  # fmt: skip


def _shared_channels(runs: Sequence[Observed]) -> list[str]:
    """A note on each channel that several workers share by their speed. Each takes what it is quick enough for."""
    graph, found = runs[0].graph, []
    for spec in graph.channels:
        readers = [w for w in dict.fromkeys(graph.consumers(spec.name)) if w != DRIVER]
        if len(readers) > 1 and not spec.keyed:
            found.append(
                f"Channel {spec.name!r} is read by {listing(readers)}: who is free takes the next items, so each one's "
                "share depends on the plan. Plans count "
                "each with the share that it had when it was measured, and may be off. Next: a channel for each of "
                "them, if its share is known."
            )
    return found


def _own_batches(
    runs: Sequence[Observed], items: int, workers: Mapping[str, WorkerProfile], names: Sequence[str]
) -> tuple[dict[str, int], list[str]]:
    """Who asks for how many items at a time, and what plans make of that."""
    found, notes = dict[str, int](), []
    for name in names:
        if (size := asked_for(runs, name)) > 1 and are_groups(runs, name, size, items, workers):
            found[name] = size
            notes.append(f"{name!r} asks for {size} items at a time: plans count them as groups, and send it no fewer.")
        elif size > 1:
            notes.append(
                f"{name!r} asks for {size} items at a time, whatever a plan's batches are: plans count it as if it "
                "began with each batch, so an iteration may "
                f"take longer than they say."
            )
    return found, notes


def _of_one_size(workers: Mapping[str, WorkerProfile]) -> list[str]:
    """A note on those whose batches had one size in the run that was seen. ``workers``: those that are
    given batches.
    """
    sizes = {name: {s.items for s in w.samples} for name, w in workers.items() if w.kind == "batch"}
    lone = [f"{name!r} ({size:g} item{'s' * (size != 1)})" for name, n in sizes.items() if len(n) == 1 for size in n]
    if not lone:
        return []
    return [
        f"Batches had one size: {listing(lone)}. What a batch takes by itself cannot be told from what its items take, "
        "so other batches count in proportion. "
        f"Next: lab.profile(flow) measures two sizes."
    ]


def _cells(runs: Sequence[Observed], items: int) -> tuple[tuple[Cell, ...], list[str]]:
    """Numbers of tokens of cells in which nothing is keyed, with notes. Their workers keep their tokens whatever a plan
    says; the notes tell what cannot be told of them.
    """
    found, notes = [], []
    for cell in runs[0].graph.cells:
        if not runs[0].cell(cell).is_counted:
            continue
        seen, head, who = runs[0].cell(cell).circulation, runs[0].cell(cell).head, listing(list(cell))
        tokens = together(runs, cell)
        if seen.doubt:
            notes.append(f"{head!r} begins the rounds of the cell {who}, in which no channel is keyed; {seen.doubt}.")
        elif (
            seen.waits and seen.tokens > 1 and (tokens == 1 or len(cell) > 2)
        ):  # of two, one waits while the other works
            batch = (
                "each batch has all of them"
                if tokens > 1
                else "not as many in each round and on each channel, so plans send them one by one"
            )
            notes.append(
                f"{head!r} puts {seen.tokens} items into the cell {who} and waits for all of them ({batch}): plans "
                "count that as one step, its members one "
                "after another; where they have devices of their own they may work at the same time, which plans "
                "leave out."
            )
        if tokens == 1 and (slow := _one_by_one(runs[0], cell)):
            notes.append(
                f"{head!r} has {runs[0].plan.ranks(head)} ranks, and {slow.consumer!r} took what they put into the "
                f"cell {who} in batches of "
                f"{runs[0].plan.micro_batches.get(slow.channel, 1)} ({slow.channel!r}): plans have it all at once. "
                "Next: a run of such a plan, or lab.profile."
            )
        alone = next((run.cell(cell).circulation.tokens for run in runs if run.plan.tokens(head) == 1), None)
        if alone == 1 and any(run.cell(cell).follows_plan for run in runs):
            continue  # it keeps as many as a plan says
        # also where one run cannot tell whose number that is
        own = seen.tokens if not seen.waits and seen.tokens <= min(items, MAX_SUB_BATCHES) else 1
        found.append(Cell(cell, (own,), tokens))
    return tuple(found), notes


def _one_by_one(run: Observed, cell: Sequence[str]) -> Edge | None:
    """A channel of a cell on which tokens of several ranks did not come together."""
    inside = (e for e in run.graph.edges if e.producer == run.cell(cell).head and e.consumer in cell)
    return next(
        (
            e
            for e in inside
            if run.plan.ranks(e.producer) // run.plan.ranks(e.consumer) > run.plan.micro_batches.get(e.channel, 1)
        ),
        None,
    )


def _handovers(runs: Sequence[Observed], values: Values) -> tuple[Handover, ...]:
    """Seconds of a middle iteration, as a mean of all where only some have them."""
    found, every = [], sum(run.iterations() for run in runs)
    for worker, method, after in values.handovers:
        took = [s for run in runs for s in run.handover_seconds(worker, method)]
        found.append(Handover(worker, method, statistics.median(took) * len(took) / every if took else 0.0, after))
    return tuple(found)


def _kind(run: Observed, worker: str, generators: Mapping[str, float]) -> str:
    """The keeper of a cell's tokens is flat in them like a simulator. Who generates is told by the user; all else is
    batches.
    """
    cell = next((c for c in run.graph.cells if worker in c), ())
    return "simulator" if cell and run.cell(cell).head == worker else "generation" if worker in generators else "batch"


def _lengths(worker: str, samples: Sequence[Sample], items: int, generators: Mapping[str, float]) -> Lengths | None:
    if worker not in generators:
        return None
    curve = next((s.outputs for s in samples if s.items == items and s.outputs), ())
    if not curve:
        raise PlanError(
            f"Generator {worker!r} put its outputs all at once, so their lengths cannot be seen. Next: put each one "
            "when it is finished."
        )
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
        seconds = statistics.median(s.seconds for s in same)
        merged.append(Sample(devices, items, seconds, beside, peak, within(outputs, seconds)))
    return tuple(merged)


def _peaked(samples: Sequence[Sample], gib: float | None) -> list[Sample]:
    """The peak of a run belongs to its largest calls."""
    largest = max((s.items for s in samples), default=0.0)
    return [s if gib is None or s.items < largest else dataclasses.replace(s, peak_gib=gib) for s in samples]
