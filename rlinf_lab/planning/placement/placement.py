"""From a plan tree to devices. A placement says which worker sits on which, as how many ranks, and whether everything
fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from rlinf_lab.planning.costs import CostEstimate
from rlinf_lab.planning.placement.calls import Calls
from rlinf_lab.planning.placement.device_ranges import order_of, starts
from rlinf_lab.planning.placement.free_memory import APART, Colocated
from rlinf_lab.planning.placement.search_space import Arrangement, Setting
from rlinf_lab.planning.profile import memory
from rlinf_lab.planning.profile.memory import ROUNDING
from rlinf_lab.planning.search.plan_tree import SPATIAL, Leaf, Tree, colocated, leaf_of, mode, shape
from rlinf_lab.planning.search.problem import Counts


@dataclass(frozen=True)
class Seat:
    """The seat of one worker: ``devices`` by their number (kind after kind). A run makes `Placement.number_of_calls` of
    the ``micro_batches``; ``sub_batches`` inside a cell.
    """

    worker: str
    devices: range
    ranks: int
    micro_batches: int
    sub_batches: int
    stays: bool


class Clash(NamedTuple):
    """Who has too little memory where."""

    worker: str
    device: int


@dataclass(frozen=True)
class Placement:
    """A plan of the search on numbered devices."""

    setting: Setting
    arrangement: Arrangement
    tree: Tree

    @cached_property
    def beside(self) -> dict[int, int]:
        """For each stage, the staying stages on its devices (a mask)."""
        return colocated(self.tree, self.arrangement.staying)

    @cached_property
    def seats(self) -> Mapping[str, Seat]:
        """By worker, in the profile's order."""
        found: dict[str, Seat] = {}
        choices = itertools.chain(self.arrangement.seating, itertools.repeat(0))
        self._seat(self.tree, (0,) * len(self.setting.counts), choices, found)
        return {name: found[name] for name in self.setting.profile.workers}

    @property
    def mode(self) -> str:
        """``temporal``, ``spatial``, ``hybrid``; ``alone`` for a flow of one worker. A cell whose members sit apart
        streams inside.
        """
        own = mode(self.tree)
        apart = APART in self.arrangement.forms.of
        return own if not apart or own == SPATIAL else SPATIAL if own == "alone" else "hybrid"

    @property
    def shape(self) -> str:
        """Who shares and who streams, as a text. `>` is one after another on the same devices, `|` at the same time,
        `+` a cell time-shared, step by step.
        """
        forms, stages = self.arrangement.forms, self.setting.stages
        return shape(
            self.tree, [f"({' | '.join(u.members)})" if forms[i] == APART else u.name for i, u in enumerate(stages)]
        )

    @cached_property
    def used(self) -> int:
        """How many devices somebody sits on."""
        return len({d for seat in self.seats.values() for d in seat.devices})

    @cached_property
    def _firsts(self) -> set[int]:
        """Devices from each of these up to the next are alike."""
        return {seat.devices.start for seat in self.seats.values()} | {0, *accumulate(self.setting.counts)}

    def misfit(self) -> str:
        """What does not fit on which device, or "" when everything does. Said of real places, not of the search's
        bounds.
        """
        clash = self.clash()
        return self._short(clash.worker, self.seats[clash.worker], clash.device) if clash else ""

    def clash(self) -> Clash | None:
        """The first worker that has too little memory on one of its devices."""
        for name, seat in self.seats.items():
            for device in sorted(self._firsts & set(seat.devices)):
                if self._gib(name, seat, device) > self.cap(device) + ROUNDING:
                    return Clash(name, device)
        return None

    @cached_property
    def meetings(self) -> frozenset[frozenset[str]]:
        """The sets of workers that have a device in common, for each device."""
        found = {frozenset(n for n, s in self.seats.items() if d in s.devices) for d in self._firsts}
        return frozenset(e for e in found if len(e) > 1)

    def all_fit_at_once(self) -> bool:
        """Whether everybody could stay on its devices all the time: then nobody is switched."""
        return all(
            self._gib(name, seat, device, all_stay=True) <= self.cap(device) + ROUNDING
            for name, seat in self.seats.items() for device in sorted(self._firsts & set(seat.devices))
        )  # fmt: skip

    def is_crowded(self, name: str) -> bool:
        """Whether somebody lacks memory to work where a leaving stage has not left."""
        seat, home = self.seats[name], self.setting.home
        for device in sorted(self._firsts & set(seat.devices)):
            leaving = {home[o] for o in self.kept_beside(name, device, all_stay=True) if not self.seats[o].stays}
            if any(self._gib(name, seat, device, there={stage}) > self.cap(device) + ROUNDING for stage in leaving):
                return True
        return False

    def gib(self, device: int) -> float:
        """The most memory that is used on a device at any time."""
        return max(
            [0.0, *(self._gib(name, seat, device) for name, seat in self.seats.items() if device in seat.devices)]
        )

    def cap(self, device: int) -> float:
        ends = list(accumulate(self.setting.counts))
        return self.setting.cap(self.setting.kinds[int(np.searchsorted(ends, device, side="right"))])

    def kind(self, seat: Seat) -> str:
        """The kind of device that a worker sits on. The first one for who takes none."""
        ends = list(accumulate(self.setting.counts))
        return self.setting.kinds[int(np.searchsorted(ends, seat.devices.start, side="right")) if seat.devices else 0]

    def calls(self, seat: Seat) -> Calls:
        """Calls that a run makes of a worker's micro-batches, in whole items or groups."""
        return self.setting.calls(seat.worker, seat.micro_batches, seat.ranks)

    def number_of_calls(self, seat: Seat) -> int:
        """Of an iteration, in a run."""
        return int(self.calls(seat).number) if seat.worker in self.setting.in_whole_calls else seat.micro_batches

    def at_once(self, seat: Seat) -> float:
        """Items of one call, over all its ranks. A generator's requests are all there from the start, however finely
        its responses leave.
        """
        if seat.worker in self.setting.in_whole_calls:
            return float(self.calls(seat).parts()[0])
        worker = self.setting.profile.workers[seat.worker]
        return (
            self.setting.profile.items / seat.sub_batches / (1 if worker.kind == "generation" else seat.micro_batches)
        )

    def estimate(self, stage: int) -> CostEstimate:
        """Seconds of one call of a stage's worker, with their range and origin. Where it sits; of a cell, of all its
        calls for a micro-batch."""
        setting, found = self.setting, {}
        for name in setting.stages[stage].members:
            seat = self.seats[name]
            kind = self.kind(seat)
            there, made = (
                setting.measured_on(name, kind),
                setting.models[name, kind].estimate(len(seat.devices), self.at_once(seat)),
            )
            found[name] = made if there == kind else made.by_speed(there)
        if len(found) == 1:
            return found.popitem()[1]
        calls = {n: e.times(setting.profile.workers[n].calls) for n, e in found.items()}
        apart = self.arrangement.forms[stage] == APART
        return setting.cell_model(stage).estimate(
            calls, next(self.seats[n].sub_batches for n in found) if apart else None
        )

    def member_seconds(self, name: str) -> float:
        """Seconds of a cell's member for one sub-batch of a micro-batch, all its calls."""
        stage, seat = self.setting.home[name], self.seats[name]
        forms, leaf = self.arrangement.forms, leaf_of(self.tree, stage)
        mates = (name,) if forms[stage] == APART else self.setting.stages[stage].members
        row = self.setting.tables.member(
            name, seat.sub_batches, leaf.grain, Colocated(self.beside[stage], forms, mates)
        )
        firsts = [0, *accumulate(self.setting.counts)]
        counts = [
            len(range(max(seat.devices.start, a), min(seat.devices.stop, b))) for a, b in itertools.pairwise(firsts)
        ]
        return self.setting.cell(stage).calibration * float(row[int(np.ravel_multi_index(counts, self.setting.shape))])

    # --- seats -----------------------------------------------------------------------------------------------
    def _seat(self, tree: Tree, start: Counts, choices: Iterator[int], found: dict[str, Seat]) -> None:
        choice = next(choices)
        if isinstance(tree, Leaf):
            self._seat_stage(tree, start, choice, found)
            return
        for part, first in zip(tree.parts(), starts(tree, choice), strict=True):
            self._seat(part, tuple(s + n for s, n in zip(start, first, strict=True)), choices, found)

    def _seat_stage(self, leaf: Leaf, start: Counts, choice: int, found: dict[str, Seat]) -> None:
        stage, forms = self.setting.stages[leaf.worker], self.arrangement.forms
        stays = bool(self.arrangement.staying >> leaf.worker & 1)
        if forms[leaf.worker] != APART:
            for name in stage.members:
                found[name] = self._one(name, start, leaf.devices, leaf.grain, 1, stays)
            return
        split = self.setting.tables.split(leaf.worker, leaf.grain, self.beside[leaf.worker], forms)
        code = int(np.ravel_multi_index(leaf.devices, self.setting.shape))
        for at in order_of(len(stage.members), choice):
            counts = tuple(int(n) for n in np.unravel_index(split.codes[at, code], self.setting.shape))
            found[stage.members[at]] = self._one(
                stage.members[at], start, counts, leaf.grain, int(split.sub_batches[code]), stays
            )
            start = tuple(s + n for s, n in zip(start, counts, strict=True))

    def _one(self, name: str, start: Counts, counts: Counts, grain: int, sub_batches: int, stays: bool) -> Seat:
        worker = self.setting.profile.workers[name]
        if worker.resource == "host":
            return Seat(name, range(0), 1, 2**grain, sub_batches, True)
        axis = int(np.argmax(counts))  # a worker sits on devices of one kind
        first = sum(self.setting.counts[:axis]) + start[axis]
        ranks = counts[axis] // worker.ranks.devices_per_rank
        return Seat(name, range(first, first + counts[axis]), ranks, 2**grain, sub_batches, stays)

    # --- memory ----------------------------------------------------------------------------------------------
    def missing(self, clash: Clash) -> float:
        """GiB."""
        return self._gib(clash.worker, self.seats[clash.worker], clash.device) - self.cap(clash.device)

    def counted_twice(self, names: Iterable[str]) -> float:
        """GiB of weights that several of these hold on a device."""
        return memory.counted_twice(self.setting.profile.workers[n] for n in names)

    def kept_beside(
        self, name: str, device: int, all_stay: bool = False, there: Collection[int] = ()
    ) -> dict[str, float]:
        """GiB that each of those of other stages that stay keeps on a device. ``all_stay``: if nobody left it;
        ``there``: stages that have not left it.
        """
        home, profile = self.setting.home, self.setting.profile
        mates = self.setting.stages[home[name]].members
        return {
            other: float(memory.kept(profile.workers[other], np.array([len(seat.devices)]), profile.items)[0])
            for other, seat in self.seats.items()
            if other not in mates and device in seat.devices and (seat.stays or all_stay or home[other] in there)
        }

    def mates_on(self, name: str, device: int) -> list[str]:
        """The other members of its cell that sit on a device, too."""
        return [
            m
            for m in self.setting.stages[self.setting.home[name]].members
            if m != name and device in self.seats[m].devices
        ]

    def _gib(self, name: str, seat: Seat, device: int, all_stay: bool = False, there: Collection[int] = ()) -> float:
        """GiB on a device while this worker works there. ``all_stay``: if nobody left it; ``there``: stages that have
        not left it.
        """
        profile, on = self.setting.profile, np.array([len(seat.devices)])
        worker = profile.workers[name]
        at_once = profile.items / seat.micro_batches / (1 if worker.kind == "simulator" else seat.sub_batches)
        beside, mates = self.kept_beside(name, device, all_stay, there), self.mates_on(name, device)
        total = float(memory.needed(worker, on, at_once, profile.group_size(name))[0]) + sum(beside.values())
        for mate in mates:
            total += float(
                memory.kept(
                    profile.workers[mate], np.array([len(self.seats[mate].devices)]), profile.items / seat.micro_batches
                )[0]
            )
        return total - self.counted_twice([name, *mates, *beside])

    def _short(self, name: str, seat: Seat, device: int) -> str:
        others = [o for o, s in self.seats.items() if o != name and s.stays and device in s.devices]
        beside = f" beside {', '.join(others)}" if others else ""
        return (
            f"{name} needs {self._gib(name, seat, device):.3g} GiB on device {device}{beside}, {self.cap(device):g} "
            "are there"
        )
