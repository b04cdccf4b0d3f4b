"""What the workflow that shall run says of its workers, whatever a profile says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from rlinf_lab.errors import PlanError
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile
from rlinf_lab.workflow.graph import DRIVER, Call, WorkflowGraph

ROUNDING = 1e-9


class Split(NamedTuple):
    """A worker that takes items and puts groups of them. It takes those of ``source`` (``taken``: in groups of so many)
    and puts them into ``target`` in groups of ``group``, all of one by one rank.

    ``sure``: several ranks would each have a part of a group, for they take batches as they come, and one item in makes
    one out. Else nobody knows but the run. ``declared``: whether the profile says how many items come and go.
    ``shares``: so many groups are handed out at once, in equal shares; 0 where items come in batches.
    """

    worker: str
    source: str
    target: str
    taken: int
    group: int
    sure: bool
    declared: bool
    shares: int = 0

    def __str__(self) -> str:
        if not self.sure:
            return (
                f"{self.worker!r} puts groups of {self.group} into {self.target!r}, from several ranks: whether what "
                f"each gets of {self.source!r} is whole "
                f"groups is in its code, and a run ends with an error that names the group where it is not"
                + (
                    f" (the number of ranks divides the {self.shares} groups, so that equal shares can be whole)"
                    if self.shares
                    else ""
                )
            )
        taken = "items" if self.taken == 1 else f"groups of {self.taken}"
        return (
            f"{self.worker!r} has one rank: it takes {taken} of {self.source!r} in batches as they come and puts as "
            f"many items into {self.target!r}, in groups "
            f"of {self.group}, of which several ranks would each have a part"
        )

    @property
    def advice(self) -> str:
        if not self.sure:
            return f"nothing, where the items of a group come together; else let {self.worker!r} have one rank"
        counts = (
            ""
            if self.declared
            else ", or, where one item of it makes a whole group, say in the profile how many pass there ('items' of "
            "its edge)"
        )
        return f"declare channel {self.source!r} with group={self.group}{counts}"


def of_flow(profile: Profile, graph: WorkflowGraph) -> Profile:
    """The profile as a flow's calls take devices and split groups. With who takes its devices before its input is
    there, and one rank for who would split groups. `PlanError` where it may not have one."""
    for name, worker in profile.workers.items():
        early = begins_at_once(graph, name)
        if early != worker.starts_on_device:
            profile = profile.with_worker(name, starts_on_device=early)
    for split in splits(profile, graph):
        if not split.sure:
            profile = _in_equal_shares(profile, split)
            continue
        worker = profile.workers[split.worker]
        one = worker.ranks.devices_per_rank
        if worker.resource == "host":
            continue  # one rank anyway
        if not worker.ranks.allows(one) or worker.devices not in (None, one):
            pinned = (
                f"profile.workers.{split.worker}.devices is {worker.devices}"
                if worker.devices not in (None, one)
                else f"its ranks are {worker.ranks}"
            )
            raise PlanError(f"{split}, but {pinned}. Next: {split.advice}; or let it have one rank.")
        profile = profile.with_worker(split.worker, ranks=dataclasses.replace(worker.ranks, counts=(1,)))
    return profile


def begins_at_once(graph: WorkflowGraph, worker: str) -> bool:
    """Whether a worker that is fed computes before its first get. In any of its calls that read."""
    return any(step.call.starts_on_device for step in graph.program if step.worker == worker and step.call.reads)


def splits(profile: Profile, graph: WorkflowGraph) -> list[Split]:
    """The first of each worker, those that are sure before others."""
    found: dict[str, Split] = {}
    for split in sorted(_splits(profile, graph), key=lambda s: not s.sure):
        found.setdefault(split.worker, split)
    return list(found.values())


def _splits(profile: Profile, graph: WorkflowGraph) -> Iterator[Split]:
    """The workers that take items and put groups of them. A profile does not count what the loop itself feeds, nor what
    comes from a worker's own cell: with it nothing is sure.
    """
    known = {(e.producer, e.consumer): e for e in profile.edges}
    for step in graph.program:
        for target in step.call.writes:
            group = graph.channel(target).group
            fed = {c: _feeders(graph, c, step.worker) for c in step.call.reads}
            counted = {c: feeders for c, feeders in fed.items() if feeders}
            if group == 1 or not counted or graph.channel(target).gathered > 1:
                continue
            out = [known.get((step.worker, c)) for c in graph.consumers(target)]
            passing = max((_items(profile, e) for e in out), default=0.0)
            into = {c: [known.get((p, step.worker)) for p in feeders] for c, feeders in counted.items()}
            makes = {c: passing / sum(_items(profile, e) for e in edges) for c, edges in into.items()}
            if any(_has_whole(graph, c, group, makes[c]) for c in counted):
                continue
            sure = len(counted) == len(fed) and all(
                _is_one_by_one(graph, step.call, c, group, makes[c]) for c in counted
            )
            source = next(iter(counted))
            declared = any(e is not None and e.items is not None for e in (*out, *into[source]))
            shares = (
                round(passing / group)
                if len(fed) == 1 and graph.channel(source).whole and _is_whole(passing / group)
                else 0
            )
            yield Split(step.worker, source, target, graph.channel(source).group, group, sure, declared, shares)


def _in_equal_shares(profile: Profile, split: Split) -> Profile:
    """The profile with a number of ranks that each have a share of whole groups. It is unchanged where it says
    something of that number itself.
    """
    worker = profile.workers[split.worker]
    free = worker.devices is None and not worker.ranks.counts and not worker.ranks.divides
    if not split.shares or not free:
        return profile
    return profile.with_worker(split.worker, ranks=dataclasses.replace(worker.ranks, divides=split.shares))


def _has_whole(graph: WorkflowGraph, channel: str, group: int, makes: float) -> bool:
    """Whether what a rank gets at once is, or makes, whole groups. It is so of a key, of groups (of which some may be
    dropped), and of an item that makes so many.
    """
    spec = graph.channel(channel)
    return spec.keyed or spec.group % group == 0 or _is_whole(makes * spec.group / group)


def _is_one_by_one(graph: WorkflowGraph, call: Call, channel: str, group: int, makes: float) -> bool:
    """Whether a worker takes batches as they come and puts one item for each. It takes neither everything nor as many
    as it asks for. Other counts leave it open: where an item makes a group, and most of the groups are dropped, less
    than a group comes of each.
    """
    return channel in call.batched and not graph.channel(channel).whole and abs(makes - 1) <= ROUNDING


def _feeders(graph: WorkflowGraph, channel: str, worker: str) -> list[str]:
    """Who puts into a channel that a worker reads. The loop and members of its cell do not count."""
    return [
        p
        for p in graph.producers(channel)
        if p != DRIVER and not any(p in cell and worker in cell for cell in graph.cells)
    ]


def _items(profile: Profile, edge: EdgeProfile | None) -> float:
    return edge.items if edge is not None and edge.items is not None else profile.items


def _is_whole(groups: float) -> bool:
    """Whether what comes at once makes whole groups."""
    return round(groups) > 0 and abs(groups - round(groups)) <= ROUNDING * groups
