"""A profile with a budget of devices, as problems of the plan search.

A *unit* is what the search places as one: a worker, or the workers of a cycle (a cell). A cell has a form: its members *together* on the same
devices, taking turns step by step, or *apart*. Who stays resident while others use its devices is decided outside the search, by trying the
sets that can matter (`arrangements`): it frees the switch and takes memory from the others, which is no function of a part alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rlinf_lab.errors import ConfigError, PlanError
from rlinf_lab.planning.costs import CostModel, fit
from rlinf_lab.planning.profile import Cell, Profile
from rlinf_lab.planning.reading import known
from rlinf_lab.planning.refusals import refusal
from rlinf_lab.planning.search.problem import Counts, Problem, members, subsets
from rlinf_lab.planning.tables import APART, SINGLE, TOGETHER, Forms, Tables

CHUNKS = 64  # the finest granularity looked at unless told otherwise
STAYS = 6  # of so many workers every set of those that stay is tried, of more only some sets


@dataclass(frozen=True)
class Unit:
    """One worker, or the workers of a cell."""

    members: tuple[str, ...]

    @property
    def name(self) -> str:
        return "+".join(self.members)


@dataclass(frozen=True)
class Arrangement:
    """What is decided before the search: ``staying`` units (a mask), each unit's form, and how what they keep is counted."""

    staying: int
    forms: Forms


@dataclass(frozen=True)
class Setting:
    """``devices``: of each kind. ``chunks``: most chunks of an iteration. ``rule``: of `costs.fit`. ``staleness``: in iterations."""

    profile: Profile
    devices: Mapping[str, int]
    chunks: int = CHUNKS
    rule: str = "fitted"
    staleness: int = 0

    @classmethod
    def of(cls, profile: Profile, devices: int | Mapping[str, int], chunks: int = CHUNKS, rule: str = "fitted", staleness: int = 0) -> Setting:
        """Checked. ``devices``: how many, or how many of each of the profile's kinds."""
        kinds = [k.name for k in profile.kinds]
        if isinstance(devices, int):
            devices = {kinds[0] if kinds else "": devices}
        for name, count in devices.items():
            if name:
                known("kind of device", name, kinds, "devices")
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise PlanError(f"devices is {dict(devices)!r}; give a whole number of devices, at least 1.")
        if not isinstance(chunks, int) or chunks < 1:
            raise PlanError(f"chunks is {chunks!r}; give a whole number, at least 1 (the whole iteration at once).")
        if not isinstance(staleness, int) or staleness < 0:
            raise PlanError(f"staleness is {staleness!r}; give a whole number of iterations, 0 for synchronous training.")
        setting = cls(profile, dict(devices), chunks, rule, staleness)
        setting.check()
        return setting

    # --- who is placed ---------------------------------------------------------------------------------
    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """In an order in which producers come before consumers."""
        names = list(self.profile.workers)
        after = {n: {e.consumer for e in self.profile.edges if e.producer == n} for n in names}
        reach = {n: _reachable(n, after) for n in names}
        groups: list[tuple[str, ...]] = []
        for n in names:
            if not any(n in g for g in groups):
                groups.append(tuple(m for m in names if m == n or (m in reach[n] and n in reach[m])))
        groups.sort(key=lambda g: sum(g[0] in reach[other] for other in names if other not in g))
        return tuple(Unit(g) for g in groups)

    @cached_property
    def home(self) -> dict[str, int]:
        """Worker to the number of its unit."""
        return {m: i for i, unit in enumerate(self.units) for m in unit.members}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.devices)

    @cached_property
    def counts(self) -> Counts:
        return tuple(self.devices.values())

    @cached_property
    def granularities(self) -> int:
        return 1 + int(math.log2(min(self.chunks, self.profile.items)))

    @cached_property
    def edges(self) -> dict[tuple[int, int], int]:
        """Between units: the finest granularity at which items may cross."""
        found: dict[tuple[int, int], int] = {}
        for e in self.profile.edges:
            ends = self.home[e.producer], self.home[e.consumer]
            if ends[0] != ends[1]:
                finest = 0 if e.whole else min(self.granularities - 1, int(math.log2(self.profile.items / e.group)))
                found[ends] = min(found.get(ends, finest), finest)
        return found

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
        return {(name, kind): model for kind in self.kinds for name, model in fit(self._on_kind(kind), self.rule).items()}

    @cached_property
    def tables(self) -> Tables:
        """Seconds of a chunk."""
        return Tables(self)

    def group(self, worker: str) -> int:
        """The largest group in which a worker's outputs are needed together, by its consumers or theirs."""
        after = {n: {e.consumer for e in self.profile.edges if e.producer == n} for n in self.profile.workers}
        downstream = {worker} | _reachable(worker, after)
        return max((e.group for e in self.profile.edges if e.producer in downstream), default=1)

    def _on_kind(self, kind: str) -> Profile:
        """The profile with each worker's samples on a kind of device, or those on the first kind at the relative speed."""
        first = self.profile.kinds[0].name if self.profile.kinds else ""
        speeds = {k.name: k.speed for k in self.profile.kinds}
        workers = {}
        for name, worker in self.profile.workers.items():
            own = tuple(s for s in worker.samples if (s.kind or first) == kind)
            scaled = tuple(replace(s, seconds=s.seconds / speeds[kind]) for s in worker.samples if (s.kind or first) == first and kind != first)
            if not own and not scaled:
                raise ConfigError(f"profile.workers.{name}.samples has none on {kind!r} or on the first kind {first!r}. Next: measure it on one of them.")
            workers[name] = replace(worker, samples=own or scaled)
        return self.profile.replace(workers=workers)

    def cap(self, kind: str) -> float:
        """GiB of one device; inf when everything fits."""
        own = next((k.memory_gib for k in self.profile.kinds if k.name == kind), None)
        given = own if own is not None else self.profile.device_memory_gib
        return math.inf if given is None else given

    # --- problems of the search --------------------------------------------------------------------------
    def problem(self, arrangement: Arrangement) -> Problem:
        """The search's view of one arrangement."""
        on, off = ([max(getattr(self.profile.workers[m], f) for m in u.members) for u in self.units] for f in ("onload_s", "offload_s"))
        once = sum(1 << i for i, u in enumerate(self.units) if self._streams(u))
        return Problem(
            tuple(u.name for u in self.units), self.edges, self.counts, self.granularities,
            lambda unit, context: self.tables.of(unit, context, arrangement.forms),
            tuple(on), tuple(off), arrangement.staying & ~self._hosts, once, self.staleness,
            lambda unit, context: self.tables.streams(unit, context, arrangement.forms),
        )  # fmt: skip

    def arrangements(self) -> list[Arrangement]:
        """Those worth trying, the largest set of staying units first. Each cell is tried together and apart."""
        found = []
        for some in itertools.product(*([TOGETHER, APART] if len(u.members) > 1 else [SINGLE] for u in self.units)):
            forms = Forms(some)
            free: list[int] = []
            for staying in self._sets_that_stay():
                if any(staying & ~larger == 0 for larger in free):
                    continue  # a larger set stays at no cost to anybody
                found.append(Arrangement(staying, forms))
                if self._costs_nothing(staying, forms):
                    free.append(staying)
        return found

    @cached_property
    def optional_stays(self) -> int:
        """Units that may stay or leave: leaving costs something and is possible."""
        return sum(1 << i for i, u in enumerate(self.units) if not self._must_stay(u) and self._switches(u)) & ~self._hosts

    def _sets_that_stay(self) -> list[int]:
        must = sum(1 << i for i, u in enumerate(self.units) if self._must_stay(u)) & ~self._hosts
        optional = self.optional_stays
        if optional.bit_count() <= STAYS:
            some = [optional, *subsets(optional), 0] if optional else [0]
        else:
            some = [optional, *(optional & ~(1 << v) for v in members(optional)), *(1 << v for v in members(optional)), 0]
        return sorted({must | s for s in some}, key=lambda s: (-s.bit_count(), s))

    def _costs_nothing(self, staying: int, forms: Forms) -> bool:
        """Whether nobody is slower or short of memory beside all of them."""
        return all(
            np.array_equal(self.tables.of(i, staying & ~(1 << i), forms), self.tables.of(i, 0, forms)) for i in range(len(self.units))
        )  # fmt: skip

    @cached_property
    def _hosts(self) -> int:
        return sum(1 << i for i, u in enumerate(self.units) if all(self.profile.workers[m].resource == "host" for m in u.members))

    def _must_stay(self, unit: Unit) -> bool:
        return any(not self.profile.workers[m].offloadable for m in unit.members)

    def _switches(self, unit: Unit) -> bool:
        return any(self.profile.workers[m].onload_s + self.profile.workers[m].offload_s > 0 for m in unit.members)

    def _streams(self, unit: Unit) -> bool:
        return any(self.profile.workers[m].kind == "generation" for m in unit.members) and len(unit.members) == 1

    def cell(self, unit: int) -> Cell:
        """What the profile says about a cell, or the default."""
        names = self.units[unit].members
        return next((c for c in self.profile.cells if set(c.members) & set(names)), Cell(names))

    # --- what cannot be placed at all ------------------------------------------------------------------------
    def check(self) -> None:
        """Raise `PlanError` naming the worker that fits nowhere, its limit and the nearest thing that would work."""
        for i, unit in enumerate(self.units):
            forms = [TOGETHER, APART] if len(unit.members) > 1 else [SINGLE]
            tried = [Forms(tuple(f if j == i else SINGLE for j in range(len(self.units)))) for f in forms]
            if not any(np.isfinite(self.tables.of(i, 0, t)).any() for t in tried):
                raise PlanError(refusal(self, unit))


def _reachable(start: str, after: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    open_ = [start]
    while open_:
        for name in after[open_.pop()] - found:
            found.add(name)
            open_.append(name)
    return found
