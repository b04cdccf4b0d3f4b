"""What the workflow that shall run says of its workers, whatever a profile of them says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.profile import EdgeProfile, Profile
from rlinf_lab.workflow.graph import DRIVER, WorkflowGraph

ROUNDING = 1e-9


class Split(NamedTuple):
    """A worker that is fed by ``source``, items (or groups) each of which makes less than a group of what it puts into ``target``: on several ranks each
    would have a part of a group, and all of a group are put by one rank."""

    worker: str
    source: str
    target: str
    group: int

    def __str__(self) -> str:
        return (
            f"{self.worker!r} has one rank: it takes items of {self.source!r} one by one and puts groups of {self.group} into {self.target!r}, of which "
            f"several ranks would each have a part"
        )

    @property
    def advice(self) -> str:
        return (
            f"declare channel {self.source!r} with group={self.group}, or, where one item of it makes a whole group, say in the profile how many pass there "
            f"('items' of its edge)"
        )


def of_flow(profile: Profile, graph: WorkflowGraph) -> Profile:
    """The profile with who takes its devices before its input is there, and one rank for who would split groups. `PlanError` where it may not have one."""
    for name, worker in profile.workers.items():
        early = begins_at_once(graph, name)
        if early != worker.starts_on_device:
            profile = profile.with_worker(name, starts_on_device=early)
    for split in splits(profile, graph):
        worker = profile.workers[split.worker]
        one = worker.ranks.devices_per_rank
        if worker.resource == "host":
            continue  # one rank anyway
        if not worker.ranks.allows(one) or worker.devices not in (None, one):
            pinned = f"profile.workers.{split.worker}.devices is {worker.devices}" if worker.devices not in (None, one) else f"its ranks are {worker.ranks}"
            raise PlanError(f"{split}, but {pinned}. Next: {split.advice}; or let it have one rank.")
        profile = profile.with_worker(split.worker, ranks=dataclasses.replace(worker.ranks, counts=(1,)))
    return profile


def begins_at_once(graph: WorkflowGraph, worker: str) -> bool:
    """Whether a worker that is fed computes before its first get, in any of its calls that read."""
    return any(step.call.starts_on_device for step in graph.program if step.worker == worker and step.call.reads)


def splits(profile: Profile, graph: WorkflowGraph) -> list[Split]:
    """The first of each worker. What the loop itself feeds is not counted in a profile, so nothing is known of it."""
    found: dict[str, Split] = {}
    for split in _splits(profile, graph):
        found.setdefault(split.worker, split)
    return list(found.values())


def _splits(profile: Profile, graph: WorkflowGraph) -> Iterator[Split]:
    known = {(e.producer, e.consumer): e for e in profile.edges}
    for step in graph.program:
        for target in step.call.writes:
            group = graph.channel(target).group
            if group == 1:
                continue
            passing = max((_items(profile, known.get((step.worker, c))) for c in graph.consumers(target)), default=0.0)
            fed = [c for c in step.call.reads if _feeders(graph, c, step.worker)]
            makes = {c: passing / sum(_items(profile, known.get((p, step.worker))) for p in _feeders(graph, c, step.worker)) for c in fed}
            whole = [c for c in fed if _is_whole(makes[c] * graph.channel(c).group / group)]
            if fed and not whole:
                yield Split(step.worker, fed[0], target, group)


def _feeders(graph: WorkflowGraph, channel: str, worker: str) -> list[str]:
    """Who puts into a channel that a worker reads: neither the loop, nor members of its cell."""
    return [p for p in graph.producers(channel) if p != DRIVER and not any(p in cell and worker in cell for cell in graph.cells)]


def _items(profile: Profile, edge: EdgeProfile | None) -> float:
    return edge.items if edge is not None and edge.items is not None else profile.items


def _is_whole(groups: float) -> bool:
    """Whether what comes at once makes whole groups."""
    return groups > 0 and abs(groups - round(groups)) <= ROUNDING * groups and round(groups) >= 1
