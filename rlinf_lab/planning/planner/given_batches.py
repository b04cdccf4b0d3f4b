"""The batches of a plan that somebody gives, in the search's numbers.

A plan by hand may cut what circulates in a cell into other batches than the search: what its members take in those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.costs import fit_worker
from rlinf_lab.planning.costs.base import ROUNDING
from rlinf_lab.planning.placement.cell_order import head
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.placement.to_execution_plan import batch_of_tokens
from rlinf_lab.planning.plan.execution_plan import ExecutionPlan
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile, Sample, WorkerProfile
from rlinf_lab.workflow.graph import Edge, WorkflowGraph


def in_given_batches(setting: Setting, graph: WorkflowGraph, plan: ExecutionPlan) -> Profile:
    """The profile, as members of cells work in the batches of the plan. One takes for all items of a step what it takes
    for them in these."""
    profile = setting.profile
    changed = {name: _in_parts(setting, name, part) for name, part in _parts(setting, graph, plan)}
    return profile.replace(workers={**profile.workers, **changed}) if changed else profile


def _parts(setting: Setting, graph: WorkflowGraph, plan: ExecutionPlan) -> Iterator[tuple[str, float]]:
    """(worker, part) of those that the search would give other batches. A batch of all ranks of the worker is that part
    of the cell's items.
    """
    for i, stage in enumerate(setting.stages):
        tokens = setting.cell(i).tokens
        for name in stage.members if tokens > 1 else ():
            inside = [e for e in graph.edges if e.consumer == name and e.producer in stage.members and not e.keyed]
            if name == head(setting.profile, stage.members) or not inside:
                continue
            ranks = plan.ranks(name)
            found = batch_of_tokens(tokens, ranks, is_head=False)
            given = min(plan.micro_batches.get(e.channel, 0) or tokens for e in inside)
            if given < found:
                yield name, min(1.0, given * ranks / tokens)


def _in_parts(setting: Setting, name: str, part: float) -> WorkerProfile:
    """A worker as if all items took what they take in batches of a part. Its samples are on each number of devices that
    was measured, beside whom it was.
    """
    worker, items = setting.profile.workers[name], float(setting.profile.items)
    groups: dict[tuple[str, tuple[str, ...]], list[Sample]] = {}
    for sample in worker.samples:
        groups.setdefault((sample.kind, sample.beside), []).append(sample)
    made = []
    for same in groups.values():
        model = fit_worker(replace(worker, samples=tuple(same)), setting.profile.group_size(name))
        largest = {s.devices: s for s in sorted(same, key=lambda s: s.items)}  # its peak counts
        for devices, sample in largest.items():
            seconds = float(model.seconds(np.array([devices]), items * part)[0]) / part
            made.append(replace(sample, items=items, seconds=seconds, outputs=()))
    return replace(worker, samples=tuple(made))


@dataclass(frozen=True)
class GivenBatches:
    """How many micro-batches of the search make the batches of a plan."""

    setting: Setting
    graph: WorkflowGraph
    plan: ExecutionPlan

    @cached_property
    def edges(self) -> dict[tuple[str, str], Edge]:
        """By producer and consumer."""
        return {(e.producer, e.consumer): e for e in self.graph.edges}

    def is_coarse(self) -> bool:
        """Whether no batch is finer than the micro-batches of the setting."""
        return all(
            self._micro_batch_at(e, self.setting.granularities - 1) <= max(1, c)
            for e in self.setting.profile.edges
            if (c := self.asked(e))
        )

    def asked(self, edge: EdgeProfile) -> int | None:
        """Items or groups of one batch of a rank of the consumer, 0 for everything. None where batches do not say into
        how many calls it divides its work.
        """
        setting, there = self.setting, self.edges.get((edge.producer, edge.consumer))
        if (
            setting.home[edge.producer] == setting.home[edge.consumer]
            or setting.begins_with_all(edge.consumer)
            or edge.value
            or there is None
        ):
            return None
        return self.plan.micro_batches.get(there.channel, 0) or (None if edge.whole else 0)

    def _micro_batch_at(self, edge: EdgeProfile, grain: int) -> int:
        """What the search's plans have there, as `to_execution_plan.micro_batch_between`."""
        part = 2.0**-grain
        if edge.consumer in self.setting.in_whole_calls:
            part = (
                float(self.setting.calls(edge.consumer, 2**grain, len(self.plan.placements[edge.consumer])).full)
                / self.setting.profile.items
            )
        return self._share(edge, part)

    def _share(self, edge: EdgeProfile, part: float = 1.0) -> int:
        """What each rank of the consumer has of a part of all."""
        items = self.setting.profile.items if edge.items is None else edge.items
        passing = items / self.edges[edge.producer, edge.consumer].group
        return max(1, math.ceil(passing * part / len(self.plan.placements[edge.consumer]) - ROUNDING))

    def grains(self, stage: int) -> list[int]:
        """The granularities g that make the calls that are asked for. An iteration's work is divided into 2^g
        micro-batches; who is handed nothing in batches has all granularities.
        """
        found: dict[EdgeProfile, list[int]] = {}
        for edge in self.setting.profile.edges:
            if self.setting.home[edge.consumer] == stage and (asked := self.asked(edge)) is not None:
                found[edge] = self._grains_of(edge, asked)
        common = (
            set.intersection(*map(set, found.values())) if found else set(range(self.setting.finest_call[stage] + 1))
        )
        if not common:
            calls = ", ".join(f"{2 ** grains[0]} of what {e.producer} makes" for e, grains in found.items())
            raise PlanError(
                f"Plan {self.plan.name!r}: the micro-batches of what {self.setting.stages[stage].name!r} takes make "
                f"different numbers of calls: {calls}. "
                f"Next: micro-batches that make as many of each."
            )
        return sorted(common)

    def _grains_of(self, edge: EdgeProfile, asked: int) -> list[int]:
        finest = self.setting.finest_call[self.setting.home[edge.consumer]]
        sizes = {g: self._micro_batch_at(edge, g) for g in range(finest + 1)}
        if not asked or asked >= self._share(edge):
            return [0]
        if asked not in sizes.values():
            near = sorted(sorted(set(sizes.values()), key=lambda n: abs(n - asked))[:2])
            raise PlanError(
                f"Plan {self.plan.name!r}: micro_batches[{self.edges[edge.producer, edge.consumer].channel!r}] is "
                f"{asked}; from a profile plans are simulated "
                f"in 1, 2, 4, ... micro-batches. Next: {' or '.join(map(str, near))}."
            )
        return [g for g, size in sizes.items() if size == asked]
