"""A profile with a budget of devices, as problems of the plan search.

A cell has a form: its members *together* on the same devices, time-sharing step by step, or *apart*. Who stays resident
while others use its devices is decided outside the search, by trying the sets that can matter (`arrangements`): it
frees the switch and takes memory from the others, which is no function of a part alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rlinf_lab.errors import PlanError, UnknownNameError, shown
from rlinf_lab.planning.placement.budget import DEFAULT_MICRO_BATCHES, Budget, Stage
from rlinf_lab.planning.placement.cost_table import Tables
from rlinf_lab.planning.placement.free_memory import APART, SINGLE, TOGETHER, Forms
from rlinf_lab.planning.placement.infeasible import Unplaceable, why_nowhere
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.handovers import is_closed
from rlinf_lab.planning.profile.profile import Profile
from rlinf_lab.planning.schema.arguments import MAX_DEVICES, MAX_MICRO_BATCHES, MAX_STALENESS, whole
from rlinf_lab.planning.schema.json_schema import known
from rlinf_lab.planning.search.problem import Problem, members, subsets

MAX_COUNTS = 20_000  # of devices of several kinds: pairs of (how many of each)
MAX_STAYING = 6  # of so many workers every set of those that stay is tried, of more only some sets


@dataclass(frozen=True)
class Arrangement:
    """What is decided beside the tree. It has ``staying`` stages (a mask), each stage's form, how what they keep is
    counted, and the ``seating`` (see `seating`).
    """

    staying: int
    forms: Forms
    seating: tuple[int, ...] = ()


@dataclass(frozen=True)
class Setting(Budget):
    """A budget with the seconds of every part in every co-location. And the problems that follow from them."""

    @classmethod
    def of(
        cls,
        profile: Profile,
        devices: int | Mapping[str, int],
        micro_batches: int = DEFAULT_MICRO_BATCHES,
        rule: str = "fitted",
        staleness: int = 0,
    ) -> Setting:
        """Checked. ``devices``: how many, or how many of each of the profile's kinds."""
        kinds = [k.name for k in profile.kinds]
        if not isinstance(devices, Mapping):
            devices = {kinds[0] if kinds else "": devices}
        if not devices:
            raise PlanError("devices is {}; give how many there are, or how many of each kind. Next: devices=8.")
        for name in devices:
            if not isinstance(name, str):
                example = {kinds[0]: 4} if kinds else 4
                raise PlanError(
                    f"devices has the kind {shown(name)}; kinds have names, which are texts. Next: devices={example!r}."
                )
        if not kinds and any(devices):
            together = min(max(1, sum(n for n in devices.values() if isinstance(n, int))), MAX_DEVICES)
            first = next(name for name in devices if name)
            raise UnknownNameError(
                f"Unknown kind of device {shown(first)}: profile.kinds has none. It stands in devices. Next: "
                f"devices={together}."
            )
        for name in devices if kinds else ():
            known("kind of device", name, kinds, "devices")
        counts = {
            name: whole(f"devices[{name!r}]" if name else "devices", n, 1, MAX_DEVICES, of="devices")
            for name, n in devices.items()
        }
        if math.prod(n + 1 for n in counts.values()) > MAX_COUNTS:
            raise PlanError(
                f"devices is {counts}: of several kinds, at most {MAX_COUNTS} combinations of counts are searched. "
                "Next: fewer devices or kinds."
            )
        micro_batches = whole("micro_batches", micro_batches, 1, MAX_MICRO_BATCHES, "1: the whole iteration at once")
        staleness = whole("staleness", staleness, 0, MAX_STALENESS, "iterations; 0 for synchronous training")
        setting = cls(profile, counts, micro_batches, rule, staleness)
        setting.check()
        return setting

    @cached_property
    def tables(self) -> Tables:
        """Seconds of a micro-batch."""
        return Tables(self)

    @cached_property
    def overlap(self) -> int:
        """Iterations that may be unfinished when one begins. They are as many as ``staleness`` allows, and none where
        everybody waits for a handover at the end of each.
        """
        return 0 if is_closed(self.profile) else self.staleness

    @cached_property
    def unceasing(self) -> int:
        """Stages (a mask) that nobody feeds. They never wait, and so give the devices that they have to nobody before
        their end.
        """
        return sum(1 << self.home[name] for name in self.sources if self.profile.workers[name].resource != "host")

    # --- problems of the search --------------------------------------------------------------------------
    def problem(self, arrangement: Arrangement) -> Problem:
        """The search's view of one arrangement."""
        on, off = zip(*map(self.switch_seconds, self.stages), strict=True)
        once = sum(1 << i for i, u in enumerate(self.stages) if self._streams(u))
        return Problem(
            tuple(u.name for u in self.stages), self.edges, self.counts, self.granularities,
            lambda stage, context: self.tables.of(stage, context, arrangement.forms),
            on, off, arrangement.staying & ~self._hosts, once, self.overlap,
            lambda stage, context: self.tables.streams(stage, context, arrangement.forms),
            self._apart(arrangement.forms), self.common_switches,
            self._minded(arrangement),
        )  # fmt: skip

    def switch_seconds(self, stage: Stage, other: Stage | None = None) -> tuple[float, float]:
        """For which a stage comes to its devices and leaves them. ``other`` goes or comes in its place; who works on
        the host does neither."""
        there = [w for m in stage.members if (w := self.profile.workers[m]).resource != "host"]
        known = {
            w.memory.shared_as for m in (other.members if other else ()) if memory.shares(w := self.profile.workers[m])
        }
        rest = [1 - memory.shared_part(w) if w.memory.shared_as in known else 1.0 for w in there]
        on, off = (
            [r * seconds for r, seconds in zip(rest, each, strict=True)]
            for each in ([w.onload_s for w in there], [w.offload_s for w in there])
        )
        return max(on, default=0.0), max(off, default=0.0)

    @cached_property
    def common_switches(self) -> dict[tuple[int, int], tuple[float, float]]:
        """By pair of stages that share weights, seconds of the first to come and leave. The other goes or comes then.
        """
        held = [
            {w.memory.shared_as for m in u.members if memory.shares(w := self.profile.workers[m])} for u in self.stages
        ]
        pairs = [(i, j) for i, j in itertools.permutations(range(len(held)), 2) if held[i] & held[j]]
        return {(i, j): self.switch_seconds(self.stages[i], self.stages[j]) for i, j in pairs}

    def _minded(self, arrangement: Arrangement) -> tuple[int, ...]:
        """For each stage the others that stay, if any of them may matter to it. They may make it slower or leave it too
        little memory: it was measured beside somebody, or has no room beside all of them, however much they keep.
        """
        staying, forms = arrangement.staying & ~self._hosts, arrangement.forms
        roomy = all(math.isinf(self.cap(kind)) for kind in self.kinds)
        found = []
        for i, stage in enumerate(self.stages):
            others = staying & ~(1 << i)
            measured = any(sample.beside for m in stage.members for sample in self.profile.workers[m].samples)
            found.append(others if measured or not (roomy or self._has_room(i, others, forms)) else 0)
        return tuple(found)

    def _has_room(self, stage: int, staying: int, forms: Forms) -> bool:
        """Whether it is as fast beside all of these, on however few devices, as alone."""
        careful = replace(forms, careful=True, meeting=None)
        same = np.array_equal(self.tables.of(stage, staying, careful), self.tables.of(stage, 0, forms))
        if not same or not self._streams(self.stages[stage]):
            return same
        there, alone = self.tables.streams(stage, staying, careful), self.tables.streams(stage, 0, forms)
        return all(np.array_equal(a, b) for a, b in zip(there, alone, strict=True))

    def _apart(self, forms: Forms) -> tuple[int, ...]:
        """For each stage those that may share no device with it. No worker of theirs may have a device in common with
        any of its own, on the same kind of device.
        """
        if not forms.apart:
            return ()
        masks = [0] * len(self.stages)
        for i, j in itertools.permutations(range(len(self.stages)), 2):
            if all(
                frozenset(pair) in forms.apart
                for pair in itertools.product(self.stages[i].members, self.stages[j].members)
            ):
                masks[i] |= 1 << j
        return tuple(masks)

    def arrangements(self) -> list[Arrangement]:
        """Those worth trying, the largest set of staying stages first. Each cell is tried together and apart."""
        found = []
        for some in itertools.product(*([TOGETHER, APART] if len(u.members) > 1 else [SINGLE] for u in self.stages)):
            forms = Forms(some)
            free: list[int] = []
            for staying in self._sets_that_stay():
                if any(staying & ~larger == 0 for larger in free):
                    continue  # a larger set stays at no cost to anybody
                found.append(Arrangement(staying, forms))
                if self.costs_nothing(staying, forms):
                    free.append(staying)
        return found

    @cached_property
    def optional_stays(self) -> int:
        """Stages that may stay or leave: leaving costs something and is possible."""
        return (
            sum(1 << i for i, u in enumerate(self.stages) if not self._must_stay(u) and self._switches(u))
            & ~self._hosts
        )

    def _sets_that_stay(self) -> list[int]:
        must = sum(1 << i for i, u in enumerate(self.stages) if self._must_stay(u)) & ~self._hosts
        optional = self.optional_stays
        if optional.bit_count() <= MAX_STAYING:
            some = [optional, *subsets(optional), 0] if optional else [0]
        else:
            some = [
                optional,
                *(optional & ~(1 << v) for v in members(optional)),
                *(1 << v for v in members(optional)),
                0,
            ]
        return sorted({must | s for s in some}, key=lambda s: (-s.bit_count(), s))

    def costs_nothing(self, staying: int, forms: Forms) -> bool:
        """Whether nobody is slower or short of memory beside all of them. However few devices they have."""
        careful = replace(forms, careful=True)
        return all(
            np.array_equal(self.tables.of(i, staying & ~(1 << i), careful), self.tables.of(i, 0, forms))
            for i in range(len(self.stages))
        )

    @cached_property
    def _hosts(self) -> int:
        return sum(
            1 << i
            for i, u in enumerate(self.stages)
            if all(self.profile.workers[m].resource == "host" for m in u.members)
        )

    def _must_stay(self, stage: Stage) -> bool:
        return any(not self.profile.workers[m].offloadable for m in stage.members)

    def _switches(self, stage: Stage) -> bool:
        return sum(self.switch_seconds(stage)) > 0

    def _streams(self, stage: Stage) -> bool:
        return any(self.profile.workers[m].kind == "generation" for m in stage.members) and len(stage.members) == 1

    # --- what cannot be placed at all ------------------------------------------------------------------------
    def check(self) -> None:
        """Raise `PlanError` naming the worker that fits nowhere. It says the limit and the nearest thing that works."""
        for i, stage in enumerate(self.stages):
            forms = [TOGETHER, APART] if len(stage.members) > 1 else [SINGLE]
            tried = [Forms(tuple(f if j == i else SINGLE for j in range(len(self.stages)))) for f in forms]
            if not any(np.isfinite(self.tables.of(i, 0, t)).any() for t in tried):
                raise Unplaceable(why_nowhere(self, stage), self.devices)
