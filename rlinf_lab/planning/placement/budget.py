"""A profile with a budget of devices. It says who is placed as one, on how many devices of which kind, in how fine
micro-batches, at what cost.

A *stage* is what the search places as one: a worker, or the workers of a cycle (a cell).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rlinf_lab.planning.costs import CellModel, CostModel, GenerationModel, fit
from rlinf_lab.planning.placement.calls import Calls
from rlinf_lab.planning.profile.profile import Cell, EdgeProfile, Profile, Sample
from rlinf_lab.planning.search.problem import Counts

SLIGHT_SHARE = 0.01  # of a source's seconds: a shorter lead is left out
DEFAULT_MICRO_BATCHES = 64  # the finest granularity looked at unless told otherwise


@dataclass(frozen=True)
class Stage:
    """One worker, or the workers of a cell."""

    members: tuple[str, ...]

    @property
    def name(self) -> str:
        return "+".join(self.members)


@dataclass(frozen=True)
class Budget:
    """``devices``: of each kind. ``micro_batches``: most micro-batches of an iteration. ``rule``: of `costs.fit`.
    ``staleness``: in iterations.
    """

    profile: Profile
    devices: Mapping[str, int]
    micro_batches: int = DEFAULT_MICRO_BATCHES
    rule: str = "fitted"
    staleness: int = 0

    # --- who is placed ---------------------------------------------------------------------------------
    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """In an order in which producers come before consumers."""
        names = list(self.profile.workers)
        after = {n: {e.consumer for e in self.profile.edges if e.producer == n} for n in names}
        reach = {n: _reachable(n, after) for n in names}
        groups: list[tuple[str, ...]] = []
        for n in names:
            if not any(n in g for g in groups):
                groups.append(tuple(m for m in names if m == n or (m in reach[n] and n in reach[m])))
        groups.sort(key=lambda g: sum(g[0] in reach[other] for other in names if other not in g))
        return tuple(Stage(g) for g in groups)

    @cached_property
    def home(self) -> dict[str, int]:
        """Worker to the number of its stage."""
        return {m: i for i, stage in enumerate(self.stages) for m in stage.members}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.devices)

    @cached_property
    def counts(self) -> Counts:
        return tuple(self.devices.values())

    @cached_property
    def granularities(self) -> int:
        return 1 + int(math.log2(min(self.micro_batches, self.profile.items)))

    @cached_property
    def edges(self) -> dict[tuple[int, int], int]:
        """Between stages: the finest granularity at which items may cross."""
        found: dict[tuple[int, int], int] = {}
        for e in self.profile.edges:
            ends = self.home[e.producer], self.home[e.consumer]
            if ends[0] != ends[1]:
                found[ends] = min(found.get(ends, self.granularities), self.finest(e))
        return found

    def finest(self, edge: EdgeProfile) -> int:
        """The finest granularity at which its items may cross."""
        return 0 if edge.at_end or self.whole(edge) else self._of_groups(edge.group)

    def _of_groups(self, group: int) -> int:
        """The finest granularity whose micro-batches are no smaller than a group."""
        return min(self.granularities - 1, int(math.log2(self.profile.items / group)))

    def whole(self, edge: EdgeProfile) -> bool:
        """Whether its consumer begins when everything of the iteration is there."""
        return edge.whole or self.begins_with_all(edge.consumer)

    @cached_property
    def handed_all(self) -> frozenset[int]:
        """Stages that are handed everything of an iteration at once, each rank its share. By a channel; and those that
        nobody feeds and that put everything at their end: one call, no micro-batches inside. Not who generates: its
        requests are all there from the start, and its memory does not hold them all."""
        crossing = [e for e in self.profile.edges if self.home[e.producer] != self.home[e.consumer]]
        found = {self.home[e.consumer] for e in crossing if e.whole and not e.value}
        sources = {self.home[e.producer] for e in crossing} - {self.home[e.consumer] for e in crossing}
        streaming = {self.home[e.producer] for e in crossing if not e.at_end and not e.value}
        found |= {self.home[e.producer] for e in crossing if e.at_end} & sources - streaming
        return frozenset(filter(self._has_calls, found))

    @cached_property
    def finest_call(self) -> tuple[int, ...]:
        """By stage, the finest granularity of its calls. Who is fed by groups gets whole ones, however fine the
        micro-batches in which its consumers take what it makes. Its granularity is the first that is as fine as the
        groups are: six groups come in six calls where eight micro-batches are asked for, and in three of two groups
        where four are (`calls`). Who generates is left out, for its calls are no micro-batches.
        """
        found = [0 if i in self.handed_all else self.granularities - 1 for i in range(len(self.stages))]
        for e in self.profile.edges:
            stage = self.home[e.consumer]
            if not e.value and self.home[e.producer] != stage and self._has_calls(stage):
                found[stage] = min(found[stage], max(0, math.ceil(math.log2(self.profile.items / e.group))))
        return tuple(found)

    def _has_calls(self, stage: int) -> bool:
        """Whether each micro-batch is a call of its own."""
        names = self.stages[stage].members
        return len(names) > 1 or self.profile.workers[names[0]].kind != "generation"

    @cached_property
    def in_whole_calls(self) -> frozenset[str]:
        """Workers whose calls a run makes of whole items or groups, by channel. They are fed, and no members of a cell,
        which goes on in steps.
        """
        fed = {e.consumer for e in self.profile.edges if not e.value and self.home[e.producer] != self.home[e.consumer]}
        return frozenset(
            n for n in fed if len(self.stages[self.home[n]].members) == 1 and self._has_calls(self.home[n])
        )

    @cached_property
    def sources(self) -> frozenset[str]:
        """Workers that nobody feeds, whose ranks make their shares by themselves. Batch work, each rank its share of an
        iteration; none is part of a cell, where each feeds another."""
        fed = {e.consumer for e in self.profile.edges}
        return frozenset(n for n, w in self.profile.workers.items() if n not in fed and w.kind == "batch")

    @cached_property
    def leads(self) -> dict[str, float]:
        """Of sources that stream, the part of their seconds before the first output begins. They read, or set up, and
        then go on evenly.
        """
        found = {
            name: _lead(self.profile.workers[name].samples, self.profile.items)
            for name in self.sources
            if self.home[name] not in self.handed_all
        }
        return {name: lead for name, lead in found.items() if lead > SLIGHT_SHARE}

    def calls(self, worker: str, micro_batches: float | np.ndarray, ranks: int | np.ndarray) -> Calls:
        """What a run makes of so many micro-batches of a worker."""
        return Calls.of(self.profile.items, micro_batches, ranks, self.profile.group_size(worker))

    def fewest_items(self, worker: str) -> float:
        """Of one call, over all ranks: with the finest micro-batches that it may have."""
        return self.profile.items / 2 ** self.finest_call[self.home[worker]]

    def begins_with_all(self, worker: str) -> bool:
        """Whether it is a generator whose lengths are known. What the lengths say holds when all requests are there
        from the start.
        """
        alone = len(self.stages[self.home[worker]].members) == 1
        return alone and isinstance(self.models[worker, self.kinds[0]], GenerationModel)

    @cached_property
    def shape(self) -> Counts:
        """Of an array with an entry for every number of devices of each kind."""
        return tuple(n + 1 for n in self.counts)

    @cached_property
    def totals(self) -> np.ndarray:
        """Devices of all kinds together, for each entry of such an array, flat."""
        return np.sum(np.indices(self.shape), axis=0).ravel()

    @cached_property
    def models(self) -> dict[tuple[str, str], CostModel]:
        """By worker and kind of device."""
        return {
            (name, kind): model for kind in self.kinds for name, model in fit(self._on_kind(kind), self.rule).items()
        }

    def group(self, worker: str) -> int:
        """The largest group in which a worker's outputs are needed together. By its consumers or theirs."""
        after = {n: {e.consumer for e in self.profile.edges if e.producer == n} for n in self.profile.workers}
        downstream = {worker} | _reachable(worker, after)
        return max((e.group for e in self.profile.edges if e.producer in downstream), default=1)

    def _on_kind(self, kind: str) -> Profile:
        """The profile with each worker's samples on a kind of device. Where there are none, they are those on the first
        kind that it was measured on, at the relative speed. Who works on the host is on no kind: as fast as measured.
        """
        if all(
            w.resource == "host" or self._kind_of(s) == kind for w in self.profile.workers.values() for s in w.samples
        ):
            return self.profile
        speeds = {k.name: k.speed for k in self.profile.kinds} or {"": 1.0}
        workers = {}
        for name, worker in self.profile.workers.items():
            if worker.resource == "host":
                workers[name] = worker
                continue
            there = self.measured_on(name, kind)
            samples = tuple(s.scaled(speeds[there] / speeds[kind]) for s in worker.samples if self._kind_of(s) == there)
            workers[name] = replace(worker, samples=samples)
        return self.profile.replace(workers=workers)

    def measured_on(self, worker: str, kind: str) -> str:
        """The kind of device whose samples tell a worker's seconds on ``kind``. It is that one, or the first that it
        was measured on; on the host ``kind``.
        """
        profile = self.profile.workers[worker]
        seen = {self._kind_of(s) for s in profile.samples}
        return (
            kind
            if profile.resource == "host" or kind in seen
            else next(k.name for k in self.profile.kinds if k.name in seen)
        )

    def _kind_of(self, sample: Sample) -> str:
        return sample.kind or (self.profile.kinds[0].name if self.profile.kinds else "")

    def cap(self, kind: str) -> float:
        """GiB of one device; inf when everything fits."""
        own = next((k.memory_gib for k in self.profile.kinds if k.name == kind), None)
        given = own if own is not None else self.profile.device_memory_gib
        return math.inf if given is None else given

    def cell(self, stage: int) -> Cell:
        """What the profile says about a cell, or the default."""
        names = self.stages[stage].members
        return next((c for c in self.profile.cells if set(c.members) & set(names)), Cell(names))

    def cell_model(self, stage: int) -> CellModel:
        """How the seconds of a cell's members make those of the cell."""
        return CellModel(self.cell(stage).calibration)


def _lead(samples: Sequence[Sample], items: float) -> float:
    """Of the largest call whose outputs were seen, as a part of its seconds."""
    seen = [s for s in samples if len(s.outputs) > 1 and s.seconds > 0]
    if not seen:
        return 0.0
    sample = max(seen, key=lambda s: -abs(s.items - items))
    (first, part), (last, _) = sample.outputs[0], sample.outputs[-1]
    even = (last - first) / (1 - part) if part < 1 else last  # seconds of all of them
    return min(1.0, max(0.0, first - even * part) / sample.seconds)


def _reachable(start: str, after: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    open_ = [start]
    while open_:
        for name in after[open_.pop()] - found:
            found.add(name)
            open_.append(name)
    return found
