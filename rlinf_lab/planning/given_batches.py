"""A plan by hand may cut what circulates in a cell into other batches than the search: what its members take in those."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rlinf_lab.planning.costs import fit_worker
from rlinf_lab.planning.execution import batch_of_tokens
from rlinf_lab.planning.plan import ExecutionPlan
from rlinf_lab.planning.profile import Profile, Sample, WorkerProfile
from rlinf_lab.planning.setting import Setting
from rlinf_lab.planning.steps import head
from rlinf_lab.workflow.graph import WorkflowGraph


def in_given_batches(setting: Setting, graph: WorkflowGraph, plan: ExecutionPlan) -> Profile:
    """The profile, in which a member of a cell takes for all items of a step what it takes for them in the batches of the plan."""
    profile = setting.profile
    changed = {name: _in_parts(setting, name, part) for name, part in _parts(setting, graph, plan)}
    return profile.replace(workers={**profile.workers, **changed}) if changed else profile


def _parts(setting: Setting, graph: WorkflowGraph, plan: ExecutionPlan) -> Iterator[tuple[str, float]]:
    """(worker, which part of the cell's items a batch of all its ranks is), of those that the search would give other batches."""
    for i, unit in enumerate(setting.units):
        tokens = setting.cell(i).tokens
        for name in unit.members if tokens > 1 else ():
            inside = [e for e in graph.edges if e.consumer == name and e.producer in unit.members and not e.keyed]
            if name == head(setting.profile, unit.members) or not inside:
                continue
            ranks = plan.ranks(name)
            found = batch_of_tokens(tokens, ranks, is_head=False)
            given = min(plan.chunks.get(e.channel, 0) or tokens for e in inside)
            if given < found:
                yield name, min(1.0, given * ranks / tokens)


def _in_parts(setting: Setting, name: str, part: float) -> WorkerProfile:
    """As if all items of a step took what they take in batches of a part of them, on each number of devices that was measured, beside whom it was."""
    worker, items = setting.profile.workers[name], float(setting.profile.items)
    groups: dict[tuple[str, tuple[str, ...]], list[Sample]] = {}
    for sample in worker.samples:
        groups.setdefault((sample.kind, sample.beside), []).append(sample)
    made = []
    for same in groups.values():
        model = fit_worker(replace(worker, samples=tuple(same)), setting.profile.unit(name))
        largest = {s.devices: s for s in sorted(same, key=lambda s: s.items)}  # its peak counts
        for devices, sample in largest.items():
            seconds = float(model.seconds(np.array([devices]), items * part)[0]) / part
            made.append(replace(sample, items=items, seconds=seconds, outputs=()))
    return replace(worker, samples=tuple(made))
